"""The learning rate's scaling and decay, and Adam against its published equations."""

import numpy as np
import pytest

from mlstm_jax.config import Optimizer
from mlstm_jax.training import optimizer, schedule


@pytest.mark.parametrize(
    ("scaling", "batch", "cap", "expected"),
    [
        ("none", 2048, None, 5e-4),
        ("linear", 2048, None, 8e-3),
        ("linear", 2048, 3e-3, 3e-3),
        ("sqrt", 2048, None, 2e-3),
        ("sqrt", 128, None, 5e-4),
    ],
)
def test_peak_rate(scaling: str, batch: int, cap: float | None, expected: float) -> None:
    chosen = Optimizer(scaling=scaling, learning_rate_cap=cap)
    assert schedule.peak_rate(chosen, batch) == pytest.approx(expected)


def test_rate_falls_linearly_to_zero_and_stays() -> None:
    rate = schedule.learning_rate(Optimizer(learning_rate=3e-3, decay_steps=100_000), 256, 500)
    np.testing.assert_allclose(
        [rate(n) for n in (0, 50_000, 100_000, 120_000)], [3e-3, 1.5e-3, 0, 0], rtol=1e-6
    )
    whole_run = schedule.learning_rate(Optimizer(learning_rate=1.0), 256, 500)
    np.testing.assert_allclose([whole_run(125), whole_run(500)], [0.75, 0], rtol=1e-6)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_adam_against_its_equations(clip: float | None, random: np.random.Generator) -> None:
    chosen = Optimizer(learning_rate=0.01, clip_norm=clip)
    adam = optimizer.build(chosen, schedule.learning_rate(chosen, 128, 10))
    params = {"a": random.normal(size=(3, 2)).astype(np.float32)}
    state = adam.init(params)
    w, m, v = np.float64(params["a"]), 0.0, 0.0
    for n in range(6):
        gradient = random.normal(size=(3, 2)).astype(np.float32)
        updates, state = adam.update({"a": gradient}, state, params)
        params = {"a": params["a"] + updates["a"]}

        g = np.float64(gradient)
        if clip is not None:
            g = g * min(1, clip / np.linalg.norm(g))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        corrected = m / (1 - 0.9 ** (n + 1)), v / (1 - 0.999 ** (n + 1))
        w = w - 0.01 * (1 - n / 10) * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
        np.testing.assert_allclose(params["a"], w, rtol=2e-6)
