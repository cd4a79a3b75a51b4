"""Data parallelism: the only file with pmap, shard_map and the leading device axis.

Each device of every process has one replica, on an axis named "data", and the global batch is split
evenly by rows (Puri et al. 2018, section IV). The all-reduce of the gradients is the psum of
`training/replicas.py`: NCCL between GPUs, gloo between CPUs. The leading axis N of arrays created
here is over the devices of this process only; process 0 has the first rows.

pmap is jit and shard_map since jax 0.8. If JAX removes it, `Parallel` maps by shard_map; tests take
the step both ways, to the same bits. By pmap the arrays of a process are on its own devices; by
shard_map they are global, on the devices of all processes.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mlstm_jax import environment
from mlstm_jax.config import Devices
from mlstm_jax.errors import UserError
from mlstm_jax.model.ops import gpu_capability

AXIS = "data"
MappedBy = Literal["pmap", "shard_map"]
# JAX says three months before if it removes pmap.
MAPPED_BY: MappedBy = "pmap" if hasattr(jax, "pmap") else "shard_map"
# The functions on devices that a process keeps for its next runs.
PROGRAMS = 32
# Mappings of memory with which a process begins its next run, which adds some 500 of another shape;
# Linux allows it 65,530.
MAPPINGS = 20_000


def _copy_first_device(tree: Any) -> Any:
    """Copy the first device's tree of numbers to every device; −0 becomes 0."""
    is_first = jax.lax.axis_index(AXIS) == 0
    return jax.tree.map(lambda x: jax.lax.psum(jnp.where(is_first, x, 0), AXIS), tree)


class Parallel:
    """The devices of a run; copies arrays to this process's devices and back.

    All transfers are explicit, so that the loop can run under a transfer guard.
    """

    def __init__(self, devices: Sequence[jax.Device], mapped_by: MappedBy = MAPPED_BY) -> None:
        here = jax.process_index()
        self._mapped_by = mapped_by
        self.devices = list(devices)
        self.local_devices = [device for device in devices if device.process_index == here]
        self._first = self.devices.index(self.local_devices[0])
        spec = PartitionSpec(AXIS)
        self._own = NamedSharding(Mesh(np.array(self.local_devices), (AXIS,)), spec)
        self._all = NamedSharding(Mesh(np.array(self.devices), (AXIS,)), spec)

    @property
    def count(self) -> int:
        """Number of devices of all processes."""
        return len(self.devices)

    def compute_capability(self) -> tuple[int, int] | None:
        """The lowest of this process's NVIDIA GPUs, as (9, 0); None for other devices."""
        found = [gpu_capability(device) for device in self.local_devices]
        known = [capability for capability in found if capability]
        return min(known) if len(known) == len(found) else None

    def rows(self, batch: int) -> slice:
        """Which rows of a global batch belong to this process."""
        each = batch // self.count
        return slice(self._first * each, (self._first + len(self.local_devices)) * each)

    def map(self, step: Callable[..., Any], donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        """Run a per-device `step` on all devices, reusing the buffers of the arguments `donate`."""
        return _mapped(step, self._all.mesh, donate, self._mapped_by)

    def _place(self, tree: Any) -> Any:
        """Copy arrays of the host to this process's devices: NumPy [N, ...] → [N, ...]."""
        placed = jax.device_put(tree, self._own)
        if self._mapped_by == "pmap" or len(self.local_devices) == self.count:
            return placed

        def joined(x: jax.Array) -> jax.Array:
            shards = [shard.data for shard in x.addressable_shards]
            shape = (self.count, *x.shape[1:])
            return jax.make_array_from_single_device_arrays(shape, self._all, shards)

        return jax.tree.map(joined, placed)

    def replicate(self, tree: Any) -> Any:
        """Copy every array to each device of this process: [...] → [N, ...]."""

        def copies(x: Any) -> np.ndarray:
            return np.broadcast_to(x, (len(self.local_devices), *np.shape(x)))

        environment.require_own_jax()
        return self._place(jax.tree.map(copies, jax.device_get(tree)))

    def copy_to_all(self, tree: Any) -> Any:
        """Copy every array to each device, without an axis of devices: jit's results are so."""
        return jax.device_put(tree, NamedSharding(self._all.mesh, PartitionSpec()))

    def unreplicate(self, tree: Any) -> Any:
        """Copy every array from one device to the host: [N, ...] → NumPy [...]."""
        first = jax.tree.map(lambda x: x.addressable_shards[0].data, tree)
        return jax.tree.map(lambda x: x[0], jax.device_get(first))

    def split_rows(self, tree: Any) -> Any:
        """Split this process's rows over its devices: [N·B, ...] → [N, B, ...]."""

        def split(x: np.ndarray) -> np.ndarray:
            return np.ascontiguousarray(x).reshape(len(self.local_devices), -1, *x.shape[1:])

        return self._place(jax.tree.map(split, jax.device_get(tree)))

    def copy_first_process(self, tree: Any) -> Any:
        """Process 0's copy of a tree of NumPy arrays, in all processes.

        On different machines, values computed from one seed may differ in their last bits.
        """
        if jax.process_count() == 1:
            return tree
        return self.unreplicate(self.map(_copy_first_device)(self.replicate(tree)))

    def fetch_rows(self, tree: Any) -> Any:
        """Copy this process's rows to the host: [N, B, ...] → NumPy [N·B, ...]."""
        if self._mapped_by == "shard_map":
            tree = self.own_rows(tree)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), jax.device_get(tree))

    def join_rows(self, tree: Any) -> Any:
        """Join the rows of all processes to global arrays: NumPy [N·B, ...] → [rows, ...]."""
        join = functools.partial(jax.make_array_from_process_local_data, self._all)
        return jax.tree.map(join, tree)

    def abstract_rows(self, tree: Any) -> Any:
        """The shapes and shardings of a tree of global rows, as a target for a restore."""

        def shape(x: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._all)

        return jax.tree.map(shape, tree)

    def own_rows(self, tree: Any) -> Any:
        """Copy this process's rows of global arrays to the host: [rows, ...] → NumPy [N·B, ...]."""

        def own(x: jax.Array) -> np.ndarray:
            shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
            return np.concatenate([jax.device_get(shard.data) for shard in shards])

        return jax.tree.map(own, tree)


