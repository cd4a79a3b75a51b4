"""Draw docs/scale.png: loss against text, and transfer accuracy against loss, of ours and NVIDIA's.

    python results/scale/figure.py

Lines are the evaluations of the runs in results/; points.csv has the accuracies.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from mlstm_jax import analysis

RESULTS = Path(__file__).parent.parent
RUNS = {
    "128 units": RESULTS / "batch_table_128/16/Muon, decay",
    "512 units": RESULTS / "transfer_512",
    "512 units, fast_512": RESULTS / "fast_512",
    "768 units, reviews-768": RESULTS / "reviews_768",
}
COLOURS = {128: "C2", 512: "C0", 768: "C1"}

points = pd.read_csv(Path(__file__).parent / "points.csv")
theirs, ours = points[points.model == "NVIDIA"], points[points.model != "NVIDIA"]
figure, (loss, *panels) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
for name, folder in RUNS.items():
    scores = analysis.read_history(folder, name).evaluations
    style = {"ls": ":" if "fast" in name else "-", "color": COLOURS[int(name.split()[0])]}
    loss.plot(scores["megabytes"], scores["bpc"], label=name, **style)
loss.plot(theirs.megabytes, theirs.bpc, "ks", ms=5, label="NVIDIA (Amazon, 40 GB)")
for one in theirs.itertuples():
    loss.annotate(f"{one.units} ", (one.megabytes, one.bpc), ha="right", va="center", fontsize=8)
loss.set(xscale="log", xlabel="megabytes read", ylabel="bits per character")
loss.legend(fontsize=8)
for axes, column in zip(panels, ("sst", "imdb"), strict=True):
    axes.plot(theirs.bpc, theirs[column], "ks-", ms=5, lw=0.8, label="NVIDIA, c")
    for one in theirs.itertuples():
        at = (one.bpc, getattr(one, column))
        axes.annotate(f" {one.units}", at, va="top", fontsize=8)
    for (units, state), some in ours.groupby(["units", "state"]):
        known = some.dropna(subset=[column]).sort_values("bpc")
        axes.plot(
            known.bpc,
            known[column],
            "o-",
            color=COLOURS[units],
            mfc=COLOURS[units] if state == "c" else "white",
            lw=0.8,
            label=f"{units} units, {'c' if state == 'c' else 'mean of h'}",
        )
    axes.set(xlabel="bits per character", ylabel=f"{column.upper()} test accuracy, %")
    axes.invert_xaxis()
panels[0].legend(fontsize=8)
for axes in (loss, *panels):
    axes.grid(alpha=0.3)
figure.savefig(RESULTS.parent / "docs/scale.png", dpi=100)
