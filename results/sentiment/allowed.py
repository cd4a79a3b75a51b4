"""What `sentiment` has right where neutral is allowed and the label is not neutral.

    python results/sentiment/allowed.py vaderSentiment-3.3.2.tar.gz

The archive, of PyPI, has the texts of Hutto and Gilbert 2014, of which those rated between -0.5 and
0.5 are left out, as for others.csv. It writes allowed.csv: of each set, and of the facts of
messages.csv, the share of right answers in %, without and with neutral, which is wrong here; in
int8 unless a row says fp32.
"""

import csv
import io
import sys
import tarfile
from pathlib import Path

import numpy as np

import mlstm_jax as mlstm

sys.path.insert(0, str(Path(__file__).parents[1] / "few_labels"))
import others

SETS = ("tweets", "electronics", "news")
CLASSES = ("negative", "positive")
Row = tuple[str, int, str, str]


def shares(name: str, model: mlstm.TrainedModel, rows: list[tuple[str, str]]) -> list[Row]:
    """The rows of the table for texts and their labels, without and with neutral."""
    answers = model.classify([text for text, _ in rows])
    labels = [label for _, label in rows]
    found = []
    for classes in (CLASSES, tuple(answers[0])):
        chosen = [max(classes, key=one.__getitem__) for one in answers]
        right = np.mean(np.array(chosen) == labels)
        found.append((name, len(rows), " ".join(classes), f"{100 * right:.1f}"))
    return found


def facts() -> list[Row]:
    """Of the facts of messages.csv, in fp32, as the card has them."""
    with Path(__file__).with_name("messages.csv").open(encoding="utf-8", newline="") as file:
        rows = [
            (row["text"], row["label"]) for row in csv.DictReader(file) if row["kind"] == "fact"
        ]
    return shares("facts (fp32)", mlstm.load("sentiment", reader="numpy"), rows)


def main(archive: str) -> None:
    """Read the sets, and write."""
    model = mlstm.load("sentiment", compute="int8", reader="numpy")
    with tarfile.open(archive) as package:
        inner = io.BytesIO(others.member(package, "hutto_ICWSM_2014.tar.gz"))
    found = []
    with tarfile.open(fileobj=inner) as data:
        for name in SETS:
            file = others.member(data, f"/{others.RATED[name]}_GroundTruth.txt")
            rows = others.rated(file.decode("utf-8", "replace").splitlines())
            found += shares(name, model, [(text, label) for _, label, text in rows])
    found += facts()
    with Path(__file__).with_suffix(".csv").open("w", encoding="utf-8", newline="") as table:
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(("texts", "count", "classes", "right, %"))
        writer.writerows(found)


if __name__ == "__main__":
    main(sys.argv[1])
