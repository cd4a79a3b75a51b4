"""Muon against its equations in NumPy, over devices, and what it does under weight norm."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

from mlstm_jax.config import Model, Optimizer
from mlstm_jax.training import optimizer
from mlstm_jax.training.parallel import Parallel
from tests.tolerance import UNIT, assert_close
from tests.training.test_optimizer import draw

pytestmark = pytest.mark.numeric

SHAPES = {
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
    scales = [np.sqrt(max(1, block.shape[1] / block.shape[0])) for block in blocks]
    made = [scale * newton_schulz(block) for scale, block in zip(scales, blocks, strict=True)]
    return np.concatenate(made, axis=1)


# An iteration multiplies an error of a singular value by at most its slope at zero, 3.44.
TERMS = int(3.4445**5) * 3 * 6


@pytest.mark.parametrize("decoder", [False, True])
def test_muon_against_its_equations(random: np.random.Generator, decoder: bool) -> None:
    """Three updates in float64; the layers' matrices by Muon, all else by Adam."""
    options = Optimizer(
        name="muon",
        learning_rate=0.01,
        muon_learning_rate=0.05,
        muon_momentum=0.8,
        muon_decoder=decoder,
        weight_decay=0.1,
        clip_norm=None,
    )
    tested = optimizer.build(options, Model(), lambda count: 0.01)
    adam = optax.adam(0.01, 0.9, 0.999, 1e-8)
    params, gradients = draw(random, SHAPES), [draw(random, SHAPES) for _ in range(3)]
    state, expected_state = tested.init(params), adam.init(params)
    momentum = jax.tree.map(lambda x: np.zeros(x.shape), params)
    update, by_adam = jax.jit(tested.update), jax.jit(adam.update)
    for gradient in gradients:
        updates, state = update(gradient, state, params)
        others, expected_state = by_adam(gradient, expected_state, params)
        momentum = jax.tree.map(lambda m, g: 0.8 * m + g, momentum, gradient)
        nesterov = jax.tree.map(lambda m, g: np.float64(g) + 0.8 * m, momentum, gradient)

        def expected(path: Any, param: Any, nesterov: Any, other: Any) -> Any:
            name = path[-1].key
            if name.endswith("_v") or (decoder and name == "decoder_kernel"):
                return -0.05 * (exact_update(name, nesterov) + 0.1 * np.float64(param))
            # Only the decoder decays.
            decay = 0.1 if name == "decoder_kernel" else 0.0
            return np.asarray(other) - 0.01 * decay * np.float64(param)

        exact = jax.tree_util.tree_map_with_path(expected, params, nesterov, others)
        assert_close(updates, exact, TERMS)
        params = optax.apply_updates(params, updates)


def test_newton_schulz_in_bf16(random: np.random.Generator) -> None:
    """Where singular values are near one, an iteration keeps 0.72 of an error and adds its own.

    |a + 3b + 5c| = 0.72. Its own: bs has three roundings of operands and cs² six, each half a
    unit, so at most (3 |b| + 6 |c|) / 2 units.
    """
    q = np.linalg.qr(random.normal(size=(2, 48, 48)))[0]
    g = (q[0] * np.linspace(1, 3, 48)) @ q[1]
    g = np.concatenate([g, g[:, :16]], axis=1)
    step = optimizer.orthogonalise(5, optimizer.muon_type("bf16"), None, Model().matrices)
    made = jax.jit(lambda g: step.update({"wmh_v": g}, optax.EmptyState())[0]["wmh_v"])
    expected = np.sqrt(64 / 48) * newton_schulz(g)
    _, b, c = COEFFICIENTS
    own = (3 * abs(b) + 6 * c) / 2 * UNIT["bfloat16"]
    error = np.linalg.norm(made(g.astype(np.float32)) - expected, 2)
    assert error < own / (1 - 0.72) * np.linalg.norm(expected, 2)
    assert "xbf16>" in made.lower(g.astype(np.float32)).as_text()
    # fp16 has not the range.
    assert optimizer.muon_type("fp16") == optimizer.muon_type("fp32") == np.float32


def test_devices_share_the_matrices_out(random: np.random.Generator) -> None:
    options = Optimizer(name="muon")
    params, gradient = draw(random, SHAPES), draw(random, SHAPES)
    alone = optimizer.build(options, Model(), lambda count: 0.01)
    expected, _ = jax.jit(alone.update)(gradient, alone.init(params), params)

    devices = Parallel(jax.local_devices()[:4])
    shared = optimizer.build(options, Model(), lambda count: 0.01, axis_name="data")
    given = devices.replicate((gradient, shared.init(params), params))
    updates, state = devices.map(shared.update)(*given)
    for one in range(4):
        mine = jax.tree.map(lambda x, one=one: np.asarray(x)[one], updates)
        assert_close(mine, expected, TERMS)
    # Each device has made the same to the bit: their parameters stay one.
    for leaf in jax.tree.leaves((updates, state)):
        leaf = np.asarray(leaf)
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))


def test_each_device_makes_a_part_of_the_matrices() -> None:
    """The flops of Newton-Schulz fall with the number of devices."""

    def flops(devices: int) -> float:
        def update(stack: Any) -> Any:
            return optimizer._orthogonal(stack, 5, np.float32, "data")

        program = Parallel(jax.local_devices()[:devices]).map(update)
        stack = np.zeros((devices, 4, 64, 64), np.float32)
        return program.lower(stack).compile().cost_analysis()["flops"]

    assert flops(4) < flops(1) / 3


def test_the_half_life_of_the_second_moment() -> None:
    """β2^(half-life / bytes of an update) = ½, at any batch."""
    options = Optimizer(b2_half_life=709_783)
    assert optimizer.second_moment_decay(options, 16 * 64) == pytest.approx(0.999, abs=1e-6)
    assert optimizer.second_moment_decay(options, 512 * 64) == pytest.approx(0.9685, abs=1e-4)
    assert optimizer.second_moment_decay(Optimizer(), 512 * 64) == 0.999
    bytes_read, kept = 4 * 512 * 64, []
    for rows in (16, 512):
        adam = optimizer.build(options, Model(), lambda n: 1.0, update_bytes=rows * 64)
        state, update = adam.init({"b": np.zeros(1, np.float32)}), jax.jit(adam.update)
        for n in range(bytes_read // (rows * 64)):
            _, state = update({"b": np.full(1, float(n == 0), np.float32)}, state)
        first = optax.tree.get(state, "nu")["b"] / (1 - 2 ** (-rows * 64 / 709_783))
        # Read since: all but the first update's.
        kept.append(np.asarray(first) * 2 ** ((bytes_read - rows * 64) / 709_783))
    assert_close(np.array(kept), np.ones((2, 1)), 2 * 128)


def test_decay_by_text_is_the_same_at_any_batch() -> None:
    """Without a gradient a weight shrinks by the same factor over the same text: e^(−η λ n)."""
    rates = {"learning_rate": 0.04, "muon_learning_rate": 0.08}
    options = Optimizer(name="muon", **rates, weight_decay=0.01, weight_decay_bytes=65_536)
    for rows, updates in ((64, 1024), (1024, 64)):
        step = optimizer.build(options, Model(), lambda n: 0.04, update_bytes=rows * 64)
        params = {"layer_0/wh_v": np.ones((2, 8)), "decoder_kernel": np.ones((2, 2)), "b": 1.0}
        params = jax.tree.map(np.float32, params)
        zero, state = jax.tree.map(np.zeros_like, params), step.init(params)
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
