"""Transfer: texts with labels, the features of a frozen model, a classifier and a report.

The features are saved in OUT/features as they are computed, so that interrupted work can resume.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlstm_jax import output
from mlstm_jax.errors import UserError
from mlstm_jax.interop.weights import fingerprint
from mlstm_jax.run import Run
from mlstm_jax.terminal import ProgressLine, show
from mlstm_jax.transfer import classifier_file, experiment, report
from mlstm_jax.transfer.classifier_file import Description
from mlstm_jax.transfer.classify import Classifier, Examples, Prior
from mlstm_jax.transfer.experiment import Result
from mlstm_jax.transfer.features import (
    Features,
    Featurizer,
    Unit,
    features_key,
    read_features,
    write_features,
)
from mlstm_jax.transfer.labels import Labelled, require_task, usable
from mlstm_jax.transfer.reader import FeatureState, features_of
from mlstm_jax.transfer.words import require_classes, uncountable


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
    *,
    states: Sequence[FeatureState] | None = None,
    all_layers: bool = False,
    text_column: str | None = None,
    own: tuple[Classifier, Description] | None = None,
    words: bool = False,
    show_progress: bool = False,
) -> dict[FeatureState, Transferred]:
    """Fit a classifier to the features of each state, and measure it; see `TrainedModel.transfer`.

    Args:
        run: a trained model.
        texts: train, and optionally test and valid.
        out: each of several states gets its own subfolder.
        states: see `features_of`.
        own: the classifier that comes with the model: its log-odds are one more feature with every
            state that has its features.
        words: see `TrainedModel.transfer`.
    """
    states = features_of(run.config.model, states)
    kept = None if out is None else out / "features"
    folders = _folders(out, states) if out else {}
    is_begun = out is not None and require_out(out, states)
    texts = usable(texts, run.cleaning, "test")
    task = require_task(texts["train"])
    if words:
        require_classes(task)
    for name in ("test", "valid"):
        if name in texts:
            require_task(texts[name], task, thresholds=name == "valid")
    model = fingerprint(run.params)
    featurizer = Featurizer(run, states=states, all_layers=all_layers)
    features = _features(kept, featurizer, model, texts, is_begun=is_begun, loud=show_progress)
    with ProgressLine("TF-IDF", 1, status="", quiet=not show_progress):
        tfidf = experiment.fit_tfidf(texts, task)
    if words and not tfidf.words:
        raise uncountable(tfidf.failure)
    experiments = {}
    for state in states:
        columns = featurizer.columns_of(state)
        examples = {
            name: Examples(
                values[:, columns] if len(states) > 1 else values,
                task.codes(texts[name].labels),
            )
            for name, values in features.items()
        }
        units = [featurizer.columns[n] for n in columns]
        parts = experiment.parts_of(task)
        with ProgressLine(f"classifier of {state}", parts, quiet=not show_progress) as progress:
            classifier, result = experiment.run(
                examples,
                texts,
                task,
                state,
                units,
                tfidf,
                _prior(own, units) if own else None,
                progress.update,
                with_words=words,
            )
        about = Description(state, all_layers, model, text_column)
        folder = folders.get(state)
        if folder:
            folder.mkdir(exist_ok=True)
            (folder / report.REPORT).unlink(missing_ok=True)
            classifier_file.save(folder, classifier, about)
            report.write(folder, result, run.name)
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
    return Prior(weights_D, float(classifier.intercepts_K[0]))


def _folders(out: Path, states: Sequence[FeatureState]) -> dict[FeatureState, Path]:
    return {state: out / state if len(states) > 1 else out for state in states}


def require_out(out: Path, states: Sequence[FeatureState]) -> bool:
    """Return whether an earlier call started in `out`; UserError if it holds something else."""
    folders = _folders(out, states).values()
    kept = out / "features"
    is_begun = out.is_dir() and any(path != kept for path in out.iterdir())
    is_done = all((folder / report.REPORT).exists() for folder in folders)
    if out.exists() and (not out.is_dir() or (is_begun and (is_done or not kept.is_dir()))):
        raise UserError(f"{out} exists; choose another folder with `out`.")
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
    keys, before = {}, {}
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
    read_now, started = 0, time.monotonic()
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
        show(f"features of {read_now:,} texts: {rate:,.1f} texts/s", file=sys.stderr)
    if loud and kept and read_now < sum(len(part.texts) for part in texts.values()):
        show(f"reusing the features of the same texts in {kept}", file=sys.stderr)
    return features
