"""What `sentiment` has right where neutral is allowed and the label is not neutral.

    python results/sentiment/allowed.py vaderSentiment-3.3.2.tar.gz

The archive, of PyPI, has the texts of Hutto and Gilbert 2014, of which those rated between -0.5 and
0.5 are left out, as for others.csv. It writes allowed.csv: of each set the share of right answers
in int8, in %, without and with neutral, which is wrong here.
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
            answers = model.classify([text for _, _, text in rows])
            labels = [label for _, label, _ in rows]
            for classes in (CLASSES, tuple(answers[0])):
                chosen = [max(classes, key=one.__getitem__) for one in answers]
                right = np.mean(np.array(chosen) == labels)
                found.append((name, len(rows), " ".join(classes), f"{100 * right:.1f}"))
    with Path(__file__).with_suffix(".csv").open("w", encoding="utf-8", newline="") as table:
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(("texts", "count", "classes", "right, %"))
        writer.writerows(found)


if __name__ == "__main__":
    main(sys.argv[1])
