"""Transfer: texts with labels, the features of a frozen model, a classifier and a report.

The features are saved in OUT/features as they are computed, so that interrupted work can resume.
The report is report.json, report.md and two pictures.
"""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from mlstm_jax import output, shipped
from mlstm_jax.errors import UserError
from mlstm_jax.fields import Checked
from mlstm_jax.interop.weights import fingerprint
from mlstm_jax.run import Run
from mlstm_jax.terminal import ProgressLine, markdown, one_line, tell
from mlstm_jax.transfer import classifier_file, experiment, known
from mlstm_jax.transfer.classifier_file import Description
from mlstm_jax.transfer.classify import Classifier, Examples, Prior, folds
from mlstm_jax.transfer.experiment import PARTS, Result
from mlstm_jax.transfer.features import (
    Features,
    Featurizer,
    Unit,
    features_key,
    read_features,
    write_features,
)
from mlstm_jax.transfer.labels import Labelled, codes, require_classes, usable
from mlstm_jax.transfer.reader import STATE_NAMES, FeatureState, features_of
from mlstm_jax.transfer.words import uncountable

REPORT = "report.md"  # written last: if it exists, all files are complete


@dataclass(frozen=True, kw_only=True)
class TransferOptions(Checked):
    """How to fit a classifier to the features of a frozen model.

    Attributes:
        state: c, the cell state, or h after the last byte; or mean_h, the mean of h over all bytes;
            or c+mean_h, first all of c and then all of mean_h; or several of these, all read in one
            pass over the texts. Unset: c+mean_h, or mean_h of a model without a c.
        all_layers: use every layer, the lowest first; otherwise only the top one.
        words: the classifier is both that of the features and that of TF-IDF: its probabilities
            are the means of theirs, or those of one of them if it alone is clearly better on
            held-out texts. It has no score after each character.
    """

    state: tuple[FeatureState, ...] | FeatureState | None = None
    all_layers: bool = False
    words: bool = False

    @property
    def states(self) -> tuple[FeatureState, ...] | None:
        """The states, also if there is only one."""
        return (self.state,) if isinstance(self.state, str) else self.state


DEFAULTS = TransferOptions()


class Transferred(NamedTuple):
    """A classifier of a frozen model's features, and its results."""

    classifier: Classifier
    about: Description
    result: Result
    folder: Path | None  # where its report and files are

    def __repr__(self) -> str:
        place = f"\n  in {self.folder}" if self.folder else ""
        return f"{type(self).__name__}: {self.result}{place}"


