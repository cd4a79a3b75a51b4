"""The learning rate's scaling, warm-up and decay; the optimizers against their equations.

Muon also over devices.
"""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlstm_jax.arrays import named
from mlstm_jax.commands import training as commands
from mlstm_jax.config import Config, Model, Optimizer, others_fields, vary
from mlstm_jax.errors import UserError
from mlstm_jax.options import OPTIMIZERS
from mlstm_jax.parallel import Parallel
from mlstm_jax.training import optimizer, schedule
from mlstm_jax.training.resume import rescale_second_moment
from mlstm_jax.training.state import TrainState
from tests.tolerance import UNIT, assert_close

pytestmark = pytest.mark.numeric

# Of an update: the norm of all 55 elements, a matrix's norm, and a dozen operations of an element.
TERMS = 55 + 15 + 12


def built(options: Optimizer, rate: float = 1.0, **how: Any) -> optax.GradientTransformation:
    return optimizer.build(options, Model(), optax.constant_schedule(rate), **how)


@pytest.mark.parametrize(
    ("chosen", "expected", "warmup"),
    [
        ({"scaling": "none"}, 5e-4, 0),
        ({"scaling": "linear"}, 8e-3, 0),
        ({"scaling": "linear", "learning_rate_cap": 3e-3}, 3e-3, 0),
        ({"scaling": "sqrt"}, 2e-3, 0),
        # 16 times the epochs, each of a sixteenth of the updates.
        ({"scaling": "legw", "warmup_epochs": 0.25}, 2e-3, 1024),
    ],
)
def test_rates_at_any_batch(chosen: dict, expected: float, warmup: int) -> None:
    for k, rate in ((1, 5e-4), (16, expected)):
        rates = schedule.rates_of(Optimizer(**chosen), 128 * k, 10**6, 4096 / k)
        assert rates.peak == pytest.approx(rate)
        assert rates.warmup == warmup


def test_change_of_batch() -> None:
    """Of a gradient that is always the same, the update is the rate, whatever β2 is and was."""
    chosen = Optimizer(learning_rate=1.0, b2_half_life=710e3, clip_norm=None)
    update = {}
    for n in (1024, 65536):
        tx = built(chosen, update_bytes=n)
        update[n] = jax.jit(tx.update)
    gradient = {"embedding": np.float32([0.5, -2.0])}
    state = TrainState(*[None] * 7)._replace(opt_state=tx.init(gradient))
    before = 1024
    for n in [1024] * 50 + [65536] * 20 + [1024] * 5:
        assert rescale_second_moment(chosen, state, n, n) is state
        state = rescale_second_moment(chosen, state, before, n)
        updates, opt_state = update[n](gradient, state.opt_state)
        # 1 − β2ⁿ is near 0.05 at first, and β2ⁿ has the rounding of n products.
        assert_close(updates["embedding"], np.float32([-1.0, 1.0]), 20 * 75)
        state = state._replace(opt_state=jax.device_get(opt_state))
        before = n
    for half_life, ratio in ((10.0, 1), (1e30, 64)):  # β2 rounds to 0, and to 1
        extreme = dataclasses.replace(chosen, b2_half_life=half_life)
        adapted = rescale_second_moment(extreme, state, 1024, 65536)
        before = optax.tree.get(state.opt_state, "nu")["embedding"]
        after = optax.tree.get(adapted.opt_state, "nu")["embedding"]
        assert_close(after, ratio * before, 8)
    fixed = dataclasses.replace(chosen, b2_half_life=None)
    assert rescale_second_moment(fixed, state, 1024, 65536) is state


UNUSUAL = {
    **{"b1": 0.5, "b2": 0.5, "b2_half_life": 1e6, "eps": 0.1, "trust_coefficient": 0.5},
    **{"weight_decay": 0.5, "weight_decay_bytes": 64.0, "muon_learning_rate": 0.5},
    **{"muon_momentum": 0.5, "muon_decoder": True, "muon_steps": 3},
}


