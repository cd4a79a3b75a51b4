"""Thresholds of binary labels, and what is measured at them, against counts by hand."""

from typing import Any

import numpy as np
import pytest

from mlstm_jax.errors import UserError
from mlstm_jax.transfer import thresholds

MISSING = -1


def f1_of(answers: np.ndarray, said: np.ndarray) -> float:
    both = int(((answers == 1) & (said == 1)).sum())
    return 2 * both / (int((answers == 1).sum()) + int((said == 1).sum()))


@pytest.mark.parametrize("ties", [False, True])
def test_no_threshold_has_a_larger_f1(ties: bool, random: np.random.Generator) -> None:
    """Each that tells two probabilities apart is tried; of the best it is the highest."""
    for _ in range(200):
        count = int(random.integers(2, 30))
        answers = np.concatenate([[1, 0], random.integers(0, 2, count - 2)])
        yes = 0.3 * answers + 0.7 * random.random(count)
        if ties:
            yes = np.round(yes, 1)
        found, f1 = thresholds.best_threshold(answers, yes)
        assert f1 == pytest.approx(f1_of(answers, yes >= found), rel=1e-12)
        scores = {low: f1_of(answers, yes >= low) for low in np.unique(yes)}
        best = max(scores.values())
        assert f1 == pytest.approx(best, rel=1e-12)
        highest = max(low for low, score in scores.items() if score >= best - 1e-12)
        lower = max((low for low in scores if low < highest), default=0.0)
        assert found == pytest.approx((lower + highest) / 2)


@pytest.mark.parametrize("yes", [[1.0, np.nextafter(1.0, 0)], [5e-324, 0.0], [0.0, 0.0]])
def test_a_threshold_between_neighbouring_floats_tells_them_apart(yes: list[float]) -> None:
    found, f1 = thresholds.best_threshold(np.array([1, 0]), np.array(yes))
    assert f1 == pytest.approx(f1_of(np.array([1, 0]), np.array(yes) >= found))


def test_what_is_measured_is_counted_without_missing_answers() -> None:
    answers = np.array([[1, 0], [1, 0], [0, MISSING], [0, 0], [MISSING, 0], [1, 0]])
    yes = np.array([[0.9, 0.9], [0.4, 0.1], [0.6, 0.9], [0.1, 0.1], [0.9, 0.1], [0.5, 0.1]])
    first, second = thresholds.measure(answers, yes, [0.5, 0.5], ["joy", "fear"])
    assert (first.label, first.threshold, first.known, first.positives) == ("joy", 0.5, 5, 3)
    # Said yes to 0.9, 0.6 and 0.5, the first and the last rightly.
    found = (first.f1, first.precision, first.recall, first.all_yes)
    assert found == pytest.approx((2 / 3, 2 / 3, 2 / 3, 2 * 3 / (3 + 5)))
    # By falling probability: yes, no, yes, yes.
    assert first.average_precision == pytest.approx((1 / 1 + 2 / 3 + 3 / 4) / 3)
    assert (second.known, second.positives, second.f1, second.recall) == (5, 0, None, None)
    assert thresholds.macro([first, second])["f1"] == pytest.approx(2 / 3)


def learn_by_heart(inputs: np.ndarray, answers: np.ndarray, C: float) -> Any:
    """Learn all texts, and C."""
    return dict(zip(inputs.tolist(), answers.tolist(), strict=True)), C


def recalled(learned: Any, asked: np.ndarray) -> np.ndarray:
    """Of other texts the probability is the input; with a small C it is the reverse."""
    known, C = learned
    return np.array([known.get(x, x if C > 1 else 1 - x) for x in asked.tolist()], float)


@pytest.mark.parametrize("validated", [True, False])
def test_c_and_threshold_are_of_texts_held_out(validated, random) -> None:
    """On the texts of the fit every C would be perfect, and 0.5 the threshold."""

    def data(count: int) -> tuple[Any, np.ndarray]:
        inputs = random.permutation(np.linspace(0.01, 0.99, count)) + 1e-6 * random.random(count)
        return inputs, (inputs > 0.8).astype(np.int64)[:, None]

    train, valid = data(60), data(50)
    held_out = valid if validated else None
    (chosen,) = thresholds.choose(learn_by_heart, recalled, (1, 4), train, held_out, ["joy"])
    assert chosen.C == 4
    # Between two neighbouring inputs, of which one is above 0.8.
    assert abs(chosen.threshold - 0.8) < 0.02
    assert chosen.f1 == 1


def test_one_yes_cannot_be_held_out() -> None:
    inputs, answers = np.linspace(0, 1, 9), np.array([[1], *[[0]] * 8])
    with pytest.raises(UserError, match="1 in the label 'joy' has only one text, too few"):
        thresholds.choose(learn_by_heart, recalled, (1,), (inputs, answers), None, ["joy"])
