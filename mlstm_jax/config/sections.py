"""Sections of a config: frozen dataclasses that check their values.

The comment above a field is its ``--help`` text. The section `model` is a kind of model of model/.
"""

import ipaddress
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

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


class Address(NamedTuple):
    """Address of a process; as text, an IPv6 address is in brackets."""

    host: str  # a name, an IPv4 address, or an IPv6 address without brackets
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse node1:8476, 10.0.0.1:8476, [fd00::1]:8476 or [fe80::1%eth0]:8476.

    Raises ValueError, which states the required form.
    """
    host, _, port = text.rpartition(":")
    if _is_ipv6(host) or _is_ipv6(text):
        # The part after the last colon may be the port or the end of the address.
        meant = f"[{host}]:{port}" if _is_ipv6(host) else f"[{text}]:8476"
        raise ValueError(f"HOST:PORT with brackets around an IPv6 address, such as {meant}")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else ""
    if not _is_port(port) or not (_is_ipv6(bare) or _is_name(host)):
        raise ValueError("HOST:PORT, such as node1:8476 or [fd00::1]:8476")
    return Address(bare or host, int(port))


def _is_ipv6(host: str) -> bool:
    """Whether a host is an IPv6 address, with or without a zone, rather than a name."""
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def is_literal(host: str) -> bool:
    """Whether a host is an IP address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether an IP address is the machine itself, such as 127.0.0.1."""
    return ipaddress.ip_address(host).is_loopback


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536


def _is_name(host: str) -> bool:
    try:
        host.encode("idna")  # The resolver does the same.
    except UnicodeError:
        return False
    return bool(host) and host.isprintable() and not set(host) & set(" :/@%[]")


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
                parse_address(self.coordinator)
            except ValueError as error:
                require(False, "distributed.coordinator", self.coordinator, str(error))
        count, index = self.processes, self.index
        require(count is None or count >= 1, "distributed.processes", count, "at least 1")
        require(index is None or index >= 0, "distributed.index", index, "at least 0")
        if count is not None and index is not None:
            require(index < count, "distributed.index", index, f"below {count}, the process count")
        for name in ("timeout_seconds", "heartbeat_timeout_seconds"):
            require(getattr(self, name) > 0, f"distributed.{name}", getattr(self, name), "above 0")


@dataclass(frozen=True, kw_only=True)
class Train:
    """How long a run trains, and when it writes what."""

    # Maximum number of optimizer steps; unset: as many as `epochs` needs. Paper: 100,000.
    steps: int | None = None
    # Maximum number of passes over the training split; unset: as many as `steps` needs. Paper: 3.
    epochs: float | None = 1.0
    # Keep the state of every k-th byte of a window for the backward pass, and recompute the others.
    # This saves memory, so that a larger model or batch fits; a step takes about a quarter longer.
    # 16 to 64 are good values; unset: keep everything.
    recompute_every: int | None = None
    # Fraction of each layer's output units that are dropped in training, drawn anew for each row
    # and window. The recurrent state itself is not dropped. Paper: none.
    dropout: float = 0.0
    # How many bytes one label counts as, with model.rating_head (the squared error of a rating, in
    # standard deviations of the training split), model.classes (nats) or model.yes_no (nats, the
    # mean over the labels that a document has).
    label_weight: float = 100.0
    # Number k of parts that each device's rows are split into (gradient accumulation). A device
    # processes one part at a time, and their gradients make one update: it needs the memory of 1/k
    # of the rows, and the result is the same to rounding.
    micro_batches: int = 1
    # Run folder, trained or imported, from whose parameters the run starts; the sizes of the model
    # must be the same. The label head is not copied. Unset: random initial parameters.
    start_from: str | None = None
    # Seed of the initial parameters.
    seed: int = 0
    # On GPUs: use only deterministic kernels, so that a run that is stopped and resumed is bit for
    # bit the same as an uninterrupted one. XLA then does not search for the fastest kernels, so
    # steps are slower. CPUs are always deterministic.
    deterministic: bool = False
    # Steps between two lines of metrics; the loss of a line is the mean over these steps.
    log_every: int = 10
    # Steps between two evaluations of the validation split, each with a checkpoint.
    eval_every: int = 1000
    # Steps between two checkpoints.
    checkpoint_every: int = 1000
    # Number of newest checkpoints to keep. The best by validation BPC is also kept, and one that is
    # older than any divergence that can still be detected.
    keep_checkpoints: int = 2
    # What to do when the run diverges. stop: end with an error. rollback: resume from the last
    # checkpoint before the divergence, with the learning rate multiplied by `rollback_factor`. Both
    # delete the checkpoints written after the divergence began.
    on_divergence: Literal["stop", "rollback"] = "stop"
    # Factor of the learning rate at every rollback.
    rollback_factor: float = 0.5
    # A run has diverged when its training loss is above this many bits per character for
    # `divergence_steps` steps in a row (a uniform prediction has 8), or when
    # `precision.max_consecutive_skips` updates in a row contained inf or NaN.
    divergence_bpc: float = 10.0
    # Number of such steps in a row.
    divergence_steps: int = 100
    # Exit code of a run that SIGTERM or SIGHUP stopped with a checkpoint. 0 reports success; use
    # another code for a supervisor that restarts only failed processes, such as Kubernetes.
    sigterm_exit_code: int = 0
    # Seconds without a step, a window of evaluation or a checkpoint after which the run writes the
    # stack of every thread and ends. This time includes the compilation of the first step, but none
    # in which the process was suspended (Ctrl-Z).
    watchdog_seconds: float = 1800.0

    def __post_init__(self) -> None:
        require_types(self, "train")
        steps, epochs, kept = self.steps, self.epochs, self.recompute_every
        require(kept is None or kept >= 1, "train.recompute_every", kept, "at least 1")
        require(
            steps is not None or epochs is not None, "train.steps", None, "set, or train.epochs"
        )
        in_range = f"1 to {MOST_STEPS:,}"
        require(steps is None or 1 <= steps <= MOST_STEPS, "train.steps", steps, in_range)
        finite = epochs is None or 0 < epochs < math.inf
        require(finite, "train.epochs", epochs, "above 0, and finite")
        require(1 <= self.log_every <= MOST_STEPS, "train.log_every", self.log_every, in_range)
        for name in (
            "micro_batches",
            "eval_every",
            "checkpoint_every",
            "keep_checkpoints",
        ):
            require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "at least 1")
        require_seed("train.seed", self.seed)
        dropout, weight = self.dropout, self.label_weight
        require(0 <= dropout < 1, "train.dropout", dropout, "at least 0 and below 1")
        require(0 < weight < math.inf, "train.label_weight", weight, "above 0, and finite")
        factor, bpc = self.rollback_factor, self.divergence_bpc
        require(0 < factor < 1, "train.rollback_factor", factor, "between 0 and 1")
        require(bpc > 0, "train.divergence_bpc", bpc, "above 0")
        code = self.sigterm_exit_code
        require(0 <= code <= 255, "train.sigterm_exit_code", code, "between 0 and 255")
        steps, seconds = self.divergence_steps, self.watchdog_seconds
        require(steps >= 1, "train.divergence_steps", steps, "at least 1")
        require(seconds > 0, "train.watchdog_seconds", seconds, "above 0")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run with its own batch and window, and possibly its own learning rate."""

    # Number of steps.
    steps: int
    # Rows in the global batch.
    batch: int
    # Bytes per row and step, the length of truncated back-propagation.
    window: int
    # Begins a new schedule with this phase: what `optimizer.learning_rate` is in it. Its decay ends
    # before the next phase that has this field, or at the end of the run. Unset: the schedule of
    # the previous phase continues.
    learning_rate: float | None = None
    # Updates of warm-up of that schedule.
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        require_types(self, "phases")
        for name in ("steps", "batch", "window"):
            require(getattr(self, name) >= 1, f"phases.{name}", getattr(self, name), "at least 1")
        require(self.steps <= MOST_STEPS, "phases.steps", self.steps, f"1 to {MOST_STEPS:,}")
        rate, warmup = self.learning_rate, self.warmup_steps
        finite = rate is None or 0 < rate < math.inf
        require(finite, "phases.learning_rate", rate, "above 0, and finite")
        possible = warmup == 0 if rate is None else 0 <= warmup < self.steps
        expected = "0 without phases.learning_rate" if rate is None else "below phases.steps"
        require(possible, "phases.warmup_steps", warmup, expected)
