"""Sections of a config: frozen dataclasses that check their values.

The comment above a field is its ``--help`` text. The section `model` is a kind of model of model/.
"""

from dataclasses import dataclass
from typing import Literal

from mlstm_jax import address
from mlstm_jax.errors import require
from mlstm_jax.fields import require_types

# JAX builds its keys from the last 32 bits, so two larger seeds could give the same key.
MOST_SEED = 2**32 - 1
# Devices count steps in int32.
MOST_STEPS = 2**31 - 1


def require_seed(name: str, value: int) -> None:
    """Raise UserError unless JAX can distinguish the seed from every other seed."""
    require(0 <= value <= MOST_SEED, name, value, f"0 to {MOST_SEED:,}")


@dataclass(frozen=True, kw_only=True)
class Data:
    """The corpus, and how its text becomes batches."""

    # Folder that `mlstm-jax prepare` created.
    corpus: str = "corpora/quickstart"
    # Rows (streams) in the global batch, on all devices together. Paper: 128 to 32,768.
    batch: int = 128
    # Rows on each device. If set, the global batch is this times the number of devices.
    # Paper: 256 in mixed precision, 128 in fp32.
    batch_per_device: int | None = None
    # Bytes per row and step, the length of truncated back-propagation. Paper: 256.
    window: int = 256
    # Minimum number of shards of the training split; the hidden state is zero at the start of each.
    # Rounded up to a multiple of the batch (of the largest batch where phases keep the carry). A
    # small corpus has fewer. Paper: 1000.
    shards: int = 1000
    # Read each row's shards in a new order every epoch. Paper: no.
    shuffle_shards: bool = False
    # Seed of the new order.
    seed: int = 0

    def __post_init__(self) -> None:
        require_types(self, "data")
        require(self.batch >= 1, "data.batch", self.batch, "at least 1")
        rows = self.batch_per_device
        require(rows is None or rows >= 1, "data.batch_per_device", rows, "at least 1")
        require(self.window >= 1, "data.window", self.window, "at least 1")
        require(self.shards >= 1, "data.shards", self.shards, "at least 1")
        require_seed("data.seed", self.seed)


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices of one process."""

    # Number of devices that each process trains on; unset: all that it has. Paper: 8 per machine.
    count: int | None = None
    # Kernels of the elementwise part of a training step on GPUs: XLA's, or this package's Pallas
    # kernels, half as many (docs/performance.md). The latter have not run on a device yet.
    kernels: Literal["xla", "pallas"] = "xla"
    # Split the CPU into this many virtual devices, to try multi-device code on one machine.
    virtual_cpu: int | None = None

    def __post_init__(self) -> None:
        require_types(self, "devices")
        for name in ("count", "virtual_cpu"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"devices.{name}", value, "at least 1")


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """The processes of a run, on one machine or several."""

    # Address of process 0, HOST:PORT (an IPv6 address in brackets, [fd00::1]:8476), the same for
    # all processes; unset: the run has one process.
    coordinator: str | None = None
    # Number of processes; unset: from srun or mpirun.
    processes: int | None = None
    # Index of this process, from 0; unset: from srun, mpirun or a Kubernetes Job.
    index: int | None = None
    # Seconds to wait for all processes at the start.
    timeout_seconds: float = 300.0
    # Seconds without a heartbeat after which a process counts as lost, and the others end.
    heartbeat_timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        require_types(self, "distributed")
        if self.coordinator is not None:
            try:
                address.parse(self.coordinator)
            except ValueError as error:
                require(False, "distributed.coordinator", self.coordinator, str(error))
        count, index = self.processes, self.index
        require(count is None or count >= 1, "distributed.processes", count, "at least 1")
        require(index is None or index >= 0, "distributed.index", index, "at least 0")
        if count is not None and index is not None:
            require(index < count, "distributed.index", index, f"below {count}, the process count")
        for name in ("timeout_seconds", "heartbeat_timeout_seconds"):
            require(getattr(self, name) > 0, f"distributed.{name}", getattr(self, name), "above 0")
