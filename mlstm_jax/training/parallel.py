"""Data parallelism: the only file with pmap, devices and the leading device axis.

Each device of every process has one replica, on an axis named "data", and the global batch is split
evenly by rows (Puri et al. 2018, section IV). The all-reduce is the psum of step.py: NCCL between
GPUs, gloo between CPUs. The leading axis N of arrays created here is over the devices of this
process only; process 0 has the first rows.

pmap is jit and shard_map since jax 0.8. On the day that it goes, `by_shard_map` takes its place in
`Parallel.map`. The step, the loop and the checkpoints stay as they are: a test takes the step both
ways, to the same bits. With one process no more is needed. With several, pmap makes arrays of all
devices of the arguments, and arrays of this process's devices of the results, at each call (JAX's
notes on migration: docs.jax.dev/en/latest/migrate_pmap.html); so `replicate` and `split_rows` must
then end in `join_rows`, and `fetch_rows` begin with `own_rows`. benchmarks/dispatch.py does so, and
measures both.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mlstm_jax import environment
from mlstm_jax.address import Address
from mlstm_jax.config import Devices
from mlstm_jax.distributed.cluster import Cluster
from mlstm_jax.distributed.listener import free_port, loopback_of
from mlstm_jax.distributed.process_info import local_device_ids
from mlstm_jax.errors import UserError

AXIS = "data"


def by_shard_map(
    step: Callable[..., Any], mesh: Mesh, donate: tuple[int, ...] = ()
) -> jax.stages.Wrapped:
    """Return what `Parallel.map` returns, without pmap.

    Its arguments and results have the devices of the mesh as first axis: [devices, ...]. In several
    processes they are global arrays, as `join_rows` makes them.
    """

    def one_device(*arguments: Any) -> Any:
        # As pmap does. x[0] outside of the mapped function would gather x from all devices.
        results = step(*jax.tree.map(lambda x: jax.lax.squeeze(x, [0]), arguments))
        return jax.tree.map(lambda x: jax.lax.expand_dims(x, [0]), results)

    spec = PartitionSpec(AXIS)
    mapped = jax.shard_map(one_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped, donate_argnums=donate)


def _of_first_device(tree: Any) -> Any:
    """Return the first device's copy of a tree of numbers, on every device; −0 becomes 0."""
    is_first = jax.lax.axis_index(AXIS) == 0
    return jax.tree.map(lambda x: jax.lax.psum(jnp.where(is_first, x, 0), AXIS), tree)


class Parallel:
    """The devices of a run, and the transfer of arrays to and from those of this process.

    All transfers are explicit, so that the loop can run under a transfer guard.
    """

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        here = jax.process_index()
        self.devices = list(devices)
        self.local = [device for device in devices if device.process_index == here]
        self._first = self.devices.index(self.local[0])
        spec = PartitionSpec(AXIS)
        self._sharding = NamedSharding(Mesh(np.array(self.local), (AXIS,)), spec)
        self.mesh = Mesh(np.array(self.devices), (AXIS,))
        self._global = NamedSharding(self.mesh, spec)

    @property
    def count(self) -> int:
        """Number of devices of all processes."""
        return len(self.devices)

    def compute_capability(self) -> tuple[int, int] | None:
        """Return the lowest of this process's NVIDIA GPUs, as (9, 0); None for other devices."""
        found = [str(getattr(device, "compute_capability", "")) for device in self.local]
        if not all(name.replace(".", "").isdecimal() for name in found):
            return None
        major, minor = min(tuple(int(part) for part in name.split(".")) for name in found)
        return major, minor

    def rows(self, batch: int) -> slice:
        """Return which rows of a global batch belong to this process."""
        each = batch // self.count
        return slice(self._first * each, (self._first + len(self.local)) * each)

    def map(self, step: Callable[..., Any], donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        """Run a per-device `step` on all devices, reusing the buffers of the arguments `donate`."""
        return jax.pmap(step, axis_name=AXIS, devices=self.devices, donate_argnums=donate)

    def replicate(self, tree: Any) -> Any:
        """Copy every array to each device of this process: [...] → [N, ...]."""

        def put(x: Any) -> jax.Array:
            x = np.asarray(jax.device_get(x))
            return jax.device_put(np.broadcast_to(x, (len(self.local), *x.shape)), self._sharding)

        return jax.tree.map(put, tree)

    def unreplicate(self, tree: Any) -> Any:
        """Copy every array from one device to the host: [N, ...] → NumPy [...]."""
        first = jax.tree.map(lambda x: x.addressable_shards[0].data, tree)
        return jax.tree.map(lambda x: x[0], jax.device_get(first))

    def split_rows(self, tree: Any) -> Any:
        """Split this process's rows over its devices: [N·B, ...] → [N, B, ...]."""

        def put(x: Any) -> jax.Array:
            x = np.asarray(jax.device_get(x))
            return jax.device_put(
                np.ascontiguousarray(x).reshape(len(self.local), -1, *x.shape[1:]), self._sharding
            )

        return jax.tree.map(put, tree)

    def of_first_process(self, tree: Any) -> Any:
        """Return process 0's copy of a tree of NumPy arrays, in all processes.

        On different machines, values computed from one seed may differ in their last bits.
        """
        if jax.process_count() == 1:
            return tree
        return self.unreplicate(self.map(_of_first_device)(self.replicate(tree)))

    def fetch_rows(self, tree: Any) -> Any:
        """Copy this process's rows to the host: [N, B, ...] → NumPy [N·B, ...]."""

        def fetch(x: jax.Array) -> np.ndarray:
            local = jax.device_get(x)
            return local.reshape(-1, *local.shape[2:])

        return jax.tree.map(fetch, tree)

    def join_rows(self, tree: Any) -> Any:
        """Return the rows of all processes as global arrays: NumPy [N·B, ...] → [rows, ...]."""

        def join(local: np.ndarray) -> jax.Array:
            rows = len(local) // len(self.local) * self.count
            shards = zip(np.split(local, len(self.local)), self.local, strict=True)
            return jax.make_array_from_single_device_arrays(
                (rows, *local.shape[1:]),
                self._global,
                [jax.device_put(shard, device) for shard, device in shards],
            )

        return jax.tree.map(join, tree)

    def abstract_rows(self, tree: Any) -> Any:
        """Return the shapes and shardings of a tree of global rows, as a target for a restore."""
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._global), tree
        )

    def own_rows(self, tree: Any) -> Any:
        """Copy this process's rows of global arrays to the host: [rows, ...] → NumPy [N·B, ...]."""

        def own(x: jax.Array) -> np.ndarray:
            shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
            return np.concatenate([jax.device_get(shard.data) for shard in shards])

        return jax.tree.map(own, tree)


