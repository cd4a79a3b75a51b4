"""The transfer experiment: how well a frozen model's state predicts a label, and by which units.

Puri et al. 2018, section VI, and Radford et al. 2017, figs. 2 and 3: a classifier on all features
and on the first k units alone, accuracy against the number of labelled examples, the best unit's
values by class, and the baseline for comparison.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlstm_jax.transfer import baseline, classify
from mlstm_jax.transfer.baseline import Baseline
from mlstm_jax.transfer.classify import CS, Classifier, Examples
from mlstm_jax.transfer.features import State
from mlstm_jax.transfer.labels import Labelled

TOP_UNITS = (1, 2, 5, 10, 50, 100)
_CURVE = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_DRAWS = 3  # random draws of examples for each point of the curve
_BINS = 40

Texts = tuple[Labelled, Labelled | None, Labelled]

# How many progress updates `run` reports.
PARTS_OF_A_RUN = len(CS) + 3


@dataclass(frozen=True)
class Unit:
    """A feature, named as in `heatmap --layer L --unit U`."""

    layer: int
    unit: int

    def __str__(self) -> str:
        return f"unit {self.unit} of layer {self.layer}"


@dataclass(frozen=True)
class Result:
    """The results; accuracies are fractions."""

    classes: list[str]
    texts: dict[str, int]  # of train, valid and test
    state: State
    features: int
    C: float
    train: float
    valid: float  # cross-validated where there was no validation file
    test: float
    majority: float  # test accuracy of always predicting the most common class of train
    nonzero: int  # features with a nonzero weight after L1
    best_unit: Unit  # the single unit that best separates the classes of train
    best_unit_test: float  # its test accuracy
    units: list[Unit]  # by |weight|, the largest first
    top_units: dict[int, float]  # k → test accuracy of the first k of them
    confusion: list[list[int]]  # of the test texts: true class, predicted class
    # Number of examples, C, and mean, least and largest test accuracy.
    learning_curve: list[dict[str, float]]
    histogram: dict[str, Any]  # of the best unit in train: edges, and counts by class
    baseline: Baseline | None  # None: it cannot be fitted
    baseline_failure: str | None  # why it cannot be fitted


def run(
    train: Examples,
    valid: Examples | None,
    test: Examples,
    texts: Texts,
    classes: list[str],
    state: State,
    columns: list[Unit],
    on_part: Callable[[int, str], None] = lambda number, name: None,
) -> tuple[Classifier, Result]:
    """Fit and measure; return the classifier of all features and the results.

    Args:
        train, valid, test: features and classes; without valid, C is cross-validated.
        texts: the same texts, for the baseline.
        classes: their names.
        state: which state of the units the features are.
        columns: the unit of each feature.
        on_part: called with the number of parts done, of `PARTS_OF_A_RUN`, and the name of the
            next part.
    """
    fits = len(CS)
    chosen, valid_accuracy = classify.choose(
        train, valid, classes, lambda n: on_part(n, f"C {n} of {fits}")
    )
    units = chosen.ranking

    def accuracy_of(some: list[int]) -> float:
        few = classify.columns(train, some)
        # Few features need no shrinkage, so use the largest C.
        return classify.fit(few, classes, CS[-1]).accuracy(classify.columns(test, some))

    on_part(fits, "the first units")
    top = {k: accuracy_of(units[:k].tolist()) for k in TOP_UNITS if k <= len(units)}
    best = _best_unit(train)
    on_part(fits + 1, "accuracy by labelled examples")
    curve = _learning_curve(train, valid, test, chosen)
    on_part(fits + 2, "TF-IDF")
    tfidf, failure = baseline.measure(*texts)
    confusion = np.zeros((len(classes), len(classes)), int)
    np.add.at(confusion, (test.labels, chosen.predict(test.features)), 1)
    commonest = int(np.bincount(train.labels).argmax())
    sizes = {name: len(part.texts) if part else 0 for name, part in zip(PARTS, texts, strict=True)}
    result = Result(
        classes=classes,
        texts=sizes,
        state=state,
        features=train.features.shape[1],
        C=chosen.C,
        train=chosen.accuracy(train),
        valid=valid_accuracy,
        test=chosen.accuracy(test),
        majority=float((test.labels == commonest).mean()),
        nonzero=chosen.nonzero,
        best_unit=columns[best],
        best_unit_test=accuracy_of([best]),
        units=[columns[column] for column in units[: max(TOP_UNITS)]],
        top_units=top,
        confusion=confusion.tolist(),
        learning_curve=curve,
        histogram=_histogram(train, best, classes),
        baseline=tfidf,
        baseline_failure=failure,
    )
    return chosen, result


PARTS = ("train", "valid", "test")


def _best_unit(train: Examples) -> int:
    """Return the unit whose class means differ most, relative to its spread within classes."""
    from sklearn.feature_selection import f_classif

    varies = np.flatnonzero(np.ptp(train.features, axis=0) > 0)
    # A unit that is constant within each class has an infinite score.
    with np.errstate(divide="ignore", invalid="ignore"):
        scores, _ = f_classif(train.features[:, varies].astype(np.float64), train.labels)
    return int(varies[np.argmax(np.nan_to_num(scores, posinf=np.inf))]) if len(varies) else 0


def _learning_curve(
    train: Examples, valid: Examples | None, test: Examples, chosen: Classifier
) -> list[dict[str, float]]:
    """Return the test accuracy by number of examples, with the best C for each number."""
    classes, total = chosen.classes, len(train.labels)
    curve = []
    for count in [n for n in _CURVE if len(classes) <= n < total]:
        draws = [classify.subset(train, count, seed) for seed in range(_DRAWS)]
        C = classify.best_C(draws, valid, classes)
        scores = [classify.fit(draw, classes, C).accuracy(test) for draw in draws]
        curve.append(_point(count, C, scores))
    return [*curve, _point(total, chosen.C, [chosen.accuracy(test)])]


def _point(count: int, C: float, scores: list[float]) -> dict[str, float]:
    mean = float(np.mean(scores))
    return {
        "examples": count,
        "C": C,
        "mean": mean,
        "least": min(scores),
        "largest": max(scores),
    }


def _histogram(train: Examples, unit: int, classes: list[str]) -> dict[str, Any]:
    values = train.features[:, unit]
    # A few outliers would squeeze all other values into one bin.
    low, high = (float(edge) for edge in np.percentile(values, [0.5, 99.5]))
    edges = np.linspace(low, high, _BINS + 1)
    inside = np.clip(values, low, high)
    counts = {
        name: np.histogram(inside[train.labels == label], edges)[0].tolist()
        for label, name in enumerate(classes)
    }
    return {"edges": edges.tolist(), "counts": counts}
