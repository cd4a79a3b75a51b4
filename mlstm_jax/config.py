"""What one experiment is: frozen dataclasses with checks.

A config file is a Python module that sets ``config = Config(...)``. A command line starts from it
and overrides single fields: ``mlstm-jax train small_512 --optimizer.learning-rate 1e-3``.
The comment above a field is its ``--help``. No jax import: a device count can still be asked for.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mlstm_jax import address, shipped, user_python
from mlstm_jax.errors import UserError

# JAX makes its keys of the last 32 bits: of two larger seeds, one might be the other.
MOST_SEED = 2**32 - 1


def _require(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise UserError(f"{name} is {value!r}, but it must be {rule}.")


def require_seed(name: str, value: int) -> None:
    """Raise UserError unless a seed is one that JAX can tell from all others."""
    _require(0 <= value <= MOST_SEED, name, value, f"0 to {MOST_SEED:,}")


@dataclass(frozen=True, kw_only=True)
class Model:
    """The network and its initial parameters."""

    # Hidden units H of a layer. Paper: 4096 (also 256, 1024, 8192).
    hidden: int = 4096
    # Embedding size E of a byte. Paper: 64.
    embedding: int = 64
    # Stacked mLSTM layers. Paper: 1.
    layers: int = 1
    # Standard deviation of the initial embedding. Paper: 1. The multiplicative path starts almost
    # shut when this is small.
    embedding_std: float = 1.0
    # Initial recurrent matrices Wh and Wmh. Paper: uniform(±1/√H).
    recurrent_init: Literal["uniform", "orthogonal"] = "uniform"
    # What the gains of Wh and Wmh start from, over the column norms of V, so that W = gain · V. √3
    # makes the columns of a uniform Wmh as long as those of an orthogonal one. Paper: 1.
    recurrent_gain: float = 1.0
    # Also tell a document's rating from the state at its end, an auxiliary objective beside the
    # language model (see train.label_weight); the corpus must have ratings. Paper: future work.
    rating_head: bool = False
    # The same for a class, 0 to this less 1, where ratings are numbers of classes: `mlstm-jax
    # finetune` sets it. 0: none.
    classes: int = 0

    def __post_init__(self) -> None:
        for name, most in (("hidden", 2**20), ("embedding", 2**20), ("layers", 1000)):
            value = getattr(self, name)
            _require(1 <= value <= most, f"model.{name}", value, f"1 to {most:,}")
        one = self.classes == 0 or (2 <= self.classes <= 2**20 and not self.rating_head)
        rule = f"0, or 2 to {2**20:,} without rating_head"
        _require(one, "model.classes", self.classes, rule)
        for name in ("recurrent_gain", "embedding_std"):
            value = getattr(self, name)
            _require(0 < value < math.inf, f"model.{name}", value, "above 0, and finite")


@dataclass(frozen=True, kw_only=True)
class Data:
    """The corpus, and how its text becomes batches."""

    # Folder made by `mlstm-jax prepare`.
    corpus: str = "corpora/quickstart"
    # Rows (streams) in the global batch, over all devices. Paper: 128 to 32,768.
    batch: int = 128
    # Rows on each device; when set, the global batch is this times the number of devices.
    # Paper: 256 in mixed precision, 128 in fp32.
    batch_per_device: int | None = None
    # Bytes of truncated back-propagation. Paper: 256.
    window: int = 256
    # Shards of the training split, at least; the hidden state is zero at the start of each.
    # Rounded up to a multiple of the batch (of the largest, where phases keep the carry), fewer for
    # a small corpus. Paper: 1000.
    shards: int = 1000
    # Read each row's shards in a new order every epoch. Paper: no.
    shuffle_shards: bool = False
    # Seed of that order.
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.batch >= 1, "data.batch", self.batch, "at least 1")
        rows = self.batch_per_device
        _require(rows is None or rows >= 1, "data.batch_per_device", rows, "at least 1")
        _require(self.window >= 1, "data.window", self.window, "at least 1")
        _require(self.shards >= 1, "data.shards", self.shards, "at least 1")
        require_seed("data.seed", self.seed)


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The optimizer, and the learning rate over a run."""

    # The optimizer. LAMB with `clip_norm` 1 is NVIDIA's variant. Paper: adam.
    name: Literal["adam", "adamw", "lamb", "lars", "muon"] = "adam"
    # Learning rate before scaling. Paper: 3e-3 for every large batch; Radford: 5e-4.
    learning_rate: float = 5e-4
    # How the rate grows with the global batch, from `learning_rate` at `base_batch`: lr·B/B0 or
    # lr·√(B/B0); legw: lr·√(B/B0), and the epochs of warm-up times B/B0. Paper: compares the first
    # three, and keeps none with 3e-3.
    scaling: Literal["none", "linear", "sqrt", "legw"] = "none"
    # The batch B0 at which the rate is `learning_rate`. Paper: 128.
    base_batch: int = 128
    # Upper limit of the scaled rate. Paper: 3e-3.
    learning_rate_cap: float | None = None
    # How the rate falls after the warm-up: linear, cosine and polynomial to zero; triangular to
    # 1/32, after a warm-up of a tenth of the run (Howard and Ruder 2018). Paper: linear.
    schedule: Literal["linear", "cosine", "polynomial", "triangular", "constant"] = "linear"
    # The applied update at which the rate has fallen; unset: the last of the run. Paper: 100,000,
    # whatever the batch.
    decay_steps: int | None = None
    # Exponent of the polynomial schedule.
    power: float = 2.0
    # Applied updates over which the rate rises linearly. Paper: none.
    warmup_steps: int = 0
    # The same in epochs, at `base_batch` with legw; instead of `warmup_steps`.
    warmup_epochs: float | None = None
    # Decay of the first moment; LARS's momentum. Paper: 0.9.
    b1: float = 0.9
    # Adam's decay of the second moment. Paper: 0.999.
    b2: float = 0.999
    # Bytes of text after which a gradient counts half in the second moment, at any batch; instead
    # of `b2`. That of 0.999 is 693 updates: 710e3 bytes at 16 rows of 64.
    b2_half_life: float | None = None
    # Added to Adam's denominator. Paper: 1e-8.
    eps: float = 1e-8
    # Largest global norm of the gradient; larger ones are scaled down. NVIDIA found 1.0 useful.
    clip_norm: float | None = 1.0
    # Decay of the matrices an update, times the learning rate: adamw, lamb, lars, muon.
    weight_decay: float = 0.0
    # Muon's rate, of the matrices; all else has Adam's, `learning_rate`, and both follow one
    # schedule.
    muon_learning_rate: float = 0.04
    # Muon's steps of Newton-Schulz: fewer are faster and less exact.
    muon_steps: int = 5
    # LARS: the trust ratio is this times ‖w‖ / ‖gradient‖.
    trust_coefficient: float = 0.001

    def __post_init__(self) -> None:
        rate, cap = self.learning_rate, self.learning_rate_cap
        _require(rate > 0, "optimizer.learning_rate", rate, "above 0")
        _require(cap is None or cap > 0, "optimizer.learning_rate_cap", cap, "above 0")
        _require(self.base_batch >= 1, "optimizer.base_batch", self.base_batch, "at least 1")
        steps, clip = self.decay_steps, self.clip_norm
        _require(steps is None or steps >= 1, "optimizer.decay_steps", steps, "at least 1")
        _require(clip is None or clip > 0, "optimizer.clip_norm", clip, "above 0")
        for name in ("b1", "b2"):
            value = getattr(self, name)
            _require(0 <= value < 1, f"optimizer.{name}", value, "in [0, 1)")
        for name in ("eps", "power", "trust_coefficient", "muon_learning_rate"):
            _require(getattr(self, name) > 0, f"optimizer.{name}", getattr(self, name), "above 0")
        half = self.b2_half_life
        _require(half is None or half > 0, "optimizer.b2_half_life", half, "above 0")
        _require(self.muon_steps >= 1, "optimizer.muon_steps", self.muon_steps, "at least 1")
        _require(self.warmup_steps >= 0, "optimizer.warmup_steps", self.warmup_steps, "at least 0")
        epochs, decay = self.warmup_epochs, self.weight_decay
        one = epochs is None or (epochs >= 0 and not self.warmup_steps)
        _require(one, "optimizer.warmup_epochs", epochs, "at least 0; give it or warmup_steps")
        _require(decay >= 0, "optimizer.weight_decay", decay, "at least 0")
        takes = decay == 0 or self.name != "adam"
        _require(takes, "optimizer.weight_decay", decay, "0 with adam; adamw decays weights")
        legw = self.scaling != "legw" or bool(epochs)
        _require(legw, "optimizer.warmup_epochs", epochs, "above 0 with scaling legw")


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Types of numbers, and loss scaling."""

    # Type of the matrix products. Masters, moments, sums, logits and loss stay float32. fp16 uses
    # dynamic loss scaling; bf16 needs none. tf32 is fp32 with operands that GPUs since the A100
    # round to 10 bits of mantissa, for about eight times the speed; elsewhere it is fp32. Paper:
    # fp16, with fp32 as the baseline.
    compute: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    # Type of the cell state c: float32, or the compute type.
    cell: Literal["fp32", "compute"] = "fp32"
    # Type of the gradient all-reduce: float32, or the compute type (pre-divided by the number of
    # devices, so that the sum cannot overflow). Paper: fp16.
    all_reduce: Literal["fp32", "compute"] = "fp32"
    # First loss scale of fp16.
    initial_loss_scale: float = 2.0**16
    # Clean updates after which the loss scale doubles.
    growth_interval: int = 1000
    # The loss scale stays between these two.
    min_loss_scale: float = 1.0
    max_loss_scale: float = 2.0**24
    # Consecutive skipped updates (inf or NaN in the gradient) after which the run stops.
    max_consecutive_skips: int = 50

    def __post_init__(self) -> None:
        low, high, first = self.min_loss_scale, self.max_loss_scale, self.initial_loss_scale
        _require(low > 0, "precision.min_loss_scale", low, "above 0")
        _require(low <= high, "precision.max_loss_scale", high, f"at least {low}")
        between = f"between {low} and {high}"
        _require(low <= first <= high, "precision.initial_loss_scale", first, between)
        interval, skips = self.growth_interval, self.max_consecutive_skips
        _require(interval >= 1, "precision.growth_interval", interval, "at least 1")
        _require(skips >= 1, "precision.max_consecutive_skips", skips, "at least 1")


@dataclass(frozen=True, kw_only=True)
class Train:
    """How long a run trains, and what it writes when."""

    # Optimizer steps, at most; unset: as many as `epochs` needs. Paper: 100,000.
    steps: int | None = None
    # Passes over the training split, at most; unset: as many as `steps` needs. Paper: 3.
    epochs: float | None = 1.0
    # Keep the state of every k-th byte of a window for the backward pass, and make what lies
    # between again: a model or batch that did not fit then fits, and a step takes about a third
    # longer. 16 to 64 are good values; unset: keep everything.
    recompute_every: int | None = None
    # Fraction of the units of each layer's output that training leaves out, other ones for each row
    # and window; the state itself stays whole. Paper: none.
    dropout: float = 0.0
    # How many bytes one label counts as, with model.rating_head (the squared error of a rating in
    # standard deviations of the training split) or model.classes (nats).
    label_weight: float = 100.0
    # Parts that each device's rows are split into (gradient accumulation): one part at a time is
    # read, and their gradients make one update: the memory of 1/k of the rows, and the same result
    # to rounding.
    micro_batches: int = 1
    # Run folder, trained or imported, whose parameters the run starts from, with a label head of
    # its own; its sizes must be the same. Unset: from chance.
    start_from: str | None = None
    # Seed of the initial parameters.
    seed: int = 0
    # On GPUs: use only kernels that repeat to the bit, so that a run that is stopped and resumed
    # is, bit for bit, the run that is not. XLA then tries no kernels out to find the fastest, which
    # costs time in each step. On CPUs it always is so.
    deterministic: bool = False
    # Compare the corpus's files with the checksums of its manifest before the first step: about a
    # second a gigabyte.
    verify_corpus: bool = False
    # Steps between two lines of metrics; the loss of a line is the mean over them.
    log_every: int = 10
    # Steps between two evaluations of the validation split, each with a checkpoint.
    eval_every: int = 1000
    # Steps between two checkpoints.
    checkpoint_every: int = 1000
    # Newest checkpoints to keep; beside them the best by validation BPC is kept, and one that is
    # older than any divergence that can still be found.
    keep_checkpoints: int = 2
    # What to do when the run diverges: stop with an error, or rollback: go on from the last
    # checkpoint before it, with the learning rate times `rollback_factor`. Checkpoints of after it
    # are deleted.
    on_divergence: Literal["stop", "rollback"] = "stop"
    # The learning rate is multiplied by this at every rollback.
    rollback_factor: float = 0.5
    # A run has diverged when its training loss is above this many bits per character for
    # `divergence_steps` steps on end. (A model that knows nothing has 8.) It also has when
    # `precision.max_consecutive_skips` updates on end held inf or NaN.
    divergence_bpc: float = 10.0
    # How many such steps on end.
    divergence_steps: int = 100
    # Exit code of a run that SIGTERM or SIGHUP has stopped with a checkpoint: 0, a success; another
    # one for a supervisor that only starts again what has failed, as Kubernetes does.
    sigterm_exit_code: int = 0
    # Seconds without a step, a window of evaluation or a checkpoint after which the run writes what
    # every thread was doing and ends. The first step compiles within them.
    watchdog_seconds: float = 1800.0

    def __post_init__(self) -> None:
        steps, epochs, kept = self.steps, self.epochs, self.recompute_every
        _require(kept is None or kept >= 1, "train.recompute_every", kept, "at least 1")
        _require(steps is not None or epochs is not None, "train.steps", None, "set, or epochs")
        _require(steps is None or steps >= 1, "train.steps", steps, "at least 1")
        _require(epochs is None or epochs > 0, "train.epochs", epochs, "above 0")
        for name in (
            "micro_batches",
            "log_every",
            "eval_every",
            "checkpoint_every",
            "keep_checkpoints",
        ):
            _require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "at least 1")
        require_seed("train.seed", self.seed)
        dropout, weight = self.dropout, self.label_weight
        _require(0 <= dropout < 1, "train.dropout", dropout, "at least 0 and below 1")
        _require(weight > 0, "train.label_weight", weight, "above 0")
        factor, bpc = self.rollback_factor, self.divergence_bpc
        _require(0 < factor < 1, "train.rollback_factor", factor, "between 0 and 1")
        _require(bpc > 0, "train.divergence_bpc", bpc, "above 0")
        code = self.sigterm_exit_code
        _require(0 <= code <= 255, "train.sigterm_exit_code", code, "between 0 and 255")
        steps, seconds = self.divergence_steps, self.watchdog_seconds
        _require(steps >= 1, "train.divergence_steps", steps, "at least 1")
        _require(seconds > 0, "train.watchdog_seconds", seconds, "above 0")


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices of one process."""

    # Devices of each process to train on; unset: all that it has. Paper: 8 a machine.
    count: int | None = None
    # What runs the elementwise part of a training step on GPUs: XLA's kernels, or our own, written
    # in Pallas, half as many (docs/performance.md). No device has run the latter yet.
    kernels: Literal["xla", "pallas"] = "xla"
    # Make this many virtual devices of the CPU, to try the code of many devices on one machine.
    virtual_cpu: int | None = None

    def __post_init__(self) -> None:
        for name in ("count", "virtual_cpu"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"devices.{name}", value, "at least 1")


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """The processes of a run, on one machine or several."""

    # Address of process 0, HOST:PORT (an IPv6 address in brackets, [fd00::1]:8476), the same for
    # all; unset: the run is one process.
    coordinator: str | None = None
    # Number of processes; unset: what srun or mpirun says.
    processes: int | None = None
    # Which of them this one is, from 0; unset: what srun, mpirun or a Kubernetes Job says.
    index: int | None = None
    # Seconds to wait at the start for all processes.
    timeout_seconds: float = 300.0
    # Seconds without a sign of life after which a process counts as lost, and the others end.
    heartbeat_timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.coordinator is not None:
            try:
                address.parse(self.coordinator)
            except ValueError as error:
                _require(False, "distributed.coordinator", self.coordinator, str(error))
        count, index = self.processes, self.index
        _require(count is None or count >= 1, "distributed.processes", count, "at least 1")
        _require(index is None or index >= 0, "distributed.index", index, "at least 0")
        if count is not None and index is not None:
            _require(index < count, "distributed.index", index, f"below {count}, the processes")
        for name in ("timeout_seconds", "heartbeat_timeout_seconds"):
            _require(getattr(self, name) > 0, f"distributed.{name}", getattr(self, name), "above 0")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run, with rows of its own."""

    # Steps that the phase takes.
    steps: int
    # Rows in the global batch.
    batch: int
    # Bytes of truncated back-propagation.
    window: int

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "window"):
            _require(getattr(self, name) >= 1, f"phases.{name}", getattr(self, name), "at least 1")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides a run."""

    # Run folder: config, metrics, checkpoints. An unfinished run in it is resumed.
    out: str = "runs/quickstart"
    # The network and how it starts.
    model: Model = field(default_factory=Model)
    # The corpus and how it is read.
    data: Data = field(default_factory=Data)
    # Adam and its learning rate.
    optimizer: Optimizer = field(default_factory=Optimizer)
    # Types of number, and loss scaling.
    precision: Precision = field(default_factory=Precision)
    # How long, and what is written when.
    train: Train = field(default_factory=Train)
    # What to train on.
    devices: Devices = field(default_factory=Devices)
    # The other processes of the run, on this machine or on others.
    distributed: Distributed = field(default_factory=Distributed)
    # Phases of the run in their order, in a config file; instead of `data.batch`, `data.window`,
    # `train.steps` and `train.epochs`. The learning rate runs through all of them. Where a phase's
    # batch is a multiple of the one before, the rows of that go on with their carry, and new ones
    # begin at shard starts; otherwise the carry starts from zero, near the place in the text that
    # was reached.
    phases: tuple[Phase, ...] = ()


