"""The mLSTM over time and its explicit gradient, against float64 and JAX's own."""

import functools
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import subjaxprs

from mlstm_jax.errors import UserError
from mlstm_jax.model import pallas, stack
from mlstm_jax.model.architecture import LSTMCarry
from mlstm_jax.model.kernels import INTERPRETED
from mlstm_jax.model.mlstm import MLSTM, SEPARATE, STACKED, layer_step
from mlstm_jax.model.pallas import require_gpu
from mlstm_jax.model.stack import Weights
from tests.tolerance import assert_close, error

pytestmark = pytest.mark.numeric

Arguments = tuple[LSTMCarry, np.ndarray, Weights]


def run_layer(carry, x, weights, compute, padding_mask_TB=None, **options):
    """The layer, by XLA's separate loops unless others are given."""
    options = {"loops": SEPARATE} | options
    recurrence = stack.Recurrence(MLSTM(), compute, **options)
    return stack.run_layer(recurrence, carry, x, weights, padding_mask_TB)


def arguments(random, t: int, b: int, h: int, *, inputs: int | None = None) -> Arguments:
    """A layer that reads bytes, or vectors of width `inputs`."""

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    rows = inputs or 256
    x = normal(t, b, inputs) if inputs else random.integers(0, 256, (t, b), dtype=np.int32)
    scale = np.float32(np.sqrt(inputs or 1))
    weights = {
        "wmx": normal(rows, h) / scale,
        "wx": normal(rows, 4 * h) / scale,
        "wmh": normal(h, h) / np.float32(np.sqrt(h)),
        "wh": normal(h, 4 * h) / np.float32(np.sqrt(h)),
        "b": normal(4 * h),
    }
    return LSTMCarry(np.tanh(normal(b, h)), normal(b, h)), x, weights


def directions(random: np.random.Generator, given: Arguments) -> tuple:
    """A cotangent of the last carry and one of h at every step."""
    carry, x, _ = given
    shapes = carry.h.shape, carry.h.shape, (len(x), *carry.h.shape)
    dh, dc, dh_TBH = (random.normal(size=shape).astype(np.float32) for shape in shapes)
    return LSTMCarry(dh, dc), dh_TBH


def recurrence_reference(carry, x, weights, compute, padding_mask_TB=None):
    """The equations with JAX's own gradient."""
    advance = layer_step(MLSTM().rounded(weights, x.dtype == np.int32, compute), carry.h.shape[0])

    def step(carry: LSTMCarry, now: tuple) -> tuple[LSTMCarry, jax.Array]:
        carry, _ = advance(carry.h, carry, *now)
        return carry, carry.h.astype(compute)

    return jax.lax.scan(step, carry, (x, padding_mask_TB))


def gradient_program(function: Any, compute: Any, direction: tuple, **options: Any) -> Any:
    """A program: the outputs; and gradients by the carry, the weights, and vectors x."""

    @jax.jit
    def both(carry: LSTMCarry, x: Any, weights: Weights) -> tuple[Any, tuple]:
        def run(carry: LSTMCarry, weights: Weights, x: Any = x) -> Any:
            return function(carry, x, weights, jnp.dtype(compute), **options)

        vectors = [x] if x.dtype == np.float32 else []
        made, back = jax.vjp(run, carry, weights, *vectors)
        return made, back(jax.tree.map(lambda d, x: d.astype(x.dtype), direction, made))

    return both


@functools.cache
def exact_case(t: int, b: int, h: int, inputs: int | None) -> tuple[Arguments, tuple, Any, Any]:
    """Arguments, cotangents, and what the reference makes of them in float32."""
    random = np.random.default_rng(0)
    given = arguments(random, t, b, h, inputs=inputs)
    direction = directions(random, given)
    made, exact = gradient_program(recurrence_reference, "float32", direction)(*given)
    return given, direction, made, exact