def unusual(names: Iterable[str]) -> dict[str, Any]:
    return {name: UNUSUAL[name] for name in names}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_records(name: str) -> None:
    """Its moments are numbers of its state; another's fields are refused, and unset by `vary`.

    The documentation and the help of `train` name it.
    """
    options = Optimizer(name=name)
    params = {"layer_0": {"wh_v": np.zeros((8, 32), np.float32)}}
    large = 0
    for leaf in jax.tree.leaves(built(options).init(params)):
        large += leaf.size * (np.ndim(leaf) == 2)
    assert large == options.kind.moments * 8 * 32
    for field in others_fields(name):
        with pytest.raises(UserError, match=rf"optimizer\.{field} is .* it is a field of "):
            Optimizer(name=name, **unusual([field]))
    page = (Path(__file__).parents[2] / "docs/large_batches.md").read_text(encoding="utf-8")
    assert f"| `{name}` |" in page
    assert re.search(rf"--optimizer\.name NAME .*\b{name}\b", commands.train.__doc__)
    for other, kind in OPTIMIZERS.items():
        before = Optimizer(name=other, **unusual(kind.fields))
        varied = vary(Config(optimizer=before), optimizer__name=name)
        kept = set(kind.fields) & set(OPTIMIZERS[name].fields)
        assert varied.optimizer == Optimizer(name=name, **unusual(kept))


@pytest.mark.parametrize(
    ("chosen", "field"),
    [
        # Adam would divide by zero: NaN for every parameter whose gradient is zero.
        ({"b2": 1 - 1e-9}, "b2"),
        ({"b2_half_life": 1e11}, "b2"),
        ({"warmup_steps": 200}, "warmup_steps"),
        ({"warmup_epochs": 1e300}, "warmup_steps"),
    ],
)
def test_refused(chosen: dict, field: str) -> None:
    def begin() -> None:
        schedule.rates_of(Optimizer(**chosen), 8, 100, 1e9)
        optimizer.require_b2(Optimizer(**chosen), update_bytes=1024)

    with pytest.raises(UserError, match=rf"optimizer\.{field}"):
        begin()


# Of a schedule: a few, one after the other, in float32.
OPERATIONS = 8


def rates(steps: int, *at: int, **chosen: Any) -> np.ndarray:
    options = Optimizer(**{"learning_rate": 1.0} | chosen)
    resolved = schedule.rates_of(options, 128, steps, 10)
    return np.array(schedule.learning_rate(options, resolved, np.array(at)))


AT = (0, 9, 19, 20, 70, 120, 200)
RISE = [1 / 20, 0.5, 1, 1]


@pytest.mark.parametrize(
    ("steps", "at", "chosen", "expected"),
    [
        (120, AT, {"warmup_steps": 20, "schedule": "linear"}, [*RISE, 0.5, 0, 0]),
        (120, AT, {"warmup_steps": 20, "schedule": "cosine"}, [*RISE, 0.5, 0, 0]),
        (120, AT, {"warmup_steps": 20, "schedule": "polynomial"}, [*RISE, 0.25, 0, 0]),
        (120, AT, {"warmup_steps": 20, "schedule": "constant"}, [*RISE, 1, 1, 1]),
        (500, (0, 50_000, 100_000, 120_000), {"decay_steps": 100_000}, [1, 0.5, 0, 0]),
        (500, (125, 500), {}, [0.75, 0]),
        (10, (0, 1), {"warmup_steps": 1}, [1, 1]),
        (1, (0, 1), {"schedule": "triangular"}, [1, 1 / 32]),
        (1000, (0, 49, 99, 100, 550, 1000), {"schedule": "triangular"},
         [0.01, 0.5, 1, 1, (1 + 1 / 32) / 2, 1 / 32]),
    ],
)  # fmt: skip
def test_warm_up_and_decay(steps, at, chosen, expected) -> None:
    assert_close(rates(steps, *at, **chosen), np.array(expected), OPERATIONS)


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


