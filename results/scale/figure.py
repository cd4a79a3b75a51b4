"""Draw docs/scale.png: loss against text and time, transfer accuracy against loss; with NVIDIA's.

    python results/scale/figure.py

Lines are the evaluations of the runs here and in reviews_1024; points.csv has the accuracies.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from mlstm_jax import analysis

SCALE = Path(__file__).parent
RESULTS = SCALE.parent
RUNS = {one.name: one for one in analysis.load_histories(SCALE, RESULTS / "reviews_1024")}
COLOURS = {128: "C2", 256: "C3", 512: "C0", 768: "C1", 1024: "C4"}
# The two parts of reviews-768 are one line.
TEXT = {
    128: ["98 MB/128"],
    256: ["98 MB/256"],
    512: ["98 MB/512"],
    768: ["reviews_768", "continued"],
    1024: ["reviews_1024"],
}
TIME = {256: "98 MB/256", 512: "98 MB/512", 768: "49 MB/768"}

points = pd.read_csv(SCALE / "points.csv")
theirs, ours = points[points.model == "NVIDIA"], points[points.model != "NVIDIA"]
figure, axes_2x2 = plt.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
(loss, time), panels = axes_2x2
for units, names in TEXT.items():
    megabytes, bpc, before = [], [], 0.0
    for name in names:
        scores = RUNS[name].evaluations
        megabytes.append(scores["megabytes"].to_numpy() + before)
        bpc.append(scores["bpc"].to_numpy())
        before = megabytes[-1][-1]
    line = np.concatenate(megabytes), np.concatenate(bpc)
    loss.plot(*line, color=COLOURS[units], label=f"{units} units")
loss.plot(theirs.megabytes, theirs.bpc, "ks", ms=5, label="NVIDIA (Amazon, 40 GB)")
for one in theirs.itertuples():
    loss.annotate(f"{one.units} ", (one.megabytes, one.bpc), ha="right", va="center", fontsize=8)
loss.set(xscale="log", xlabel="megabytes read", ylabel="bits per character")
for units, name in TIME.items():
    run = RUNS[name]
    megabytes = run.evaluations["megabytes"]
    # From the speed of its steps: other work ran beside some of them.
    minutes = megabytes * 1e3 / run.train["kilobytes_per_second"].median() / 60
    label = f"{units} units, {megabytes.iloc[-1]:.0f} MB"
    time.plot(minutes, run.evaluations["bpc"], color=COLOURS[units], label=label)
time.set(xlabel="minutes on one CPU core", ylabel="bits per character", ylim=(None, 2.0))
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
for axes in (loss, time, panels[0]):
    axes.legend(fontsize=8)
for axes in axes_2x2.flat:
    axes.grid(alpha=0.3)
figure.savefig(RESULTS.parent / "docs/scale.png", dpi=100)
