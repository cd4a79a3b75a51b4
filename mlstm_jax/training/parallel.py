"""Data parallelism: the only file with pmap, devices and the leading device axis.

One replica on each device of every process, an axis named "data", the global batch split evenly by
rows (Puri et al. 2018, section IV). The all-reduce is the psum of step.py: NCCL between GPUs, gloo
between CPUs. The leading axis N of the arrays made here is the device, of this process alone; the
rows of process 0 are the first.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mlstm_jax.address import Address
from mlstm_jax.config import Devices
from mlstm_jax.distributed.cluster import Cluster
from mlstm_jax.distributed.listener import free_port, loopback_of
from mlstm_jax.distributed.process_info import local_device_ids
from mlstm_jax.errors import UserError

AXIS = "data"


class Parallel:
    """Some devices, this process's among them, and the ways of arrays to and from those.

    All transfers are explicit, so that the loop can run under a transfer guard.
    """

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        here = jax.process_index()
        self.devices = list(devices)
        self.local = [device for device in devices if device.process_index == here]
        self._first = self.devices.index(self.local[0])
        spec = PartitionSpec(AXIS)
        self._sharding = NamedSharding(Mesh(np.array(self.local), (AXIS,)), spec)
        self._global = NamedSharding(Mesh(np.array(self.devices), (AXIS,)), spec)

    @property
    def count(self) -> int:
        """Number of devices, over all processes."""
        return len(self.devices)

    def compute_capability(self) -> tuple[int, int] | None:
        """Return the least of NVIDIA's GPUs here, such as (9, 0); None for other devices."""
        found = [str(getattr(device, "compute_capability", "")) for device in self.local]
        if not all(name.replace(".", "").isdecimal() for name in found):
            return None
        major, minor = min(tuple(int(part) for part in name.split(".")) for name in found)
        return major, minor

    def rows(self, batch: int) -> slice:
        """Return which rows of a global batch are this process's."""
        each = batch // self.count
        return slice(self._first * each, (self._first + len(self.local)) * each)

    def map(self, step: Callable[..., Any], donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        """Run a per-device `step` on all devices; the buffers of arguments `donate` are reused."""
        return jax.pmap(step, axis_name=AXIS, devices=self.devices, donate_argnums=donate)

    def replicate(self, tree: Any) -> Any:
        """Put a copy of every array on every device here: [...] → [N, ...]."""

        def put(x: Any) -> jax.Array:
            x = np.asarray(jax.device_get(x))
            return jax.device_put(np.broadcast_to(x, (len(self.local), *x.shape)), self._sharding)

        return jax.tree.map(put, tree)

    def unreplicate(self, tree: Any) -> Any:
        """Fetch one device's copy of every array to the host: [N, ...] → NumPy [...]."""
        first = jax.tree.map(lambda x: x.addressable_shards[0].data, tree)
        return jax.tree.map(lambda x: x[0], jax.device_get(first))

    def split_rows(self, tree: Any) -> Any:
        """Give each device here its share of this process's rows: [N·B, ...] → [N, B, ...]."""

        def put(x: Any) -> jax.Array:
            x = np.asarray(jax.device_get(x))
            return jax.device_put(
                np.ascontiguousarray(x).reshape(len(self.local), -1, *x.shape[1:]), self._sharding
            )

        return jax.tree.map(put, tree)

    def of_first_process(self, tree: Any) -> Any:
        """Return process 0's copy of a tree of NumPy arrays, in all processes.

        What each computes from one seed may differ in its last bits, where their machines do.
        """
        if jax.process_count() == 1:
            return tree
        return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(tree))

    def fetch_rows(self, tree: Any) -> Any:
        """Fetch this process's rows to the host: [N, B, ...] → NumPy [N·B, ...]."""

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
        """Return the shapes of a tree of global rows, with where they lie: to be restored into."""
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._global), tree
        )

    def own_rows(self, tree: Any) -> Any:
        """Fetch this process's rows of global arrays: [rows, ...] → NumPy [N·B, ...]."""

        def own(x: jax.Array) -> np.ndarray:
            shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
            return np.concatenate([jax.device_get(shard.data) for shard in shards])

        return jax.tree.map(own, tree)