def map_by_shard_map(
    step: Callable[..., Any], mesh: Mesh, donate: tuple[int, ...] = ()
) -> jax.stages.Wrapped:
    """Map a step of one device as pmap does.

    Its arguments and results have the devices of the mesh as first axis: [devices, ...]. In several
    processes they are global arrays.
    """

    def one_device(*arguments: Any) -> Any:
        # As pmap does. x[0] outside of the mapped function would gather x from all devices.
        results = step(*jax.tree.map(lambda x: jax.lax.squeeze(x, [0]), arguments))
        return jax.tree.map(lambda x: jax.lax.expand_dims(x, [0]), results)

    spec = PartitionSpec(AXIS)
    mapped = jax.shard_map(one_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped, donate_argnums=donate)


@functools.lru_cache(maxsize=PROGRAMS)
def _mapped(
    step: Callable[..., Any], mesh: Mesh, donate: tuple[int, ...], mapped_by: MappedBy
) -> Callable[..., Any]:
    """The step on the devices of a mesh; one function for all runs with an equal step."""
    if mapped_by == "pmap":
        devices = list(mesh.devices)
        return jax.pmap(step, axis_name=AXIS, devices=devices, donate_argnums=donate)
    return map_by_shard_map(step, mesh, donate)


def free_programs() -> None:
    """Free all compiled programs if this process has many mappings of memory: JAX frees none."""
    mappings = Path("/proc/self/maps")  # of Linux
    if mappings.exists() and mappings.read_bytes().count(b"\n") > MAPPINGS:
        _mapped.cache_clear()
        jax.clear_caches()


def local_devices(devices: Devices) -> Parallel:
    """The selected devices of this process, for what only it computes."""
    return Parallel(selected_devices(devices))


def selected_devices(devices: Devices) -> list[jax.Device]:
    """The devices of this process that a config selects; UserError if it has fewer."""
    found = environment.local_devices()
    if devices.count is not None and devices.count > len(found):
        raise UserError(
            f"devices.count is {devices.count}, but this machine has {len(found)} device(s) "
            f"({found[0].platform}); lower it, or use virtual devices with `devices.virtual_cpu`."
        )
    return found[: devices.count]
