"""Classifiers on disk: classifier.safetensors and classifier.json, numbers and names, no pickle."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import digest, fields, output, shipped
from mlstm_jax.errors import UserError
from mlstm_jax.fields import Between
from mlstm_jax.interop import arrays
from mlstm_jax.interop.weights import fingerprint
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.run import Run
from mlstm_jax.transfer.classifier import Classifier
from mlstm_jax.transfer.states import FeatureState, State, layers_of
from mlstm_jax.transfer.words import MEAN, Words

FORMAT = 2


@dataclass(frozen=True)
class DomainLimit:
    """How well the model predicts texts of the kind that a classifier knows.

    A text of n scored bytes is unlike them if it has more than bits + short / √n bits per
    character: the fewer bytes, the more they vary.
    """

    bits: float
    short: float

    def is_out_of_domain(self, nats_N: Any, scored_N: Any) -> NDArray[np.bool_]:
        """Return whether each text is unlike them, of the nats of its scored bytes."""
        scored_N = np.asarray(scored_N)
        most_N = (self.bits * scored_N + self.short * np.sqrt(scored_N)) * np.log(2)
        is_out_N: NDArray[np.bool_] = np.asarray(nats_N) > most_N
        return is_out_N


@dataclass(frozen=True)
class Description:
    """Which features of which model a classifier reads; saved as JSON."""

    state: FeatureState
    all_layers: bool
    model: str  # fingerprint of its parameters
    text_column: str | None
    familiar: DomainLimit | None = None
    step: int | None = None  # of the checkpoint; 0 for imported weights; None: not recorded

    def layers(self, model: Architecture) -> list[tuple[State, int]]:
        """See `layers_of`."""
        return layers_of(model, self.state, all_layers=self.all_layers)


@dataclass(frozen=True, kw_only=True)
class _File(Description):
    """The fields of classifier.json."""

    format: int
    classes: list[str]
    C: float | None  # None: infinite
    softmax: bool
    arrays: dict[str, int]  # checksums of those of classifier.safetensors
    vocabulary: list[str] | None = None  # of word counts, in the order of the columns
    word_weight: Annotated[float, Between(0, 1)] = MEAN

    def __post_init__(self) -> None:
        for name, least in (("classes", 2), ("vocabulary", 1)):
            words = getattr(self, name)
            if words is not None and not least <= len(set(words)) == len(words):
                raise fields.InvalidField(f"{name} must be {least} or more different names")


def save(folder: Path, classifier: Classifier, about: Description) -> None:
    """Write classifier.safetensors and classifier.json; KnownError if they cannot be written."""
    values = {"weights": classifier.weights_KD, "intercepts": classifier.intercepts_K}
    if classifier.deviations_D is not None:
        values["deviations"] = classifier.deviations_D
    words = classifier.words
    if words:
        values |= {"idf": words.idf_V, "word_weights": words.weights_KV}
        values["word_intercepts"] = words.intercepts_K
    written: dict[str, NDArray[Any]] = {}
    for name, value in values.items():
        written[name] = np.asarray(value, np.float64)
    if classifier.texts is not None:
        written["texts"] = np.asarray(classifier.texts, np.uint32)
    described = {
        "format": FORMAT,
        "classes": classifier.classes,
        "C": None if math.isinf(classifier.C) else classifier.C,
        "softmax": classifier.softmax,
        **asdict(about),
        "arrays": digest.of_arrays(written),
    }
    if words:
        described |= {"vocabulary": words.vocabulary, "word_weight": words.weight}
    with output.write_errors(folder):
        (folder / "classifier.json").unlink(missing_ok=True)
        arrays.write_safetensors(folder / "classifier.safetensors", written)
        # Last: without it there is no classifier.
        digest.write_json(folder / "classifier.json", described)


def load_classifier(folder: Path) -> tuple[Classifier, Description]:
    """Read what `save` wrote; a UserError names the field or array that is wrong."""
    given = folder
    folder = shipped.model(folder)
    if not (folder / "classifier.json").is_file():
        raise UserError(_missing(given, folder))
    file = _read_json(folder / "classifier.json")
    path = folder / "classifier.safetensors"
    _, stored = arrays.safetensors(path, "")
    texts = stored.pop("texts", None)
    rows = 1 if len(file.classes) == 2 else len(file.classes)
    shapes: dict[str, tuple[int, ...]] = {"intercepts": (rows,)}
    if file.vocabulary:
        count = len(file.vocabulary)
        shapes |= {"idf": (count,), "word_weights": (rows, count), "word_intercepts": (rows,)}
    arrays.check_names(str(path), stored.keys() - {"deviations"}, {"weights", *shapes})
    _, width = arrays.sizes(str(path), stored, "weights", 2)
    shapes["weights"] = (rows, width)
    if "deviations" in stored:
        shapes["deviations"] = (width,)
    loaded = arrays.read_arrays(str(path), stored, shapes, np.float64)
    summed = loaded if texts is None else loaded | {"texts": texts}
    try:
        digest.require_arrays(path.name, digest.of_arrays(summed), file.arrays)
    except fields.InvalidField as error:
        raise UserError(f"{path}: is damaged ({error}); restore it, or create it again.") from error
    words = None
    if file.vocabulary:
        words = Words(
            file.vocabulary,
            loaded["idf"],
            loaded["word_weights"],
            loaded["word_intercepts"],
            file.word_weight,
        )
    classifier = Classifier(
        loaded["weights"],
        loaded["intercepts"],
        file.classes,
        math.inf if file.C is None else file.C,
        file.softmax,
        loaded.get("deviations"),
        words,
        texts,
    )
    about = Description(
        file.state, file.all_layers, file.model, file.text_column, file.familiar, file.step
    )
    return classifier, about


def _missing(given: Path, folder: Path) -> str:
    """What to give instead of a folder that is no classifier's."""
    advice = "create one with `mlstm-jax transfer`."
    if not folder.exists():
        return f"there is no folder {given}; {advice}"
    inside = [str(given / path.parent.name) for path in sorted(folder.glob("*/classifier.json"))]
    if inside:
        advice = f"give {' or '.join(inside)}."
    return f"{given} has no classifier.json; {advice}"


def _read_json(path: Path) -> _File:
    try:
        values = fields.parse(path.read_bytes())
        if isinstance(values, dict) and values.get("format", FORMAT) != FORMAT:
            raise fields.InvalidField("it was written by another version of this program")
        return fields.build(_File, digest.opened(values))
    except fields.InvalidField as error:
        raise UserError(
            f"{path}: the classifier cannot be read ({error}); restore it, or create it again "
            "with `mlstm-jax transfer`."
        ) from error


def require_model(name: str | Path, about: Description, run: Run, path: str | Path) -> None:
    """Raise UserError unless a classifier was created with this run.

    In messages the classifier is `name`, and the run `path`.
    """
    if about.model == fingerprint(run.params):
        return
    advice = (
        "give the run and `checkpoint` that it was created with (of `mlstm-jax finetune`: OUT/run)"
    )
    step = about.step
    if step not in (None, run.step) and (run.folder / "checkpoints" / str(step)).is_dir():
        advice = f"give `--checkpoint {step}` (in Python checkpoint={step})"
    raise UserError(
        f"{name} was created with other parameters than those of {path} at step {run.step}; "
        f"{advice}, or create it again."
    )
