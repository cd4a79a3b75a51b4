"""The report of the transfer experiment: report.json, report.md and two pictures."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from mlstm_jax import output
from mlstm_jax.terminal import one_line
from mlstm_jax.transfer.experiment import Result
from mlstm_jax.transfer.features import STATE_NAMES

REPORT = "report.md"  # written last: if it exists, all files are complete


def write(folder: Path, result: Result, model: str) -> None:
    """Write report.json, report.md and, if matplotlib is installed, the pictures."""
    written = {"model": model} | asdict(result)
    output.write_text(folder / "report.json", json.dumps(written, indent=2))
    report = as_markdown(result, model, draw(folder, result))
    output.write_text(folder / REPORT, report)


def as_markdown(result: Result, model: str, pictures: list[str]) -> str:
    """Return the report as Markdown with tables."""
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
                "TF-IDF is omitted because it cannot be fitted to these texts: "
                f"{one_line(result.baseline_failure or '')}",
                "",
            )
        ),
        f"C = {result.C:g}; {result.nonzero} of {result.features} features have a nonzero weight. "
        f"Largest first: {', '.join(map(str, result.units[:10]))}.",
        "",
        f"To view the best unit: `mlstm-jax heatmap RUN --state {result.state} --layer "
        f"{result.best_unit.layer} --unit {result.best_unit.unit} --text TEXT --out heat.html`.",
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
    return "\n".join(lines).rstrip() + "\n"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def draw(folder: Path, result: Result) -> list[str]:
    """Draw the best unit's histogram and the learning curve; return the file names.

    Needs matplotlib, the extra `plot`; without it the list is empty.
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
