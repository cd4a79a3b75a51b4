"""The report of `transfer`: report.json, report.md and, with matplotlib, two pictures."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from mlstm_jax import output, shipped
from mlstm_jax.terminal import markdown, one_line
from mlstm_jax.transfer.experiment import Result
from mlstm_jax.transfer.states import STATE_NAMES

REPORT = "report.md"  # written last: if it exists, all files are complete

_NO_CELL = "|---"


def write_report(folder: Path, result: Result, model: str) -> None:
    """Write the files; `model` is the name of the run."""
    written = {"model": model} | asdict(result)
    output.write_text(folder / "report.json", json.dumps(written, indent=2))
    output.write_text(folder / REPORT, as_markdown(result, model, _draw(folder, result)))


def as_markdown(result: Result, model: str, pictures: list[str]) -> str:
    """Return the report as Markdown with tables, and with the pictures of these names."""
    classes = list(map(markdown, result.classes))
    counts = [f"{count:,} {name}" for name, count in result.texts.items() if count]
    units = list(map(str, result.units[:10]))
    best = result.best_unit
    parts = [
        f"# Transfer of {markdown(model)}",
        f"{', '.join(counts)} texts of {len(classes)} classes: {', '.join(classes)}. Features: the "
        f"{STATE_NAMES[result.state]} (`{result.state}`).",
        "Accuracy, % of the texts:",
        _accuracies(result),
        *_remarks(result, model),
        f"C = {result.C:g}. The features of largest weight: {', '.join(units)}.",
        f"To view the best unit: `mlstm-jax heatmap RUN --state {best.state} --layer "
        f"{best.layer} --unit {best.unit} --text TEXT --out heat.html`.",
        "Confusion matrix of the test texts, one row per true class:",
        _confusion(result, classes),
        _curve(result),
        "\n".join(f"![{Path(name).stem}]({name})" for name in pictures)
        or "(No pictures: matplotlib is not installed.)",
    ]
    return "\n\n".join(parts) + "\n"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _accuracies(result: Result) -> str:
    """The table of accuracies."""
    checked = "valid" if result.texts.get("valid") else "cross-validated"
    lines = [f"| | train | {checked} | **test** |", "|---|---|---|---|"]

    def add(name: str, test: float, train: float | None = None, valid: float | None = None) -> None:
        lines.append(_row(name, _percent(train), _percent(valid), f"**{_percent(test)}**"))

    add("all features", result.test, result.train, result.valid)
    add(f"{result.best_unit}, the best alone", result.best_unit_test)
    for k, score in result.top_units.items():
        add(f"{k} of largest weight", score)
    if base := result.baseline:
        add("TF-IDF, words and pairs", base["test"], base["train"], base["valid"])
    if both := result.together:
        add("features and words together, `words`", both["test"], both["train"], both.get("valid"))
    add("the commonest class", result.majority)
    return "\n".join(lines)


def _remarks(result: Result, model: str) -> list[str]:
    """What the baseline, the prior and the held-out texts say, and notes."""
    remarks = []
    if not result.baseline:
        remarks.append(f"TF-IDF is omitted: {markdown(result.baseline_failure)}")
    if result.has_prior and result.C:
        remarks.append(
            "The log-odds of the model's own classifier are one more feature. It comes with the "
            "model."
        )
    elif result.has_prior:
        remarks.append(
            "This is the model's own classifier as it is: no fit to these labels is clearly "
            "better. It comes with the model."
        )
    if result.word_weight == 1:
        other = "" if model == shipped.MODEL else f", or use `{shipped.MODEL}`"
        remarks.append(
            "**Words alone are better here**, and the features add nothing clear to them: use "
            f"TF-IDF, train the model on more text{other}. (With `words` the classifier is that of "
            "words.)"
        )
    if result.word_weight == 0:
        remarks.append("Words add nothing clear to the features here: leave `words` out.")
    return remarks + [f"**{markdown(text)}**" for text in result.notes]


def _confusion(result: Result, classes: list[str]) -> str:
    lines = [f"| {_row(*classes)}", _NO_CELL * (len(classes) + 1) + "|"]
    for name, counts in zip(classes, result.confusion, strict=True):
        lines.append(_row(f"**{name}**", *counts))
    return "\n".join(lines)


def _curve(result: Result) -> str:
    lines = ["| labelled examples | test accuracy, % | over three draws |", "|---|---|---|"]
    for point in result.learning_curve:
        ends = f"{_percent(point['least'])} to {_percent(point['largest'])}"
        lines.append(_row(f"{int(point['examples']):,}", _percent(point["mean"]), ends))
    return "\n".join(lines)


def _draw(folder: Path, result: Result) -> list[str]:
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
    axes.set(xlabel=f"{result.best_unit}", ylabel="training texts")
    for text in axes.legend(title="class").get_texts():
        text.set_parse_math(False)  # a dollar sign must not start a formula
    figure.savefig(folder / "best_unit.png", dpi=110)

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    examples = [point["examples"] for point in result.learning_curve]
    scores = [(point["least"], point["mean"], point["largest"]) for point in result.learning_curve]
    least_N, mean_N, largest_N = 100 * np.array(scores).T
    axes.fill_between(examples, least_N, largest_N, alpha=0.25)
    axes.plot(examples, mean_N, marker="o", label="all features")
    axes.axhline(100 * result.best_unit_test, ls=":", color="gray", label="best unit alone")
    if result.baseline:
        score = 100 * result.baseline["test"]
        axes.axhline(score, ls="--", color="gray", label="TF-IDF, all examples")
    axes.axhline(100 * result.majority, ls="-.", color="gray", label="commonest class")
    axes.set(xscale="log", xlabel="labelled examples", ylabel="test accuracy, %")
    axes.set_xticks(examples, [f"{count:,}" for count in examples], rotation=45)
    axes.set_xticks([], minor=True)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(folder / "learning_curve.png", dpi=110)
    return ["best_unit.png", "learning_curve.png"]