def float64_gradients(given: Arguments, direction: tuple) -> Weights:
    """The equations once more, all in float64, under JAX's own gradient; bytes only."""

    def step(w: Weights, carry: tuple, byte_B: jax.Array) -> tuple:
        h, c = carry
        m = w["wmx"][byte_B] * (h @ w["wmh"])
        i, f, o, u = jnp.split(w["wx"][byte_B] + m @ w["wh"] + w["b"][None], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    with jax.enable_x64(True):
        (carry, bytes_TB, weights), (dlast, dh_TBH) = jax.tree.map(
            lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, (given, direction)
        )

        def scalar(weights: Weights) -> jax.Array:
            scan = jax.lax.scan(lambda c, x: step(weights, c, x), tuple(carry), bytes_TB)
            (h, c), h_TBH = scan
            return jnp.vdot(h, dlast.h) + jnp.vdot(c, dlast.c) + jnp.vdot(h_TBH, dh_TBH)

        return jax.tree.map(np.asarray, jax.jit(jax.grad(scalar))(weights))


def terms_of(t: int, b: int, h: int, inputs: int | None = None) -> int:
    """Those of a weight's gradient: its rows and steps, and the products there and back."""
    return t * b + 2 * (2 * h + (inputs or 1))


T = 9
B = 3
H = 7


# With 4 the first run is shorter than the others; with 3 and 1 it is not.
@pytest.mark.parametrize(
    ("compute", "inputs", "recompute_every"),
    [
        ("float32", None, 4),
        ("float32", 6, None),
        ("bfloat16", None, 3),
        ("bfloat16", 6, 1),
        pytest.param("float32", None, None, marks=pytest.mark.slow),
        pytest.param("float32", 6, 4, marks=pytest.mark.slow),
        pytest.param("bfloat16", 6, None, marks=pytest.mark.slow),
        pytest.param("float16", None, 4, marks=[pytest.mark.slow, pytest.mark.fp16]),
        pytest.param("float16", 6, None, marks=[pytest.mark.slow, pytest.mark.fp16]),
    ],
)
def test_reference(compute, inputs, recompute_every, random):
    """To rounding under a gradient; without one to the bit."""
    # The reference in float32 is the judge of the half types too.
    given, direction, _, exact = exact_case(T, B, H, inputs)
    reference = jax.jit(partial(recurrence_reference, compute=jnp.dtype(compute)))
    plain = reference(*given)
    for loops in (SEPARATE, STACKED):
        options = {"recompute_every": recompute_every, "loops": loops}
        made, ours = gradient_program(run_layer, compute, direction, **options)(*given)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(ours))
        assert_close(ours, exact, terms_of(T, B, H, inputs), compute)
        assert_close(made, plain, 4 * T * H, compute)

    # Vectors also with padding.
    padding = {"padding_mask_TB": random.random((T, B)) < 0.2} if inputs else {}
    run = jax.jit(partial(run_layer, compute=jnp.dtype(compute), recompute_every=recompute_every))
    found = run(*given, **padding)
    expected = reference(*given, **padding)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
    "compute", ["bfloat16", pytest.param("float16", marks=[pytest.mark.slow, pytest.mark.fp16])]
)
def test_long_window(compute: str, random: np.random.Generator) -> None:
    """Of 256 steps: in half types JAX adds each to a sum in that type, ours are one in float32.

    Recomputing takes a fraction of the memory.
    """
    given = arguments(random, 256, 8, 64)
    direction = directions(random, given)
    exact = float64_gradients(given, direction)
    memory = []
    for k in (None, 16):
        program = gradient_program(run_layer, "float32", direction, recompute_every=k)
        compiled = program.lower(*given).compile()
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
        _, (_, ours) = compiled(*given)
        assert_close(ours, exact, terms_of(256, 8, 64))
    whole, recomputed = memory
    assert recomputed < whole / 3
    _, (_, ours) = gradient_program(run_layer, compute, direction)(*given)
    _, (_, plain) = gradient_program(recurrence_reference, compute, direction)(*given)
    ours, plain = (jax.tree.map(error, made, exact) for made in (ours, plain))
    assert ours["wh"] < plain["wh"] / 2
    assert ours["wmh"] < plain["wmh"] / 2


def test_cell_in_the_compute_type() -> None:
    (carry, x, weights), direction, _, exact = exact_case(T, B, H, None)
    given = LSTMCarry(carry.h, jnp.asarray(carry.c, jnp.bfloat16)), x, weights
    for options in ({"recompute_every": 4}, {"loops": INTERPRETED}):
        program = gradient_program(run_layer, "bfloat16", direction, **options)
        (last, _), ours = program(*given)
        assert (last.h.dtype, last.c.dtype) == (jnp.float32, jnp.bfloat16)
        assert ours[0].c.dtype == jnp.bfloat16
        ours = jax.tree.map(lambda x: x.astype(jnp.float32), ours)
        assert_close(ours, exact, terms_of(T, B, H), "bfloat16")


