"""Average the parameters of both parts of the training (Wortsman et al. 2022, section 3).

    python results/sentiment/merge.py OUT FIRST/model.npz SECOND/model.npz [FIRST SECOND ...]

OUT gets model.npz. The second part gains on negation and loses a little elsewhere; a share of the
first part's parameters returns most of what was lost (README.md). The pairs of several seeds are
averaged in equal shares.
"""

import sys
from pathlib import Path
from typing import Any

import jax

import train

SHARE = 0.75  # of the second part


def merged(first: Path, second: Path) -> Any:
    """Return the average of the mean parameters of two parts."""
    like = train.start()
    both = {"last": like, "mean": like}
    before = train.load(first, both)["mean"]
    after = train.load(second, both)["mean"]
    return jax.tree.map(lambda x, y: (1 - SHARE) * x + SHARE * y, before, after)


def main(out: Path, parts: list[Path]) -> None:
    """Write the average of all pairs."""
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    total = merged(*pairs[0])
    for first, second in pairs[1:]:
        total = jax.tree.map(lambda x, y: x + y, total, merged(first, second))
    mean = jax.tree.map(lambda x: x / len(pairs), total)
    out.mkdir(parents=True, exist_ok=True)
    train.save(out / "model.npz", {"last": mean, "mean": mean})


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
