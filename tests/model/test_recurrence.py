"""The recurrence and its written-out gradient: against float64, JAX's own, and itself in parts."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import subjaxprs

from mlstm_jax.errors import UserError
from mlstm_jax.model import pallas
from mlstm_jax.model.pallas import INTERPRETED, require_gpu
from mlstm_jax.model.recurrence import (
    SEPARATE,
    STACKED,
    Carry,
    LayerWeights,
    Sequence,
    recurrence,
    recurrence_reference,
)
from tests.tolerance import assert_close, error

pytestmark = pytest.mark.numeric

TYPES = ["float32", "bfloat16", "float16"]
Arguments = tuple[Carry, Sequence, LayerWeights]


def combinations(*choices: Any, fast: list[tuple]) -> list[Any]:
    """All of them as parameters; all but `fast`, where each value is at least once, are slow."""

    def marked(values: tuple) -> Any:
        marks = [] if values in fast else [pytest.mark.slow]
        return pytest.param(*values, marks=[*marks, *[pytest.mark.fp16] * ("float16" in values)])

    return [marked(values) for values in itertools.product(*choices)]


def arguments(
    random: np.random.Generator, t: int, b: int, h: int, *, inputs: int | None = None
) -> Arguments:
    """A layer that reads bytes, or vectors of width `inputs`."""

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    rows = inputs or 256
    x = normal(t, b, inputs) if inputs else random.integers(0, 256, (t, b), dtype=np.int32)
    scale = np.float32(np.sqrt(inputs or 1))
    weights = LayerWeights(
        wmx_IH=normal(rows, h) / scale,
        wx_IG=normal(rows, 4 * h) / scale,
        wmh_HH=normal(h, h) / np.float32(np.sqrt(h)),
        wh_HG=normal(h, 4 * h) / np.float32(np.sqrt(h)),
        b_G=normal(4 * h),
    )
    return Carry(np.tanh(normal(b, h)), normal(b, h)), Sequence(x), weights


def directions(random: np.random.Generator, given: Arguments) -> tuple:
    """A cotangent of the last carry and one of h at every step."""
    carry, sequence, _ = given
    shapes = carry.h.shape, carry.h.shape, (len(sequence.x), *carry.h.shape)
    dh, dc, dh_TBH = (random.normal(size=shape).astype(np.float32) for shape in shapes)
    return Carry(dh, dc), dh_TBH


def gradients(function: Any, given: Arguments, compute: Any, direction: tuple, **options: Any):
    """Gradients by the carry, by x where it is a vector, and by the weights."""
    carry, sequence, weights = given
    is_vector = sequence.x.dtype == np.float32

    def scalar(carry: Carry, x: Any, weights: LayerWeights) -> jax.Array:
        given = carry, sequence._replace(x=x) if is_vector else sequence, weights
        made = function(*given, jnp.dtype(compute), **options)
        parts = jax.tree.map(lambda a, b: jnp.vdot(a.astype(b.dtype), b), made, direction)
        return sum(jax.tree.leaves(parts))

    by = (0, 1, 2) if is_vector else (0, 2)
    return jax.jit(jax.grad(scalar, by))(carry, sequence.x, weights)


def float64_gradients(given: Arguments, direction: tuple) -> LayerWeights:
    """The equations once more, all in float64, under JAX's own gradient; bytes only."""

    def step(w: LayerWeights, carry: tuple, byte_B: jax.Array) -> tuple:
        h, c = carry
        m = w.wmx_IH[byte_B] * (h @ w.wmh_HH)
        i, f, o, u = jnp.split(w.wx_IG[byte_B] + m @ w.wh_HG + w.b_G[None], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    with jax.enable_x64(True):
        (carry, sequence, weights), (dlast, dh_TBH) = jax.tree.map(
            lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, (given, direction)
        )

        def scalar(weights: LayerWeights) -> jax.Array:
            scan = jax.lax.scan(lambda c, x: step(weights, c, x), tuple(carry), sequence.x)
            (h, c), h_TBH = scan
            return jnp.vdot(h, dlast.h) + jnp.vdot(c, dlast.c) + jnp.vdot(h_TBH, dh_TBH)

        return jax.tree.map(np.asarray, jax.jit(jax.grad(scalar))(weights))


def terms_of(t: int, b: int, h: int, inputs: int | None = None) -> int:
    """Those of a weight's gradient: its rows and steps, and the products there and back."""
    return t * b + 2 * (2 * h + (inputs or 1))


# With 4, the first of two runs over 5 steps has one step.
@pytest.mark.parametrize(
    ("compute", "inputs", "recompute_every", "sizes"),
    combinations(
        *(TYPES, [None, 6], [None, 4], [(5, 3, 7), (1, 1, 1), (32, 4, 16)]),
        fast=[
            ("float32", None, 4, (5, 3, 7)),
            ("float32", 6, None, (5, 3, 7)),
            ("bfloat16", None, None, (5, 3, 7)),
            ("bfloat16", 6, 4, (5, 3, 7)),
        ],
    ),
)
def test_gradient_agrees_with_the_reference(compute, inputs, recompute_every, sizes, random):
    t, b, h = sizes
    given = arguments(random, t, b, h, inputs=inputs)
    direction = directions(random, given)
    # The reference in float32 is the judge of the half types too.
    exact = gradients(recurrence_reference, given, jnp.float32, direction)
    ours = gradients(recurrence, given, compute, direction, recompute_every=recompute_every)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(ours))
    assert_close(ours, exact, terms_of(t, b, h, inputs), compute)


