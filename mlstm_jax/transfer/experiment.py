"""The transfer experiment: how well a frozen model's state predicts a label, and by which units.

Puri et al. 2018, section VI, and Radford et al. 2017, figs. 2 and 3: a classifier on all features
and on the first k units alone, accuracy against the number of labelled examples, the best unit's
values by class, and the baseline for comparison.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.errors import first_line
from mlstm_jax.transfer import classify, thresholds, words
from mlstm_jax.transfer.classify import CS, Classifier, Examples, Prior, best_fit
from mlstm_jax.transfer.features import Unit
from mlstm_jax.transfer.labels import Labelled, Task
from mlstm_jax.transfer.reader import FeatureState
from mlstm_jax.transfer.thresholds import LabelScore, macro
from mlstm_jax.transfer.words import Words

TOP_UNITS = (1, 2, 5, 10, 50, 100)
_CURVE = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_DRAWS = 3  # random draws of examples for each point of the curve
_BINS = 40

PARTS = ("train", "valid", "test")


def parts_of(task: Task) -> int:
    """Return how many progress updates `run` reports."""
    return len(task.names) if task.several else len(CS) + 2


@dataclass(frozen=True)
class Baseline:
    """Accuracies of the TF-IDF baseline, as fractions; of several labels, the macro F1."""

    C: float | list[float]
    train: float
    valid: float
    test: float
    labels: list[LabelScore] = field(default_factory=list)  # of test


class TfIdf(NamedTuple):
    """The baseline, or why it cannot be fitted; and of classes its classifier."""

    baseline: Baseline | None
    failure: str | None
    words: Words | None
    held_out_NK: NDArray[np.float64] | None  # probabilities of texts held out from it


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """The results; accuracies are fractions. Of several labels, they are the macro F1."""

    classes: list[str]  # or the names of several labels
    texts: dict[str, int]  # of train, valid and test
    state: FeatureState
    features: int
    C: float | list[float]  # of each of several labels
    train: float
    # Cross-validated where there was no validation file. The thresholds of several labels are
    # chosen on the same texts.
    valid: float
    test: float
    # Test accuracy of always predicting the most common class of train; or of always saying yes.
    majority: float
    has_prior: bool  # whether the model's own classifier, or a fit with its log-odds, was chosen
    units: list[Unit]  # by |weight|, the largest first
    baseline: Baseline | None  # None: it cannot be fitted
    baseline_failure: str | None  # why it cannot be fitted
    # Accuracy of features and words together, by part; empty of labels, or without a baseline.
    together: dict[str, float]
    word_weight: float | None  # of words in these; see `words.best_weight`
    notes: list[str] = field(default_factory=list)  # on texts that the model knows; see known.py
    # Of classes only.
    best_unit: Unit | None = None  # the single unit that best separates the classes of train
    best_unit_test: float | None = None  # its test accuracy
    top_units: dict[int, float] = field(default_factory=dict)  # k → test accuracy of the first k
    confusion: list[list[int]] = field(default_factory=list)  # of test: true class, predicted class
    # Number of examples, and mean, least and largest test accuracy.
    learning_curve: list[dict[str, float]] = field(default_factory=list)
    # Of the best unit in train: edges, and counts by class.
    histogram: dict[str, Any] = field(default_factory=dict)
    # Of several labels only.
    labels: list[LabelScore] = field(default_factory=list)  # of test
    macro: dict[str, float] = field(default_factory=dict)  # the mean of each measure of `labels`
    label_units: list[Unit] = field(default_factory=list)  # of each label, by |weight| the largest

    @property
    def interval(self) -> tuple[float, float]:
        """The test accuracy's 95% confidence interval (Wilson 1927)."""
        from scipy.stats import binomtest

        count = self.texts["test"]
        bounds = binomtest(round(self.test * count), count).proportion_ci(method="wilson")
        return float(bounds.low), float(bounds.high)

    def __repr__(self) -> str:
        count, kind = f"{self.texts['test']:,} texts", "labels" if self.labels else "classes"
        if self.labels:
            score = f"test macro F1 {self.test:.3f} ({count})"
        else:
            low, high = self.interval
            score = f"test accuracy {self.test:.3f} ({low:.3f} to {high:.3f}, 95% of {count})"
        if self.together:
            score += f", with words {self.together['test']:.3f}"
        return f"{score}; {classify.named(self.classes, kind)}; state {self.state}"


