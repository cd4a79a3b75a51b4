"""The all-reduce of the gradient, split so that most of it can overlap the backward pass.

A single all-reduce would start after the last gradient is computed, and every device would wait for
it. Here each large gradient is reduced separately, in the order of the backward pass: the decoder's
before the scan over time begins, Wmh's before the product of Wh's, Wh's before those of the tables.
All others are reduced last. The sums are bit for bit the same.
"""

from collections.abc import Sequence
from typing import Any

import jax

Array = jax.Array

# Below this size the latency of a separate message costs more than the overlap can hide.
LEAST_BYTES = 1 << 22


def sum_over_devices(tree: Any, others: Any, early: Sequence[str], axis_name: str) -> Any:
    """Return (tree, others), summed over the devices of the axis.

    Args:
        tree: nested dicts of arrays.
        others: values that are ready last.
        early: names in the tree, such as layer_0/wmh_v, in the order in which they are computed.
        axis_name: the name of the device axis.
    """
    found, shape = jax.tree_util.tree_flatten_with_path(tree)
    leaves = {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in found}
    large = [name for name in early if name in leaves and leaves[name].nbytes >= LEAST_BYTES]
    if jax.lax.axis_size(axis_name) == 1:
        large = []
    sums: dict[str, Array] = {}
    before = None
    for name in large:
        before = sums[name] = jax.lax.psum(_after(leaves[name], before), axis_name)
    last = {name: x for name, x in leaves.items() if name not in sums}, others
    last, others = jax.lax.psum(_after(last, before), axis_name)
    return jax.tree.unflatten(shape, [(sums | last)[name] for name in leaves]), others


def _after(tree: Any, before: Array | None) -> Any:
    """Return the tree, made available only after `before`.

    Without this order XLA combines small all-reduces into one, which waits for the last of them,
    and chooses the order of the large ones itself.
    """
    return tree if before is None else jax.lax.optimization_barrier((tree, before))[0]
