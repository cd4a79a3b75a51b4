"""Average the parameters of both parts of the training (Wortsman et al. 2022, section 3).

    python results/sentiment/merge.py FIRST/model.npz SECOND/model.npz OUT

OUT gets model.npz. The second part gains on negation and loses a little elsewhere; a share of the
first part's parameters returns most of what was lost (README.md).
"""

import sys
from pathlib import Path

import jax

import train

SHARE = 0.75  # of the second part


def main(first: Path, second: Path, out: Path) -> None:
    """Write the average of both means."""
    like = train.start()
    both = {"last": like, "mean": like}
    before = train.load(first, both)["mean"]
    after = train.load(second, both)["mean"]
    merged = jax.tree.map(lambda x, y: (1 - SHARE) * x + SHARE * y, before, after)
    out.mkdir(parents=True, exist_ok=True)
    train.save(out / "model.npz", {"last": merged, "mean": merged})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
