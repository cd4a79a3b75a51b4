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
# What a loop keeps of its steps: before the first one; and (kept so far, number of the step, its
# mask of padding, the carry after it, what the kind keeps of it for its gradient) → kept.
Keeping = tuple[Tree, Callable[[Tree, Array, Array | None, Tree, Tree], Tree]]


def step_of(buffers: Buffers, t: Array) -> Buffers:
    """Read step t of every array of a tree, [T, ...] → [...]."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, t, keepdims=False), buffers)


def empty_buffer(shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """A time buffer, [T, ...], that steps write with `put_step`; its elements are undefined.

    Half types are stored as 16-bit integers: XLA for CPUs cannot write one step of a bfloat16
    buffer without converting the whole buffer at every step. On other devices it is the same.
    """
    half = jnp.dtype(dtype).itemsize == 2
    return jax.lax.empty(shape, jnp.uint16 if half else dtype)


def empty_buffers(window: int, arrays: Tree) -> Tree:
    """Time buffers for every array of a tree, [...] → [T, ...]."""
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


def _over_time(
    step: Step,
    carry: Tree,
    inputs: tuple[Array, Array | None],
    compute: jnp.dtype,
    keeping: Keeping,
    steps: Array | int,
) -> tuple[Tree, Array, Tree]:
    """Run the first steps of a window: the carry after them, h after each, and what was kept."""

    def body(t: Array, before: tuple[Array, Tree, Array, Tree]) -> tuple[Array, Tree, Array, Tree]:
        rounded_h, carry, h_TBH, kept = before
        x_B, mask_B = step_of(inputs, t)
        carry, of_step = step(rounded_h, carry, x_B, mask_B)
        kept = keeping[1](kept, t, mask_B, carry, of_step)
        rounded_h = carry.h.astype(compute)
        return rounded_h, carry, put_step(h_TBH, rounded_h, t), kept

    window = inputs[0].shape[0]
    h_TBH = empty_buffer((window, *carry.h.shape), compute)
    # h is carried in both types: rounding it again at each step would need another kernel.
    first = (carry.h.astype(compute), carry, h_TBH, keeping[0])
    _, last, h_TBH, kept = jax.lax.fori_loop(0, steps, body, first)
    return last, of_bits(h_TBH, compute), kept


def run_for_gradient(
    step: Step, carry: Tree, x: Array, compute: jnp.dtype
) -> tuple[Tree, Array, Tree]:
    """Run a step over a window, and keep what it needs for its gradient in time buffers.

    Returns:
        The carry after the window; h after each step [T, B, H] in the compute type; the buffers.
    """

    def first_step(carry: Tree) -> Tree:
        return step(carry.h.astype(compute), carry, step_of(x, jnp.int32(0)), None)[1]

    def add(kept: Tree, t: Array, mask_B: Any, after: Tree, of_step: Tree) -> Tree:
        return put_step(kept, of_step, t)

    window = x.shape[0]
    buffers = empty_buffers(window, jax.eval_shape(first_step, carry))
    return _over_time(step, carry, (x, None), compute, (buffers, add), window)


def read_states(
    step: Step,
    carry: Tree,
    x: Array,
    padding_mask_TB: Array | None,
    compute: jnp.dtype,
    keep: StateOutput,
) -> tuple[Tree, Array, Tree]:
    """Run a step over a window, without a gradient.

    Returns:
        The carry after the window; h after each step [T, B, H] in the compute type; and by `keep`
        nothing; the `Totals` of one layer [B, H]; or the carry after each step, [T, B, H], where
        steps that are padding in all rows are not computed.
    """
    inputs = (x, padding_mask_TB)
    window = x.shape[0]

    def add_total(kept: Totals, t: Array, mask_B: Any, after: Tree, of_step: Tree) -> Totals:
        if mask_B is None:
            return Totals(kept.sum + after.h, jnp.maximum(kept.max, after.h))
        summed = jnp.where(mask_B[:, None], 0, after.h)
        highest = jnp.where(mask_B[:, None], -jnp.inf, after.h)
        return Totals(kept.sum + summed, jnp.maximum(kept.max, highest))

    def add_each(kept: Tree, t: Array, mask_B: Any, after: Tree, of_step: Tree) -> Tree:
        return put_step(kept, after, t)

    if keep == "none":
        return _over_time(step, carry, inputs, compute, (None, lambda kept, *_: kept), window)
    if keep == "totals":
        shape = carry.h.shape
        zero = Totals(jnp.zeros(shape, jnp.float32), jnp.full(shape, -jnp.inf, jnp.float32))
        return _over_time(step, carry, inputs, compute, (zero, add_total), window)
    keeping = (empty_buffers(window, carry), add_each)
    steps = steps_read(window, padding_mask_TB)
    last, h_TBH, kept = _over_time(step, carry, inputs, compute, keeping, steps)
    kept = jax.tree.map(lambda buffer, x: of_bits(buffer, x.dtype), kept, carry)
    return last, h_TBH, kept