def local(devices: Devices) -> Parallel:
    """Return the devices of this process that a config selects."""
    return Parallel(_chosen(environment.local_devices(), devices))


@contextmanager
def started(cluster: Cluster, devices: Devices) -> Iterator[Parallel]:
    """Start JAX in all processes of a run, and yield the devices of all that the config selects.

    Raises:
        UserError: a process has too few devices, or not as many as the others; or CPUs are on
            machines that cannot connect to each other.
        RuntimeError: an all-reduce over all devices gave a wrong sum.
    """
    if cluster.processes > 1:
        where = _coordinator(cluster)
        # JAX's own handler of SIGTERM would replace ours.
        jax.config.update("jax_enable_preemption_service", False)
        if {"grpc_proxy", "https_proxy", "http_proxy"} & set(os.environ):
            os.environ.update(grpc_proxy="")  # Process 0 was reached without a proxy.
        jax.distributed.initialize(
            where,
            cluster.processes,
            cluster.index,
            local_device_ids=local_device_ids(os.environ),
            cluster_detection_method="deactivate",
            # Longer than our own timeout, whose message names the lost process.
            heartbeat_timeout_seconds=600,
            coordinator_bind_address=where,
        )
    chosen = _chosen(environment.local_devices(), devices)
    kinds = sorted({device.device_kind for device in chosen})
    cluster.require_equal(
        {"number of devices": len(chosen), "kind of device": ", ".join(kinds)},
        "Every process must train on the same number and kind of devices; --devices.count limits "
        "the number.",
    )
    if chosen[0].platform == "cpu":
        _require_outward_names(cluster)
    everyone = cluster.gather([device.id for device in chosen])
    by_id = {device.id: device for device in jax.devices()}
    parallel = Parallel([by_id[number] for numbers in everyone for number in numbers])
    _test_all_reduce(parallel)
    yield parallel
    if cluster.processes > 1:
        # This waits for all processes. A process that fails ends in cluster.stop instead.
        jax.distributed.shutdown()


def _coordinator(cluster: Cluster) -> str:
    """Return the address of JAX's own coordinator: the host of process 0, with a free port."""
    here = cluster.first_host
    host, port = cluster.gather([here, free_port(here)] if cluster.is_first else None)[0]
    # The zone of a link-local address differs from machine to machine.
    zoned = "%" in host and "%" in here
    return str(Address(here if zoned else host, port))


def _require_outward_names(cluster: Cluster) -> None:
    """Raise UserError, on all processes, if the CPUs of several machines cannot be connected.

    Gloo connects them by the address to which each machine resolves its own name.
    """
    everyone = cluster.gather([cluster.is_elsewhere, cluster.host, loopback_of(cluster.host)])
    hidden = [
        f"{host}, the machine of process {index}, resolves its own name to {found}"
        for index, (_, host, found) in enumerate(everyone)
        if found
    ]
    if hidden and any(elsewhere for elsewhere, *_ in everyone):
        raise UserError(
            f"{'; '.join(hidden[:5])}. JAX connects the CPUs of several machines by these names: "
            "in each machine's /etc/hosts, map its own name to the address at which the others "
            "reach it."
        )


def _chosen(found: list[jax.Device], devices: Devices) -> list[jax.Device]:
    if devices.count is not None and devices.count > len(found):
        here = "1 device" if len(found) == 1 else f"{len(found)} devices"
        raise UserError(
            f"devices.count is {devices.count}, but this machine has {here} ({found[0].platform}); "
            "lower it, or use virtual devices with --devices.virtual-cpu."
        )
    return found[: devices.count]


def _test_all_reduce(parallel: Parallel) -> None:
    """Sum one number per device, before anything large is compiled, and check the sum."""
    numbers = np.arange(1, parallel.count + 1, dtype=np.float32)
    summed = parallel.map(lambda x: jax.lax.psum(x, AXIS))(
        parallel.split_rows(numbers[parallel.rows(parallel.count)])
    )
    found, expected = parallel.unreplicate(summed).item(), numbers.sum().item()
    if found != expected:
        raise RuntimeError(
            f"an all-reduce of 1 to {parallel.count} gave {found:g}, not {expected:g}: a device or "
            "a link is faulty; set NCCL_DEBUG=INFO to see how NCCL connects them"
        )
