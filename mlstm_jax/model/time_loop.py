"""Loops over time, forward: a step of a recurrent layer, run over a window.

**Time buffers** are arrays of all steps, [T, ...], that a loop reads and writes one step at a time.
Arrays are time-major in the loops of recurrent layers and only there.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from mlstm_jax.model.architecture import StateOutput, Totals, Tree
from mlstm_jax.model.ops import as_bits, of_bits

Array = jax.Array

Buffers = TypeVar("Buffers")
# (h in the type of the products, the carry, x of the step, its mask of padding [B] or None) → the
# next carry, and what the kind keeps of the step for its gradient.
Step = Callable[[Array, Tree, Array, Array | None], tuple[Tree, Any]]


def step_of(buffers: Buffers, t: Array) -> Buffers:
    """Read step t of every array of a tree, [T, ...] → [...]."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, t, keepdims=False), buffers)


def empty_buffer(shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """A time buffer, [T, ...], that steps write with `put_step`; its elements are undefined.

    Half types are stored as 16-bit integers: XLA for CPUs would convert a whole bfloat16 buffer at
    every step that writes it.
    """
    half = jnp.dtype(dtype).itemsize == 2
    return jax.lax.empty(shape, jnp.uint16 if half else dtype)


def _empty_buffers(window: int, arrays: Tree) -> Tree:
    return jax.tree.map(lambda x: empty_buffer((window, *x.shape), x.dtype), arrays)


def put_step(buffers: Buffers, values: Any, t: Array) -> Buffers:
    """Write values as step t of every buffer of a tree; XLA does it in place."""

    def put(buffer: Array, x: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(buffer, as_bits(x), t, 0)

    return jax.tree.map(put, buffers, values)


def steps_read(window: int, padding_mask_TB: Array | None) -> Array | int:
    """Count the steps of a window before the padding that all rows share."""
    if padding_mask_TB is None:
        return window
    return jnp.sum(~padding_mask_TB.all(axis=1), dtype=jnp.int32)


def run_for_gradient(
    step: Step, carry: Tree, x: Array, compute: jnp.dtype
) -> tuple[Tree, Array, Tree]:
    """Run a step over a window, and keep what its gradient needs; JAX has none of this loop.

    Returns:
        The carry after the window; h after each step, [T, B, H], in the compute type; and time
        buffers of what the step keeps.
    """

    def first_step(carry: Tree) -> Tree:
        return step(carry.h.astype(compute), carry, step_of(x, jnp.int32(0)), None)[1]

    def body(t: Array, rounded_h: Array, carry: Tree, kept: Tree) -> tuple[Tree, Tree]:
        carry, of_step = step(rounded_h, carry, step_of(x, t), None)
        return carry, put_step(kept, of_step, t)

    window = x.shape[0]
    kept = _empty_buffers(window, jax.eval_shape(first_step, carry))
    return _loop(body, carry, kept, compute, window, window)


def read_window(
    step: Step,
    carry: Tree,
    x: Array,
    padding_mask_TB: Array | None,
    compute: jnp.dtype,
    states: StateOutput,
) -> tuple[Tree, Array, Tree]:
    """Run a step over a window without a gradient.

    Returns:
        The carry after the window; h after each step, [T, B, H], in the compute type; and by
        `states` nothing; the `Totals` of one layer [B, H]; or the carry after each step,
        [T, B, H], where steps that are padding in all rows are not computed.
    """
    inputs = (x, padding_mask_TB)
    window = x.shape[0]
    steps: Array | int = window
    kept: Tree = None
    if states == "totals":
        shape = carry.h.shape
        kept = Totals(jnp.zeros(shape, jnp.float32), jnp.full(shape, -jnp.inf, jnp.float32))
    elif states == "each":
        kept = _empty_buffers(window, carry)
        steps = steps_read(window, padding_mask_TB)

    def body(t: Array, rounded_h: Array, carry: Tree, kept: Tree) -> tuple[Tree, Tree]:
        x_B, mask_B = step_of(inputs, t)
        carry, _ = step(rounded_h, carry, x_B, mask_B)
        if states == "totals":
            kept = _add(kept, carry.h, mask_B)
        elif states == "each":
            kept = put_step(kept, carry, t)
        return carry, kept

    last, h_TBH, kept = _loop(body, carry, kept, compute, window, steps)
    if states == "each":
        kept = jax.tree.map(lambda buffer, x: of_bits(buffer, x.dtype), kept, carry)
    return last, h_TBH, kept


def _loop(
    body: Callable[[Array, Array, Tree, Tree], tuple[Tree, Tree]],
    carry: Tree,
    kept: Tree,
    compute: jnp.dtype,
    window: int,
    steps: Array | int,
) -> tuple[Tree, Array, Tree]:
    """Run `body`, (t, h in the compute type, carry, kept) → (carry, kept), for the first steps."""

    def run(t: Array, before: tuple[Array, Tree, Array, Tree]) -> tuple[Array, Tree, Array, Tree]:
        rounded_h, carry, h_TBH, kept = before
        carry, kept = body(t, rounded_h, carry, kept)
        rounded_h = carry.h.astype(compute)
        return rounded_h, carry, put_step(h_TBH, rounded_h, t), kept

    h_TBH = empty_buffer((window, *carry.h.shape), compute)
    # h is carried in both types: rounding it again at each step would need another kernel.
    first = (carry.h.astype(compute), carry, h_TBH, kept)
    _, last, h_TBH, kept = jax.lax.fori_loop(0, steps, run, first)
    return last, of_bits(h_TBH, compute), kept


def _add(totals: Totals, h_BH: Array, mask_B: Array | None) -> Totals:
    highest_BH = h_BH
    if mask_B is not None:
        highest_BH = jnp.where(mask_B[:, None], -jnp.inf, h_BH)
        h_BH = jnp.where(mask_B[:, None], 0, h_BH)
    return Totals(totals.sum + h_BH, jnp.maximum(totals.max, highest_BH))
