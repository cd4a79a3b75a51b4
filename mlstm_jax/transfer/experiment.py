"""The transfer experiment: how much of a label a frozen model's state tells, and which units do.

Puri et al. 2018, section VI, and Radford et al. 2017, figs. 2 and 3: a classifier on all features
and on the first k units alone, accuracy against the number of labelled examples, and the best
unit's values by class; beside it TF-IDF and logistic regression, so that nobody is fooled.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlstm_jax.terminal import one_line
from mlstm_jax.transfer import classify
from mlstm_jax.transfer.classify import STRENGTHS, Classifier, Examples
from mlstm_jax.transfer.features import STATE_NAMES, State
from mlstm_jax.transfer.labels import Labelled

REPORT = "report.md"  # the last file to be written: where it is, all are
TOP_UNITS = (1, 2, 5, 10, 50, 100)
_CURVE = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_DRAWS = 3  # of the examples of a point of the curve
_BINS = 40

Texts = tuple[Labelled, Labelled | None, Labelled]

# How often `run` tells how far it is.
PARTS_OF_A_RUN = len(STRENGTHS) + 3


@dataclass(frozen=True)
class Unit:
    """A feature, as `heatmap --layer L --unit U` takes it."""

    layer: int
    unit: int

    def __str__(self) -> str:
        return f"unit {self.unit} of layer {self.layer}"


@dataclass(frozen=True)
class Baseline:
    """What TF-IDF of words and pairs of words reaches."""

    strength: float
    train: float
    valid: float
    test: float


@dataclass(frozen=True)
class Result:
    """What was found; accuracies are fractions."""

    classes: list[str]
    texts: dict[str, int]  # of train, valid and test
    state: State
    features: int
    strength: float  # C
    train: float
    valid: float  # cross-validated where there was no validation file
    test: float
    majority: float  # test accuracy of the commonest class of train
    nonzero: int  # features that L1 left
    best_unit: Unit  # the one that alone tells the classes of train apart best
    best_unit_test: float  # its test accuracy
    units: list[Unit]  # by |weight|, the largest first
    top_units: dict[int, float]  # k → test accuracy of the k first of them
    confusion: list[list[int]]  # of the test texts: true class, predicted class
    # Examples, C, and mean, least and largest test accuracy.
    learning_curve: list[dict[str, float]]
    histogram: dict[str, Any]  # of the best unit in train: edges, and counts by class
    baseline: Baseline | None  # None: it cannot be fitted
    baseline_failure: str | None  # why


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
    """Fit, measure, and return the classifier of all features and what was found.

    Args:
        train, valid, test: features and classes; without valid, cross-validation.
        texts: the same texts, for the baseline.
        classes: their names.
        state: what the features are of each unit.
        columns: the unit that each feature is.
        on_part: told which of `PARTS_OF_A_RUN` has been done, and what comes.
    """
    fits = len(STRENGTHS)
    chosen, valid_accuracy = classify.choose(
        train, valid, classes, lambda n: on_part(n, f"strength {n} of {fits}")
    )
    units = chosen.ranking

    def accuracy_of(some: list[int]) -> float:
        few = classify.columns(train, some)
        # Few features need no shrinking: the weakest of the strengths tried.
        return classify.fit(few, classes, STRENGTHS[-1]).accuracy(classify.columns(test, some))

    on_part(fits, "the first units")
    top = {k: accuracy_of(units[:k].tolist()) for k in TOP_UNITS if k <= len(units)}
    best = _best_unit(train)
    on_part(fits + 1, "accuracy by labelled examples")
    curve = _learning_curve(train, valid, test, chosen)
    on_part(fits + 2, "TF-IDF")
    baseline, failure = _baseline(*texts)
    confusion = np.zeros((len(classes), len(classes)), int)
    np.add.at(confusion, (test.labels, chosen.predict(test.features)), 1)
    commonest = int(np.bincount(train.labels).argmax())
    sizes = {name: len(part.texts) if part else 0 for name, part in zip(PARTS, texts, strict=True)}
    result = Result(
        classes=classes,
        texts=sizes,
        state=state,
        features=train.features.shape[1],
        strength=chosen.strength,
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
        baseline=baseline,
        baseline_failure=failure,
    )
    return chosen, result


PARTS = ("train", "valid", "test")


def _best_unit(train: Examples) -> int:
    """Return the unit whose mean differs most between classes, for its spread within them."""
    from sklearn.feature_selection import f_classif

    varies = np.flatnonzero(np.ptp(train.features, axis=0) > 0)
    scores, _ = f_classif(train.features[:, varies], train.labels)
    return int(varies[np.argmax(scores)]) if len(varies) else 0


def _learning_curve(
    train: Examples, valid: Examples | None, test: Examples, chosen: Classifier
) -> list[dict[str, float]]:
    """Return the test accuracy by number of examples, with the C that is best for that number."""
    classes, total = chosen.classes, len(train.labels)
    curve = []
    for count in [n for n in _CURVE if len(classes) <= n < total]:
        draws = [classify.subset(train, count, seed) for seed in range(_DRAWS)]
        strength = classify.best_strength(draws, valid, classes)
        scores = [classify.fit(draw, classes, strength).accuracy(test) for draw in draws]
        curve.append(_point(count, strength, scores))
    return [*curve, _point(total, chosen.strength, [chosen.accuracy(test)])]


def _point(count: int, strength: float, scores: list[float]) -> dict[str, float]:
    mean = float(np.mean(scores))
    return {
        "examples": count,
        "strength": strength,
        "mean": mean,
        "least": min(scores),
        "largest": max(scores),
    }


def _histogram(train: Examples, unit: int, classes: list[str]) -> dict[str, Any]:
    values = train.features[:, unit]
    # Few outliers would squeeze all others into one bin.
    low, high = (float(edge) for edge in np.percentile(values, [0.5, 99.5]))
    edges = np.linspace(low, high, _BINS + 1)
    inside = np.clip(values, low, high)
    counts = {
        name: np.histogram(inside[train.labels == label], edges)[0].tolist()
        for label, name in enumerate(classes)
    }
    return {"edges": edges.tolist(), "counts": counts}


def _baseline(
    train: Labelled, valid: Labelled | None, test: Labelled
) -> tuple[Baseline | None, str | None]:
    """Return what TF-IDF reaches, or why it cannot be fitted: of proteins there are no words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline

    def model(strength: float) -> Any:
        words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
        return make_pipeline(words, LogisticRegression(C=strength, max_iter=1000))

    def score(strength: float) -> float:
        if valid is None:
            fewest = min(Counter(train.labels).values())
            folds = StratifiedKFold(min(3, fewest))
            found = cross_val_score(model(strength), *train, cv=folds, error_score="raise")
            return float(found.mean())
        return float(model(strength).fit(*train).score(*valid))

    try:
        scores = {strength: score(strength) for strength in (1.0, 4.0, 16.0, 64.0)}
        best = max(scores, key=lambda strength: scores[strength])
        fitted = model(best).fit(*train)
        reached = (float(fitted.score(*part)) for part in (train, test))
    except ValueError as error:  # scikit-learn's, where no word is left to count
        return None, str(error).partition("\n")[0]
    on_train, on_test = reached
    return Baseline(best, on_train, scores[best], on_test), None


