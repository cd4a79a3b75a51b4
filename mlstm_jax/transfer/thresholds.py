"""Yes or no by a threshold: chosen for F1 on texts held out from the fit, and what it achieves.

A probability of 0.5 is a poor threshold for a rare label. Kant et al. 2018 (arXiv 1812.01207)
choose one for each label, on validation data. C, too, is chosen for a measure that a rare label
does not make trivial: average precision. By accuracy, a classifier that always says no would win.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.errors import UserError
from mlstm_jax.transfer.labels import MISSING

_FOLDS = 5

Floats = NDArray[np.float64]
BinaryLabels = NDArray[np.int64]  # 1 yes, 0 no, −1 missing


class Chosen(NamedTuple):
    """The classifier of one label."""

    C: float
    threshold: float
    f1: float  # on the held-out texts
    fitted: Any  # to all training texts that have the label


@dataclass(frozen=True)
class LabelScore:
    """One label over the texts that have it; fractions, None where no text is a yes."""

    label: str
    threshold: float
    known: int  # texts that have the label
    positives: int  # those of them that are a yes
    f1: float | None
    precision: float | None  # 0 if the classifier says yes to none
    recall: float | None
    average_precision: float | None
    all_yes: float | None  # F1 of always saying yes


MEASURES = ("f1", "precision", "recall", "average_precision", "all_yes")


def best_threshold(answers: BinaryLabels, yes: Floats) -> tuple[float, float]:
    """Return the threshold of the largest F1, and that F1: yes if the probability reaches it.

    Args:
        answers: 1 or 0, [texts]; some are 1.
        yes: probabilities, [texts].

    It is in the middle between two neighbouring probabilities, so that rounding does not change an
    answer. Of thresholds with equal F1 it is the highest.
    """
    tried, place = np.unique(yes, return_inverse=True)
    # From the highest down: how often a threshold says yes, and how often rightly.
    said = np.cumsum(np.bincount(place)[::-1])
    right = np.cumsum(np.bincount(place, answers)[::-1])
    f1 = 2 * right / (answers.sum() + said)
    best = int(np.argmax(f1))
    upper, lower = tried[::-1][best], [*tried[::-1], 0.0][best + 1]
    # Two neighbouring floats have none in the middle.
    threshold = min(upper, max((lower + upper) / 2, np.nextafter(lower, 1)))
    return float(threshold), float(f1[best])


def best_thresholds(answers_NK: BinaryLabels, yes_NK: Floats) -> list[float]:
    """Return the best threshold of each label, over the texts that have it."""
    known = (_known(yes_NK[:, k], answers_NK, k) for k in range(yes_NK.shape[1]))
    return [best_threshold(answers, yes)[0] for yes, answers in known]


def folds(labels: BinaryLabels, names: Sequence[str]) -> Any:
    """Return the folds of cross-validation; UserError if a label, by its name, has one text."""
    from sklearn.model_selection import StratifiedKFold

    counts = np.bincount(labels)
    if counts.min() < 2:
        raise UserError(
            f"{names[int(counts.argmin())]} has only one text, too few for cross-validation; add "
            "such texts, or give validation texts with `valid`."
        )
    return StratifiedKFold(min(_FOLDS, int(counts.min())), shuffle=True, random_state=0)


def choose(
    fit: Callable[[Any, BinaryLabels, float], Any],
    yes: Callable[[Any, Any], Floats],
    Cs: Sequence[float],
    train: tuple[Any, BinaryLabels],
    valid: tuple[Any, BinaryLabels] | None,
    labels: Sequence[str],
    on_label: Callable[[int], None] = lambda count: None,
) -> list[Chosen]:
    """Return for each label the C of the largest average precision on held-out texts.

    And its best threshold on them. A text without a label is left out, for that label alone.

    Args:
        fit: takes inputs, answers and C; returns a classifier.
        yes: takes a classifier and inputs; returns the probabilities of yes.
        Cs: of equal ones the first is chosen.
        train: inputs, and answers [texts, K].
        valid: the held-out texts; None: cross-validation of `train`.
        labels: their names.
        on_label: called with the number of labels done.

    Raises:
        UserError: a label has too few texts for cross-validation.
    """
    from sklearn.metrics import average_precision_score

    chosen = []
    for k, label in enumerate(labels):
        inputs, answers = _known(*train, k)
        if valid:
            valid_inputs, held = _known(*valid, k)
            tried = [yes(fit(inputs, answers, C), valid_inputs) for C in Cs]
        else:
            held, tried = answers, [np.zeros(len(answers)) for _ in Cs]
            by_value = folds(answers, [f"{number} in the label {label!r}" for number in (0, 1)])
            for rest, fold in by_value.split(answers, answers):
                for C, each in zip(Cs, tried, strict=True):
                    each[fold] = yes(fit(inputs[rest], answers[rest], C), inputs[fold])
        best = int(np.argmax([average_precision_score(held, each) for each in tried]))
        fitted = fit(inputs, answers, Cs[best])
        chosen.append(Chosen(Cs[best], *best_threshold(held, tried[best]), fitted))
        on_label(k + 1)
    return chosen


def _known(inputs: Any, answers_NK: BinaryLabels, k: int) -> tuple[Any, BinaryLabels]:
    known = answers_NK[:, k] != MISSING
    return inputs[known], answers_NK[known, k]


def measure(
    answers_NK: BinaryLabels, yes_NK: Floats, thresholds: Sequence[float], labels: Sequence[str]
) -> list[LabelScore]:
    """Return how well thresholds on probabilities answer each label, without missing answers."""
    from sklearn.metrics import average_precision_score, precision_recall_fscore_support

    scores = []
    for k, (label, threshold) in enumerate(zip(labels, thresholds, strict=True)):
        yes, answers = _known(yes_NK[:, k], answers_NK, k)
        positives = int(answers.sum())
        values: list[float | None] = [None] * len(MEASURES)
        if positives:
            precision, recall, f1, _ = precision_recall_fscore_support(
                answers, yes >= threshold, average="binary", zero_division=0
            )
            area = average_precision_score(answers, yes)
            all_yes = 2 * positives / (len(answers) + positives)
            values = [float(one) for one in (f1, precision, recall, area, all_yes)]
        scores.append(LabelScore(label, threshold, len(answers), positives, *values))
    return scores


def macro(scores: Sequence[LabelScore]) -> dict[str, float]:
    """Return the mean of each measure over the labels with a yes, of which there must be one."""
    known = [score for score in scores if score.positives]
    return {name: float(np.mean([getattr(one, name) for one in known])) for name in MEASURES}
