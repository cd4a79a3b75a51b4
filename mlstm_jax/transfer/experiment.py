"""The transfer experiment: how well a frozen model's state predicts a label, and by which units.

Puri et al. 2018, section VI, and Radford et al. 2017, figs. 2 and 3.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from mlstm_jax.options import SPLITS, FeatureState
from mlstm_jax.transfer import words
from mlstm_jax.transfer.classifier import Classifier, Examples, named, subset
from mlstm_jax.transfer.features import Column
from mlstm_jax.transfer.logistic import CS, best_fit, fit

TOP_UNITS = (1, 2, 5, 10, 50, 100)
_CURVE = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_DRAWS = 3  # random draws of examples for each point of the curve
_BINS = 40

PROGRESS = len(CS) + 2  # updates that `run` reports


class Context(NamedTuple):
    """What is known before an experiment; the fields of a `Result` of these names."""

    sources: list[str]
    notes: list[str]
    is_known: bool
    keeps_words: bool


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """The results of a transfer; accuracies are fractions.

    Attributes:
        classes: the names of the classes.
        texts: how many, of train, test and maybe valid.
        state: what the features are.
        features: how many.
        C: the chosen inverse strength of the penalty.
        train: accuracy on the training texts.
        valid: on the validation texts; cross-validated where there are none.
        test: on the test texts, from the features alone; see `accuracy`.
        majority: test accuracy of always predicting the most common class of train.
        pretrained: test accuracy of the model's own classifier, unchanged; None without one.
        has_prior: whether the model's own classifier, or a fit with its log-odds, was chosen.
        units: by the absolute value of their weight, the largest first.
        baseline: of TF-IDF, C and the accuracies of train, valid and test.
        counted: by TF-IDF.
        together: accuracy of features and words together, by part.
        word_weight: of the words in these; see `words.best_weight`.
        best_unit: the single unit that best separates the classes of train.
        best_unit_test: its test accuracy.
        top_units: test accuracy of the first k units, by k.
        confusion: test texts by true class (rows) and predicted class (columns).
        learning_curve: examples; mean, least and largest test accuracy.
        histogram: of the best unit in train: edges, and counts by class.
        sources: which records were used, by file.
        notes: on texts that are known; see `note_known` in sets.py.
        is_known: whether the model or its classifier has learned many of the texts.
        keeps_words: whether the classifier that is kept also reads words.
    """

    classes: list[str]
    texts: dict[str, int]
    state: FeatureState
    features: int
    C: float
    train: float
    valid: float
    test: float
    majority: float
    pretrained: float | None
    has_prior: bool
    units: list[Column]
    baseline: dict[str, float]
    counted: words.Counted
    together: dict[str, float]
    word_weight: float
    best_unit: Column
    best_unit_test: float
    top_units: dict[int, float]
    confusion: list[list[int]]
    learning_curve: list[dict[str, float]]
    histogram: dict[str, Any]
    sources: list[str]
    notes: list[str]
    is_known: bool
    keeps_words: bool

    @property
    def accuracy(self) -> float:
        """The test accuracy of the classifier that is kept."""
        return self.together["test"] if self.keeps_words else self.test

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95% confidence interval (Wilson 1927)."""
        return self._interval(self.accuracy)

    @property
    def is_chance(self) -> bool:
        """Whether no accuracy of test texts is clearly above the commonest class's."""
        best = max(self.test, self.baseline["test"], self.together["test"])
        return self._interval(best)[0] <= self.majority

    def _interval(self, accuracy: float) -> tuple[float, float]:
        from scipy.stats import binomtest

        count = self.texts["test"]
        bounds = binomtest(round(accuracy * count), count).proportion_ci(method="wilson")
        return float(bounds.low), float(bounds.high)

    def __repr__(self) -> str:
        low, high = self.interval
        texts = f"{self.texts['test']:,} texts"
        score = f"test accuracy {self.accuracy:.3f} ({low:.3f} to {high:.3f}, 95% of {texts})"
        return f"{score}; {named(self.classes)}; state {self.state}"


