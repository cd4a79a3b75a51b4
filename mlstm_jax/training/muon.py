"""Muon: momentum for the matrices, with all singular values set to about one.

Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks". With gradient G of a
matrix and β = optimizer.muon_momentum::

    M ← β M + G
    O  = NS(G + β M)        Newton-Schulz, five steps: U Σ Vᵀ → about U Vᵀ
    W ← W − η √max(1, columns / rows) O

The coefficients are optax's. Its iteration is not used, because its products sum in the type of
their operands, and XLA for CPUs computes such products in bf16 at float32's rate.
docs/large_batches.md explains η under weight normalisation.

Each gate's columns are a separate matrix (`Architecture.matrices`): many small matrices are shared
out more evenly than few large ones, and joint ones were not better. The decoder is Adam's unless
optimizer.muon_decoder is set.

All devices have the same gradient. Each computes O for a part of the matrices and sends it to the
others.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from mlstm_jax.model.architecture import Architecture

Array = jax.Array

# Of x, x³ and x⁵ (Jordan et al. 2024): the steepest at zero that keeps values near one there.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def of_names(of: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return the function that replaces every leaf of a tree by a value of its name, layer_0/b."""
    return lambda tree: jax.tree_util.tree_map_with_path(lambda path, _: of(_name(path)), tree)


def matrices(model: Architecture, decoder: bool) -> Callable[[str], int]:
    """Return how many of Muon's matrices are side by side in a parameter, by its name.

    Args:
        model: says which parameters are matrices.
        decoder: whether Muon trains the decoder, too.
    """
    return lambda name: model.matrices(name) if decoder or name != "decoder_kernel" else 0


def orthogonalise(
    steps: int, dtype: Any, axis_name: str | None, side_by_side: Callable[[str], int]
) -> optax.GradientTransformation:
    """Return the stateless transformation G → √max(1, columns / rows) · NS(G) of every matrix.

    Args:
        steps: number of Newton-Schulz iterations.
        dtype: type of the operands of the products.
        axis_name: axis of the devices that divide the matrices among themselves; None: each device
            computes all.
        side_by_side: how many matrices are side by side in a parameter, by its name.
    """

    def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        leaves, structure = jax.tree_util.tree_flatten_with_path(gradient)
        blocks = {
            (number, k): block
            for number, (path, leaf) in enumerate(leaves)
            for k, block in enumerate(_split(leaf, side_by_side(_name(path))))
        }
        results = _orthogonal(blocks, steps, dtype, axis_name)
        joined = [
            jnp.concatenate([results[key] for key in results if key[0] == number], axis=1)
            for number in range(len(leaves))
        ]
        return jax.tree_util.tree_unflatten(structure, joined), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _split(matrix: Array, count: int) -> list[Array]:
    return [matrix] if count == 1 else jnp.split(matrix, count, axis=1)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _orthogonal(
    blocks: dict[tuple[int, int], Array], steps: int, dtype: Any, axis_name: str | None
) -> dict[tuple[int, int], Array]:
    """Return the orthogonalised blocks; blocks of one shape are computed as one stack."""
    by_shape: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for key, block in blocks.items():
        by_shape.setdefault(block.shape, []).append(key)
    results: dict[tuple[int, int], Array] = {}
    for keys in by_shape.values():
        stack = jnp.stack([blocks[key] for key in keys])
        results |= zip(keys, _shared(stack, steps, dtype, axis_name), strict=True)
    return {key: results[key] for key in blocks}


def _shared(stack_NIO: Array, steps: int, dtype: Any, axis_name: str | None) -> Array:
    """Return the orthogonalised matrices of a stack; each device computes a part."""
    count, rows, columns = stack_NIO.shape
    scale = math.sqrt(max(1.0, columns / rows))
    devices = jax.lax.axis_size(axis_name) if axis_name else 1
    if devices == 1:
        return scale * _newton_schulz(stack_NIO, steps, dtype)
    each = -(-count // devices)
    padding = ((0, each * devices - count), (0, 0), (0, 0))
    first = jax.lax.axis_index(axis_name) * each
    own = jax.lax.dynamic_slice_in_dim(jnp.pad(stack_NIO, padding), first, each)
    own_results = _newton_schulz(own, steps, dtype)
    return scale * jax.lax.all_gather(own_results, axis_name, tiled=True)[:count]


def _newton_schulz(stack_NIO: Array, steps: int, dtype: Any) -> Array:
    """Return U p(Σ) Vᵀ for every U Σ Vᵀ / ‖Σ‖, float32; p is the polynomial applied `steps` times.

    The operands of the products have type `dtype`; the sums, and x between two steps, are float32.
    """

    def product(equation: str, x: Array, y: Array) -> Array:
        operands = x.astype(dtype), y.astype(dtype)
        return jnp.einsum(equation, *operands, preferred_element_type=jnp.float32)

    a, b, c = COEFFICIENTS
    _, rows, columns = stack_NIO.shape
    # Use the smaller of x xᵀ and xᵀ x.
    x = stack_NIO if rows <= columns else jnp.swapaxes(stack_NIO, 1, 2)
    x = x / (jnp.linalg.norm(x, axis=(1, 2), keepdims=True) + 1e-8)
    for _ in range(steps):
        s = product("nik,njk->nij", x, x)
        x = a * x + product("nij,njk->nik", b * s + c * product("nij,njk->nik", s, s), x)
    return x if rows <= columns else jnp.swapaxes(x, 1, 2)