def run(
    examples: Mapping[str, Examples],
    texts: Mapping[str, Labelled],
    task: Task,
    state: FeatureState,
    columns: list[Unit],
    tfidf: TfIdf,
    prior: Prior | None = None,
    on_part: Callable[[int, str], None] = lambda number, name: None,
    *,
    with_words: bool = False,
) -> tuple[Classifier, Result]:
    """Fit and measure; return the classifier of all features and the results.

    Args:
        examples: of train, test and maybe valid; without valid, C is cross-validated.
        texts: the same texts.
        columns: what each feature is.
        tfidf: see `fit_tfidf`.
        on_part: called with the number of parts done, see `parts_of`, and the name of the next
            part.
        with_words: return the classifier of features and words together.
    """
    train, valid, test = examples["train"], examples.get("valid"), examples["test"]
    fits, each = (len(task.names), "label") if task.several else (len(CS), "C")

    def on_fit(count: int) -> None:
        on_part(count, f"{each} {count} of {fits}")

    more: dict[str, Any]
    used = None
    if task.several:
        chosen, valid_score = classify.best_of_labels(train, valid, task.names, on_fit)
        scores = chosen.label_scores(test)
        first = [columns[column] for column in chosen.first_K]
        more = {"labels": scores, "macro": macro(scores), "label_units": first}
        always = more["macro"]["all_yes"]
    else:
        chosen, valid_score, used = best_fit(train, valid, task.names, prior, CS, on_fit)
        more, always = _of_classes(chosen, train, valid, test, columns, prior, on_part)
    both = chosen
    weight = None
    if tfidf.words:
        assert tfidf.held_out_NK is not None
        assert isinstance(chosen.C, float)
        states_NK, labels = classify.held_out(train, valid, task.names, chosen.C, used)
        weight = words.best_weight(states_NK, tfidf.held_out_NK, labels)
        both = chosen._replace(words=replace(tfidf.words, weight=weight))
    together = {
        name: both.score(examples[name], texts[name].texts)
        for name in PARTS
        if tfidf.words and name in examples
    }
    result = Result(
        classes=task.names,
        texts={name: len(texts[name].texts) if name in texts else 0 for name in PARTS},
        state=state,
        features=train.features.shape[1],
        C=chosen.C,
        train=chosen.score(train),
        valid=valid_score,
        test=chosen.score(test),
        majority=always,
        has_prior=used is not None,
        units=[columns[column] for column in chosen.ranking[: max(TOP_UNITS)]],
        baseline=tfidf.baseline,
        baseline_failure=tfidf.failure,
        together=together,
        word_weight=weight,
        **more,
    )
    return both if with_words else chosen, result


def _of_classes(
    chosen: Classifier,
    train: Examples,
    valid: Examples | None,
    test: Examples,
    columns: list[Unit],
    prior: Prior | None,
    on_part: Callable[[int, str], None],
) -> tuple[dict[str, Any], float]:
    """Return what is measured of classes only, and the accuracy of the most common class."""
    classes, units, fits = chosen.classes, chosen.ranking, len(CS)

    def accuracy_of(some: list[int]) -> float:
        few = classify.columns(train, some)
        # Few features need no shrinkage, so use the largest C.
        return classify.fit(few, classes, CS[-1]).score(classify.columns(test, some))

    on_part(fits, "the first units")
    top = {k: accuracy_of(units[:k].tolist()) for k in TOP_UNITS if k <= len(units)}
    best = _best_unit(train)
    on_part(fits + 1, "accuracy by labelled examples")
    curve = _learning_curve(train, valid, test, chosen, prior)
    confusion = np.zeros((len(classes), len(classes)), int)
    np.add.at(confusion, (test.labels, chosen.predict(test.features)), 1)
    commonest = int(np.bincount(train.labels).argmax())
    more = {
        "best_unit": columns[best],
        "best_unit_test": accuracy_of([best]),
        "top_units": top,
        "confusion": confusion.tolist(),
        "learning_curve": curve,
        "histogram": _histogram(train, best, classes),
    }
    return more, float((test.labels == commonest).mean())


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
    prior: Prior | None,
) -> list[dict[str, float]]:
    """Return the test accuracy by number of examples, with the best C for each draw."""
    classes, total = chosen.classes, len(train.labels)
    curve = []
    for count in [n for n in _CURVE if len(classes) <= n < total]:
        draws = [classify.subset(train, count, seed) for seed in range(_DRAWS)]
        fits = [best_fit(draw, valid, classes, prior)[0] for draw in draws]
        curve.append(_point(count, [fitted.score(test) for fitted in fits]))
    return [*curve, _point(total, [chosen.score(test)])]


def _point(count: int, scores: list[float]) -> dict[str, float]:
    ends = {"least": min(scores), "largest": max(scores)}
    return {"examples": count, "mean": float(np.mean(scores)), **ends}


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


def fit_tfidf(texts: Mapping[str, Labelled], task: Task) -> TfIdf:
    """Fit and measure the baseline, on train, test and maybe valid."""
    train, valid, test = texts["train"], texts.get("valid"), texts["test"]
    try:
        if task.several:
            return TfIdf(_baseline_of_labels(train, valid, test, task), None, None, None)
        fitted, C, valid_score, held_out_NK = words.fit(train, valid, task)
    except ValueError as error:  # raised by scikit-learn where no word is left to count
        return TfIdf(None, first_line(error), None, None)
    on_train, on_test = (
        float((fitted.probabilities(part.texts).argmax(axis=1) == task.codes(part.labels)).mean())
        for part in (train, test)
    )
    return TfIdf(Baseline(C, on_train, valid_score, on_test), None, fitted, held_out_NK)


def _baseline_of_labels(
    train: Labelled, valid: Labelled | None, test: Labelled, task: Task
) -> Baseline:
    def examples(part: Labelled) -> tuple[Any, thresholds.BinaryLabels]:
        return np.array(part.texts, object), task.codes(part.labels)

    def fit(texts: Any, answers: thresholds.BinaryLabels, C: float) -> Any:
        return words.pipeline(C, len(texts)).fit(texts, answers)

    def yes(fitted: Any, texts: Any) -> Any:
        return fitted.predict_proba(texts)[:, 1]

    held = examples(valid) if valid else None
    chosen = thresholds.choose(fit, yes, words.CS, examples(train), held, task.names)

    def scores(part: Labelled) -> list[LabelScore]:
        texts, answers_NK = examples(part)
        yes_NK = np.stack([yes(one.fitted, texts) for one in chosen], axis=1)
        return thresholds.measure(answers_NK, yes_NK, [c.threshold for c in chosen], task.names)

    on_test = scores(test)
    return Baseline(
        [one.C for one in chosen],
        train=macro(scores(train))["f1"],
        valid=float(np.mean([one.f1 for one in chosen])),
        test=macro(on_test)["f1"],
        labels=on_test,
    )
