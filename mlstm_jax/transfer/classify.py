"""A linear classifier on frozen features: L1-regularised logistic regression by scikit-learn.

Puri et al. 2018, section VI, after Radford et al. 2017: C is the best of 2^-8 ... 2^0 on validation
data; then a second classifier is fitted on the k units of largest |weight| alone. With more than
two classes, each is classified against the rest. A classifier is saved as numbers and names, never
as a pickle.

# Paper: unscaled features. Here each feature is divided by its standard deviation for the fit, and
the weights are then converted back to unscaled features. The cell state of a small model has a
standard deviation of about 0.1, so the same values of C would shrink all of its weights to zero.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlstm_jax import fields, output
from mlstm_jax.errors import UserError
from mlstm_jax.interop import arrays
from mlstm_jax.transfer.features import Features, State

CS = tuple(2.0**power for power in range(-8, 1))
_FOLDS = 5
FORMAT = 1

Labels = NDArray[np.int64]  # indices into the classes


class Examples(NamedTuple):
    """Features [texts, D] and the class of each, an index [texts]."""

    features: Features
    labels: Labels


class Classifier(NamedTuple):
    """Scores are features · weights + intercepts; with two classes, only of the second."""

    weights_KD: NDArray[np.float64]
    intercepts_K: NDArray[np.float64]
    classes: list[str]
    C: float  # infinite for a head that was trained without a penalty
    softmax: bool = False  # over more than two classes; otherwise one against the rest
    deviations_D: NDArray[np.float64] | None = None  # of the features, in the texts of the fit

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        """Return [texts, classes]; those of one-against-rest classifiers are scaled to sum to 1."""
        scores_NK = features.astype(np.float64) @ self.weights_KD.T + self.intercepts_K
        if self.softmax:
            yes_NK = np.exp(scores_NK - scores_NK.max(axis=1, keepdims=True))
        else:
            yes_NK = 1 / (1 + np.exp(-np.clip(scores_NK, -500, 500)))
        if len(self.classes) == 2:
            return np.concatenate([1 - yes_NK, yes_NK], axis=1)
        return yes_NK / yes_NK.sum(axis=1, keepdims=True)

    def predict(self, features: Features) -> Labels:
        """Return the class of each text, an index; of equally likely ones, the first."""
        return self.probabilities(features).argmax(axis=1)

    def accuracy(self, examples: Examples) -> float:
        """Return the fraction of texts that it classifies correctly."""
        return float((self.predict(examples.features) == examples.labels).mean())

    @property
    def nonzero(self) -> int:
        """Number of features with a nonzero weight in some class."""
        return int((self.weights_KD != 0).any(axis=0).sum())

    @property
    def ranking(self) -> NDArray[np.int64]:
        """The features by their largest |weight| per standard deviation, the largest first."""
        scale_D = 1 if self.deviations_D is None else self.deviations_D
        return np.argsort(-np.abs(self.weights_KD * scale_D).max(axis=0), kind="stable")


def _pipeline(classes: int, C: float) -> Any:
    """Return the unfitted estimator; more than two classes are classified one against the rest."""
    # l1_ratio=1 is the L1 penalty; the seed fixes the order of liblinear's coordinates.
    logistic = LogisticRegression(
        l1_ratio=1.0, C=C, solver="liblinear", random_state=0, max_iter=1000
    )
    # StandardScaler gives a constant feature the scale 1.
    return make_pipeline(
        StandardScaler(), logistic if classes == 2 else OneVsRestClassifier(logistic)
    )


def fit(examples: Examples, classes: list[str], C: float) -> Classifier:
    """Fit a classifier; every class must occur."""
    values = examples.features.astype(np.float64)
    scaler, logistic = _pipeline(len(classes), C).fit(values, examples.labels)
    fitted = [logistic] if len(classes) == 2 else logistic.estimators_
    weights_KD = np.concatenate([one.coef_ for one in fitted]) / scaler.scale_
    intercepts_K = np.concatenate([one.intercept_ for one in fitted]) - weights_KD @ scaler.mean_
    return Classifier(weights_KD, intercepts_K, classes, C, deviations_D=scaler.scale_)


def choose(
    train: Examples,
    valid: Examples | None,
    classes: list[str],
    on_fit: Callable[[int], None] = lambda count: None,
) -> tuple[Classifier, float]:
    """Return the classifier of the best C, and its accuracy on validation data.

    Args:
        train: examples to fit.
        valid: examples to choose C on; None: five-fold cross-validation of `train`.
        classes: their names.
        on_fit: called with the number of values of C tried so far.
    """
    scores = []
    for count, C in enumerate(CS, 1):
        scores.append(_score(train, valid, classes, C))
        on_fit(count)
    best = int(np.argmax(scores))  # of equal scores the smallest C: the fewest weights
    return fit(train, classes, CS[best]), scores[best]


def best_C(draws: Sequence[Examples], valid: Examples | None, classes: list[str]) -> float:
    """Return the best C over draws of the same number of examples, of every second value of `CS`.

    Without validation data each draw is cross-validated, except those with a single example of some
    class. If no draw can be cross-validated, return the weakest penalty: with a strong one, few
    examples would leave no nonzero weights.
    """
    if valid is None:
        draws = [draw for draw in draws if np.bincount(draw.labels).min() > 1]
    if not draws:
        return CS[-1]
    tried = CS[::2]
    scores = [sum(_score(draw, valid, classes, C) for draw in draws) for C in tried]
    return tried[int(np.argmax(scores))]


def _score(train: Examples, valid: Examples | None, classes: list[str], C: float) -> float:
    """Return the accuracy on validation data, or without such data by cross-validation."""
    if valid is not None:
        return fit(train, classes, C).accuracy(valid)
    fewest = int(np.bincount(train.labels).min())
    if fewest < 2:
        raise UserError(
            f"class {classes[int(np.bincount(train.labels).argmin())]!r} has only one text, too "
            "few for cross-validation; add texts of this class, or give validation texts with "
            "--valid."
        )
    folds = StratifiedKFold(min(_FOLDS, fewest), shuffle=True, random_state=0)
    values = train.features.astype(np.float64)
    return float(cross_val_score(_pipeline(len(classes), C), values, train.labels, cv=folds).mean())


def _rows(examples: Examples, chosen: Any) -> Examples:
    return Examples(examples.features[chosen], examples.labels[chosen])


def columns(examples: Examples, units: Sequence[int]) -> Examples:
    """Return the examples with only these features."""
    return Examples(examples.features[:, list(units)], examples.labels)


def subset(examples: Examples, count: int, seed: int) -> Examples:
    """Return `count` examples at random, at least one of each class."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(examples.labels))
    first = [order[examples.labels[order] == label][0] for label in np.unique(examples.labels)]
    rest = order[~np.isin(order, first)]
    return _rows(examples, np.concatenate([first, rest])[:count])


