"""The transfer experiment: how well a frozen model's state predicts a label, and by which units.

Puri et al. 2018, section VI, and Radford et al. 2017, figs. 2 and 3: a classifier on all features
and on the first k units alone, accuracy against the number of labelled examples, the best unit's
values by class, and the baseline for comparison. Its report is report.json, report.md and, with
matplotlib, two pictures.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlstm_jax import output, shipped
from mlstm_jax.options import FeatureState
from mlstm_jax.terminal import markdown, one_line
from mlstm_jax.transfer import words
from mlstm_jax.transfer.classifier import Classifier, Examples, named, subset
from mlstm_jax.transfer.features import STATE_NAMES, Column
from mlstm_jax.transfer.logistic import CS, best_fit, fit

TOP_UNITS = (1, 2, 5, 10, 50, 100)
_CURVE = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_DRAWS = 3  # random draws of examples for each point of the curve
_BINS = 40

REPORT = "report.md"  # written last: if it exists, all files are complete
PARTS = ("train", "valid", "test")
PROGRESS = len(CS) + 2  # updates that `run` reports


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
        test: on the test texts.
        majority: test accuracy of always predicting the most common class of train.
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
        notes: on texts that are known; see classify.py.
        is_known: whether the model or its classifier has learned many of the texts.
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
    sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_known: bool = False

    @property
    def interval(self) -> tuple[float, float]:
        """The test accuracy's 95% confidence interval (Wilson 1927)."""
        return self._interval(self.test)

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
        score = f"test accuracy {self.test:.3f} ({low:.3f} to {high:.3f}, 95% of {texts})"
        score += f", with words {self.together['test']:.3f}"
        return f"{score}; {named(self.classes)}; state {self.state}"


def run(
    examples: Mapping[str, Examples],
    classes: list[str],
    state: FeatureState,
    columns: list[Column],
    tfidf: words.Fit,
    prior: Classifier | None = None,
    on_part: Callable[[int, str], None] = lambda number, name: None,
) -> tuple[Classifier, Result]:
    """Fit and measure; return the classifier, with TF-IDF of the same texts, and the results.

    `on_part` is told how many parts of `PROGRESS` are done, and the name of the next.
    """
    from sklearn.metrics import confusion_matrix

    train = examples["train"]
    valid = examples.get("valid")
    test = examples["test"]

    def on_fit(count: int) -> None:
        on_part(count, f"C {count} of {len(CS)}")

    def accuracy_of(units: list[int]) -> float:
        few = Examples(train.features[:, units], train.labels)
        # Few features need no shrinkage, so use the largest C.
        classifier = fit(few, classes, CS[-1])
        return classifier.score(Examples(test.features[:, units], test.labels))

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

    assert choice.held_out_NK is not None
    weight = words.best_weight(choice.held_out_NK, tfidf.held_out_NK, (valid or train).labels)
    both = chosen._replace(words=replace(tfidf.words, weight=weight))
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
        baseline=_baseline(tfidf, examples),
        counted=tfidf.words.counted,
        together={name: both.score(part) for name, part in examples.items()},
        word_weight=weight,
        best_unit=columns[best],
        best_unit_test=accuracy_of([best]),
        top_units=top_units,
        confusion=confusion.tolist(),
        learning_curve=learning_curve,
        histogram=_histogram(train, best, classes),
    )
    return both, result


def _baseline(tfidf: words.Fit, examples: Mapping[str, Examples]) -> dict[str, float]:
    """C of TF-IDF alone, and its accuracy on each part."""
    baseline = {"C": tfidf.C, "valid": tfidf.accuracy}
    for name, part in examples.items():
        predicted = tfidf.words.probabilities(part.texts).argmax(axis=1)
        baseline.setdefault(name, float((predicted == part.labels).mean()))
    return baseline


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


def write_report(folder: Path, result: Result, run_name: str) -> None:
    """Write the files."""
    written = {"model": run_name} | asdict(result)
    output.write_text(folder / "report.json", json.dumps(written, indent=2))
    output.write_text(folder / REPORT, as_markdown(result, run_name, _draw(folder, result)))


def as_markdown(result: Result, run_name: str, pictures: list[str]) -> str:
    """Return the report as Markdown with tables, and with the pictures of these names."""
    classes = list(map(markdown, result.classes))
    counts = [f"{count:,} {name}" for name, count in result.texts.items() if count]
    units = list(map(str, result.units[:10]))
    best = result.best_unit
    fitted = f"C = {result.C:g}. " if result.C else ""
    confusion: list[list[object]] = [["", *classes]]
    for name, row in zip(classes, result.confusion, strict=True):
        confusion.append([f"**{name}**", *row])
    curve: list[list[object]] = [["labelled examples", "test accuracy, %", "over three draws"]]
    for point in result.learning_curve:
        ends = f"{_percent(point['least'])} to {_percent(point['largest'])}"
        curve.append([f"{int(point['examples']):,}", _percent(point["mean"]), ends])
    parts = [
        f"# Transfer of {markdown(run_name)}",
        f"{', '.join(counts)} texts of {len(classes)} classes: {', '.join(classes)}"
        f"{''.join(f'; {markdown(source)}' for source in result.sources)}. Features: the "
        f"{STATE_NAMES[result.state]} (`{result.state}`).",
        "Accuracy, % of the texts, with a 95% confidence interval:",
        _table(_accuracies(result)),
        *_remarks(result, run_name),
        f"{fitted}The features of largest weight: {', '.join(units)}.",
        f"To view the best unit: `mlstm-jax heatmap RUN --state {best.state} --layer "
        f"{best.layer} --unit {best.unit} --text TEXT --out heat.html`.",
        "Confusion matrix of the test texts, one row per true class:",
        _table(confusion),
        _table(curve),
        "\n".join(f"![{Path(name).stem}]({name})" for name in pictures)
        or "(No pictures: matplotlib is not installed.)",
    ]
    return "\n\n".join(parts) + "\n"


