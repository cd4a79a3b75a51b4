"""A linear classifier of features, and the examples that it is fitted to and measured on.

logistic.py fits it, words.py adds word counts, and classifier_file.py saves it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.errors import UserError, require
from mlstm_jax.transfer.features import Features
from mlstm_jax.transfer.words import Words

_SHOWN = 10  # names of classes

Labels = NDArray[np.int64]  # see `labels.codes`
Floats = NDArray[np.float64]


class Examples(NamedTuple):
    """Features [texts, D], and the label of each."""

    features: Features
    labels: Labels

    def columns(self, units: Sequence[int]) -> "Examples":
        """Return the examples with only these features."""
        return Examples(self.features[:, list(units)], self.labels)


def subset(examples: Examples, count: int, seed: int) -> Examples:
    """Return `count` examples at random, at least one of each class."""
    order = np.random.default_rng(seed).permutation(len(examples.labels))
    _, first = np.unique(examples.labels[order], return_index=True)
    chosen = np.concatenate([order[first], np.delete(order, first)])[:count]
    return Examples(examples.features[chosen], examples.labels[chosen])


def named(classes: Sequence[str]) -> str:
    """How many classes there are, and the first few names."""
    more = ", ..." if len(classes) > _SHOWN else ""
    return f"{len(classes)} classes: {', '.join(classes[:_SHOWN])}{more}"


def nats(probabilities_NK: Floats, labels: Labels) -> Floats:
    """The cross-entropy of each label, [texts]."""
    found_N = probabilities_NK[np.arange(len(labels)), labels]
    return -np.log(np.maximum(found_N, np.finfo(np.float64).tiny))


class Classifier(NamedTuple):
    """Scores are features · weights + intercepts; with two classes, only of the second."""

    weights_KD: Floats
    intercepts_K: Floats
    classes: list[str]
    C: float  # infinite for a head without a penalty
    softmax: bool = False  # over more than two classes; otherwise one against the rest
    deviations_D: Floats | None = None  # of the features, in the texts of the fit
    words: Words | None = None  # its weight says how both probabilities are combined
    texts: NDArray[np.uint32] | None = None  # digests of those that it was fitted to (classify.py)

    def __repr__(self) -> str:
        words = f" and {len(self.words.vocabulary):,} words and pairs" if self.words else ""
        features = f"{self.weights_KD.shape[1]} features{words}"
        return f"{type(self).__name__} of {features}: {named(self.classes)}"

    def require_no_words(self, name: str) -> None:
        """Raise UserError if it has words, with the name of what needs one without."""
        if self.words:
            raise UserError(
                f"{name} is for a classifier of states alone, and this one also counts words; fit "
                "one without `words`."
            )

    def probabilities(self, features: Features, texts: Sequence[str] = ()) -> Floats:
        """Return [texts, classes]; one-against-rest probabilities are scaled to sum to 1.

        With words it needs the texts.
        """
        scores_NK = self._linear(features)
        if self.softmax:
            shares_NK = np.exp(scores_NK - scores_NK.max(axis=1, keepdims=True))
        else:
            shares_NK = 1 / (1 + np.exp(-np.clip(scores_NK, -500, 500)))
        if len(self.classes) == 2:
            shares_NK = np.concatenate([1 - shares_NK, shares_NK], axis=1)
        else:
            shares_NK = shares_NK / shares_NK.sum(axis=1, keepdims=True)
        if not self.words or not len(features):
            return shares_NK
        rule = f"{len(features):,} strings, one for each row of features"
        require(len(texts) == len(features), "texts", f"{len(texts):,} strings", rule)
        return self.words.mixed(shares_NK, texts)

    def scores(self, features: Features) -> Floats:
        """Return the log-odds of each class [texts, classes]: above 0 it is more likely than not.

        Without `softmax`, three classes or more have those of their one-against-rest classifiers.
        """
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
        scores: Floats = features.astype(np.float64) @ self.weights_KD.T
        return scores + self.intercepts_K

    def predict(self, features: Features, texts: Sequence[str] = ()) -> Labels:
        """Return the class of each text, an index; of equally likely ones, the first."""
        return self.probabilities(features, texts).argmax(axis=1)

    def loss(self, examples: Examples) -> float:
        """Return the mean cross-entropy of the labels, nats."""
        return float(nats(self.probabilities(examples.features), examples.labels).mean())

    def score(self, examples: Examples, texts: Sequence[str] = ()) -> float:
        """Return the fraction of texts that it classifies correctly."""
        return float((self.predict(examples.features, texts) == examples.labels).mean())

    @property
    def ranking(self) -> Labels:
        """The features by their largest |weight| per standard deviation, the largest first."""
        scaled_KD = self.weights_KD
        if self.deviations_D is not None:
            scaled_KD = self.weights_KD * self.deviations_D
        return np.argsort(-np.abs(scaled_KD).max(axis=0), kind="stable")