def transfer(
    run: Run,
    texts: Mapping[str, Labelled],
    out: Path | None = None,
    options: TransferOptions = DEFAULTS,
    *,
    text_column: str | None = None,
    show_progress: bool = False,
) -> dict[FeatureState, Transferred]:
    """Fit a classifier to the features of each state, and measure it; see `TrainedModel.transfer`.

    Args:
        run: a trained model.
        texts: train, and optionally test and valid.
        out: each of several states gets its own subfolder.
        options: how to fit it.
        text_column: of the texts, to be kept with the classifier.
        show_progress: on standard error.
    """
    states = features_of(run.config.model, options.states)
    place = shipped.classifier(run.folder)
    # Its log-odds are one more feature with every state that has its features.
    own = None if place is None else classifier_file.load_classifier(place)
    kept = None if out is None else out / "features"
    folders = _folders(out, states) if out else {}
    is_begun = out is not None and require_out(out, states)
    texts = usable(texts, run.cleaning, "test")
    classes = require_classes(texts["train"])
    if "valid" not in texts:
        folds(codes(texts["train"].labels, classes), classes)  # raises an error if there are none
    for part in texts.values():
        require_classes(part, classes)
    notes = known.note_known(run, texts)
    fitted = known.digests(texts["train"].texts, run.cleaning)
    model = fingerprint(run.params)
    featurizer = Featurizer(run, states=states, all_layers=options.all_layers)
    features = _features(kept, featurizer, model, texts, is_begun=is_begun, loud=show_progress)
    with ProgressLine("TF-IDF", 1, status="", quiet=not show_progress):
        tfidf = experiment.fit_tfidf(texts, classes)
    if options.words and not tfidf.words:
        raise uncountable(tfidf.failure)
    experiments = {}
    for state in states:
        columns = featurizer.columns_of(state)
        examples = {
            name: Examples(
                values[:, columns] if len(states) > 1 else values,
                codes(texts[name].labels, classes),
            )
            for name, values in features.items()
        }
        units = [featurizer.columns[n] for n in columns]
        parts = experiment.PROGRESS
        with (
            ProgressLine(f"classifier of {state}", parts, quiet=not show_progress) as progress,
            # With two threads of OpenBLAS the fits of 2,000 texts take six times as long.
            threadpool_limits(1, user_api="blas"),
        ):
            classifier, result = experiment.run(
                examples,
                texts,
                classes,
                state,
                units,
                tfidf,
                _prior(own, units) if own else None,
                progress.update,
                with_words=options.words,
            )
        own_notes = []
        if own and own[0].texts is not None and result.has_prior:
            own_notes = known.note_fitted(run, texts["test"], own[0].texts)
        result = dataclasses.replace(result, notes=notes + own_notes)
        classifier = classifier._replace(texts=np.unique(fitted))
        about = Description(state, options.all_layers, model, text_column, step=run.step)
        folder = folders.get(state)
        if folder:
            folder.mkdir(exist_ok=True)
            (folder / REPORT).unlink(missing_ok=True)
            classifier_file.save(folder, classifier, about)
            _write_report(folder, result, run.name)
        experiments[state] = Transferred(classifier, about, result, folder)
    return experiments


def _prior(own: tuple[Classifier, Description], units: Sequence[Unit]) -> Prior | None:
    """Return a classifier's log-odds as a function of these features; None if some are missing."""
    classifier, about = own
    places = [place for place, unit in enumerate(units) if unit.state == about.state]
    if len(classifier.classes) != 2 or len(places) != classifier.weights_KD.shape[1]:
        return None
    weights_D = np.zeros(len(units))
    weights_D[places] = classifier.weights_KD[0]
    return Prior(weights_D, float(classifier.intercepts_K[0]), classifier.classes)


def _folders(out: Path, states: Sequence[FeatureState]) -> dict[FeatureState, Path]:
    return {state: out / state if len(states) > 1 else out for state in states}


def require_out(out: Path, states: Sequence[FeatureState]) -> bool:
    """Return whether an earlier call started in `out`; UserError if it holds something else."""
    folders = _folders(out, states).values()
    kept = out / "features"
    is_begun = out.is_dir() and any(path != kept for path in out.iterdir())
    is_done = all((folder / REPORT).exists() for folder in folders)
    if out.exists() and (not out.is_dir() or (is_begun and (is_done or not kept.is_dir()))):
        raise UserError(f"{out} exists; choose another folder with `out`, or remove it.")
    output.require_folder(out)
    return is_begun


def _features(
    kept: Path | None,
    featurizer: Featurizer,
    model: str,
    texts: Mapping[str, Labelled],
    *,
    is_begun: bool,
    loud: bool,
) -> dict[str, Features]:
    """Return the features of all texts: read the saved ones; compute and save the others.

    Raises UserError if an earlier call started in `out` with other features.
    """
    keys = {}
    before = {}
    if kept is not None:
        for name, part in texts.items():
            keys[name] = features_key(model, featurizer, part.texts)
            before[name] = read_features(kept / f"{name}.npz", keys[name])
        # Features are saved before all else: other files without them are from another call.
        if is_begun and any(saved is None for saved in before.values()):
            raise UserError(
                f"{kept.parent} exists, but its features are of other texts, states or parameters; "
                "repeat the command that created it, or choose another folder with `out`."
            )
        with output.write_errors(kept.parent):
            kept.mkdir(parents=True, exist_ok=True)
    features: dict[str, Features] = {}
    read_now = 0
    started = time.monotonic()
    for name, part in texts.items():
        saved = before.get(name)
        if saved is None:
            saved = featurizer(part.texts, f"features of {name}" if loud else None)
            if kept is not None:
                # Save now: they are most of the work, and a later step may fail.
                write_features(kept / f"{name}.npz", saved, featurizer, keys[name])
            read_now += len(part.texts)
        features[name] = saved
    if loud and read_now:
        rate = read_now / (time.monotonic() - started)
        tell(f"features of {read_now:,} texts: {rate:,.1f} texts/s")
    if loud and kept and read_now < sum(len(part.texts) for part in texts.values()):
        tell(f"reusing the features of the same texts in {kept}")
    return features


