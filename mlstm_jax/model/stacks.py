"""Stacks: arrays of all time steps, [T, ...], that a loop reads and writes one step at a time."""

from typing import TypeVar

import jax
import jax.numpy as jnp

Array = jax.Array
Tree = TypeVar("Tree")


def at(stacks: Tree, t: Array) -> Tree:
    """Return step t of every array of a tree, [T, ...] → [...]."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, t, keepdims=False), stacks)


def empty(shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Return a stack, [T, ...], that steps write with `put`; unwritten elements are undefined.

    Half types are stored as 16-bit integers: XLA for CPUs cannot write one step of a bfloat16 stack
    without converting the whole stack at every step. For other devices this makes no difference.
    """
    half = jnp.dtype(dtype).itemsize == 2
    return jax.lax.empty(shape, jnp.uint16 if half else dtype)


def put(stack: Array, x: Array, t: Array) -> Array:
    """Return a stack with x as its step t; XLA writes it in place."""
    return jax.lax.dynamic_update_index_in_dim(stack, as_bits(x), t, 0)


def put_side_by_side(stack: Array, parts: list[Array], t: Array) -> Array:
    """Return a stack with `parts`, each [..., n], side by side in the last axis of step t.

    XLA writes them in place.
    """
    for n, x in enumerate(parts):
        place: tuple[Array | int, ...] = (t, *[0] * (x.ndim - 1), n * x.shape[-1])
        stack = jax.lax.dynamic_update_slice(stack, as_bits(x)[None], place)
    return stack


def as_bits(x: Array) -> Array:
    """Return an array as it is stored in a stack: half types as their bits, uint16."""
    return jax.lax.bitcast_convert_type(x, jnp.uint16) if x.dtype.itemsize == 2 else x


def of_bits(x: Array, dtype: jnp.dtype) -> Array:
    """Return the array of type `dtype` that was passed to `as_bits`."""
    return jax.lax.bitcast_convert_type(x, dtype) if x.dtype == jnp.uint16 else x
