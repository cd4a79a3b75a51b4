"""The all-reduce of the gradient, cut so that most of it can run beside the backward pass.

In one piece it starts when the last gradient is made, and every device waits for it. Here each
large part is a piece of its own, in the order in which the backward pass makes them: the decoder's
before the scan over time begins, Wmh's before the product of Wh's, Wh's before those of the tables.
All else goes last. The sums are the same to the bit.
"""

from collections.abc import Sequence
from typing import Any

import jax

Array = jax.Array

# Below it a piece of its own costs more, by the latency of a message, than can be hidden of it.
LEAST_BYTES = 1 << 22


def sum_over_devices(tree: Any, others: Any, early: Sequence[str], axis_name: str) -> Any:
    """Return (tree, others), summed over the devices of the axis.

    Args:
        tree: nested dicts of arrays.
        others: what is ready last.
        early: names in the tree, such as layer_0/wmh_v, in the order in which they are made.
        axis_name: of the devices.
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
    """Return the tree, to be had once `before` is there.

    Without this order XLA joins small pieces into one, which waits for the last of them, and starts
    the large ones in an order of its own.
    """
    return tree if before is None else jax.lax.optimization_barrier((tree, before))[0]
