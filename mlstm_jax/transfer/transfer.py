"""Transfer: texts with labels, the features of a frozen model, a classifier and a report.

The features are saved in OUT/features as they are computed, so that interrupted work can resume.
"""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from mlstm_jax import output, shipped
from mlstm_jax.errors import UserError
from mlstm_jax.loaded import Loaded
from mlstm_jax.options import TRANSFER, FeatureState, TransferOptions
from mlstm_jax.terminal import ProgressLine, tell
from mlstm_jax.transfer import classify, experiment, features, words
from mlstm_jax.transfer.classifier import Classifier, Description, examples_of, load_classifier
from mlstm_jax.transfer.experiment import PARTS, Result
from mlstm_jax.transfer.features import Column, Features, Featurizer
from mlstm_jax.transfer.labels import Labelled, Sets
from mlstm_jax.transfer.report import REPORT, write_report


class Transferred(NamedTuple):
    """A classifier of a frozen model's features, and its results.

    Attributes:
        classifier: what `TrainedModel.classify` takes.
        result: accuracies, units and curves.
        folder: where its report and files are.
    """

    classifier: Classifier
    result: Result
    folder: Path | None

    def __repr__(self) -> str:
        place = f"\n  in {self.folder}" if self.folder else ""
        return f"{type(self).__name__}: {self.result}{place}"


def transfer(
    run: Loaded,
    sets: Sets,
    out: Path | None = None,
    options: TransferOptions = TRANSFER,
    *,
    text_column: str | None = None,
    overwrite: bool = False,
    show_progress: bool = False,
) -> dict[FeatureState, Transferred]:
    """Fit a classifier to the features of each state, and measure it; see `TrainedModel.transfer`.

    Each of several states gets its own subfolder of `out`.
    """
    place = shipped.classifier(run.folder)
    # Its log-odds are one more feature with every state that has its features.
    own = load_classifier(place) if place else None
    chosen = options.states
    if chosen is None and own and "+" in own.about.state:
        chosen = (own.about.state,)
    states = features.features_of(run.architecture, chosen)
    classes = sets.classes
    texts = {name: sets.texts[name] for name in PARTS if name in sets.texts}
    known = classify.note_known(run, sets)
    featurizer = Featurizer(run, states=states, all_layers=options.all_layers)
    quiet = not show_progress
    if out and overwrite:
        _remove_results(out)
    read = _features(out, featurizer, texts, quiet=quiet)
    with ProgressLine("TF-IDF", 1, status="", quiet=quiet):
        tfidf = words.fit(texts["train"], texts.get("valid"), classes, sets.alike["train"])
    transferred = {}
    for state in states:
        columns = featurizer.columns_of(state)
        units = [featurizer.columns[n] for n in columns]
        examples = {}
        for name, part in texts.items():
            values = read[name] if len(states) == 1 else read[name][:, columns]
            examples[name] = examples_of(part, values, classes, sets.alike[name])
        with (
            ProgressLine(f"classifier of {state}", experiment.PROGRESS, quiet=quiet) as progress,
            # With two threads of OpenBLAS the fits of 2,000 texts take six times as long.
            threadpool_limits(1, user_api="blas"),
        ):
            classifier, result = experiment.run(
                examples, classes, state, units, tfidf, _prior(own, units), progress.update
            )
        result = _with_notes(result, sets, own, *known)
        result = dataclasses.replace(result, keeps_words=options.words)
        about = Description(state, options.all_layers, run.fingerprint, text_column, step=run.step)
        counted = classifier.words if options.words else None
        fitted_to = np.unique(sets.digests["train"])
        classifier = classifier._replace(words=counted, texts=fitted_to, about=about)
        folder = out / state if out and len(states) > 1 else out
        transferred[state] = Transferred(classifier, result, folder)
        if folder:
            _save(folder, transferred[state], run.name)
    return transferred


def _save(folder: Path, made: Transferred, run_name: str) -> None:
    """Write the classifier and the report, whose last file says that all are complete."""
    folder.mkdir(exist_ok=True)
    (folder / REPORT).unlink(missing_ok=True)
    made.classifier.save(folder)
    write_report(folder, made.result, run_name)


