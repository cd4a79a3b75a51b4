"""Draw docs/few_labels.png, test accuracy by number of labels, and print the tables of the README.

    python results/few_labels/figure.py

Points are the means over the draws of table.csv, others.csv, other_programs.csv and sentiment.csv,
and bars their standard deviations.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

HERE = Path(__file__).parent
OURS, BOTH = "states and the pretrained classifier", "all three: the mean of both probabilities"
# Title, and the commonest class of the test texts in %: what no classifier should be below.
PANELS = {
    "IMDB": ("reviews of films (IMDB)", 50.0),
    "reviews": ("reviews of electronics\n(125 test texts)", 64.8),
    "tweets": ("VADER's tweets", 69.6),
    "authors": ("tweets of two authors", 54.3),
}
# Label, and a colour that the colour-blind tell apart (Okabe and Ito).
LINES = {
    OURS: ("reviews-1024", "#0072B2", "o-"),
    BOTH: ("reviews-1024 and TF-IDF", "#009E73", "s-"),
    "word counts": ("TF-IDF", "#D55E00", "^-"),
    "MiniLM": ("MiniLM", "#CC79A7", "D-"),
    "sentiment": ("sentiment", "black", "v-"),
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


def draw(axes: plt.Axes, rows: pd.DataFrame, commonest: float) -> None:
    """Draw the accuracies of one kind of text by number of labels."""
    axes.axhline(commonest, color="0.6", ls="--", lw=1, label="commonest class")
    none = rows[rows.classifier == "the pretrained classifier"]
    for mean in none["mean"]:
        axes.axhline(100 * mean, color="#0072B2", ls=":", label="reviews-1024, no label of yours")
    for number, (kind, (label, colour, style)) in enumerate(LINES.items()):
        some = rows[rows.classifier == kind]
        shifted = some.labels * (0.94 + 0.04 * number)  # so that bars stand side by side
        deviation = 100 * some["deviation"]
        axes.errorbar(
            shifted,
            100 * some["mean"],
            deviation,
            fmt=style,
            color=colour,
            ms=4,
            lw=1.3,
            elinewidth=0.8,
            label=label,
        )
    axes.set(xscale="log", xlim=(8, 1300), ylim=(45, 98), xlabel="labels")
    axes.set_xticks([10, 100, 1000], ["10", "100", "1,000"])
    axes.grid(alpha=0.3)


def print_sentiment(table: pd.DataFrame) -> None:
    """Print the accuracy of `transfer sentiment`, and of others with 200 labels or all 125."""
    for texts, title in ROWS.items():
        rows = table[table.texts == texts]
        ours = rows[rows.classifier == "sentiment"]
        if len(ours):
            shown = dict(zip(ours.labels, ours["mean"].map(percent), strict=True))
            others = rows[rows.labels == max(shown)].set_index("classifier")["mean"]
            kind = next(kind for kind in (OURS, "states") if kind in others)
            numbers = [shown.get(labels, "") for labels in (0, 20, 50, 100, 200)]
            numbers += [percent(others[one]) for one in (kind, "word counts", "MiniLM")]
            print("|", " | ".join([title, *numbers]), "|")


def main() -> None:
    """Draw and print."""
    files = ("table.csv", "others.csv", "other_programs.csv")
    ours = pd.read_csv(HERE / "sentiment.csv").assign(classifier="sentiment")
    table = pd.concat([pd.read_csv(HERE / name) for name in files] + [ours])
    figure, panels = plt.subplots(1, 4, figsize=(11, 3.9), layout="constrained", sharey=True)
    for axes, (texts, (title, commonest)) in zip(panels, PANELS.items(), strict=True):
        rows = table[(table.texts == texts) & (table.labels <= 1000)]
        draw(axes, rows, commonest)
        axes.set_title(title, fontsize=10)
    panels[0].set_ylabel("test accuracy, %")
    figure.suptitle(
        "Praise and blame: sentiment hardly needs labels; who wrote a tweet takes hundreds"
    )
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=7, fontsize=8)
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
            for labels in (100, 1000):
                shown = cells(rows[rows.labels == labels], ours)
                if shown:
                    print("|", " | ".join([name, f"{labels:,}", *shown]), "|")
    print_sentiment(table)


if __name__ == "__main__":
    main()