def write(folder: Path, result: Result, model: str) -> None:
    """Write report.json, report.md and, where matplotlib is there, the pictures."""
    (folder / "report.json").write_text(json.dumps({"model": model} | asdict(result), indent=2))
    report = as_markdown(result, model, draw(folder, result))
    partial = folder / f"{REPORT}.partial"
    partial.write_text(report, encoding="utf-8")
    partial.replace(folder / REPORT)


def as_markdown(result: Result, model: str, pictures: list[str]) -> str:
    """Return the report as text with tables."""
    base = result.baseline
    tfidf = [("TF-IDF, words and pairs", base.train, base.valid, base.test)] if base else []
    classes = [one_line(name).replace("|", r"\|") for name in result.classes]
    checked = "valid" if result.texts["valid"] else "cross-validated"
    rows = [
        ("all features", result.train, result.valid, result.test),
        (f"{result.best_unit}, the best alone", None, None, result.best_unit_test),
        *((f"{k} of largest weight", None, None, score) for k, score in result.top_units.items()),
        *tfidf,
        ("the commonest class", None, None, result.majority),
    ]
    lines = [
        f"# Transfer of {one_line(model)}",
        "",
        f"{', '.join(f'{count:,} {name}' for name, count in result.texts.items() if count)} texts "
        f"of {len(classes)} classes: {', '.join(classes)}. Features: the "
        f"{STATE_NAMES[result.state]} (`{result.state}`).",
        "",
        "Accuracy, % of the texts:",
        "",
        f"| | train | {checked} | **test** |",
        "|---|---|---|---|",
        *(
            f"| {name} | {_percent(train)} | {_percent(valid)} | **{_percent(test)}** |"
            for name, train, valid, test in rows
        ),
        "",
        *(
            ()
            if base
            else (
                "TF-IDF is left out, since it cannot be fitted to these texts: "
                f"{one_line(result.baseline_failure or '')}",
                "",
            )
        ),
        f"C = {result.strength:g}; {result.nonzero} of {result.features} features have a weight. "
        f"Largest first: {', '.join(map(str, result.units[:10]))}.",
        "",
        f"To see the best: `mlstm-jax heatmap RUN --state {result.state} --layer "
        f"{result.best_unit.layer} --unit {result.best_unit.unit} --text TEXT --out heat.html`.",
        "",
        "Confusion on the test texts, a row a true class:",
        "",
        "| | " + " | ".join(classes) + " |",
        "|---" * (len(classes) + 1) + "|",
        *(
            f"| **{name}** | " + " | ".join(map(str, row)) + " |"
            for name, row in zip(classes, result.confusion, strict=True)
        ),
        "",
        "| labelled examples | C | test accuracy, % | over three draws |",
        "|---|---|---|---|",
        *(
            f"| {int(point['examples']):,} | {point['strength']:g} | {_percent(point['mean'])} | "
            f"{_percent(point['least'])} to {_percent(point['largest'])} |"
            for point in result.learning_curve
        ),
        "",
        *(f"![{Path(name).stem}]({name})" for name in pictures),
        *(() if pictures else ("(No pictures: matplotlib is not installed.)",)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def draw(folder: Path, result: Result) -> list[str]:
    """Draw the best unit's histogram and the learning curve; return the files, none without them.

    Needs matplotlib, the extra `plot`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    edges = np.array(result.histogram["edges"])
    for name, counts in result.histogram["counts"].items():
        axes.stairs(counts, edges, fill=True, alpha=0.5, label=one_line(name))
    axes.set(xlabel=f"{result.best_unit}: {STATE_NAMES[result.state]}", ylabel="training texts")
    for text in axes.legend().get_texts():
        text.set_parse_math(False)  # a dollar is a dollar
    figure.savefig(folder / "best_unit.png", dpi=110)

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    points = result.learning_curve
    examples = [point["examples"] for point in points]
    least, largest = ([100 * point[end] for point in points] for end in ("least", "largest"))
    axes.fill_between(examples, least, largest, alpha=0.25)
    axes.plot(examples, [100 * point["mean"] for point in points], marker="o", label="all features")
    lines = [("best unit alone", result.best_unit_test, ":")]
    if result.baseline:
        lines.append(("TF-IDF, all examples", result.baseline.test, "--"))
    for name, score, style in (*lines, ("commonest class", result.majority, "-.")):
        axes.axhline(100 * score, ls=style, color="gray", label=name)
    axes.set(xscale="log", xlabel="labelled examples", ylabel="test accuracy, %")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(folder / "learning_curve.png", dpi=110)
    return ["best_unit.png", "learning_curve.png"]
