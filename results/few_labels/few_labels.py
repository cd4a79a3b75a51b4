"""Measure classifiers of few labels, on sentences of SST and reviews of IMDB that are not read.

    python results/few_labels/few_labels.py results/few_labels/table.csv sst/ imdb/train.jsonl.gz
    python results/few_labels/few_labels.py results/few_labels/others.csv texts/*.jsonl
    python results/few_labels/few_labels.py results/few_labels/sentiment.csv sst/ \
        imdb/train.jsonl.gz texts/*.jsonl --model sentiment --labels 20 50 100 200 --no-words

Labels are drawn from SST's training part, or from the ninth of every ten of IMDB's labelled
reviews; the tests are SST's 1,821 sentences and every twentieth, 1,250. C is cross-validated on the
drawn labels. Five folds of IMDB's 5,000 reviews that `reviews-1024` has not read have a fixed C.
`others.py` writes other texts. `sentiment` has learned from the texts of SST and IMDB from which
labels are drawn, so it gets no rows of all labels.
"""

import argparse
import csv
import gzip
import json
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mlstm_jax as mlstm
from mlstm_jax import shipped
from mlstm_jax.transfer import classifier
from mlstm_jax.transfer.classifier import Classifier, Examples, load_classifier
from mlstm_jax.transfer.labels import codes
from mlstm_jax.transfer.logistic import best_fit

WORDS_CS = [1.0, 4.0, 16.0, 64.0]
STATES_CS = [1e-4, 3e-4, 1e-3, 3e-3]
COUNTS = (10, 20, 50, 100, 200, 500, 1000)
NAMES = ["negative", "positive"]

Part = tuple[Examples, list[str]]  # texts that are read, and as they are