def fit_and_measure(
    examples: Mapping[str, Examples],
    classes: list[str],
    state: FeatureState,
    columns: list[Column],
    tfidf: words.Fit,
    prior: Classifier | None,
    context: Context,
    on_part: Callable[[int, str], None],
) -> tuple[Classifier, Result]:
    """Fit and measure; return the classifier that is kept, and the results.

    `on_part` is told how many parts of `PROGRESS` are done, and the name of the next.
    """
    from sklearn.metrics import confusion_matrix

    train = examples["train"]
    valid = examples.get("valid")
    test = examples["test"]

    def on_fit(count: int) -> None:
        on_part(count, f"C {count} of {len(CS)}")

    choice = best_fit(train, valid, classes, prior, CS, on_fit)
    chosen = choice.classifier
    on_part(len(CS), "the first units")
    by_units = _by_units(train, test, chosen, columns)
    on_part(len(CS) + 1, "learning curve")
    learning_curve = _learning_curve(train, valid, test, chosen, prior)
    pretrained = None
    if prior and len(classes) == 2:
        pretrained = fit(train, classes, 0.0, prior).score(test)
    predicted_N = chosen.probabilities(test.features).argmax(axis=1)
    commonest = int(np.bincount(train.labels).argmax())
    assert choice.held_out_NK is not None
    sizes = {name: len(part.labels) for name, part in examples.items()}
    baseline = {"C": tfidf.C, "valid": tfidf.accuracy}
    for name in ("train", "test"):
        by_words_N = tfidf.words.probabilities(examples[name].texts).argmax(axis=1)
        baseline[name] = float((by_words_N == examples[name].labels).mean())
    weight = words.best_weight(choice.held_out_NK, tfidf.held_out_NK, (valid or train).labels)
    both = chosen._replace(words=replace(tfidf.words, weight=weight))
    result = Result(
        classes=classes,
        texts=dict.fromkeys(SPLITS, 0) | sizes,
        state=state,
        features=train.features.shape[1],
        C=chosen.C,
        train=chosen.score(train),
        valid=choice.accuracy,
        test=chosen.score(test),
        majority=float((test.labels == commonest).mean()),
        pretrained=pretrained,
        has_prior=choice.has_prior,
        baseline=baseline,
        counted=tfidf.words.counted,
        together={name: both.score(part) for name, part in examples.items()},
        word_weight=weight,
        confusion=confusion_matrix(test.labels, predicted_N, labels=range(len(classes))).tolist(),
        learning_curve=learning_curve,
        **by_units,
        **context._asdict(),
    )
    return both if context.keeps_words else chosen, result


def _by_units(
    train: Examples, test: Examples, chosen: Classifier, columns: Sequence[Column]
) -> dict[str, Any]:
    """The fields of a result about single units."""

    def accuracy_of(units: list[int]) -> float:
        few = Examples(train.features[:, units], train.labels)
        # Few features need no shrinkage, so use the largest C.
        classifier = fit(few, chosen.classes, CS[-1])
        return classifier.score(Examples(test.features[:, units], test.labels))

    ranking = chosen.ranking.tolist()
    best = _best_unit(train)
    counts = [k for k in TOP_UNITS if k <= len(ranking)]
    return {
        "units": [columns[column] for column in ranking[: max(TOP_UNITS)]],
        "top_units": {k: accuracy_of(ranking[:k]) for k in counts},
        "best_unit": columns[best],
        "best_unit_test": accuracy_of([best]),
        "histogram": _histogram(train, best, chosen.classes),
    }


def _best_unit(train: Examples) -> int:
    """Return the unit whose class means differ most, relative to its spread within classes."""
    from sklearn.feature_selection import f_classif

    varies = np.flatnonzero(np.ptp(train.features, axis=0) > 0)
    if not len(varies):
        return 0
    # A unit that is constant within each class has an infinite score.
    with np.errstate(divide="ignore", invalid="ignore"):
        scores, _ = f_classif(train.features[:, varies].astype(np.float64), train.labels)
    return int(varies[np.argmax(np.nan_to_num(scores, posinf=np.inf))])


def _learning_curve(
    train: Examples,
    valid: Examples | None,
    test: Examples,
    chosen: Classifier,
    prior: Classifier | None,
) -> list[dict[str, float]]:
    """Return the test accuracy by number of examples, with the best C for each draw."""
    classes = chosen.classes
    total = len(train.labels)
    counts = [count for count in _CURVE if len(classes) <= count < total]
    curve = []
    for count in [*counts, total]:
        scores = []
        for seed in range(_DRAWS if count < total else 0):
            draw = subset(train, count, seed)
            scores.append(best_fit(draw, valid, classes, prior).classifier.score(test))
        scores = scores or [chosen.score(test)]
        ends = {"least": min(scores), "largest": max(scores)}
        curve.append({"examples": count, "mean": float(np.mean(scores)), **ends})
    return curve


def _histogram(train: Examples, unit: int, classes: list[str]) -> dict[str, Any]:
    values = train.features[:, unit]
    # A few outliers would squeeze all other values into one bin.
    low, high = np.percentile(values, [0.5, 99.5]).tolist()
    edges = np.linspace(low, high, _BINS + 1)
    inside = np.clip(values, low, high)
    counts = {}
    for label, name in enumerate(classes):
        count_of_bin, _ = np.histogram(inside[train.labels == label], edges)
        counts[name] = count_of_bin.tolist()
    return {"edges": edges.tolist(), "counts": counts}
