"""Transfer: texts with labels, the features of a frozen model, a classifier and a report.

The features are saved in OUT/features as they are computed, so that interrupted work can resume.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlstm_jax.errors import UserError
from mlstm_jax.loaded import Loaded
from mlstm_jax.options import SPLITS, FeatureState, TransferOptions
from mlstm_jax.terminal import ProgressLine, tell
from mlstm_jax.transfer import experiment, features, words
from mlstm_jax.transfer.classifier import Classifier, Description, Examples, own_classifier
from mlstm_jax.transfer.experiment import Result
from mlstm_jax.transfer.features import Column, Features, Featurizer
from mlstm_jax.transfer.folder import REPORT, locked, remove_results, require_out, results_in
from mlstm_jax.transfer.known import FITTED_BEFORE, note_among
from mlstm_jax.transfer.labels import Labelled, codes
from mlstm_jax.transfer.report import write_report
from mlstm_jax.transfer.sets import Sets, note_known


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
    loaded: Loaded,
    sets: Sets,
    out: Path | None,
    options: TransferOptions,
    *,
    overwrite: bool,
    show_progress: bool,
) -> dict[FeatureState, Transferred]:
    """Fit a classifier to the features of each state, and measure it; see `TrainedModel.transfer`.

    Each of several states gets its own subfolder of `out`.
    """
    # Its log-odds are one more feature with every state that has its features.
    own = own_classifier(loaded)
    chosen = options.states
    if chosen is None and own and "+" in own.about.state:
        chosen = (own.about.state,)
    states = features.features_of(loaded.architecture, chosen)
    classes = sets.classes
    texts: dict[str, Labelled] = {name: sets.texts[name] for name in SPLITS if name in sets.texts}
    on_read, on_repeated = note_known(loaded, sets)
    featurizer = Featurizer(loaded, states=states, all_layers=options.all_layers)
    if out and overwrite:
        remove_results(out)
    read = _features(out, featurizer, texts, show_progress=show_progress)
    with ProgressLine("TF-IDF", 1, status="", shown=show_progress):
        tfidf = words.fit(texts["train"], texts.get("valid"), classes, sets.alike["train"])
    fitted_to = np.unique(sets.same["train"])
    context = experiment.Context(
        sources=sets.sources,
        notes=on_read + on_repeated,
        is_known=bool(on_read),
        keeps_words=options.words,
    )
    transferred = {}
    for state in states:
        columns = features.places_of(state, featurizer.columns)
        units = [featurizer.columns[n] for n in columns]
        examples: dict[str, Examples] = {}
        for name, part in texts.items():
            values = read[name] if len(states) == 1 else read[name][:, columns]
            labels_N = codes(part.labels, classes)
            examples[name] = Examples(values, labels_N, part.texts, sets.alike[name])
        with (
            ProgressLine(
                f"classifier of {state}", experiment.PROGRESS, shown=show_progress
            ) as progress,
            words.fitting(),
        ):
            classifier, result = experiment.fit_and_measure(
                examples, classes, state, units, tfidf, _prior(own, units), context, progress.update
            )
        if own and own.texts is not None and result.has_prior:
            test = texts["test"].name
            on_fitted = note_among(test, sets.same["test"], own.texts, FITTED_BEFORE)
            if on_fitted:
                notes = result.notes + on_fitted
                result = dataclasses.replace(result, notes=notes, is_known=True)
        about = Description(
            state, options.all_layers, loaded.fingerprint, sets.text_column, step=loaded.step
        )
        classifier = classifier._replace(texts=fitted_to, about=about)
        folder = out
        if out and len(states) > 1:
            folder = out / state
        transferred[state] = Transferred(classifier, result, folder)
    if out:
        with locked(out):
            if not overwrite:
                require_out(out, options, overwrite=False)  # another call may have ended since
            for made in transferred.values():
                _save(made, loaded)
    return transferred


def _save(made: Transferred, loaded: Loaded) -> None:
    """Write the classifier and the report, whose last file says that all are complete."""
    folder = made.folder
    assert folder
    folder.mkdir(exist_ok=True)
    (folder / REPORT).unlink(missing_ok=True)
    made.classifier.save(folder)
    write_report(folder, made.result, loaded)


def _prior(own: Classifier | None, units: Sequence[Column]) -> Classifier | None:
    """A classifier's first and last class, of these features; None if it reads others, too."""
    if not own:
        return None
    places = features.places_of(own.about.state, units)
    if len(places) != own.weights_KD.shape[1]:
        return None
    own = own.between([own.classes[0], own.classes[-1]])
    weights_KD = np.zeros((1, len(units)))
    weights_KD[:, places] = own.weights_KD
    return Classifier(weights_KD, own.intercepts_K, own.classes, own.C)


def _features(
    out: Path | None, featurizer: Featurizer, texts: Mapping[str, Labelled], *, show_progress: bool
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
        if results_in(out) and len(read) < len(texts):
            raise UserError(
                f"{out} exists, but its features are damaged, or of other texts, states or "
                "parameters; repeat the command that created it, choose another folder with "
                "`out`, or replace it with `overwrite=True`."
            )
    if read and show_progress:
        tell(f"reusing the features of the same texts in {out}/features")
    for name, part in texts.items():
        if name in read:
            continue
        values = featurizer(part.texts, f"features of {name}", show_progress=show_progress)
        read[name] = values
        if out:  # Save now: they are most of the work, and a later step may fail.
            path = out / "features" / f"{name}.npz"
            features.write_features(path, len(values), [values], featurizer, key=keys[name])
    return read
