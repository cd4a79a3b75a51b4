"""The learning rate's scaling, warm-up and decay; the optimizers against their equations."""

import dataclasses
import re
from typing import Any

import jax
import numpy as np
import optax
import pytest

from mlstm_jax import cli
from mlstm_jax.config import Model, Optimizer
from mlstm_jax.errors import UserError
from mlstm_jax.training import optimizer, schedule
from mlstm_jax.training.state import TrainState
from tests.tolerance import assert_close

pytestmark = pytest.mark.numeric

# Of an update: the norm of all 55 elements, that of a matrix, and a dozen operations of an element.
TERMS = 55 + 15 + 12


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"scaling": "none"}, 5e-4),
        ({"scaling": "linear"}, 8e-3),
        ({"scaling": "linear", "learning_rate_cap": 3e-3}, 3e-3),
        ({"scaling": "sqrt"}, 2e-3),
        ({"scaling": "legw", "warmup_epochs": 0.1}, 2e-3),
    ],
)
def test_peak_rate_of_16_times_the_rows(chosen: dict, expected: float) -> None:
    assert schedule.peak_rate(Optimizer(**chosen), 128) == 5e-4
    assert schedule.peak_rate(Optimizer(**chosen), 2048) == pytest.approx(expected)


def test_adam_goes_on_when_the_bytes_of_an_update_change() -> None:
    """Of a gradient that is always the same, the update is the rate, whatever β2 is and was."""
    chosen = Optimizer(learning_rate=1.0, b2_half_life=710e3, clip_norm=None)
    tx = {n: optimizer.build(chosen, Model(), lambda _: 1.0, update_bytes=n) for n in (1024, 65536)}
    update = {n: jax.jit(one.update) for n, one in tx.items()}
    gradient = {"embedding": np.float32([0.5, -2.0])}
    state = TrainState(*[None] * 7)._replace(opt_state=tx[1024].init(gradient))
    before = None
    for n in [1024] * 50 + [65536] * 20 + [1024] * 5:
        same = optimizer.rescale_second_moment(chosen, state, n, n)
        assert same is state
        state = optimizer.rescale_second_moment(chosen, state, before, n)
        updates, opt_state = update[n](gradient, state.opt_state)
        # 1 − β2ⁿ is near 0.05 at first, and β2ⁿ has the rounding of n products.
        assert_close(updates["embedding"], np.float32([-1.0, 1.0]), 20 * 75)
        state, before = state._replace(opt_state=jax.device_get(opt_state)), n
    for half_life, ratio in ((10.0, 1), (1e30, 64)):  # β2 rounds to 0, and to 1
        extreme = dataclasses.replace(chosen, b2_half_life=half_life)
        adapted = optimizer.rescale_second_moment(extreme, state, 1024, 65536)
        (before_V, after_V) = (
            jax.tree.leaves(optax.tree.get(one.opt_state, "nu"))[0] for one in (state, adapted)
        )
        assert_close(after_V, ratio * before_V, 8)
    fixed = dataclasses.replace(chosen, b2_half_life=None)
    assert optimizer.rescale_second_moment(fixed, state, 1024, 65536) is state


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("b2", 1 - 1e-9, "at most 0.9999999"),
        ("b2_half_life", 1e11, "at most 7e+09 with updates of 1,024"),
    ],
)
def test_a_second_moment_without_a_decay_in_float32_is_refused(field, value, rule) -> None:
    """Adam would divide by zero: NaN for every parameter whose gradient is zero."""
    chosen = Optimizer(**{field: value})
    with pytest.raises(UserError, match=re.escape(rule)):
        optimizer.build(chosen, Model(), lambda _: 1.0, update_bytes=1024)
    lars = dataclasses.replace(chosen, name="lars")
    optimizer.build(lars, Model(), lambda _: 1.0, update_bytes=1024)


# Of a schedule: a few, one after the other, in float32.
OPERATIONS = 8


def rates(steps: int, *at: int, **chosen: Any) -> np.ndarray:
    rate = schedule.learning_rate(Optimizer(**{"learning_rate": 1.0} | chosen), 128, steps, 10)
    return np.array([float(rate(n)) for n in at])


@pytest.mark.parametrize(
    ("steps", "at", "chosen", "expected"),
    [
        *(
            (120, (0, 9, 19, 20, 70, 120, 200), {"schedule": name, "warmup_steps": 20},
             [1 / 20, 0.5, 1, 1, half, end, end])
            for name, half, end in (
                ("linear", 0.5, 0), ("cosine", 0.5, 0), ("polynomial", 0.25, 0), ("constant", 1, 1)
            )
        ),
        (500, (0, 50_000, 100_000, 120_000), {"decay_steps": 100_000}, [1, 0.5, 0, 0]),
        (500, (125, 500), {}, [0.75, 0]),
        (10, (0, 1), {"warmup_steps": 1}, [1, 1]),
        (1000, (0, 49, 99, 100, 550, 1000), {"schedule": "triangular"},
         [0.01, 0.5, 1, 1, (1 + 1 / 32) / 2, 1 / 32]),
    ],
)  # fmt: skip
def test_shapes_of_warm_up_and_decay(steps, at, chosen, expected) -> None:
    assert_close(rates(steps, *at, **chosen), np.array(expected), OPERATIONS)


