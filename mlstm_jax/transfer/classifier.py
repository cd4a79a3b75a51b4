"""A linear classifier of features: what it answers, and its files.

logistic.py fits it, and words.py adds word counts. On disk it is classifier.safetensors and
classifier.json; no pickle.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import arrays, digest, fields, output, shipped
from mlstm_jax.errors import UserError, did_you_mean, first_of, require
from mlstm_jax.fields import Between
from mlstm_jax.loaded import Loaded
from mlstm_jax.model.architecture import Sizes
from mlstm_jax.options import FeatureState, State
from mlstm_jax.transfer.features import Features, layers_of
from mlstm_jax.transfer.known import Digests
from mlstm_jax.transfer.standalone import scores_of, shares_of
from mlstm_jax.transfer.words import MEAN, Counted, Words

FORMAT = 3

Labels = NDArray[np.int64]  # see `labels.codes`
Floats = NDArray[np.float64]


class Examples(NamedTuple):
    """Features [texts, D], and the label of each; with the texts themselves for word counts."""

    features: Features
    labels: Labels
    texts: Sequence[str] = ()
    alike: Digests | None = None  # see `sets.folds`


def subset(examples: Examples, count: int, seed: int) -> Examples:
    """Return `count` examples at random, at least one of each class."""
    order = np.random.default_rng(seed).permutation(len(examples.labels))
    _, first = np.unique(examples.labels[order], return_index=True)
    first = np.sort(first)  # in an order that the names of the classes do not change
    chosen = np.concatenate([order[first], np.delete(order, first)])[:count]
    alike = None if examples.alike is None else examples.alike[chosen]
    return Examples(examples.features[chosen], examples.labels[chosen], alike=alike)


def named(classes: Sequence[str]) -> str:
    """How many classes there are, and the first few names."""
    return f"{len(classes)} classes: {first_of(classes, 10)}"


def nats(probabilities_NK: Floats, labels: Labels) -> Floats:
    """The cross-entropy of each label, [texts]."""
    found_N = probabilities_NK[np.arange(len(labels)), labels]
    return -np.log(np.maximum(found_N, np.finfo(np.float64).tiny))


@dataclass(frozen=True)
class DomainLimit:
    """The most bits per character of texts that a classifier knows: bits + short / √n of n bytes.

    The fewer bytes a text has, the more they vary.
    """

    bits: float
    short: float

    def is_out_of_domain(self, nats_N: Any, scored_N: Any) -> NDArray[np.bool_]:
        """Whether each text is unlike them, by the nats of its scored bytes."""
        scored_N = np.asarray(scored_N)
        most_N = (self.bits * scored_N + self.short * np.sqrt(scored_N)) * np.log(2)
        is_out_N: NDArray[np.bool_] = np.asarray(nats_N) > most_N
        return is_out_N


@dataclass(frozen=True)
class Description:
    """Which features of which model a classifier reads; saved as JSON."""

    state: FeatureState
    all_layers: bool
    fingerprint: str  # of the parameters of the model
    text_column: str | None
    familiar: DomainLimit | None = None
    step: int | None = None  # of the checkpoint; 0 for imported weights; None: not recorded

    def layers(self, architecture: Sizes) -> list[tuple[State, int]]:
        return layers_of(architecture, self.state, all_layers=self.all_layers)


class Classifier(NamedTuple):
    """Scores are features · weights + intercepts; with two classes, only of the second.

    Attributes:
        weights_KD: float64 [classes, features]; with two classes [1, features].
        intercepts_K: float64 [classes], or [1].
        classes: their names, sorted.
        C: inverse strength of the penalty; infinite for a head without one.
        softmax: over more than two classes; otherwise one against the rest.
        deviations_D: of the features, in the texts of the fit.
        words: TF-IDF; its weight says how both probabilities are combined.
        texts: digests of the texts of the fit (known.py).
        about: which features of which model it reads.
    """

    weights_KD: Floats
    intercepts_K: Floats
    classes: list[str]
    C: float
    softmax: bool = False
    deviations_D: Floats | None = None
    words: Words | None = None
    texts: NDArray[np.uint32] | None = None
    about: Description = Description("c", False, "", None)

    def __repr__(self) -> str:
        words = f" and {self.words}" if self.words else ""
        features = f"{self.weights_KD.shape[1]} features{words}"
        return f"{type(self).__name__} of {features}: {named(self.classes)}"

    def require_no_words(self, name: str) -> None:
        """Raise UserError if it has words; `name` needs a classifier without, in the message."""
        if self.words:
            raise UserError(
                f"{name} is for a classifier of states alone, and this one also counts words; fit "
                "one without `words`."
            )

    def require_model(self, name: str | Path, loaded: Loaded) -> None:
        """Raise UserError unless it was created with this model; `name` is for the message."""
        if self.about.fingerprint != loaded.fingerprint:
            step = f" {self.about.step}" if self.about.step else ""
            raise UserError(
                f"{name} does not belong to the parameters of {loaded.place}; pass the run and "
                f"`checkpoint`{step} that it was created with (of `mlstm-jax finetune`: OUT/run), "
                "or create it again."
            )

    def between(self, classes: Sequence[str]) -> "Classifier":
        """The classifier that chooses between some of its classes; their shares sum to 1."""
        known = ", ".join(self.classes)
        is_known = len(classes) == len(set(classes)) >= 2 and set(classes) <= set(self.classes)
        require(is_known, "classes", " ".join(classes), f"two or more of {known}, each once")
        if list(classes) == self.classes:
            return self
        self.require_no_words("a choice between some classes")
        weights_KD = self.weights_KD
        intercepts_K = self.intercepts_K
        if len(self.classes) == 2:
            weights_KD = np.concatenate([np.zeros_like(weights_KD), weights_KD])
            intercepts_K = np.concatenate([np.zeros_like(intercepts_K), intercepts_K])
        elif not self.softmax:
            raise UserError(
                "classes: this classifier has one answer for each class against the rest, so it "
                "cannot choose between some of them; leave `classes` out."
            )
        chosen = [self.classes.index(name) for name in classes]
        made = of_softmax(weights_KD[chosen], intercepts_K[chosen], list(classes), self.C)
        return made._replace(deviations_D=self.deviations_D, texts=self.texts, about=self.about)

    def probabilities(self, features: Features, texts: Sequence[str] = ()) -> Floats:
        """Return [texts, classes]; one-against-rest probabilities are scaled to sum to 1."""
        scores_NK = self._linear(features)
        shares_NK: Floats = shares_of(scores_NK, len(self.classes), softmax=self.softmax)
        if not self.words or not len(features):
            return shares_NK
        rule = f"{len(features):,} strings, one for each row of features"
        require(len(texts) == len(features), "texts", f"{len(texts):,} strings", rule)
        weight = self.words.weight
        return (1 - weight) * shares_NK + weight * self.words.probabilities(texts)

    def scores(self, features: Features) -> Floats:
        """The log-odds of each class [texts, classes]: above 0 it is more likely than not."""
        self.require_no_words("the score after each character")
        scores_NK = self._linear(features)
        if len(self.classes) == 2:
            return np.concatenate([-scores_NK, scores_NK], axis=1)
        if not self.softmax:
            return scores_NK
        is_same_KK = np.eye(len(self.classes), dtype=np.bool_)
        others_NKK = np.where(is_same_KK, -np.inf, scores_NK[:, None])
        return scores_NK - np.logaddexp.reduce(others_NKK, axis=2)

    def _linear(self, features: Features) -> Floats:
        scores_NK: Floats = scores_of(features, self.weights_KD, self.intercepts_K)
        return scores_NK

    def loss(self, examples: Examples) -> float:
        """Return the mean cross-entropy of the labels, nats."""
        shares_NK = self.probabilities(examples.features, examples.texts)
        return float(nats(shares_NK, examples.labels).mean())

    def score(self, examples: Examples) -> float:
        """Return the fraction of texts that it classifies correctly."""
        shares_NK = self.probabilities(examples.features, examples.texts)
        return float((shares_NK.argmax(axis=1) == examples.labels).mean())

    @property
    def ranking(self) -> Labels:
        """The features by their largest |weight| per standard deviation, the largest first."""
        scaled_KD = self.weights_KD
        if self.deviations_D is not None:
            scaled_KD = self.weights_KD * self.deviations_D
        return np.argsort(-np.abs(scaled_KD).max(axis=0), kind="stable")

    def save(self, folder: Path) -> None:
        """Write its two files; KnownError if they cannot be written."""
        values = {"weights": self.weights_KD, "intercepts": self.intercepts_K}
        if self.deviations_D is not None:
            values["deviations"] = self.deviations_D
        of_words: dict[str, Any] = {}
        if self.words:
            values["idf"] = self.words.idf_V
            values["word_weights"] = self.words.weights_KV
            values["word_intercepts"] = self.words.intercepts_K
            of_words["counted"] = self.words.counted
            of_words["vocabulary"] = self.words.vocabulary
            of_words["word_weight"] = self.words.weight
        written: arrays.Arrays = {}
        for name, value in values.items():
            written[name] = np.asarray(value, np.float64)
        if self.texts is not None:
            written["texts"] = np.asarray(self.texts, np.uint32)
        described = {
            "format": FORMAT,
            "classes": self.classes,
            "C": None if math.isinf(self.C) else self.C,
            "softmax": self.softmax,
            **asdict(self.about),
            "arrays": digest.of_arrays(written),
            **of_words,
        }
        with output.write_errors(folder):
            (folder / "classifier.json").unlink(missing_ok=True)
            arrays.write_arrays(folder / "classifier.safetensors", written)
            # Last: without it there is no classifier.
            digest.write_json(folder / "classifier.json", described)


def of_softmax(
    weights_KD: Floats, intercepts_K: Floats, classes: list[str], C: float
) -> Classifier:
    """A classifier by softmax: of two classes, the logistic function of their difference."""
    if len(classes) == 2:
        weights_KD = weights_KD[1:] - weights_KD[:1]
        intercepts_K = np.diff(intercepts_K)
    weights_KD = np.ascontiguousarray(weights_KD)
    return Classifier(weights_KD, intercepts_K, classes, C, softmax=len(classes) > 2)


@dataclass(frozen=True, kw_only=True)
class _File(Description):
    """The fields of classifier.json."""

    format: int
    classes: list[str]
    C: float | None  # None: infinite
    softmax: bool
    arrays: dict[str, int]  # checksums of the arrays in classifier.safetensors
    counted: Counted = "words"
    vocabulary: list[str] | None = None  # of counts, in the order of the columns
    word_weight: Annotated[float, Between(0, 1)] = MEAN

    def __post_init__(self) -> None:
        for name, least in (("classes", 2), ("vocabulary", 1)):
            words = getattr(self, name)
            if words is not None and not least <= len(set(words)) == len(words):
                raise fields.InvalidField(f"{name} must be {least} or more different names")


def load_classifier(folder: Path) -> Classifier:
    """Read what `Classifier.save` wrote; a UserError names the field or array that is wrong."""
    file = _read_json(folder)
    path = shipped.model(folder) / "classifier.safetensors"
    where = f"{path}: "
    _, stored = arrays.read_arrays(path)
    texts = stored.pop("texts", None)
    arrays.check_names(where, stored.keys() & {"weights"}, {"weights"})  # the others: below
    _, width = arrays.sizes(where, stored, "weights", 2)
    rows = 1 if len(file.classes) == 2 else len(file.classes)
    shapes: dict[str, tuple[int, ...]] = {"weights": (rows, width), "intercepts": (rows,)}
    if "deviations" in stored:
        shapes["deviations"] = (width,)
    if file.vocabulary:
        count = len(file.vocabulary)
        shapes |= {"idf": (count,), "word_weights": (rows, count), "word_intercepts": (rows,)}
    loaded = arrays.checked_arrays(where, stored, shapes, np.float64)
    summed = loaded if texts is None else loaded | {"texts": texts}
    with fields.named(f"{path} is damaged", "; restore it, or create it again"):
        digest.require_arrays(path.name, digest.of_arrays(summed), file.arrays)
    words = None
    if file.vocabulary:
        numbers = (loaded["idf"], loaded["word_weights"], loaded["word_intercepts"])
        words = Words(file.counted, file.vocabulary, *numbers, file.word_weight)
    about = {name: getattr(file, name) for name in Description.__dataclass_fields__}
    return Classifier(
        loaded["weights"],
        loaded["intercepts"],
        file.classes,
        math.inf if file.C is None else file.C,
        softmax=file.softmax,
        deviations_D=loaded.get("deviations"),
        words=words,
        texts=texts,
        about=Description(**about),
    )


def own_classifier(loaded: Loaded) -> Classifier | None:
    """The classifier that comes with a pretrained model; None for other models."""
    place = shipped.classifier(loaded.folder)
    return load_classifier(place) if place else None


def _read_json(given: Path) -> _File:
    folder = shipped.model(given)
    path = folder / "classifier.json"
    if not path.is_file():
        inside = [str(given / one.parent.name) for one in sorted(folder.glob("*/classifier.json"))]
        advice = did_you_mean(inside, "; create one with `mlstm-jax transfer`.")
        raise UserError(f"{given} has no classifier.json{advice}")
    advice = "; restore it, or create it again with `mlstm-jax transfer`"
    with fields.named(f"{path}: the classifier cannot be read", advice):
        values = fields.parse(path.read_bytes())
        if isinstance(values, dict) and values.get("format", FORMAT) != FORMAT:
            raise fields.InvalidField("it was written by another version of this program")
        return fields.build(_File, digest.verified(values))
