"""Draw docs/few_labels.png, test accuracy by number of labels, and print the tables of the README.

    python results/few_labels/figure.py

Points are the means of table.csv, others.csv and other_programs.csv.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

HERE = Path(__file__).parent
OURS, BOTH = "states and the pretrained classifier", "all three: the mean of both probabilities"
PANELS = {
    "IMDB": "reviews of films (IMDB)",
    "reviews": "reviews of electronics",
    "tweets": "tweets",
    "authors": "tweets of two authors",
}
LINES = {
    OURS: ("reviews-1024", "C0o-"),
    BOTH: ("reviews-1024 and word counts", "C2s-"),
    "word counts": ("word counts (TF-IDF)", "C1^-"),
    "MiniLM": ("all-MiniLM-L6-v2", "C4D-"),
}
ROWS = {
    "IMDB": "reviews of IMDB",
    "films": "long reviews of films",
    "SST": "sentences about films, SST",
    "reviews": "whole reviews of electronics",
    "electronics": "sentences of these reviews",
    "tweets": "tweets",
    "news": "sentences of the news",
    "authors": "which of two authors wrote a tweet",
    "certainty": "sentences of Wikipedia: certain or not",
    "spam": "e-mails: spam or not",
    "topics": "news of eight topics",
}


def percent(share: float) -> str:
    """Return it in %; half a tenth is rounded up."""
    return f"{100 * share + 1e-6:.1f}"


def cells(rows: pd.DataFrame, ours: list[str]) -> list[str]:
    """Return the accuracies of the classifiers in %, the largest bold, without missing ones."""
    means = rows.set_index("classifier")["mean"]
    numbers = [percent(means[kind]) for kind in [*ours, "word counts", "MiniLM"] if kind in means]
    return [f"**{one}**" if one == max(numbers, key=float) else one for one in numbers]


def main() -> None:
    """Draw and print."""
    files = ("table.csv", "others.csv", "other_programs.csv")
    table = pd.concat([pd.read_csv(HERE / name) for name in files])
    figure, panels = plt.subplots(1, 4, figsize=(11, 3.2), layout="constrained")
    for axes, (texts, title) in zip(panels, PANELS.items(), strict=True):
        rows = table[(table.texts == texts) & (table.labels <= 1000)]
        none = rows[rows.classifier == "the pretrained classifier"]
        for mean in none["mean"]:
            axes.axhline(100 * mean, color="C0", ls=":", label="reviews-1024, no label")
        for kind, (label, style) in LINES.items():
            some = rows[rows.classifier == kind]
            axes.plot(some.labels, 100 * some["mean"], style, ms=4, label=label)
        axes.set(xscale="log", xlim=(8, 1300), ylim=(48, 97), title=title, xlabel="labels")
        axes.set_xticks([10, 100, 1000], ["10", "100", "1,000"])
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy, %")
    panels[1].legend(fontsize=7, loc="lower right")
    figure.savefig(HERE.parents[1] / "docs/few_labels.png", dpi=100)

    for texts, title in ROWS.items():
        rows = table[table.texts == texts]
        none = rows[rows.labels == 0].set_index("classifier")["mean"]
        zero = [
            percent(none[kind]) if kind in none else ""
            for kind in ("the pretrained classifier", "VADER")
        ]
        kinds = {title: [OURS, "states", BOTH]}
        if texts == "topics":
            kinds["the same, of our states the mean of h alone"] = [
                "the mean of h",
                "the mean of h and words: the mean of both probabilities",
            ]
        if any(zero):
            print("|", " | ".join([title, *zero]), "|")
        for name, ours in kinds.items():
            for labels in (20, 100, 1000):
                shown = cells(rows[rows.labels == labels], ours)
                if shown:
                    print("|", " | ".join([name, f"{labels:,}", *shown]), "|")


if __name__ == "__main__":
    main()
