"""Sections of a config: frozen dataclasses that check their values.

The comment above a field is its ``--help`` text. model/cells/ has the section `model`.
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


Compute = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Number types and loss scaling."""

    # Type of the matrix products. Master weights, moments, sums, logits and loss stay float32. fp16
    # uses dynamic loss scaling; bf16 needs none. With tf32, GPUs since the A100 round the operands
    # of fp32 to 10 bits of mantissa, at about eight times the speed; other devices compute in fp32.
    # Paper: fp16, with fp32 as the baseline.
    compute: Compute = "fp32"
    # Type of the cell state c: float32, or the compute type.
    cell: Literal["fp32", "compute"] = "fp32"
    # Type of the gradient all-reduce: float32, or the compute type (divided by the number of
    # devices before the sum, so that the sum cannot overflow). Paper: fp16.
    all_reduce: Literal["fp32", "compute"] = "fp32"
    # Initial loss scale of fp16.
    initial_loss_scale: float = 2.0**16
    # Number of clean updates after which the loss scale doubles.
    growth_interval: int = 1000
    # Limits of the loss scale.
    min_loss_scale: float = 1.0
    max_loss_scale: float = 2.0**24
    # Number of consecutive skipped updates (inf or NaN in the gradient) after which the run stops.
    max_consecutive_skips: int = 50

    def __post_init__(self) -> None:
        require_types(self, "precision")
        low, high, first = self.min_loss_scale, self.max_loss_scale, self.initial_loss_scale
        require(low > 0, "precision.min_loss_scale", low, "above 0")
        require(low <= high, "precision.max_loss_scale", high, f"at least {low}")
        between = f"between {low} and {high}"
        require(low <= first <= high, "precision.initial_loss_scale", first, between)
        interval, skips = self.growth_interval, self.max_consecutive_skips
        require(interval >= 1, "precision.growth_interval", interval, "at least 1")
        require(skips >= 1, "precision.max_consecutive_skips", skips, "at least 1")


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