def of_sst(folder: Path, part: str) -> tuple[list[str], list[str]]:
    """Return sentences and labels."""
    with (folder / f"{part}_binary_sent.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["sentence"] for row in rows], [NAMES[int(row["label"])] for row in rows]


def of_imdb(file: Path, number: int, every: int) -> tuple[list[str], list[str]]:
    """Return reviews from `number` on, one of so many, and their labels."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines][number::every]
    return [row["text"] for row in rows], [NAMES[int(row["label"])] for row in rows]


def of_lines(file: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Return the texts and labels of each part."""
    parts: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for values, value in zip(parts[row["part"]], (row["text"], row["label"]), strict=True):
            values.append(value)
    return parts


def words(C: float) -> Any:
    """Return the unfitted classifier of word counts."""
    counts = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    return make_pipeline(counts, LogisticRegression(C=C, max_iter=1000))


def states(C: float) -> Any:
    """Return the unfitted classifier of many labels, with an L2 penalty; `transfer` has L1."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=1000))


def of_few(
    own: Classifier,
    names: list[str],
    train: Examples,
    test: Examples,
    texts: list[str],
    tests: list[str],
    counts: Sequence[int],
    has_words: bool,
) -> Iterator[tuple[int, str, list[float]]]:
    """Yield the number of labels, the classifier, and the test accuracy of each draw."""
    others = train.features.shape[1] - own.weights_KD.shape[1]  # features that `own` does not read
    weights_D = np.concatenate([np.zeros(others), own.weights_KD[0]])
    prior = own._replace(weights_KD=weights_D[None], classes=NAMES) if len(names) == 2 else None
    kind = "states and the pretrained classifier" if prior else "states"
    mean_h = Examples(test.features[:, others:], test.labels)
    if names == NAMES:
        yield 0, "the pretrained classifier", [own.score(mean_h)]
    places = Examples(np.arange(len(texts), dtype=np.float32)[:, None], train.labels)
    for count in [n for n in counts if n <= len(texts)]:
        scores = defaultdict[str, list[float]](list)
        for seed in range(10 if count < 500 else 3):
            draw = classifier.subset(train, count, seed)
            fitted = {kind: (best_fit(draw, None, names, prior).classifier, test)}
            if names != NAMES and others:
                means = draw._replace(features=draw.features[:, others:])
                own_prior = prior and prior._replace(weights_KD=own.weights_KD)
                fitted["the mean of h"] = (
                    best_fit(means, None, names, own_prior).classifier,
                    mean_h,
                )
            for name, (one, part) in fitted.items():
                scores[name].append(one.score(part))
            if not has_words:
                continue
            drawn = [texts[int(n)] for n in classifier.subset(places, count, seed).features[:, 0]]
            folds = min(5, *np.bincount(draw.labels))
            by_words = words(4.0)
            if folds > 1:
                grid = {"logisticregression__C": WORDS_CS}
                fold = StratifiedKFold(folds, shuffle=True, random_state=0)
                by_words = GridSearchCV(by_words, grid, cv=fold)
            words_NK = by_words.fit(drawn, draw.labels).predict_proba(tests)
            shares = {"word counts": words_NK}
            for name, (one, part) in fitted.items():
                both = "all three" if name == kind else name + " and words"
                shares_NK = words_NK + one.probabilities(part.features)
                shares[both + ": the mean of both probabilities"] = shares_NK
            for name, of_NK in shares.items():
                scores[name].append(float((of_NK.argmax(axis=1) == test.labels).mean()))
        for name, reached in scores.items():
            yield count, name, reached


def of_all(
    parts: list[Part],
) -> Iterator[tuple[int, str, list[float]]]:
    """Yield as `of_few`, with all labels; C is chosen on validation texts."""
    (train, texts), (valid, valid_texts), (test, tests) = parts
    yes = np.zeros(len(tests))
    for name, make, Cs, inputs in (
        ("states", states, STATES_CS, [part.features for part, _ in parts]),
        ("word counts", words, WORDS_CS, [texts, valid_texts, tests]),
    ):
        fitted = [make(C).fit(inputs[0], train.labels) for C in Cs]
        best = max(fitted, key=lambda one: one.score(inputs[1], valid.labels))
        yield len(texts), name, [float(best.score(inputs[2], test.labels))]
        yes += best.predict_proba(inputs[2])[:, 1]
    both = float(((yes > 1) == test.labels).mean())
    yield len(texts), "states and words: the mean of both probabilities", [both]


def of_folds(
    parts: list[Part],
) -> Iterator[tuple[int, str, list[float]]]:
    """Yield as `of_few`, of five folds of all texts, each classified by the others' labels."""
    x = np.concatenate([part.features for part, _ in parts])
    y = np.concatenate([part.labels for part, _ in parts])
    texts = [text for _, some in parts for text in some]
    scores = defaultdict[str, list[float]](list)
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(x, y):
        fitted = words(16.0).fit([texts[n] for n in train], y[train])
        by_words = fitted.predict_proba([texts[n] for n in test])[:, 1]
        by_states = states(1e-3).fit(x[train], y[train]).predict_proba(x[test])[:, 1]
        both = (by_states + by_words) / 2
        for name, yes in (
            ("states", by_states),
            ("word counts", by_words),
            ("states and words: the mean of both probabilities", both),
        ):
            scores[name].append(float(((yes > 0.5) == y[test]).mean()))
    for name, reached in scores.items():
        yield len(y) * 4 // 5, name, reached


def main() -> None:
    """Write the table as it grows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--model", default="reviews-1024")
    parser.add_argument("--labels", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--no-words", action="store_true")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    model = mlstm.load(given.model, reader="jax")  # as `transfer` reads
    own = load_classifier(shipped.model(Path(given.model, "sentiment"))).between(NAMES)
    state = own.about.state if "+" in own.about.state else "c+mean_h"

    def examples(part: tuple[list[str], list[str]], names: list[str] = NAMES) -> Part:
        labels = codes(part[1], names)
        return Examples(model.encode(part[0], state=state), labels), part[0]

    with given.out.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("texts", "labels", "classifier", "draws", "mean", "deviation", "least"))

        def write(name: str, rows: Iterator[tuple[int, str, list[float]]]) -> None:
            for count, kind, reached in rows:
                numbers = np.mean(reached), np.std(reached), min(reached)
                table.writerow((name, count, kind, len(reached), *(f"{x:.4f}" for x in numbers)))
                file.flush()

        def write_few(name: str, names: list[str], train: Part, test: Part) -> None:
            how = given.labels, not given.no_words
            write(name, of_few(own, names, train[0], test[0], train[1], test[1], *how))

        has_all = given.model == "reviews-1024"
        for path in given.files:
            if path.is_dir():
                train = examples(of_sst(path, "train"))
                test = examples(of_sst(path, "test"))
                if has_all:
                    write("SST", of_all([train, examples(of_sst(path, "dev")), test]))
                write_few("SST", NAMES, train, test)
            elif path.suffix == ".gz":
                train = examples(of_imdb(path, 8, 10))
                test = examples(of_imdb(path, 9, 20))
                write_few("IMDB", NAMES, train, test)
                if has_all:
                    write("IMDB", of_folds([train, test, examples(of_imdb(path, 19, 20))]))
            else:
                parts = of_lines(path)
                names = sorted(set(parts["train"][1]))
                train, test = (examples(parts[part], names) for part in ("train", "test"))
                write_few(path.stem, names, train, test)


if __name__ == "__main__":
    main()
