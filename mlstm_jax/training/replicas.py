"""A check that the copies of a run's state, one per device, are still the same.

They start from one state and apply one gradient, so they stay equal bit for bit. A device that
computes wrong results, failing memory, or a file that one process reads differently makes them
drift apart silently. The check compares one checksum per device, computed from every bit of its
copy.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mlstm_jax.distributed.cluster import Cluster
from mlstm_jax.errors import KnownError
from mlstm_jax.training.parallel import AXIS, Parallel

Array = jax.Array


class ReplicasDiffer(KnownError):
    """The devices no longer hold the same state."""


def fold(tree: Any) -> Array:
    """Return a checksum of all bits of a tree of arrays, uint32 scalar.

    Each element is multiplied by its own odd factor, modulo 2³², so every change of a single bit is
    detected; of other changes one in 2³² is missed.
    """
    total = jnp.uint32(0)
    for leaf in jax.tree.leaves(tree):
        bits = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * leaf.dtype.itemsize}"))
        bits = bits.astype(jnp.uint32).reshape(-1)
        factors = 2 * jax.lax.iota(jnp.uint32, bits.size) + 1
        total = total * jnp.uint32(0x9E3779B1) + jnp.sum(bits * factors, dtype=jnp.uint32)
    return total


def make_comparison(cluster: Cluster, devices: Parallel) -> Callable[[int, Any], None]:
    """Return a function that raises ReplicasDiffer unless all devices hold the same state.

    It takes the step and the replicated state; all processes must call it.
    """
    if devices.count == 1:
        return lambda step, state: None
    gather = devices.map(lambda state: jax.lax.all_gather(fold(state), AXIS))

    def require_equal(step: int, state: Any) -> None:
        sums = np.asarray(devices.unreplicate(gather(state))).tolist()
        common, _ = Counter(sums).most_common(1)[0]
        odd = [number for number, found in enumerate(sums) if found != common]
        if not odd:
            return
        hosts = cluster.gather(cluster.host)
        names = [
            f"device {devices.devices[number].local_hardware_id} of process {process} "
            f"({hosts[process]})"
            for number in odd
            for process in [devices.devices[number].process_index]
        ]
        raise ReplicasDiffer(
            f"at step {step} the parameters and moments of {', '.join(names)} differ from those of "
            "the other devices, although all applied the same updates: the device, its memory or "
            "its machine computes wrong results. No checkpoint of this state was written. Run the "
            "same command without the faulty device; it resumes from the last checkpoint."
        )

    return require_equal
