"""The transfer experiment: how well a frozen model's state predicts a label, and by which units.

Puri et al. 2018, section VI, and Radford et al. 2017, figs. 2 and 3: a classifier on all features
and on the first k units alone, accuracy against the number of labelled examples, the best unit's
values by class, and the baseline for comparison.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mlstm_jax.transfer import words
from mlstm_jax.transfer.classifier import Classifier, Examples, named, subset
from mlstm_jax.transfer.features import Column
from mlstm_jax.transfer.logistic import CS, best_fit, fit
from mlstm_jax.transfer.states import FeatureState

TOP_UNITS = (1, 2, 5, 10, 50, 100)
_CURVE = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_DRAWS = 3  # random draws of examples for each point of the curve
_BINS = 40

PARTS = ("train", "valid", "test")
PROGRESS = len(CS) + 2  # updates that `run` reports


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """The results; accuracies are fractions."""

    classes: list[str]
    texts: dict[str, int]  # of train, test and maybe valid
    state: FeatureState
    features: int
    C: float
    train: float
    valid: float  # cross-validated where there was no validation file
    test: float
    majority: float  # test accuracy of always predicting the most common class of train
    has_prior: bool  # whether the model's own classifier, or a fit with its log-odds, was chosen
    units: list[Column]  # by |weight|, the largest first
    baseline: dict[str, float] | None  # TF-IDF: C, and accuracies of train, valid and test
    baseline_failure: str | None  # why it cannot be fitted
    # Accuracy of features and words together, by part; empty without a baseline.
    together: dict[str, float]
    word_weight: float | None  # of words in these; see `words.best_weight`
    best_unit: Column  # the single unit that best separates the classes of train
    best_unit_test: float  # its test accuracy
    top_units: dict[int, float]  # k → test accuracy of the first k
    confusion: list[list[int]]  # of test: true class, predicted class
    # Number of examples, and mean, least and largest test accuracy.
    learning_curve: list[dict[str, float]]
    histogram: dict[str, Any]  # of the best unit in train: edges, and counts by class
    notes: list[str] = field(default_factory=list)  # on texts that the model knows; see classify.py

    @property
    def interval(self) -> tuple[float, float]:
        """The test accuracy's 95% confidence interval (Wilson 1927)."""
        from scipy.stats import binomtest

        count = self.texts["test"]
        bounds = binomtest(round(self.test * count), count).proportion_ci(method="wilson")
        return float(bounds.low), float(bounds.high)

    def __repr__(self) -> str:
        low, high = self.interval
        texts = f"{self.texts['test']:,} texts"
        score = f"test accuracy {self.test:.3f} ({low:.3f} to {high:.3f}, 95% of {texts})"
        if self.together:
            score += f", with words {self.together['test']:.3f}"
        return f"{score}; {named(self.classes)}; state {self.state}"


def run(
    examples: Mapping[str, Examples],
    classes: list[str],
    state: FeatureState,
    columns: list[Column],
    counted: words.Fit | str,
    prior: Classifier | None = None,
    on_part: Callable[[int, str], None] = lambda number, name: None,
    *,
    with_words: bool = False,
) -> tuple[Classifier, Result]:
    """Fit and measure; return the classifier and the results.

    Args:
        examples: of train, test and maybe valid; without valid, C is cross-validated.
        counted: TF-IDF of these texts, or why it cannot be fitted.
        on_part: called with the number of parts done, of `PROGRESS`, and the name of the next part.
        with_words: return the classifier of features and words together.
    """
    from sklearn.metrics import confusion_matrix

    train = examples["train"]
    valid = examples.get("valid")
    test = examples["test"]

    def on_fit(count: int) -> None:
        on_part(count, f"C {count} of {len(CS)}")

    def accuracy_of(units: list[int]) -> float:
        # Few features need no shrinkage, so use the largest C.
        return fit(train.columns(units), classes, CS[-1]).score(test.columns(units))

    choice = best_fit(train, valid, classes, prior, CS, on_fit)
    chosen = choice.classifier
    on_part(len(CS), "the first units")
    ranking = chosen.ranking.tolist()
    top_units = {k: accuracy_of(ranking[:k]) for k in TOP_UNITS if k <= len(ranking)}
    best = _best_unit(train)
    on_part(len(CS) + 1, "learning curve")
    learning_curve = _learning_curve(train, valid, test, chosen, prior)
    predicted = chosen.probabilities(test.features).argmax(axis=1)
    confusion = confusion_matrix(test.labels, predicted, labels=range(len(classes)))
    commonest = int(np.bincount(train.labels).argmax())

    both = chosen
    weight = None
    together = {}
    baseline = None
    if not isinstance(counted, str):
        assert choice.held_out_NK is not None
        labels = (valid or train).labels
        weight = words.best_weight(choice.held_out_NK, counted.held_out_NK, labels)
        both = chosen._replace(words=replace(counted.words, weight=weight))
        baseline = {"C": counted.C, "valid": counted.accuracy}
        for name, part in examples.items():
            together[name] = both.score(part)
            predicted = counted.words.probabilities(part.texts).argmax(axis=1)
            baseline.setdefault(name, float((predicted == part.labels).mean()))
    result = Result(
        classes=classes,
        texts={name: len(examples[name].labels) if name in examples else 0 for name in PARTS},
        state=state,
        features=train.features.shape[1],
        C=chosen.C,
        train=chosen.score(train),
        valid=choice.accuracy,
        test=chosen.score(test),
        majority=float((test.labels == commonest).mean()),
        has_prior=choice.has_prior,
        units=[columns[column] for column in ranking[: max(TOP_UNITS)]],
        baseline=baseline,
        baseline_failure=counted if isinstance(counted, str) else None,
        together=together,
        word_weight=weight,
        best_unit=columns[best],
        best_unit_test=accuracy_of([best]),
        top_units=top_units,
        confusion=confusion.tolist(),
        learning_curve=learning_curve,
        histogram=_histogram(train, best, classes),
    )
    return both if with_words else chosen, result


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
