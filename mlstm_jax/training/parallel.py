"""Data parallelism: the only file with pmap, devices and the leading device axis.

One replica on each device, an axis named "data", the global batch split evenly by rows (Puri et al.
2018, section IV). The all-reduce is the psum of step.py: NCCL between GPUs, gloo between CPUs.
The leading axis N of the arrays made here is the device.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mlstm_jax.config import Devices
from mlstm_jax.errors import UserError

AXIS = "data"


class Parallel:
    """The local devices, and the ways of arrays to and from them.

    All transfers are explicit, so that the loop can run under a transfer guard.
    """

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        self.devices = list(devices)
        self._sharding = NamedSharding(Mesh(np.array(self.devices), (AXIS,)), PartitionSpec(AXIS))

    @property
    def count(self) -> int:
        """Number of devices N."""
        return len(self.devices)

    def map(self, step: Callable[..., Any], donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        """Run a per-device `step` on all devices; the buffers of arguments `donate` are reused."""
        return jax.pmap(step, axis_name=AXIS, devices=self.devices, donate_argnums=donate)

    def replicate(self, tree: Any) -> Any:
        """Put a copy of every array on every device: [...] → [N, ...]."""

        def put(x: Any) -> jax.Array:
            x = np.asarray(jax.device_get(x))
            return jax.device_put(np.broadcast_to(x, (self.count, *x.shape)), self._sharding)

        return jax.tree.map(put, tree)

    def unreplicate(self, tree: Any) -> Any:
        """Fetch one device's copy of every array to the host: [N, ...] → NumPy [...]."""
        first = jax.tree.map(lambda x: x.addressable_shards[0].data, tree)
        return jax.tree.map(lambda x: x[0], jax.device_get(first))

    def split_rows(self, tree: Any) -> Any:
        """Give each device its rows: [N·B, ...] → [N, B, ...]."""

        def put(x: Any) -> jax.Array:
            x = np.asarray(jax.device_get(x))
            return jax.device_put(
                np.ascontiguousarray(x).reshape(self.count, -1, *x.shape[1:]), self._sharding
            )

        return jax.tree.map(put, tree)

    def join_rows(self, tree: Any) -> Any:
        """Fetch the rows of all devices to the host, in order: [N, B, ...] → NumPy [N·B, ...]."""
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), jax.device_get(tree))


def local(devices: Devices) -> Parallel:
    """Return the devices that a config asks for."""
    found = jax.local_devices()
    if devices.count is not None and devices.count > len(found):
        raise UserError(
            f"devices.count is {devices.count}, but there are {len(found)} devices here "
            f"({found[0].platform}); lower it, or try virtual ones with --devices.virtual-cpu."
        )
    return Parallel(found[: devices.count])