def _with_notes(
    result: Result, sets: Sets, own: Classifier | None, on_read: list[str], on_repeated: list[str]
) -> Result:
    """Results with the records that were used, and with notes on texts that are known."""
    on_fitted = []
    if own and own.texts is not None and result.has_prior:
        name = sets.texts["test"].name
        test_N = sets.digests["test"]
        on_fitted = classify.note_among(name, test_N, own.texts, classify.FITTED_BEFORE)
    return dataclasses.replace(
        result,
        sources=_sources(sets.given, sets.texts),
        notes=on_read + on_repeated + on_fitted,
        is_known=bool(on_read or on_fitted),
    )


def _sources(given: Mapping[str, Labelled], texts: Mapping[str, Labelled]) -> list[str]:
    """How many records of each file are used; a part of train may be held out for test."""
    sources = []
    for name, part in given.items():
        used = len(texts[name].texts)
        if name == "train" and "test" not in given:
            used += len(texts["test"].texts)
        if part.records:
            sources.append(f"{used:,} of the {part.records:,} records of {part.name}")
    return sources


def _prior(own: Classifier | None, units: Sequence[Column]) -> Classifier | None:
    """A classifier's first and last class, of these features; None if it reads others, too."""
    if not own:
        return None
    places: list[int] = []
    for state in features.single_states(own.about.state):
        places += [place for place, unit in enumerate(units) if unit.state == state]
    if len(places) != own.weights_KD.shape[1]:
        return None
    own = own.between([own.classes[0], own.classes[-1]])
    weights_KD = np.zeros((1, len(units)))
    weights_KD[:, places] = own.weights_KD
    return Classifier(weights_KD, own.intercepts_K, own.classes, own.C)


def require_out(out: Path, options: TransferOptions, *, overwrite: bool = False) -> None:
    """Raise UserError unless `out` is new, is of an earlier call that was stopped, or replaced."""
    states = options.states or ()
    folders = [out / state for state in states] if len(states) > 1 else [out]
    is_done = all((folder / REPORT).exists() for folder in folders)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} exists, and is a file; choose another folder with `out`.")
    if _results(out) and not (out / "features").is_dir():
        raise UserError(
            f"{out} exists, and is not a folder of `transfer`; choose another folder with `out`."
        )
    if _results(out) and is_done and not overwrite:
        raise UserError(
            f"{out} exists; choose another folder with `out`, or replace it with `overwrite=True`."
        )
    output.require_folder(out)


def _results(out: Path) -> list[Path]:
    """What a folder has besides features, which are saved before all else."""
    return [path for path in out.iterdir() if path.name != "features"] if out.is_dir() else []


def _remove_results(out: Path) -> None:
    with output.write_errors(out):
        for path in _results(out):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _features(
    out: Path | None, featurizer: Featurizer, texts: Mapping[str, Labelled], *, quiet: bool
) -> dict[str, Features]:
    """Read the saved features, compute and save the others; UserError if `out` has others."""
    read: dict[str, Features] = {}
    keys = {}
    if out:
        for name, part in texts.items():
            keys[name] = features.features_key(featurizer, part.texts)
            saved = features.read_features(out / "features" / f"{name}.npz", keys[name])
            if saved is not None:
                read[name] = saved
        if _results(out) and len(read) < len(texts):
            raise UserError(
                f"{out} exists, but its features are damaged, or of other texts, states or "
                "parameters; repeat the command that created it, choose another folder with "
                "`out`, or replace it with `overwrite=True`."
            )
        with output.write_errors(out):
            (out / "features").mkdir(parents=True, exist_ok=True)
    if read and not quiet:
        tell(f"reusing the features of the same texts in {out}/features")
    for name in [name for name in texts if name not in read]:
        values = featurizer(texts[name].texts, f"features of {name}", quiet=quiet)
        read[name] = values
        if out:  # Save now: they are most of the work, and a later step may fail.
            path = out / "features" / f"{name}.npz"
            features.write_features(path, len(values), [values], featurizer, key=keys[name])
    return read