def equations(jaxpr: Any) -> Iterator[Any]:
    """All of them, in loops and calls too."""
    yield from jaxpr.eqns
    for inner in subjaxprs(jaxpr):
        yield from equations(inner)


@pytest.mark.parametrize(
    ("compute", "inputs", "recompute_every"),
    [("float32", None, 4), ("float32", 6, None), ("bfloat16", None, None), ("bfloat16", 6, 4)],
)
def test_operations_of_the_program(compute, inputs, recompute_every, random):
    given = arguments(random, T, B, H, inputs=inputs)
    direction = directions(random, given)
    options = {"recompute_every": recompute_every}
    program = gradient_program(run_layer, compute, direction, **options)
    found = list(equations(jax.make_jaxpr(program)(*given).jaxpr))
    assert {x.primitive.name for x in found} & {"scan", "while"} == {"scan"}
    made = [x.invars for x in found if x.primitive.name == "dot_general"]
    # Two forward (and two more by vectors), as many backward, and one for each weight.
    assert len(made) >= 6
    assert {x.aval.dtype for operands in made for x in operands} == {jnp.dtype(compute)}


@pytest.mark.parametrize("inputs", [None, 16])
def test_memory_without_a_gradient(inputs, random):
    def temporary_bytes(window: int) -> int:
        program = jax.jit(partial(run_layer, compute=jnp.float32))
        compiled = program.lower(*arguments(random, window, 4, 32, inputs=inputs)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(512) < temporary_bytes(32) + 4096


# 130 units are two pieces of 128 that overlap, and with 7 nothing can be cut in two.
@pytest.mark.parametrize(
    ("compute", "inputs", "recompute_every", "sizes"),
    [
        ("float32", None, None, (3, 2, 130)),
        ("float32", 6, None, (T, B, H)),
        pytest.param("float32", 6, 3, (4, 3, 7), marks=pytest.mark.slow),
        pytest.param("bfloat16", 6, None, (4, 2, 130), marks=pytest.mark.slow),
        pytest.param("bfloat16", None, 3, (5, 1, 256), marks=pytest.mark.slow),
        pytest.param("float16", None, 3, (5, 3, 256), marks=[pytest.mark.slow, pytest.mark.fp16]),
    ],
)
def test_our_kernels(compute, inputs, recompute_every, sizes):
    """Pallas's interpreter runs them here, whatever the processor."""
    t, b, h = sizes
    given, direction, exact_made, exact = exact_case(t, b, h, inputs)
    options = {"recompute_every": recompute_every, "loops": INTERPRETED}
    made, ours = gradient_program(run_layer, compute, direction, **options)(*given)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(ours))
    assert_close(ours, exact, terms_of(t, b, h, inputs), compute)
    assert_close(made, exact_made, 4 * t * h, compute)


@pytest.mark.parametrize(
    ("version", "hidden", "capability", "fp8", "needed"),
    [
        ("0.10.2", 512, None, False, "JAX found none"),
        ("0.10.2", 512, (7, 0), False, "this one has 7.0"),
        ("0.10.2", 64, (9, 0), True, "`model.hidden` of 128"),
        ("0.10.2", 128, (8, 9), True, "9.0 or later, .* with jax 0.11 or later 8.9 is enough"),
        ("0.11.0", 128, (8, 6), True, "capability 8.9 or later"),
        ("0.11.0", 128, (8, 9), True, None),
        ("0.11.0", 128, (8, 0), False, None),
        ("0.10.2", 128, (9, 0), False, None),
    ],
)
def test_needs_of_our_kernels(version, hidden, capability, fp8, needed, monkeypatch) -> None:
    monkeypatch.setattr(jax, "__version__", version)
    if needed is None:
        require_gpu(hidden, capability, fp8=fp8)
        monkeypatch.setattr(pallas, "pl", None)
        needed = "jax.experimental.pallas"
    field = "precision.recurrent is 'fp8'" if fp8 else "devices.kernels is 'pallas'"
    with pytest.raises(UserError, match=f"{field}, .*{needed}.*; use `"):
        require_gpu(hidden, capability, fp8=fp8)