def resolve_batch(config: Config, device_count: int) -> Config:
    """Return the config with its global batch set, and checked against the number of devices.

    Raises UserError where the rows cannot be split evenly over the devices (Puri et al. 2018,
    section IV).
    """
    data = config.data
    if data.batch_per_device is not None:
        data = dataclasses.replace(
            data, batch=data.batch_per_device * device_count, batch_per_device=None
        )
    if data.batch % device_count:
        raise UserError(
            f"data.batch is {data.batch}, which {device_count} devices cannot share evenly; use "
            f"{data.batch // device_count * device_count or device_count}, set "
            "data.batch_per_device, or use fewer devices with --devices.count."
        )
    parts = config.train.micro_batches
    for phase in config.phases:
        if phase.batch % (device_count * parts):
            raise UserError(
                f"phases.batch is {phase.batch}, which {device_count} devices in {parts} micro-"
                "batches cannot share evenly; use a multiple of their product."
            )
    rows = data.batch // device_count
    if rows % parts:
        raise UserError(
            f"train.micro_batches is {parts}, which cannot share the {rows} rows of a device evenly"
            f"; use one of {', '.join(str(n) for n in range(1, rows + 1) if rows % n == 0)}."
        )
    return dataclasses.replace(config, data=data)


def load_file(path: Path | str) -> Config:
    """Run a config file, the user's own Python, and return its ``config``.

    A bare name that is no file is that of a config that comes with the package: ``small_512``.
    """
    path = shipped.find(Path(path), "config")
    config = user_python.run(path, "config").get("config")
    if not isinstance(config, Config):
        raise UserError(
            f"{path} sets no `config = Config(...)`; `mlstm-jax configs small_512` shows one."
        )
    return config


def vary(config: Config, **fields: Any) -> Config:
    """Return the config with fields changed, each given as section__field=value."""
    sections: dict[str, dict[str, Any]] = {}
    whole: dict[str, Any] = {}
    for name, value in fields.items():
        section, _, field = name.partition("__")
        if field:
            sections.setdefault(section, {})[field] = value
        else:
            whole[section] = value
    # All fields of a section at once: they are checked together.
    for section, changes in sections.items():
        whole[section] = dataclasses.replace(getattr(config, section), **changes)
    return dataclasses.replace(config, **whole)