def test_legw_keeps_the_updates_of_the_warm_up() -> None:
    """k times the epochs, each of 1/k of the updates."""
    chosen = Optimizer(scaling="legw", warmup_epochs=0.25)
    for k in (1, 64):
        assert schedule.resolve(chosen, 128 * k, 10**6, 4096 / k).warmup == 1024


@pytest.mark.parametrize("chosen", [{"warmup_steps": 200}, {"warmup_epochs": 1e300}])
def test_a_warm_up_longer_than_the_run_is_refused(chosen: dict) -> None:
    with pytest.raises(UserError, match=r"optimizer\.warmup_steps"):
        schedule.resolve(Optimizer(**chosen), 8, 100, 1e9)


def test_a_schedule_can_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        "schedule --data.batch 1024 --optimizer.scaling legw --train.epochs 2 --train.steps None "
        "--optimizer.warmup-epochs 0.01 --data.window 256 --optimizer.learning-rate 5e-4 "
        "--corpus-bytes 1e9"
    )
    cli.main(line.split())
    said = capsys.readouterr().out
    # The quickstart's optimizer is Muon, at 0.12.
    assert "Muon's are 240 times as high" in said
    # 1e9 bytes are 30,517 windows of 256 in 128 rows, a hundredth of which is the warm-up.
    assert "warm-up 306 updates" in said
    assert "peak 0.00141" in said
    assert said.splitlines()[-1].split()[1:] == ["2.00", "0.000e+00"]


PARAMS = {
    "embedding": (4, 3),
    "layer_0": {"wh_v": (3, 5), "wh_g": (5,), "b": (5,)},
    "decoder_kernel": (3, 4),
    "decoder_bias": (4,),
}


def draw(random: np.random.Generator, shapes: Any) -> Any:
    """Float32 numbers of these shapes."""
    if isinstance(shapes, dict):
        return {name: draw(random, shape) for name, shape in shapes.items()}
    return random.normal(size=shapes).astype(np.float32)


MATRICES = [("layer_0", "wh_v"), ("decoder_kernel",)]


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("adam", {"clip_norm": 0.5}),
        ("adamw", {"weight_decay": 0.1}),
        ("lamb", {"weight_decay": 0.1, "eps": 1e-6}),
        ("lamb", {"clip_norm": None}),
        ("lars", {"weight_decay": 0.1, "trust_coefficient": 0.02}),
    ],
)
def test_optimizers_against_their_equations(name, chosen, random) -> None:
    """Few steps in float64 NumPy; decay and trust ratio on the matrices alone."""
    options = Optimizer(name=name, learning_rate=0.01, **chosen)
    tested = optimizer.build(options, Model(), schedule.learning_rate(options, 128, 10))

    params = draw(random, PARAMS)
    state, update = tested.init(params), jax.jit(tested.update)
    exact = {path: np.float64(leaf) for path, leaf in flat(params).items()}
    first, second = dict.fromkeys(exact, 0.0), dict.fromkeys(exact, 0.0)
    for n in range(5):
        gradient = draw(random, PARAMS)
        updates, state = update(gradient, state, params)
        params = jax.tree.map(np.add, params, updates)

        g = {path: np.float64(leaf) for path, leaf in flat(gradient).items()}
        norm = np.sqrt(sum((leaf**2).sum() for leaf in g.values()))
        shrink = 1 if options.clip_norm is None else min(1, options.clip_norm / norm)
        rate = 0.01 * (1 - n / 10)
        for path, w in exact.items():
            decays = name != "adam" and path in MATRICES
            decay = options.weight_decay * w if decays else 0
            step = shrink * g[path]
            if name == "lars":
                step = step + decay
                if path in MATRICES:
                    ratio = np.linalg.norm(w) / np.linalg.norm(step)
                    step = options.trust_coefficient * ratio * step
                first[path] = 0.9 * first[path] + rate * step
                exact[path] = w - first[path]
                continue
            first[path] = 0.9 * first[path] + 0.1 * step
            second[path] = 0.999 * second[path] + 0.001 * step**2
            m, v = first[path] / (1 - 0.9 ** (n + 1)), second[path] / (1 - 0.999 ** (n + 1))
            step = m / (np.sqrt(v) + options.eps) + decay
            if name == "lamb" and path in MATRICES:
                step = step * np.linalg.norm(w) / np.linalg.norm(step)
            exact[path] = w - rate * step
        for path, leaf in flat(params).items():
            assert_close(leaf, exact[path], (n + 1) * TERMS)


def flat(tree: dict) -> dict[tuple[str, ...], np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {tuple(key.key for key in path): leaf for path, leaf in leaves}
