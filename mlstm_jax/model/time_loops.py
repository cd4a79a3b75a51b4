"""Loops over the steps of a window, and the arrays that they read and write.

**Time buffers** are arrays of all time steps, [T, ...], that a loop reads and writes one step at a
time. Arrays are time-major in the loops of recurrent layers and only there.

A recurrent layer is a function of one step: its carry and the input of the step → its next carry.
`recurrence` runs a layer over a window with the kind's own loops, and gives JAX its gradient.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from mlstm_jax.errors import UserError

Array = jax.Array
Tree = TypeVar("Tree")


class Sequence(NamedTuple):
    """The inputs that change from step to step.

    x is the bytes, int32 [T, B], or the states of the layer below, [T, B, I]. Where padding_mask_TB
    (bool) is true, the carry does not change; such a window can be read, but has no gradient.
    """

    x: Array
    padding_mask_TB: Array | None = None


def require_no_padding(sequence: Sequence) -> None:
    """Raise UserError if there is padding; called under a gradient, whose loops ignore padding."""
    if sequence.padding_mask_TB is not None:
        raise UserError(
            "padding_mask_BT: a recurrent model has no gradient with it. Leave it out, and give "
            "the padding no weight in the loss: no byte's output depends on later bytes."
        )


def step_of(buffers: Tree, t: Array) -> Tree:
    """Return step t of every array of a tree, [T, ...] → [...]."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, t, keepdims=False), buffers)


