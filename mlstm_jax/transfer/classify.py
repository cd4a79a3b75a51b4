"""A linear classifier on frozen features, and the few units that carry it.

Puri et al. 2018, section VI, after Radford et al. 2017: L1-regularised logistic regression by
scikit-learn, its strength C chosen on validation data from 2^-8 ... 2^0; then the k units of
largest |weight|, fitted again on those alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

STRENGTHS = tuple(2.0**power for power in range(-8, 1))
TOP_UNITS = (1, 5)

Features = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Labelled:
    """Features [texts, H] and the label of each, [texts]."""

    features: Features
    labels: Labels


@dataclass(frozen=True)
class Result:
    """What a classifier reached; accuracies are fractions."""

    strength: float  # C
    train: float
    valid: float
    test: float
    nonzero: int  # weights that L1 left
    units: list[int]  # by |weight|, the largest first
    top_units: dict[int, float]  # k → test accuracy of the k first of them


def _fit(data: Labelled, strength: float) -> LogisticRegression:
    # l1_ratio=1 is the L1 penalty; the seed fixes the order of liblinear's coordinates.
    model = LogisticRegression(
        l1_ratio=1.0, C=strength, solver="liblinear", random_state=0, max_iter=1000
    )
    return model.fit(data.features, data.labels)


def _columns(data: Labelled, units: list[int]) -> Labelled:
    return Labelled(data.features[:, units], data.labels)


def _accuracy(model: LogisticRegression, data: Labelled) -> float:
    return float(model.score(data.features, data.labels))


def classify(train: Labelled, valid: Labelled, test: Labelled) -> Result:
    """Choose C on `valid`, fit on `train`, and report accuracies; two classes."""
    fitted = [_fit(train, strength) for strength in STRENGTHS]
    scores = [_accuracy(model, valid) for model in fitted]
    best = int(np.argmax(scores))  # the smallest C of equals: the fewest weights
    model = fitted[best]
    weights = np.abs(model.coef_[0])
    units = np.argsort(-weights, kind="stable")
    nonzero = int((weights > 0).sum())
    top = {}
    for count in TOP_UNITS:
        chosen = units[:count].tolist()
        # Few features need no shrinking: the weakest of the strengths tried.
        few = _fit(_columns(train, chosen), STRENGTHS[-1])
        top[count] = _accuracy(few, _columns(test, chosen))
    return Result(
        strength=STRENGTHS[best],
        train=_accuracy(model, train),
        valid=scores[best],
        test=_accuracy(model, test),
        nonzero=nonzero,
        units=units[: max(TOP_UNITS)].tolist(),
        top_units=top,
    )
