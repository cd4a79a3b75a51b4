"""The replicas of a run: their devices, the sum of their gradients, and their comparison."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mlstm_jax.config import Devices
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import KnownError
from mlstm_jax.parallel import AXIS, Parallel, selected_devices

Array = jax.Array

# Below this size in bytes the latency of a separate message costs more than overlap can hide.
LEAST_BYTES = 1 << 22


def connect_devices(cluster: Cluster, devices: Devices) -> Parallel:
    """The devices of all processes of a run that the config selects."""
    selected = selected_devices(devices)
    kinds = sorted({device.device_kind for device in selected})
    cluster.require_equal(
        {"number of devices": len(selected), "kind of device": ", ".join(kinds)},
        "Every process must train on the same number and kind of devices; `devices.count` limits "
        "the number.",
    )
    by_id = {device.id: device for device in jax.devices()}
    numbers = cluster.gather([device.id for device in selected])
    return Parallel([by_id[number] for number in itertools.chain(*numbers)])


def sum_over_devices(tree: Any, others: Any, early: Sequence[str]) -> Any:
    """Sum (tree, others) over the devices of the axis; `others` are ready last.

    A single all-reduce would start after the last gradient is computed. Here each large gradient
    that `early` names, such as layer_0/wmh_v, is reduced separately, in the order of the backward
    pass, and all others last. The sums are bit for bit the same.
    """
    paths, shape = jax.tree_util.tree_flatten_with_path(tree)
    leaves = {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in paths}
    names = list(leaves)
    is_alone = jax.lax.axis_size(AXIS) == 1
    sums: dict[str, Array] = {}
    before = None
    for name in early:
        if not is_alone and name in leaves and leaves[name].nbytes >= LEAST_BYTES:
            before = jax.lax.psum(_after(leaves.pop(name), before), AXIS)
            sums[name] = before
    last, others = jax.lax.psum(_after((leaves, others), before), AXIS)
    sums |= last
    return jax.tree.unflatten(shape, [sums[name] for name in names]), others


def _after(tree: Any, before: Array | None) -> Any:
    """Make the tree available only after `before`; XLA would combine or reorder all-reduces."""
    if before is None:
        return tree
    return jax.lax.optimization_barrier((tree, before))[0]


class ReplicasDiffer(KnownError):
    """The devices no longer hold the same state."""


def fold(tree: Any) -> Array:
    """Checksum of all bits of a tree of arrays, uint32 scalar.

    Each element is multiplied by its own odd factor, modulo 2³², so every change of one element is
    detected. Few other changes are missed, such as the exchange of x and 2ⁿ x.
    """
    total = jnp.uint32(0)
    for leaf in jax.tree.leaves(tree):
        bits = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * leaf.dtype.itemsize}"))
        bits = bits.astype(jnp.uint32).reshape(-1)
        factors = 2 * jax.lax.iota(jnp.uint32, bits.size) + 1
        total = total * jnp.uint32(0x9E3779B1) + jnp.sum(bits * factors, dtype=jnp.uint32)
    return total


def _gather_folds(state: Any) -> Array:
    return jax.lax.all_gather(fold(state), AXIS)


def require_equal_replicas(cluster: Cluster, devices: Parallel, step: int, state: Any) -> None:
    """Raise ReplicasDiffer unless all devices hold the same state; all processes must call it.

    The copies start from one state and apply one gradient, so they stay equal bit for bit. A device
    that computes wrong results, or a file that one process reads differently, makes them drift
    apart silently. One checksum per device, of every bit of its copy, is compared.
    """
    if devices.count == 1:
        return
    sums = np.asarray(devices.unreplicate(devices.map(_gather_folds)(state))).tolist()
    common, _ = Counter(sums).most_common(1)[0]
    names = []
    for device, checksum in zip(devices.devices, sums, strict=True):
        if checksum != common:
            process = cluster.names[device.process_index]
            names.append(f"device {device.local_hardware_id} of {process}")
    if names:
        raise ReplicasDiffer(
            f"at step {step} the state of {', '.join(names)} differs from the state of the other "
            "devices, although all applied the same updates: the hardware computes wrong results. "
            "No checkpoint of this state was written. Run the same command without the faulty "
            "device; it resumes from the last checkpoint."
        )