def test_float32_gradient_is_that_of_float64(random: np.random.Generator) -> None:
    given = arguments(random, 256, 8, 64)
    direction = directions(random, given)
    exact = float64_gradients(given, direction)
    for k in (None, 16):
        _, ours = gradients(recurrence, given, "float32", direction, recompute_every=k)
        assert_close(ours, exact, terms_of(256, 8, 64))


@pytest.mark.parametrize(
    "compute", ["bfloat16", pytest.param("float16", marks=[pytest.mark.slow, pytest.mark.fp16])]
)
def test_half_precision_weight_gradients_are_nearer_to_float64_than_jax_s(compute, random):
    """256 steps: JAX adds each to a sum in the compute type, ours are one sum in float32."""
    given = arguments(random, 256, 8, 64)
    direction = directions(random, given)
    exact = float64_gradients(given, direction)
    _, ours = gradients(recurrence, given, compute, direction)
    _, plain = gradients(recurrence_reference, given, compute, direction)
    ours, plain = (jax.tree.map(error, made, exact) for made in (ours, plain))
    assert ours.wh_HG < plain.wh_HG / 2
    assert ours.wmh_HH < plain.wmh_HH / 2


# Runs shorter than the window and longer.
@pytest.mark.parametrize(
    ("compute", "inputs", "recompute_every"),
    combinations(
        *(TYPES, [None, 12], [None, 1, 4]),
        fast=[
            ("float32", None, None),
            ("float32", 12, 4),
            ("bfloat16", None, 4),
            ("bfloat16", 12, None),
        ],
    ),
)
def test_forward_is_the_same_to_the_bit_in_every_mode(compute, inputs, recompute_every, random):
    """Plain; as under a gradient, where it saves; and two carried windows, which are one."""
    given = arguments(random, 10, 3, 12, inputs=inputs)
    carry, sequence, weights = given
    compute = jnp.dtype(compute)
    plain = jax.jit(lambda *x: recurrence_reference(*x, compute))(*given)

    def run(*given: Any) -> Any:
        return recurrence(*given, compute, recompute_every)

    def saving(carry: Carry, weights: LayerWeights) -> Any:
        return jax.vjp(lambda c, w: run(c, sequence, w), carry, weights)[0]

    jax.tree.map(np.testing.assert_array_equal, jax.jit(run)(*given), plain)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(saving)(carry, weights), plain)

    between, first_h = jax.jit(run)(carry, sequence._replace(x=sequence.x[:7]), weights)
    last, second_h = jax.jit(run)(between, sequence._replace(x=sequence.x[7:]), weights)
    halves = last, jnp.concatenate([first_h, second_h])
    jax.tree.map(np.testing.assert_array_equal, halves, plain)


@pytest.mark.parametrize("recompute_every", [None, 4])
def test_a_held_cell_stays_and_passes_its_gradient_on(recompute_every, random):
    given = arguments(random, 9, 2, 5)
    padding_mask_TB = np.zeros((9, 2), bool)
    padding_mask_TB[4:, 1] = True
    held = given[0], Sequence(given[1].x, padding_mask_TB), given[2]
    options = {"recompute_every": recompute_every}

    whole, _ = recurrence(*held, jnp.float32, **options)
    short, _ = recurrence(given[0], Sequence(given[1].x[:4]), given[2], jnp.float32)
    full, _ = recurrence(*given, jnp.float32)
    for name in ("h", "c"):
        held_row, ends = getattr(whole, name), getattr(short, name)
        assert_close(held_row[1], ends[1], terms=2 * 5)
    assert_close(whole.c[0], full.c[0], terms=2 * 5)

    direction = directions(random, held)
    exact = gradients(recurrence_reference, held, "float32", direction)
    ours = gradients(recurrence, held, "float32", direction, **options)
    assert_close(ours, exact, terms_of(9, 2, 5))


