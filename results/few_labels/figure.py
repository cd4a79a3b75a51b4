"""Draw docs/few_labels.png: test accuracy by number of labels.

    python results/few_labels/figure.py

Points are the means of table.csv and others.csv.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

HERE = Path(__file__).parent
PANELS = {
    "IMDB": "reviews of films (IMDB)",
    "reviews": "reviews of electronics",
    "tweets": "tweets",
    "authors": "tweets of two authors",
}
LINES = {
    "states and the classifier in the box": ("reviews-1024", "C0o-"),
    "all three: the mean of both probabilities": ("reviews-1024 and word counts", "C2s-"),
    "word counts": ("word counts (TF-IDF)", "C1^-"),
}

table = pd.concat([pd.read_csv(HERE / name) for name in ("table.csv", "others.csv")])
figure, panels = plt.subplots(1, 4, figsize=(11, 3.2), layout="constrained")
for axes, (texts, title) in zip(panels, PANELS.items(), strict=True):
    rows = table[(table.texts == texts) & (table.labels <= 1000)]
    for none in rows[rows.labels == 0]["mean"]:
        axes.axhline(100 * none, color="C0", ls=":", label="reviews-1024, no label")
    for kind, (label, style) in LINES.items():
        some = rows[rows.classifier == kind]
        axes.plot(some.labels, 100 * some["mean"], style, ms=4, label=label)
    axes.set(xscale="log", xlim=(8, 1300), ylim=(48, 97), title=title, xlabel="labels")
    axes.set_xticks([10, 100, 1000], ["10", "100", "1,000"])
    axes.grid(alpha=0.3)
panels[0].set_ylabel("test accuracy, %")
panels[1].legend(fontsize=7, loc="lower right")
figure.savefig(HERE.parents[1] / "docs/few_labels.png", dpi=100)