def _write_report(folder: Path, result: Result, model: str) -> None:
    """Write report.json, report.md and, if matplotlib is installed, the pictures."""
    written = {"model": model} | asdict(result)
    output.write_text(folder / "report.json", json.dumps(written, indent=2))
    report = _as_markdown(result, model, _draw_pictures(folder, result))
    output.write_text(folder / REPORT, report)


def _as_markdown(result: Result, model: str, pictures: list[str]) -> str:
    """Return the report as Markdown with tables."""
    base = result.baseline
    best = result.best_unit
    tfidf = [("TF-IDF, words and pairs", base.train, base.valid, base.test)] if base else []
    train, valid, test = map(result.together.get, PARTS)
    together = (
        [("features and words together, `words`", train, valid, test)] if result.together else []
    )
    classes = [markdown(name) for name in result.classes]
    checked = "valid" if result.texts["valid"] else "cross-validated"
    rows = [
        ("all features", result.train, result.valid, result.test),
        (f"{best}, the best alone", None, None, result.best_unit_test),
        *((f"{k} of largest weight", None, None, score) for k, score in result.top_units.items()),
        *tfidf,
        *together,
        ("the commonest class", None, None, result.majority),
    ]
    lines = [
        f"# Transfer of {markdown(model)}",
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
                f"{markdown(result.baseline_failure or '')}",
                "",
            )
        ),
        *(
            (
                (
                    "The log-odds of the model's own classifier are one more feature."
                    if result.C
                    else "This is the model's own classifier as it is: no fit to these labels is "
                    "clearly better."
                )
                + " It comes with the model.",
                "",
            )
            * result.has_prior
        ),
        *_conclusion(result, model),
        *(line for text in result.notes for line in (f"**{markdown(text)}**", "")),
        f"C = {result.C:g}. The features of largest weight: "
        f"{', '.join(map(str, result.units[:10]))}.",
        "",
        *_section_of_classes(result, classes, pictures),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _conclusion(result: Result, model: str) -> list[str]:
    """Return what the held-out texts say of features and words."""
    if result.word_weight == 1:
        other = "" if model == shipped.MODEL else f", or use `{shipped.MODEL}`"
        return [
            "**Words alone are better here**, and the features add nothing to them: use TF-IDF, "
            f"train the model on more text{other}. (With `words` the classifier is that of words.)",
            "",
        ]
    if result.word_weight == 0:
        return ["Words add nothing to the features here: leave `words` out.", ""]
    return []


def _section_of_classes(result: Result, classes: list[str], pictures: list[str]) -> list[str]:
    best = result.best_unit
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
        "| labelled examples | test accuracy, % | over three draws |",
        "|---|---|---|",
        *(
            f"| {int(point['examples']):,} | {_percent(point['mean'])} | "
            f"{_percent(point['least'])} to {_percent(point['largest'])} |"
            for point in result.learning_curve
        ),
        "",
        *(f"![{Path(name).stem}]({name})" for name in pictures),
        *(() if pictures else ("(No pictures: matplotlib is not installed.)",)),
    ]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _draw_pictures(folder: Path, result: Result) -> list[str]:
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
    axes.set_xticks(examples, [f"{count:,}" for count in examples], rotation=45)
    axes.set_xticks([], minor=True)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(folder / "learning_curve.png", dpi=110)
    return ["best_unit.png", "learning_curve.png"]