def test_a_cell_in_the_compute_type_keeps_it(random: np.random.Generator) -> None:
    carry, sequence, weights = arguments(random, 12, 3, 8)
    given = Carry(carry.h, jnp.asarray(carry.c, jnp.bfloat16)), sequence, weights
    direction = directions(random, given)
    last, _ = recurrence(*given, jnp.bfloat16)
    assert (last.h.dtype, last.c.dtype) == (jnp.float32, jnp.bfloat16)
    exact = gradients(recurrence_reference, (carry, sequence, weights), "float32", direction)
    for k in (None, 5):
        ours = gradients(recurrence, given, "bfloat16", direction, recompute_every=k)
        assert ours[0].c.dtype == jnp.bfloat16
        ours = jax.tree.map(lambda x: x.astype(jnp.float32), ours)
        assert_close(ours, exact, terms_of(12, 3, 8), "bfloat16")


def test_weight_gradient_is_summed_in_float32(random: np.random.Generator) -> None:
    """2,000 small equal terms: a running sum in bf16 stops growing at 256 of them."""
    t, h = 2000, 4
    carry, sequence, weights = arguments(random, t, 1, h)
    weights = weights._replace(wmx_IH=np.ones_like(weights.wmx_IH))
    given = carry, Sequence(np.broadcast_to(sequence.x[:1], sequence.x.shape)), weights
    zeros = np.zeros((1, h), np.float32)
    direction = Carry(zeros, zeros), np.full((t, 1, h), 1 / 64, np.float32)
    _, exact = gradients(recurrence_reference, given, jnp.float32, direction)
    _, half = gradients(recurrence, given, "bfloat16", direction)
    half, exact = (w._replace(wx_IG=w.wx_IG.sum(0), wmx_IH=w.wmx_IH.sum(0)) for w in (half, exact))
    assert_close(half, exact, terms_of(t, 1, h), "bfloat16")


def products(jaxpr: Any) -> Iterator[tuple[Any, Any]]:
    """The types of both operands of every product of matrices, in loops and calls too."""
    for equation in jaxpr.eqns:
        operands = [variable.aval for variable in equation.invars]
        # A product of two vectors is `gradients`' own.
        if equation.primitive.name == "dot_general" and operands[0].ndim > 1:
            yield tuple(operand.dtype for operand in operands)
    for inner in subjaxprs(jaxpr):
        yield from products(inner)


@pytest.mark.parametrize("recompute_every", [None, 4])
@pytest.mark.parametrize("inputs", [None, 6])
@pytest.mark.parametrize(
    "compute", ["float32", "bfloat16", pytest.param("float16", marks=pytest.mark.fp16)]
)
def test_every_product_has_operands_of_the_compute_type(compute, inputs, recompute_every, random):
    given = arguments(random, 8, 2, 4, inputs=inputs)
    direction = directions(random, given)
    jaxpr = jax.make_jaxpr(
        lambda given: gradients(
            recurrence, given, compute, direction, recompute_every=recompute_every
        )
    )((*given,))
    found = list(products(jaxpr.jaxpr))
    # Two forward (and two more by vectors), as many backward, and one for each weight.
    assert len(found) >= 6
    assert set(found) == {(jnp.dtype(compute), jnp.dtype(compute))}


def temporary_bytes(function: Any, *given: Any) -> int:
    return jax.jit(function).lower(*given).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("inputs", [None, 16])
def test_memory_without_a_gradient_does_not_grow_with_the_window(inputs, random):
    def forward(*given: Any) -> Any:
        return recurrence(*given, jnp.float32)

    short, long = (
        temporary_bytes(forward, *arguments(random, t, 4, 32, inputs=inputs)) for t in (32, 512)
    )
    assert long < short + 4096


def test_recomputing_takes_a_fraction_of_the_memory(random: np.random.Generator) -> None:
    given = arguments(random, 256, 8, 32)
    direction = directions(random, given)

    def gradient(k: int | None) -> Any:
        return lambda given: gradients(recurrence, given, "float32", direction, recompute_every=k)

    plain, every_16 = (temporary_bytes(gradient(k), given) for k in (None, 16))
    assert every_16 < plain / 3


