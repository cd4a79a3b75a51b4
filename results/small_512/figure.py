"""Draw docs/curve.png: the run of small_512, bits per character against text and time.

    python results/small_512/figure.py

Reads runs.jsonl.gz.
"""

from pathlib import Path

import matplotlib.pyplot as plt

from mlstm_jax import analysis

HERE = Path(__file__).parent
BZ2 = 2.709  # bits per character of bz2 -9 on the validation text


def main() -> None:
    """Draw it."""
    (run,) = [one for one in analysis.load_histories(HERE) if one.name == "muon"]
    figure, panels = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
    for axes, x in zip(panels, ("megabytes", "minutes"), strict=True):
        axes.plot(run.train[x], run.train.bpc, lw=1, label="training")
        axes.plot(run.evaluations[x], run.evaluations.bpc, "o", ms=5, label="validation")
        axes.axhline(BZ2, color="C7", ls=":", label="bz2 -9")
        axes.grid(alpha=0.3)
    panels[0].set(xlabel="MB of text read", ylabel="bits per character", ylim=(1.5, 3))
    panels[1].set(xlabel="minutes on one core")
    panels[0].legend()
    last = run.evaluations.iloc[-1]
    place = {"xytext": (0, 9), "textcoords": "offset points", "ha": "right"}
    panels[0].annotate(f"{last.bpc:.3f}", (last.megabytes, last.bpc), **place)
    title = f"512 units read 25 MB of reviews in {last.minutes:.0f} minutes on one core (Muon)"
    figure.suptitle(title)
    figure.savefig(HERE.parents[1] / "docs/curve.png", dpi=100)


if __name__ == "__main__":
    main()