def empty_buffer(shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Return a time buffer, [T, ...], that steps write with `put_step`; its elements are undefined.

    Half types are stored as 16-bit integers: XLA for CPUs cannot write one step of a bfloat16
    buffer without converting the whole buffer at every step. On other devices it is the same.
    """
    half = jnp.dtype(dtype).itemsize == 2
    return jax.lax.empty(shape, jnp.uint16 if half else dtype)


def put_step(buffer: Array, x: Array, t: Array) -> Array:
    """Return a buffer with x as its step t; XLA writes it in place."""
    return jax.lax.dynamic_update_index_in_dim(buffer, as_bits(x), t, 0)


def put_side_by_side(buffer: Array, parts: list[Array], t: Array) -> Array:
    """Return a buffer with `parts`, each [..., n], side by side in the last axis of step t.

    XLA writes them in place.
    """
    for n, x in enumerate(parts):
        place: tuple[Array | int, ...] = (t, *[0] * (x.ndim - 1), n * x.shape[-1])
        buffer = jax.lax.dynamic_update_slice(buffer, as_bits(x)[None], place)
    return buffer


def as_bits(x: Array) -> Array:
    """Return an array as it is stored in a buffer: half types as their bits, uint16."""
    return jax.lax.bitcast_convert_type(x, jnp.uint16) if x.dtype.itemsize == 2 else x


def of_bits(x: Array, dtype: jnp.dtype) -> Array:
    """Return the array of type `dtype` that was passed to `as_bits`."""
    return jax.lax.bitcast_convert_type(x, dtype) if x.dtype == jnp.uint16 else x


def steps_read(window: int, padding_mask_TB: Array | None) -> Array | int:
    """Return how many steps of a window come before those that are padding in all rows."""
    if padding_mask_TB is None:
        return window
    return jnp.sum(~padding_mask_TB.all(axis=1), dtype=jnp.int32)


def by_step(function: Callable[[Array], Array], x_TBH: Array, steps: Array | int) -> Array:
    """Return a float32 function of the first steps of x, one at a time; no gradient.

    A product of all steps at once would round a row otherwise in a window of another length.
    """

    def step(t: Array, buffer: Array) -> Array:
        return put_step(buffer, function(step_of(x_TBH, t)), t)

    shape = jax.eval_shape(function, x_TBH[0]).shape
    buffer = jnp.zeros((x_TBH.shape[0], *shape), jnp.float32)
    return jax.lax.fori_loop(0, steps, step, buffer)


def all_states(
    step: Callable[[Tree, Sequence], Tree], carry: Tree, sequence: Sequence
) -> tuple[Tree, Tree]:
    """Return the carry after the window and after every step, [T, B, H]; no gradient.

    Steps that are padding in all rows are not computed, and have no carry.
    """

    def body(t: Array, before: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        carry, steps = before
        after = step(carry, step_of(sequence, t))
        return after, jax.tree.map(lambda buffer, x: put_step(buffer, x, t), steps, after)

    window = sequence.x.shape[0]
    steps = jax.tree.map(lambda x: empty_buffer((window, *x.shape), x.dtype), carry)
    read = steps_read(window, sequence.padding_mask_TB)
    last, steps = jax.lax.fori_loop(0, read, body, (carry, steps))
    return last, jax.tree.map(lambda buffer, x: of_bits(buffer, x.dtype), steps, carry)


def sum_of_h(
    step: Callable[[Any, Sequence], Any], carry: Any, sequence: Sequence, compute: jnp.dtype
) -> tuple[Any, Array, Array]:
    """Return the carry after the window, h at every step, [T, B, H], and its sum over the steps.

    The sum is float32 [B, H], without those of the padding; no gradient.
    """

    def body(t: Array, before: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        carry, h_TBH, sum_BH = before
        now = step_of(sequence, t)
        after = step(carry, now)
        h_BH = after.h
        if now.padding_mask_TB is not None:
            h_BH = jnp.where(now.padding_mask_TB[:, None], 0, h_BH)
        return after, put_step(h_TBH, after.h.astype(compute), t), sum_BH + h_BH

    window, shape = sequence.x.shape[0], carry.h.shape
    first = carry, empty_buffer((window, *shape), compute), jnp.zeros(shape, jnp.float32)
    last, h_TBH, sum_BH = jax.lax.fori_loop(0, window, body, first)
    return last, of_bits(h_TBH, compute), sum_BH


def recomputed(
    run: Callable[[Tree, Sequence], tuple[Tree, Array]],
    carry: Tree,
    sequence: Sequence,
    every: int | None,
) -> tuple[Tree, Array]:
    """Run a layer over a window, and keep only the carry of every k-th step for the backward pass.

    The steps between are recomputed, k at a time. This saves memory and costs the time of a second
    forward pass.

    Args:
        run: (carry, sequence) → the carry after it, and h at every step.
        carry: the state before the window.
        sequence: its input, T steps.
        every: k; unset: keep everything.
    """
    window = sequence.x.shape[0]
    if every is None or every >= window:
        return run(carry, sequence)
    run = jax.checkpoint(run)
    # First a short run of the remainder, then full runs.
    short = window % every
    h = []
    if short:
        carry, first_h_TBH = run(carry, jax.tree.map(lambda x: x[:short], sequence))
        h.append(first_h_TBH)
    runs = jax.tree.map(lambda x: x[short:].reshape(-1, every, *x.shape[1:]), sequence)
    carry, run_h = jax.lax.scan(run, carry, runs)
    h.append(run_h.reshape(-1, *run_h.shape[2:]))
    return carry, jnp.concatenate(h)


class Loops(NamedTuple):
    """The loops of a layer over time, with rounded matrices.

    Attributes:
        read: without a gradient: (carry, sequence, weights, compute) → the carry after the window,
            and what it keeps, a NamedTuple whose first field is h after each step.
        forward: the same under a gradient.
        backward: (first carry, sequence, weights, kept, compute, cotangents of the last carry, and
            of h after each step) → the cotangents of the carry, of x and of the weights.
    """

    read: Callable[..., tuple[Any, Any]]
    forward: Callable[..., tuple[Any, Any]]
    backward: Callable[..., tuple[Any, Any, Any]]


def recurrence(
    carry: Any,
    sequence: Sequence,
    weights: Any,
    compute: jnp.dtype,
    recompute_every: int | None,
    loops: Loops,
) -> tuple[Any, Array]:
    """Run one layer over a window.

    Args:
        carry: the state before the window.
        sequence: its input, T steps.
        weights: its matrices and bias.
        compute: operand type of every product.
        recompute_every: see `recomputed`.
        loops: of the kind of layer.

    Returns:
        The carry after the window, and h at every step [T, B, H] in the compute type. Gradients
        are float32; those of the weights are summed in float32. Without a gradient nothing is kept.
    """

    def run(carry: Any, sequence: Sequence) -> tuple[Any, Array]:
        return _recurrence(carry, sequence, weights, compute, loops)

    return recomputed(run, carry, sequence, recompute_every)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _recurrence(
    carry: Any, sequence: Sequence, weights: Any, compute: jnp.dtype, loops: Loops
) -> tuple[Any, Array]:
    # The compiler removes unused values, so without a gradient this loop saves nothing.
    last, saved = loops.read(carry, sequence, weights.rounded(sequence.x, compute), compute)
    return last, of_bits(saved[0], compute)


def _forward(
    carry: Any, sequence: Sequence, weights: Any, compute: jnp.dtype, loops: Loops
) -> tuple[tuple[Any, Array], tuple[Any, ...]]:
    require_no_padding(sequence)
    weights = weights.rounded(sequence.x, compute)
    last, saved = loops.forward(carry, sequence, weights, compute)
    return (last, of_bits(saved[0], compute)), (carry, sequence, weights, saved)


def _backward(
    compute: jnp.dtype, loops: Loops, residuals: tuple[Any, ...], cotangents: tuple[Any, Array]
) -> tuple[Any, Sequence, Any]:
    carry, dx, dweights = loops.backward(*residuals, compute, *cotangents)
    return carry, Sequence(dx), dweights


_recurrence.defvjp(_forward, _backward)