@pytest.mark.parametrize(
    ("compute", "inputs", "recompute_every"),
    combinations(
        *(TYPES[:2], [None, 24], [None, 5]), fast=[("float32", 24, None), ("bfloat16", None, 5)]
    ),
)
def test_separate_and_stacked_loops_give_the_same_gradient(
    random, compute, inputs, recompute_every
):
    """What is kept are the same numbers; sums of two programs may differ in their last place."""
    given = arguments(random, 12, 3, 16, inputs=inputs)
    padding_mask_TB = random.random((12, 3)) < 0.2
    given = (given[0], given[1]._replace(padding_mask_TB=padding_mask_TB), given[2])
    direction = directions(random, given)
    separate, stacked = (
        gradients(
            recurrence, given, compute, direction, recompute_every=recompute_every, loops=loops
        )
        for loops in (SEPARATE, STACKED)
    )
    terms = terms_of(12, 3, 16, inputs)
    jax.tree.map(lambda a, b: assert_close(a, b, terms, compute), separate, stacked)


# 130 units are two pieces of 128 that overlap, and with 7 nothing can be cut in two.
@pytest.mark.parametrize(
    ("compute", "inputs", "recompute_every", "sizes", "is_held"),
    [
        ("float32", None, None, (4, 2, 130), True),
        ("float32", 6, 3, (4, 3, 7), True),
        pytest.param("bfloat16", None, 3, (4, 3, 7), False, marks=pytest.mark.slow),
        pytest.param("bfloat16", 6, None, (4, 2, 130), False, marks=pytest.mark.slow),
        pytest.param("float32", None, 3, (5, 3, 256), False, marks=pytest.mark.slow),
        pytest.param("bfloat16", None, None, (5, 1, 256), True, marks=pytest.mark.slow),
        pytest.param(
            *("float16", None, None, (4, 2, 130), True), marks=[pytest.mark.slow, pytest.mark.fp16]
        ),
    ],
)
def test_our_own_kernels_compute_the_same(random, compute, inputs, recompute_every, sizes, is_held):
    """Pallas's interpreter runs them here, whatever the processor."""
    t, b, h = sizes
    given = arguments(random, t, b, h, inputs=inputs)
    if is_held:
        given = given[0], given[1]._replace(padding_mask_TB=random.random((t, b)) < 0.3), given[2]
    direction = directions(random, given)
    options = {"recompute_every": recompute_every, "loops": INTERPRETED}
    exact = gradients(recurrence_reference, given, "float32", direction)
    ours = gradients(recurrence, given, compute, direction, **options)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(ours))
    assert_close(ours, exact, terms_of(t, b, h, inputs), compute)

    def saving(carry: Carry, weights: LayerWeights) -> Any:
        run = lambda c, w: recurrence(c, given[1], w, jnp.dtype(compute), **options)  # noqa: E731
        return jax.vjp(run, carry, weights)[0]

    (last, h_TBH), (exact_last, exact_h_TBH) = (
        jax.jit(saving)(given[0], given[2]),
        recurrence_reference(*given, jnp.dtype("float32")),
    )
    assert_close((last, h_TBH), (exact_last, exact_h_TBH), 4 * t * h, compute)


def test_a_cell_in_the_compute_type_keeps_it_in_our_own_kernels(random):
    carry, sequence, weights = arguments(random, 3, 2, 8)
    given = Carry(carry.h, jnp.asarray(carry.c, jnp.bfloat16)), sequence, weights
    direction = directions(random, given)
    by_xla, ours = (
        gradients(recurrence, given, "bfloat16", direction, loops=loops)
        for loops in (STACKED, INTERPRETED)
    )
    assert ours[0].c.dtype == jnp.bfloat16
    assert_close(ours, by_xla, terms_of(3, 2, 8), "bfloat16")


@pytest.mark.parametrize(
    ("hidden", "capability", "message"),
    [
        (512, None, "JAX found none"),
        (512, (7, 0), "this one has 7.0"),
        (64, (9, 0), "model.hidden of 128"),
    ],
)
def test_our_own_kernels_say_what_they_need(hidden, capability, message):
    with pytest.raises(UserError, match=message):
        require_gpu(hidden, capability)
    require_gpu(128, (9, 0))


def test_jax_without_pallas_lacks_our_own_kernels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas, "pl", None)
    with pytest.raises(UserError, match=r"jax\.experimental\.pallas; use `devices\.kernels` xla"):
        require_gpu(128, (9, 0))
