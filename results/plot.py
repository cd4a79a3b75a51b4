"""Draw bits per character against bytes read: python results/plot.py RUN --out curve.png

Needs matplotlib, which training does not.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from mlstm_jax.training import metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="run folder, or a folder with its metrics.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="picture to write")
    parser.add_argument("--level", action="append", default=[], help="NAME=BPC, a line across")
    arguments = parser.parse_args()
    lines = metrics.read(arguments.run / "metrics.jsonl")

    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for kind, style in (("train", {"lw": 0.8, "alpha": 0.6}), ("eval", {"lw": 2, "marker": "o"})):
        chosen = [line for line in lines if line["kind"] == kind]
        x = [line["bytes_seen"] / 1e6 for line in chosen]
        label = "validation" if kind == "eval" else "training"
        axes.plot(x, [line["bpc"] for line in chosen], label=label, markersize=4, **style)
    for level in arguments.level:
        name, bpc = level.split("=")
        axes.axhline(float(bpc), ls="--", lw=1, color="gray")
        axes.annotate(
            f"{name} {bpc}", (1, float(bpc)), xycoords=("axes fraction", "data"),
            ha="right", va="bottom", fontsize=8,
        )  # fmt: skip
    axes.set(xlabel="megabytes read", ylabel="bits per character", ylim=(1.5, 4))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(arguments.out, dpi=130)


if __name__ == "__main__":
    main()