MATRICES = ("layer_0/wh_v", "decoder_kernel")


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
def test_equations(name, chosen, random) -> None:
    """Few steps in float64 NumPy; decay and trust ratio on the matrices alone."""
    options = Optimizer(name=name, learning_rate=0.01, **chosen)
    numbers = schedule.rates_of(options, 128, 10)

    def rate(n: Any) -> Any:
        return schedule.learning_rate(options, numbers, n)

    tested = optimizer.build(options, Model(), rate)
    params = draw(random, PARAMS)
    state = tested.init(params)
    update = jax.jit(tested.update)
    exact = named(jax.tree.map(np.float64, params))
    first = dict.fromkeys(exact, 0.0)
    second = dict.fromkeys(exact, 0.0)
    for n in range(5):
        gradient = draw(random, PARAMS)
        updates, state = update(gradient, state, params)
        params = jax.tree.map(np.add, params, updates)

        g = named(jax.tree.map(np.float64, gradient))
        norm = np.linalg.norm(np.concatenate([*map(np.ravel, g.values())]))
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
            m = first[path] / (1 - 0.9 ** (n + 1))
            v = second[path] / (1 - 0.999 ** (n + 1))
            step = m / (np.sqrt(v) + options.eps) + decay
            if name == "lamb" and path in MATRICES:
                step = step * np.linalg.norm(w) / np.linalg.norm(step)
            exact[path] = w - rate * step
        for path, leaf in named(params).items():
            assert_close(leaf, exact[path], (n + 1) * TERMS)


# Muon.
MUON_SHAPES = {
    "embedding": (5, 4),
    "layer_0": {"wmh_v": (6, 6), "wh_v": (6, 24), "wx_v": (4, 24), "wh_g": (24,), "b": (24,)},
    "decoder_kernel": (6, 8),
    "decoder_bias": (8,),
}
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024


def newton_schulz(g: np.ndarray, steps: int = 5) -> np.ndarray:
    a, b, c = COEFFICIENTS
    x = g / np.linalg.norm(g)
    x = x.T if g.shape[0] > g.shape[1] else x
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def exact_update(name: str, g: np.ndarray) -> np.ndarray:
    blocks = np.split(g, 4, axis=1) if name in ("wh_v", "wx_v") else [g]
    made = []
    for block in blocks:
        rows, columns = block.shape
        made.append(np.sqrt(max(1, columns / rows)) * newton_schulz(block))
    return np.concatenate(made, axis=1)


def with_decay(momentum: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    return 0.8 * np.float64(momentum) + gradient


# An iteration multiplies an error of a singular value by at most its slope at zero, 3.44.
MUON_TERMS = int(3.4445**5) * 3 * 6


@pytest.mark.parametrize("decoder", [False, True])
def test_equations_of_muon(random: np.random.Generator, decoder: bool) -> None:
    """Three updates in float64; the layers' matrices by Muon, all else by Adam."""
    rates = {"learning_rate": 0.01, "muon_learning_rate": 0.05, "muon_momentum": 0.8}
    rest = {"muon_decoder": decoder, "weight_decay": 0.1, "clip_norm": None}
    tested = built(Optimizer(name="muon", **rates, **rest), 0.01)
    adam = optax.adam(0.01, 0.9, 0.999, 1e-8)
    params = draw(random, MUON_SHAPES)
    state = tested.init(params)
    expected_state = adam.init(params)
    momentum = jax.tree.map(np.zeros_like, params)
    update = jax.jit(tested.update)
    by_adam = jax.jit(adam.update)
    for _ in range(3):
        gradient = draw(random, MUON_SHAPES)
        updates, state = update(gradient, state, params)
        others, expected_state = by_adam(gradient, expected_state, params)
        momentum = jax.tree.map(with_decay, momentum, gradient)
        nesterov = jax.tree.map(with_decay, momentum, gradient)

        def expected(path: Any, param: Any, nesterov: Any, other: Any) -> Any:
            name = path[-1].key
            if name.endswith("_v") or (decoder and name == "decoder_kernel"):
                return -0.05 * (exact_update(name, nesterov) + 0.1 * np.float64(param))
            # Only the decoder decays.
            decay = 0.1 if name == "decoder_kernel" else 0.0
            return np.asarray(other) - 0.01 * decay * np.float64(param)

        exact = jax.tree_util.tree_map_with_path(expected, params, nesterov, others)
        assert_close(updates, exact, MUON_TERMS)
        params = optax.apply_updates(params, updates)


def test_newton_schulz_in_bf16(random: np.random.Generator) -> None:
    """Where singular values are near one, an iteration keeps 0.72 of an error and adds its own.

    |a + 3b + 5c| = 0.72. Its own: bs has three roundings of operands and cs² six, each half a
    unit, so at most (3 |b| + 6 |c|) / 2 units.
    """
    q = np.linalg.qr(random.normal(size=(2, 48, 48)))[0]
    g = (q[0] * np.linspace(1, 3, 48)) @ q[1]
    g = np.concatenate([g, g[:, :16]], axis=1)
    step = optimizer.orthogonalise(5, jnp.bfloat16, None, Model().matrices)
    made = jax.jit(lambda g: step.update({"wmh_v": g}, optax.EmptyState())[0]["wmh_v"])
    expected = np.sqrt(64 / 48) * newton_schulz(g)
    _, b, c = COEFFICIENTS
    own = (3 * abs(b) + 6 * c) / 2 * UNIT["bfloat16"]
    error = np.linalg.norm(made(g.astype(np.float32)) - expected, 2)
    assert error < own / (1 - 0.72) * np.linalg.norm(expected, 2)
    assert "xbf16>" in made.lower(g.astype(np.float32)).as_text()
    # fp16 has not the range.
    half = built(Optimizer(name="muon"), compute="fp16")
    params = {"wmh_v": np.ones((48, 48), np.float32)}
    assert "f16>" not in jax.jit(half.update).lower(params, half.init(params), params).as_text()


def test_muon_on_devices(random: np.random.Generator) -> None:
    options = Optimizer(name="muon")
    params = draw(random, MUON_SHAPES)
    gradient = draw(random, MUON_SHAPES)
    alone = built(options, 0.01)
    update = jax.jit(alone.update)
    expected, _ = update(gradient, alone.init(params), params)

    devices = Parallel(jax.local_devices()[:4])
    shared = built(options, 0.01, axis_name="data")
    given = devices.replicate((gradient, shared.init(params), params))
    mapped = devices.map(shared.update)
    updates, state = mapped(*given)
    assert_close(devices.unreplicate(updates), expected, MUON_TERMS)
    # Each device has made the same to the bit: their parameters stay one.
    for leaf in jax.tree.leaves((updates, state)):
        leaf = np.asarray(leaf)
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))
    # A device makes three of the nine blocks; the rest of an update is small.
    part = mapped.lower(*given).compile().cost_analysis()
    whole = update.lower(gradient, alone.init(params), params).compile().cost_analysis()
    assert part["flops"] < 0.6 * whole["flops"]