def _table(rows: list[list[object]]) -> str:
    """The rows as Markdown, the first as the head."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _accuracies(result: Result) -> list[list[object]]:
    """The table of accuracies."""
    checked = "valid" if result.texts.get("valid") else "cross-validated"
    rows: list[list[object]] = [["", "train", checked, "**test**"]]

    def add(name: str, test: float, train: float | None = None, valid: float | None = None) -> None:
        rows.append([name, _percent(train), _percent(valid), f"**{_percent(test)}**"])

    low, high = result.interval
    bold = f"**{_percent(result.test)}** ({_percent(low)} to {_percent(high)})"
    rows.append(["all features", _percent(result.train), _percent(result.valid), bold])
    add(f"{result.best_unit}, the best alone", result.best_unit_test)
    for k, score in result.top_units.items():
        add(f"{k} of largest weight", score)
    base = result.baseline
    add(f"TF-IDF, {words.COUNTED[result.counted]}", base["test"], base["train"], base["valid"])
    both = result.together
    add("features and TF-IDF together, `words`", both["test"], both["train"], both.get("valid"))
    add("the commonest class", result.majority)
    return rows


def _remarks(result: Result, run_name: str) -> list[str]:
    """What the baseline, the prior and the held-out texts say, and notes."""
    remarks = []
    if result.has_prior and result.C:
        remarks.append(
            "The log-odds of the model's own classifier are one more feature. It comes with the "
            "model."
        )
    elif result.has_prior:
        remarks.append(
            "None of the fits to your labels was clearly better, so this is the classifier that "
            "comes with the model."
        )
    if result.is_known:
        other = "" if result.state == "mean_h" else ", or with `--state mean_h`, which knows less"
        remarks.append(
            "Whether words are better or add anything cannot be said here: the model has learned "
            f"some of these texts with their labels. Compare on other texts{other}."
        )
    elif result.is_chance:
        remarks.append(
            "**Nothing is clearly better than the commonest class here**, with neither features "
            "nor words: take more test texts, more labels, or classes that the texts tell apart."
        )
    elif result.word_weight == 1:
        other = "" if run_name == shipped.MODEL else f", or use `{shipped.MODEL}`"
        remarks.append(
            "**Words alone are better here**, and the features add nothing clear to them: use "
            f"TF-IDF, train the model on more text{other}. (With `words` the classifier reads "
            "only words.)"
        )
    elif result.word_weight == 0:
        remarks.append("Words add nothing clear to the features here: leave `words` out.")
    return remarks + [f"**{markdown(text)}**" for text in result.notes]


def _draw(folder: Path, result: Result) -> list[str]:
    """Draw the best unit's histogram and the learning curve, if there is matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    edges = np.array(result.histogram["edges"])
    for name, counts in result.histogram["counts"].items():
        axes.stairs(counts, edges, fill=True, alpha=0.5, label=one_line(name))
    axes.set(xlabel=f"{result.best_unit}", ylabel="training texts")
    for text in axes.legend(title="class").get_texts():
        text.set_parse_math(False)  # a dollar sign must not start a formula
    figure.savefig(folder / "best_unit.png", dpi=110)

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    points = [list(point.values()) for point in result.learning_curve]
    examples_N, mean_N, least_N, largest_N = np.array(points).T
    axes.fill_between(examples_N, 100 * least_N, 100 * largest_N, alpha=0.25)
    axes.plot(examples_N, 100 * mean_N, marker="o", label="all features")
    lines = {
        "best unit alone": (":", result.best_unit_test),
        "TF-IDF, all examples": ("--", result.baseline["test"]),
        "commonest class": ("-.", result.majority),
    }
    for name, (style, score) in lines.items():
        axes.axhline(100 * score, ls=style, color="gray", label=name)
    axes.set(xscale="log", xlabel="labelled examples", ylabel="test accuracy, %")
    axes.set_xticks(examples_N, [f"{count:,.0f}" for count in examples_N], rotation=45)
    axes.set_xticks([], minor=True)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(folder / "learning_curve.png", dpi=110)
    return ["best_unit.png", "learning_curve.png"]
