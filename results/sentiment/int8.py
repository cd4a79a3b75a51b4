"""Compare `sentiment` in int8 with fp32: accuracy, equal answers, and CPU seconds, by NumPy.

    python results/sentiment/int8.py DATA

DATA has sst/, tweets/ and imdb/. The texts are SST's test sentences, SemEval's development tweets
and the reviews of IMDB that the model has not read. It writes int8.csv: of each set the accuracy of
positive against negative and, with neutral allowed, the mean recall of the classes that it has, in
%; the share of equal answers, with and without neutral; and of 1, 64 and 1,000 sentences of SST the
median CPU seconds of `classify`, least and most of five rounds, in each type.
"""

import csv
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import texts
from sklearn.metrics import accuracy_score, recall_score

import mlstm_jax as mlstm

CLASSES = ("negative", "positive")
TYPES = ("fp32", "int8")
COUNTS = (1, 64, 1000)
ROUNDS = 5


def read_sets(data: Path) -> dict[str, list[texts.Text]]:
    """Return the texts of each set."""
    imdb = texts.read_imdb(data / "imdb/train.jsonl.gz")
    return {
        "SST": texts.read_sentences(data / "sst/test_binary_sent.csv"),
        "SemEval": texts.read_tweets(data / "tweets/dev.tsv.gz"),
        "IMDB": [text._replace(text=text.text.replace("<br />", " ")) for text in imdb["test"]],
    }


def likeliest(found: list[dict[str, float]], classes: tuple[str, ...]) -> np.ndarray:
    """Return the likeliest of these classes, of each text."""
    return np.array([max(classes, key=one.__getitem__) for one in found])


def seconds(model: mlstm.TrainedModel, read: list[str]) -> float:
    """Return the CPU seconds of one call of `classify`."""
    start = time.process_time()
    model.classify(read)
    return time.process_time() - start


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def main(data: Path) -> None:
    """Measure, and write int8.csv."""
    models = {name: mlstm.load("sentiment", compute=name, reader="numpy") for name in TYPES}
    sets = read_sets(data)
    rows: list[tuple[object, ...]] = []
    for name, found in sets.items():
        read = [text.text for text in found]
        labels = np.array([text.label for text in found])
        has_class = np.isin(labels, CLASSES)
        of_two = {}
        of_three = {}
        for kind, model in models.items():
            shares = model.classify(read)
            of_two[kind] = likeliest(shares, CLASSES)
            of_three[kind] = likeliest(shares, tuple(shares[0]))
            right = accuracy_score(labels[has_class], of_two[kind][has_class])
            recall = recall_score(
                labels, of_three[kind], labels=np.unique(labels), average="macro", zero_division=0
            )
            rows.append((name, len(read), kind, "accuracy, two classes", percent(right)))
            rows.append((name, len(read), kind, "mean recall, neutral allowed", percent(recall)))
        for title, answers in (("two classes", of_two), ("neutral allowed", of_three)):
            same = np.mean(answers["fp32"] == answers["int8"])
            rows.append((name, len(read), "both", f"equal answers, {title}", percent(same)))
    sentences = [text.text for text in sets["SST"]]
    for count in COUNTS:
        measured: dict[str, list[float]] = {kind: [] for kind in TYPES}
        for _ in range(ROUNDS):
            for kind, model in models.items():
                measured[kind].append(seconds(model, sentences[:count]))
        for kind, values in measured.items():
            median = statistics.median(values)
            shown = f"{median:.3g} ({min(values):.3g} to {max(values):.3g})"
            rows.append(("SST", count, kind, "CPU s", shown))
    with Path(__file__).with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("texts", "count", "type", "measure", "value"))
        table.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