def test_half_life_of_the_second_moment() -> None:
    """β2^(half-life / bytes of an update) = ½, at any batch."""
    half_life = 709_783
    options = Optimizer(b2_half_life=half_life)
    for rows in (16, 512):
        b2 = optimizer.second_moment_decay(options, rows * 64)
        assert b2 ** (half_life / (rows * 64)) == pytest.approx(0.5)
        # A gradient of one update, and then none.
        adam = built(options, update_bytes=rows * 64)
        _, state = adam.update({"b": np.ones(1, np.float32)}, adam.init({"b": np.zeros(1)}))
        _, later = adam.update({"b": np.zeros(1, np.float32)}, state)
        first, second = (optax.tree.get(one, "nu")["b"] for one in (state, later))
        assert_close(second, b2 * first, 2)
    assert optimizer.second_moment_decay(Optimizer(), 512 * 64) == 0.999


def test_decay_by_text_at_any_batch() -> None:
    """Without a gradient a weight shrinks by the same factor over the same text: e^(−η λ n)."""
    rates = {"learning_rate": 0.04, "muon_learning_rate": 0.08}
    options = Optimizer(name="muon", **rates, weight_decay=0.01, weight_decay_bytes=65_536)
    for rows, updates in ((512, 128), (1024, 64)):
        step = built(options, 0.04, update_bytes=rows * 64)
        params = {"layer_0/wh_v": np.ones((2, 8)), "decoder_kernel": np.ones((2, 2)), "b": 1.0}
        params = jax.tree.map(np.float32, params)
        zero = jax.tree.map(np.zeros_like, params)
        state = step.init(params)
        update = jax.jit(step.update)
        for _ in range(updates):
            made, state = update(zero, state, params)
            params = jax.tree.map(np.add, params, made)
        # The second-order term of each update's logarithm, and the rounding of all updates.
        each = 0.08 * 0.01 * rows / 1024
        within = updates * (each**2 / 2 + 2 * UNIT["float32"])
        assert params["layer_0/wh_v"] == pytest.approx(np.exp(-64 * 0.08 * 0.01), abs=within)
        assert params["decoder_kernel"] == pytest.approx(np.exp(-64 * 0.04 * 0.01), abs=within)
        assert params["b"] == 1
    assert optimizer.decay_of_update(Optimizer(name="lamb", weight_decay=0.1), 64) == 0.1