class Description(NamedTuple):
    """Which features of which model a classifier reads; saved as JSON."""

    state: State
    all_layers: bool
    model: str  # fingerprint of its parameters
    text_column: str | None


class _File(NamedTuple):
    """The fields of classifier.json."""

    format: int
    classes: list[str]
    C: float | None  # None: infinite
    softmax: bool
    state: State
    all_layers: bool
    model: str
    text_column: str | None


def save(folder: Path, classifier: Classifier, about: Description) -> None:
    """Write classifier.safetensors and classifier.json; KnownError if they cannot be written."""
    values = {"weights": classifier.weights_KD, "intercepts": classifier.intercepts_K}
    if classifier.deviations_D is not None:
        values["deviations"] = classifier.deviations_D
    written = {
        "format": FORMAT,
        "classes": classifier.classes,
        "C": None if math.isinf(classifier.C) else classifier.C,
        "softmax": classifier.softmax,
        **about._asdict(),
    }
    with output.write_errors(folder):
        (folder / "classifier.json").unlink(missing_ok=True)
        arrays.write_safetensors(folder / "classifier.safetensors", values)
        # Last: without it there is no classifier.
        output.write_text(folder / "classifier.json", json.dumps(written, indent=2) + "\n")


def load_classifier(folder: Path) -> tuple[Classifier, Description]:
    """Read what `save` wrote; a UserError names the field or array that is wrong."""
    about = folder / "classifier.json"
    if not about.is_file():
        inside = folder / "classifier"
        advice = (
            f"name {inside}, and the run {folder / 'run'}, which `mlstm-jax finetune` wrote."
            if inside.is_dir()
            else "create one with `mlstm-jax transfer`."
        )
        raise UserError(f"{folder} has no classifier.json; {advice}")
    try:
        values = fields.parse(about.read_bytes())
        if isinstance(values, dict) and values.get("format", FORMAT) != FORMAT:
            raise UserError(
                f"{about}: was written by another version of this program; create it again with "
                "`mlstm-jax transfer`."
            )
        given = fields.build(_File, values)
        if len(set(given.classes)) != len(given.classes) or len(given.classes) < 2:
            raise fields.Wrong("classes must be two or more different names")
    except fields.Wrong as error:
        raise UserError(f"{about}: the classifier cannot be read ({error}).") from error
    except OSError as error:
        raise UserError(f"{about}: cannot be read: {error.strerror or error}") from error
    rows = 1 if len(given.classes) == 2 else len(given.classes)
    path = folder / "classifier.safetensors"
    with arrays.safetensors(path, "") as (_, found):
        wanted = {"weights", "intercepts"} | (found.keys() & {"deviations"})
        arrays.check_names(str(path), found, wanted)
        _, width = found["weights"].sizes(2)
        shapes: dict[str, tuple[int, ...]] = {"weights": (rows, width), "intercepts": (rows,)}
        if "deviations" in found:
            shapes["deviations"] = (width,)
        made = arrays.read_arrays(str(path), found, shapes, np.float64)
    classifier = Classifier(
        made["weights"],
        made["intercepts"],
        given.classes,
        math.inf if given.C is None else given.C,
        given.softmax,
        made.get("deviations"),
    )
    return classifier, Description(given.state, given.all_layers, given.model, given.text_column)