def local(devices: Devices) -> Parallel:
    """Return the devices of this process that a config asks for."""
    return Parallel(_chosen(jax.local_devices(), devices))


@contextmanager
def started(cluster: Cluster, devices: Devices) -> Iterator[Parallel]:
    """Start JAX in all processes of a run, and yield the devices of all that the config asks for.

    Raises:
        UserError: a process has another number of devices, or too few; or CPUs are on machines
            that cannot connect to each other.
        RuntimeError: an all-reduce over all devices gave a wrong sum.
    """
    if cluster.processes > 1:
        where = _coordinator(cluster)
        # JAX's own handler of SIGTERM would replace ours.
        jax.config.update("jax_enable_preemption_service", False)
        if {"grpc_proxy", "https_proxy", "http_proxy"} & set(os.environ):
            os.environ.update(grpc_proxy="")  # Process 0 was reached without one.
        jax.distributed.initialize(
            where,
            cluster.processes,
            cluster.index,
            local_device_ids=local_device_ids(os.environ),
            cluster_detection_method="deactivate",
            # Later than our own: a lost process is to be known by its name.
            heartbeat_timeout_seconds=600,
            coordinator_bind_address=where,
        )
    chosen = _chosen(jax.local_devices(), devices)
    kinds = sorted({device.device_kind for device in chosen})
    cluster.require_equal(
        {"number of devices": len(chosen), "kind of device": ", ".join(kinds)},
        "Every process must train on as many devices; --devices.count takes fewer.",
    )
    if chosen[0].platform == "cpu":
        _require_outward_names(cluster)
    everyone = cluster.gather([device.id for device in chosen])
    by_id = {device.id: device for device in jax.devices()}
    parallel = Parallel([by_id[number] for numbers in everyone for number in numbers])
    _test_all_reduce(parallel)
    yield parallel
    if cluster.processes > 1:
        # It waits for all; a process that fails leaves by cluster.stop, and does not come here.
        jax.distributed.shutdown()


def _coordinator(cluster: Cluster) -> str:
    """Return where JAX's own coordinator listens: where process 0 was reached, at a free port."""
    here = cluster.first_host
    host, port = cluster.gather([here, free_port(here)] if cluster.is_first else None)[0]
    # The zone of a link-local address is each machine's own.
    zoned = "%" in host and "%" in here
    return str(Address(here if zoned else host, port))


def _require_outward_names(cluster: Cluster) -> None:
    """Raise UserError, on all processes, where CPUs of several machines cannot be joined.

    Gloo connects them by the address that each machine's own name has there.
    """
    everyone = cluster.gather([cluster.is_elsewhere, cluster.host, loopback_of(cluster.host)])
    hidden = [
        f"{host}, the machine of process {index}, resolves its own name to {found}"
        for index, (_, host, found) in enumerate(everyone)
        if found
    ]
    if hidden and any(elsewhere for elsewhere, *_ in everyone):
        raise UserError(
            f"{'; '.join(hidden[:5])}. JAX connects the CPUs of several machines by those names: "
            "in each machine's /etc/hosts, give its own name the address at which the others "
            "reach it."
        )


def _chosen(found: list[jax.Device], devices: Devices) -> list[jax.Device]:
    if devices.count is not None and devices.count > len(found):
        raise UserError(
            f"devices.count is {devices.count}, but there are {len(found)} devices here "
            f"({found[0].platform}); lower it, or try virtual ones with --devices.virtual-cpu."
        )
    return found[: devices.count]


def _test_all_reduce(parallel: Parallel) -> None:
    """Sum a number of every device's before anything large is compiled, and look at the sum."""
    numbers = np.arange(1, parallel.count + 1, dtype=np.float32)
    summed = parallel.map(lambda x: jax.lax.psum(x, AXIS))(
        parallel.split_rows(numbers[parallel.rows(parallel.count)])
    )
    found, expected = parallel.unreplicate(summed).item(), numbers.sum().item()
    if found != expected:
        raise RuntimeError(
            f"an all-reduce of 1 to {parallel.count} gave {found:g}, not {expected:g}: the devices "
            "or their links do not work; NCCL_DEBUG=INFO shows how NCCL joined them"
        )
