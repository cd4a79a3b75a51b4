"""Muon: momentum whose singular values are made one, for the matrices.

Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks". With gradient G of a
matrix, β 0.95::

    M ← β M + G
    O  = NS(G + β M)        Newton-Schulz, five steps: U Σ Vᵀ → about U Vᵀ
    W ← W − η √max(1, columns / rows) O

The iteration and its coefficients are optax's. Under weight normalisation docs/large_batches.md
says what η means.

A gate's columns of Wx and Wh are a matrix of their own: the four gates share rows, but not what
they are for, and a joint O would spend its singular values on what they have in common.

On several devices, which all have the same gradient, each makes O of a part of the matrices and
hands them to the others.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

Array = jax.Array

BETA = 0.95
# Matrices of four gates side by side, by the end of their name.
_OF_GATES = ("wx_v", "wh_v")


def momentum() -> optax.GradientTransformation:
    """Return M and G + β M; its state is M alone."""
    return optax.trace(decay=BETA, nesterov=True)


def orthogonalise(steps: int, dtype: Any, axis_name: str | None) -> optax.GradientTransformation:
    """Return a stateless G → √max(1, columns / rows) · NS(G) of every matrix.

    Args:
        steps: of Newton-Schulz.
        dtype: in which they are made.
        axis_name: of devices that share the matrices out; None: each device makes all.
    """

    def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        leaves, structure = jax.tree_util.tree_flatten_with_path(gradient)
        blocks = {
            (number, k): block
            for number, (path, leaf) in enumerate(leaves)
            for k, block in enumerate(_split(path, leaf))
        }
        made = _orthogonal(blocks, steps, dtype, axis_name)
        joined = [
            jnp.concatenate([made[key] for key in made if key[0] == number], axis=1)
            for number in range(len(leaves))
        ]
        return jax.tree_util.tree_unflatten(structure, joined), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _split(path: Any, matrix: Array) -> list[Array]:
    name = str(path[-1].key)
    return jnp.split(matrix, 4, axis=1) if name.endswith(_OF_GATES) else [matrix]


def _orthogonal(
    blocks: dict[tuple[int, int], Array], steps: int, dtype: Any, axis_name: str | None
) -> dict[tuple[int, int], Array]:
    """Return the blocks made orthogonal, those of one shape in one stack."""
    by_shape: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for key, block in blocks.items():
        by_shape.setdefault(block.shape, []).append(key)
    made: dict[tuple[int, int], Array] = {}
    for keys in by_shape.values():
        stack = jnp.stack([blocks[key] for key in keys])
        made |= zip(keys, _shared(stack, steps, dtype, axis_name), strict=True)
    return {key: made[key] for key in blocks}


def _shared(stack_NIO: Array, steps: int, dtype: Any, axis_name: str | None) -> Array:
    """Return every matrix of a stack made orthogonal; each device makes a part."""
    count, rows, columns = stack_NIO.shape
    scale = math.sqrt(max(1.0, columns / rows))
    devices = jax.lax.axis_size(axis_name) if axis_name else 1
    if devices == 1:
        return scale * _newton_schulz(stack_NIO, steps, dtype)
    each = -(-count // devices)
    padding = ((0, each * devices - count), (0, 0), (0, 0))
    first = jax.lax.axis_index(axis_name) * each
    own = jax.lax.dynamic_slice_in_dim(jnp.pad(stack_NIO, padding), first, each)
    found = _newton_schulz(own, steps, dtype)
    return scale * jax.lax.all_gather(found, axis_name, tiled=True)[:count]


def _newton_schulz(stack_NIO: Array, steps: int, dtype: Any) -> Array:
    # Without momentum optax's transformation is its Newton-Schulz iteration alone.
    bare = scale_by_muon(
        beta=0.0,
        nesterov=False,
        ns_steps=steps,
        weight_dimension_numbers=MuonDimensionNumbers(reduction_axis=1, output_axis=2),
    )
    x = stack_NIO.astype(dtype)
    return bare.update(x, bare.init(x))[0].astype(jnp.float32)
