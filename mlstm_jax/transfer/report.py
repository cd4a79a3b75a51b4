"""A transfer experiment's report: report.json, report.md and, with matplotlib, two pictures."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from mlstm_jax import output, shipped
from mlstm_jax.loaded import Loaded
from mlstm_jax.terminal import markdown, one_line
from mlstm_jax.transfer import words
from mlstm_jax.transfer.experiment import Result
from mlstm_jax.transfer.features import STATE_NAMES
from mlstm_jax.transfer.folder import REPORT


def write_report(folder: Path, result: Result, loaded: Loaded) -> None:
    written = {"model": loaded.name} | asdict(result)
    output.write_text(folder / "report.json", json.dumps(written, indent=2))
    text = as_markdown(result, loaded.name, _draw(folder, result), loaded.pretrained)
    output.write_text(folder / REPORT, text)


def as_markdown(
    result: Result, run_name: str, pictures: list[str], pretrained: str | None = None
) -> str:
    """Return the report as Markdown with tables, and with the pictures of these names.

    `pretrained` is the name of a model that comes with the package.
    """
    classes = list(map(markdown, result.classes))
    counts = [f"{count:,} {name}" for name, count in result.texts.items() if count]
    units = list(map(str, result.units[:10]))
    best = result.best_unit
    run = pretrained or "RUN"
    where = "" if pretrained else " (RUN: the model's folder)"
    # What chose the classifier, and whether words help.
    fitting = "validation texts" if result.texts.get("valid") else "cross-validation"
    fitted = f"C = {result.C:g}. " if result.C else ""
    low, high = result.interval
    features = "the features alone" if result.keeps_words else "the features"
    confusion: list[list[object]] = [["", *classes]]
    for name, row in zip(classes, result.confusion, strict=True):
        confusion.append([f"**{name}**", *row])
    curve: list[list[object]] = [["labelled examples", "mean of three draws", "least to largest"]]
    for point in result.learning_curve:
        ends = f"{_percent(point['least'])} to {_percent(point['largest'])}"
        curve.append([f"{int(point['examples']):,}", _percent(point["mean"]), ends])
    texts = f"{', '.join(counts)} texts of {len(classes)} classes: {', '.join(classes)}"
    parts = [
        f"# Transfer of {markdown(run_name)}",
        f"{'; '.join([texts, *map(markdown, result.sources)])}. Features: the "
        f"{STATE_NAMES[result.state]} (`{result.state}`).",
        f"**The classifier kept here is right on {_percent(result.accuracy)}% of the "
        f"{result.texts['test']:,} test texts** (95% interval: {_percent(low)} to "
        f"{_percent(high)}%). The rest is for comparison; accuracies in %:",
        _table(_accuracies(result, fitting)),
        *_remarks(result, pretrained, fitting),
        f"{fitted}The features of largest weight: {', '.join(units)}.",
        f"To view the best unit{where}: `mlstm-jax heatmap {run} --state "
        f"{best.state} --layer {best.layer} --unit {best.unit} --text TEXT --out heat.html`.",
        f"Test texts by class (rows) and by the answer from {features} (columns):",
        _table(confusion),
        f"Test accuracy with fewer labelled examples, from {features}:",
        _table(curve),
        "\n".join(f"![{Path(name).stem}]({name})" for name in pictures)
        or "(No pictures: they need matplotlib, of the extra `plot`.)",
    ]
    return "\n\n".join(parts) + "\n"


def _table(rows: list[list[object]]) -> str:
    """The rows as Markdown, the first as the head."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _accuracies(result: Result, fitting: str) -> list[list[object]]:
    """The table of accuracies; the row of the classifier that is kept is bold."""
    rows: list[list[object]] = [["classifier of", "training texts", fitting, "test texts"]]

    def add(name: str, test: float, train: float | None = None, valid: float | None = None) -> None:
        rows.append([name, _percent(train), _percent(valid), _percent(test)])

    add("all features", result.test, result.train, result.valid)
    both = result.together
    add("all features and TF-IDF (`--words`)", both["test"], both["train"], both.get("valid"))
    # Words without weight add nothing to what is kept.
    kept = rows[1]
    if result.keeps_words and result.word_weight:
        kept = rows[-1]
    kept[0] = f"**{kept[0]}, kept**"
    kept[-1] = f"**{kept[-1]}**"
    base = result.baseline
    add(f"TF-IDF, {words.COUNTED[result.counted]}", base["test"], base["train"], base["valid"])
    if result.pretrained is not None:
        add("the classifier that comes with the model, unchanged", result.pretrained)
    for k, score in result.top_units.items():
        which = "one" if k == 1 else f"{k} features"
        add(f"the {which} of largest weight", score)
    add(f"the best feature alone, {result.best_unit}", result.best_unit_test)
    add("nothing: always the commonest class", result.majority)
    return rows


def _remarks(result: Result, pretrained: str | None, fitting: str) -> list[str]:
    """What the baseline, the prior and the held-out texts say, and notes."""
    remarks = []
    if result.has_prior and result.C:
        remarks.append(
            "The log-odds of the classifier that comes with the model are one more feature."
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
            f"**On the {result.texts['test']:,} test texts nothing is clearly better than the "
            "commonest class**, with neither features nor words: take more test texts, more "
            "labels, or classes that the texts tell apart."
        )
    elif result.word_weight == 1:
        other = "" if pretrained == shipped.MODEL else f", or use `{shipped.MODEL}`"
        remarks.append(
            f"**Words alone are better here** by {fitting}, and the features add nothing "
            "clear to them: pass `--words` (the classifier then reads only words), or train the "
            f"model on more text{other}."
        )
    elif result.word_weight == 0:
        remarks.append(
            f"Words add nothing clear to the features here by {fitting}: the classifier "
            "does not need `--words`."
        )
        if result.baseline["test"] > result.interval[1]:
            remarks.append(
                "**But on the test texts TF-IDF is clearly better**: label more texts before you "
                "rely on either."
            )
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
