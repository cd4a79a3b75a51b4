"""The report of the transfer experiment: report.json, report.md and two pictures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from mlstm_jax import output
from mlstm_jax.terminal import markdown, one_line
from mlstm_jax.transfer.experiment import PARTS, Result
from mlstm_jax.transfer.reader import STATE_NAMES
from mlstm_jax.transfer.thresholds import MEASURES, LabelScore, macro

REPORT = "report.md"  # written last: if it exists, all files are complete


def write(folder: Path, result: Result, model: str) -> None:
    """Write report.json, report.md and, if matplotlib is installed, the pictures."""
    written = {"model": model} | asdict(result)
    output.write_text(folder / "report.json", json.dumps(written, indent=2))
    report = as_markdown(result, model, draw(folder, result))
    output.write_text(folder / REPORT, report)


def as_markdown(result: Result, model: str, pictures: list[str]) -> str:
    """Return the report as Markdown with tables."""
    base, best = result.baseline, result.best_unit
    tfidf = [("TF-IDF, words and pairs", base.train, base.valid, base.test)] if base else []
    train, valid, test = map(result.together.get, PARTS)
    together = [("features and words together, `words`", train, valid, test)] if test else []
    classes = [markdown(name) for name in result.classes]
    checked = "valid" if result.texts["valid"] else "cross-validated"
    several, kinds = bool(result.labels), "binary labels" if result.labels else "classes"
    best_row = [(f"{best}, the best alone", None, None, result.best_unit_test)] if best else []
    rows = [
        ("all features", result.train, result.valid, result.test),
        *best_row,
        *((f"{k} of largest weight", None, None, score) for k, score in result.top_units.items()),
        *tfidf,
        *together,
        ("always yes" if several else "the commonest class", None, None, result.majority),
    ]
    penalty = "" if isinstance(result.C, list) else f"C = {result.C:g}; "
    lines = [
        f"# Transfer of {markdown(model)}",
        "",
        f"{', '.join(f'{count:,} {name}' for name, count in result.texts.items() if count)} texts "
        f"of {len(classes)} {kinds}: {', '.join(classes)}. Features: the "
        f"{STATE_NAMES[result.state]} (`{result.state}`).",
        "",
        "Macro F1 of the labels, %:" if several else "Accuracy, % of the texts:",
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
                "TF-IDF is omitted because it cannot be fitted to these texts: "
                f"{markdown(result.baseline_failure or '')}",
                "",
            )
        ),
        *(
            (
                "The log-odds of the model's own classifier are one more feature. It comes with "
                "the model: texts that it was fitted to (see the model's card) are not new to it.",
                "",
            )
            * result.has_prior
        ),
        f"{penalty}{result.nonzero} of {result.features} features have a nonzero weight. "
        f"Largest first: {', '.join(map(str, result.units[:10]))}.",
        "",
        *(_of_labels(result) if several else _of_classes(result, classes, pictures)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _of_classes(result: Result, classes: list[str], pictures: list[str]) -> list[str]:
    best = result.best_unit
    assert best
    return [
        f"To view the best unit: `mlstm-jax heatmap RUN --state {best.state} --layer "
        f"{best.layer} --unit {best.unit} --text TEXT --out heat.html`.",
        "",
        "Confusion matrix of the test texts, one row per true class:",
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
            f"| {int(point['examples']):,} | {point['C']:g} | {_percent(point['mean'])} | "
            f"{_percent(point['least'])} to {_percent(point['largest'])} |"
            for point in result.learning_curve
        ),
        "",
        *(f"![{Path(name).stem}]({name})" for name in pictures),
        *(() if pictures else ("(No pictures: matplotlib is not installed.)",)),
    ]


def _of_labels(result: Result) -> list[str]:
    Cs = result.C if isinstance(result.C, list) else []
    units = zip(result.labels, Cs, result.label_units, strict=True)
    more: dict[str, list[str]] = {}
    if result.baseline:
        f1 = [score.f1 for score in result.baseline.labels]
        more["F1 of TF-IDF"] = [*map(_percent, f1), _percent(result.baseline.test)]
    return [
        "Test texts, % except of thresholds and numbers. A threshold has the largest F1 on texts "
        "held out from the fit; `yes` counts the texts that have the label.",
        "",
        *label_table(result.labels, more),
        "",
        "| | C | unit of largest weight |",
        "|---|---|---|",
        *(f"| {markdown(score.label)} | {C:g} | {unit} |" for score, C, unit in units),
    ]


_TITLES = ("F1", "precision", "recall", "average precision", "F1 of always yes")


def label_table(
    scores: Sequence[LabelScore], more: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
    """Return the lines of a table: a row for each label, and one of their means.

    Args:
        scores: of the labels.
        more: further columns by their titles, a cell for each row.
    """
    more = more or {}
    rows = [
        (
            markdown(score.label),
            f"{score.threshold:.3f}",
            f"{score.positives:,} of {score.known:,}",
            *(_percent(getattr(score, name)) for name in MEASURES),
        )
        for score in scores
    ]
    rows.append(("**mean**", "", "", *map(_percent, macro(scores).values())))
    titles = ("label", "threshold", "yes", *_TITLES, *more)
    return [
        f"| {' | '.join(titles)} |",
        "|---" * len(titles) + "|",
        *(
            f"| {' | '.join([*row, *(column[n] for column in more.values())])} |"
            for n, row in enumerate(rows)
        ),
    ]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def draw(folder: Path, result: Result) -> list[str]:
    """Draw the best unit's histogram and the learning curve; return the file names.

    Needs matplotlib, the extra `plot`; without it, and of several labels, the list is empty.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    if result.best_unit_test is None:  # of several labels
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
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(folder / "learning_curve.png", dpi=110)
    return ["best_unit.png", "learning_curve.png"]
