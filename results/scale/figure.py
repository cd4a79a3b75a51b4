"""Draw docs/scale.png: our loss against text and time, and transfer accuracy against units.

    python results/scale/figure.py

Lines are the evaluations of the runs here and in reviews_1024; points.csv has the accuracies.
NVIDIA's models read another text, so they stand beside ours only in accuracy.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from mlstm_jax import analysis

SCALE = Path(__file__).parent
RESULTS = SCALE.parent
# Colours that the colour-blind tell apart (Okabe and Ito), by units.
COLOURS = {128: "#56B4E9", 256: "#D55E00", 512: "#0072B2", 768: "#E69F00", 1024: "#009E73"}
# The runs of a panel: units, name, label, and where it stands from the end of the line, in points.
TEXT = [
    (128, "98 MB/128", "128 units", (4, 0)),
    (256, "98 MB/256", "256", (4, 0)),
    (512, "98 MB/512", "512", (4, 0)),
    (1024, "reviews_1024", "1,024", (4, 0)),
]
TIME = [
    (256, "98 MB/256", "256 units, 98 MB", (-90, -12)),
    (512, "98 MB/512", "512 units, 98 MB", (-70, -16)),
    (768, "49 MB/768", "768 units, 49 MB", (-60, 40)),
]
# NVIDIA's runs and ours: a style and a label.
KINDS = {
    ("ours", "mean_h"): ("o-", "#0072B2", "ours, mean of h (98 to 1,625 MB read)"),
    ("ours", "c"): ("o--", "#0072B2", "ours, c (98 to 1,625 MB read)"),
    ("NVIDIA", "c"): ("s-", "black", "NVIDIA, c (40 GB)"),
}


def draw_loss(axes: plt.Axes, bpc: pd.Series, x: pd.Series, colour: str) -> dict[str, object]:
    """Draw a run's validation loss; return how to write at its end."""
    axes.plot(x, bpc, color=colour)
    place = {"xy": (x.iloc[-1], bpc.iloc[-1]), "textcoords": "offset points"}
    return place | {"va": "center", "color": colour}


def draw_accuracy(axes: plt.Axes, points: pd.DataFrame, column: str) -> None:
    """Draw test accuracy against units, of each model at its smallest loss."""
    for (who, state), (style, colour, label) in KINDS.items():
        some = points[(points.who == who) & (points.state == state)].dropna(subset=[column])
        best = some.sort_values("bpc").drop_duplicates("units").sort_values("units")
        axes.plot(best.units, best[column], style, color=colour, label=label)
    axes.set(xscale="log", xlabel="units", ylabel="test accuracy, %")
    axes.set_xticks([128, 256, 512, 1024, 4096, 8192], [128, 256, 512, "1,024", "4,096", "8,192"])
    axes.minorticks_off()


def main() -> None:
    """Draw the four panels."""
    histories = analysis.load_histories(SCALE, RESULTS / "reviews_1024")
    runs = {one.name: one for one in histories}
    points = pd.read_csv(SCALE / "points.csv")
    points["who"] = points.model.where(points.model == "NVIDIA", "ours")
    figure, ((loss, time), (sst, imdb)) = plt.subplots(
        2, 2, figsize=(11, 7.5), layout="constrained"
    )
    for units, name, label, shift in TEXT:
        scores = runs[name].evaluations
        end = draw_loss(loss, scores["bpc"], scores["megabytes"], COLOURS[units])
        loss.annotate(label, xytext=shift, **end)
    loss.set(xscale="log", xlim=(4, 5000), xlabel="MB of text read", ylabel="bits per character")
    loss.set_title("More text and more units lower the loss")
    for units, name, label, shift in TIME:
        scores = runs[name].evaluations
        # From the speed of its steps: other work ran beside some of them.
        rate = runs[name].train["kilobytes_per_second"].median()
        minutes = scores["megabytes"] * 1e3 / rate / 60
        end = draw_loss(time, scores["bpc"], minutes, COLOURS[units])
        time.annotate(label, xytext=shift, **end)
    time.set(xlim=(0, 75), ylim=(1.5, 2), xlabel="minutes on one core", ylabel="bits per character")
    time.set_title("An hour on one core: 512 and 768 units end together")
    draw_accuracy(sst, points, "sst")
    draw_accuracy(imdb, points, "imdb")
    sst.set_title("Sentences (SST), by units; larger ones read more")
    imdb.set_title("Reviews (IMDB), 20,000 of which ours read with stars")
    sst.legend(loc="lower right")
    for axes in (loss, time, sst, imdb):
        axes.grid(alpha=0.3)
    figure.savefig(RESULTS.parent / "docs/scale.png", dpi=100)


if __name__ == "__main__":
    main()
