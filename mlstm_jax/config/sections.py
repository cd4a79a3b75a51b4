"""The sections of a config, except the model: frozen dataclasses that check their values.

The comment above a field is its ``--help`` text.
"""

from dataclasses import dataclass
from typing import Literal

from mlstm_jax import address
from mlstm_jax.errors import require

# JAX builds its keys from the last 32 bits, so two larger seeds could give the same key.
MOST_SEED = 2**32 - 1


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
        require(self.batch >= 1, "data.batch", self.batch, "at least 1")
        rows = self.batch_per_device
        require(rows is None or rows >= 1, "data.batch_per_device", rows, "at least 1")
        require(self.window >= 1, "data.window", self.window, "at least 1")
        require(self.shards >= 1, "data.shards", self.shards, "at least 1")
        require_seed("data.seed", self.seed)


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The optimizer, and the learning rate over a run."""

    # The optimizer. LAMB with `clip_norm` 1 is NVIDIA's variant. Paper: adam.
    name: Literal["adam", "adamw", "lamb", "lars", "muon"] = "adam"
    # Learning rate before scaling. Paper: 3e-3 for every large batch; Radford: 5e-4.
    learning_rate: float = 5e-4
    # How the rate grows with the global batch B, from `learning_rate` at `base_batch` B0. linear:
    # lr·B/B0; sqrt: lr·√(B/B0); legw: lr·√(B/B0), with the epochs of warm-up multiplied by B/B0.
    # Paper: compares the first three and chooses none, with 3e-3.
    scaling: Literal["none", "linear", "sqrt", "legw"] = "none"
    # The batch B0 at which the rate is `learning_rate`. Paper: 128.
    base_batch: int = 128
    # Upper limit of the scaled rate. Paper: 3e-3.
    learning_rate_cap: float | None = None
    # How the rate decays after the warm-up: linear, cosine and polynomial to zero; triangular to
    # 1/32, after a warm-up of a tenth of the run (Howard and Ruder 2018). Paper: linear.
    schedule: Literal["linear", "cosine", "polynomial", "triangular", "constant"] = "linear"
    # The applied update at which the decay ends; unset: the last of the run. Paper: 100,000, at any
    # batch.
    decay_steps: int | None = None
    # Exponent of the polynomial schedule.
    power: float = 2.0
    # Number of applied updates in the linear warm-up. Paper: none.
    warmup_steps: int = 0
    # Warm-up in epochs (with legw: at `base_batch`), instead of `warmup_steps`.
    warmup_epochs: float | None = None
    # Decay rate of the first moment; with LARS the momentum. Paper: 0.9.
    b1: float = 0.9
    # Adam's decay rate of the second moment. Paper: 0.999.
    b2: float = 0.999
    # Half-life of a gradient in the second moment, in bytes of text, the same at any batch; instead
    # of `b2`. A b2 of 0.999 has a half-life of 693 updates: 710e3 bytes at 16 rows of 64.
    b2_half_life: float | None = None
    # Added to Adam's denominator. Paper: 1e-8.
    eps: float = 1e-8
    # Maximum global norm of the gradient; larger ones are scaled down. NVIDIA found 1.0 useful.
    clip_norm: float | None = 1.0
    # Weight decay of the matrices per update, before multiplication by the learning rate; with
    # adamw, lamb, lars and muon.
    weight_decay: float = 0.0
    # Muon's learning rate, for the matrices of the layers. All other parameters use Adam with
    # `learning_rate`; both rates follow one schedule.
    muon_learning_rate: float = 0.04
    # Muon's momentum (Nesterov's). Jordan et al. 2024: 0.95. A run of some 1,000 updates was better
    # with 0.9.
    muon_momentum: float = 0.95
    # Muon's Newton-Schulz iterations. Fewer are faster and less exact.
    muon_steps: int = 5
    # LARS: factor of the trust ratio ‖w‖ / ‖gradient‖.
    trust_coefficient: float = 0.001

    def __post_init__(self) -> None:
        rate, cap = self.learning_rate, self.learning_rate_cap
        require(rate > 0, "optimizer.learning_rate", rate, "above 0")
        require(cap is None or cap > 0, "optimizer.learning_rate_cap", cap, "above 0")
        require(self.base_batch >= 1, "optimizer.base_batch", self.base_batch, "at least 1")
        steps, clip = self.decay_steps, self.clip_norm
        require(steps is None or steps >= 1, "optimizer.decay_steps", steps, "at least 1")
        require(clip is None or clip > 0, "optimizer.clip_norm", clip, "above 0")
        for name in ("b1", "b2", "muon_momentum"):
            value = getattr(self, name)
            require(0 <= value < 1, f"optimizer.{name}", value, "in [0, 1)")
        for name in ("eps", "power", "trust_coefficient", "muon_learning_rate"):
            require(getattr(self, name) > 0, f"optimizer.{name}", getattr(self, name), "above 0")
        half = self.b2_half_life
        require(half is None or half > 0, "optimizer.b2_half_life", half, "above 0")
        require(self.muon_steps >= 1, "optimizer.muon_steps", self.muon_steps, "at least 1")
        require(self.warmup_steps >= 0, "optimizer.warmup_steps", self.warmup_steps, "at least 0")
        epochs, decay = self.warmup_epochs, self.weight_decay
        one = epochs is None or (epochs >= 0 and not self.warmup_steps)
        require(one, "optimizer.warmup_epochs", epochs, "at least 0; set it or warmup_steps")
        require(decay >= 0, "optimizer.weight_decay", decay, "at least 0")
        takes = decay == 0 or self.name != "adam"
        require(takes, "optimizer.weight_decay", decay, "0 with adam; adamw decays weights")
        legw = self.scaling != "legw" or bool(epochs)
        require(legw, "optimizer.warmup_epochs", epochs, "above 0 with scaling legw")


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Number types and loss scaling."""

    # Type of the matrix products. Master weights, moments, sums, logits and loss stay float32. fp16
    # uses dynamic loss scaling; bf16 needs none. With tf32, GPUs since the A100 round the operands
    # of fp32 to 10 bits of mantissa, at about eight times the speed; other devices compute in fp32.
    # Paper: fp16, with fp32 as the baseline.
    compute: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
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
        low, high, first = self.min_loss_scale, self.max_loss_scale, self.initial_loss_scale
        require(low > 0, "precision.min_loss_scale", low, "above 0")
        require(low <= high, "precision.max_loss_scale", high, f"at least {low}")
        between = f"between {low} and {high}"
        require(low <= first <= high, "precision.initial_loss_scale", first, between)
        interval, skips = self.growth_interval, self.max_consecutive_skips
        require(interval >= 1, "precision.growth_interval", interval, "at least 1")
        require(skips >= 1, "precision.max_consecutive_skips", skips, "at least 1")


@dataclass(frozen=True, kw_only=True)
class Train:
    """How long a run trains, and when it writes what."""

    # Maximum number of optimizer steps; unset: as many as `epochs` needs. Paper: 100,000.
    steps: int | None = None
    # Maximum number of passes over the training split; unset: as many as `steps` needs. Paper: 3.
    epochs: float | None = 1.0
    # Keep the state of every k-th byte of a window for the backward pass, and recompute the others.
    # This saves memory, so that a larger model or batch fits; a step takes about a third longer.
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
    # Compare the corpus's files with the checksums of its manifest before the first step; takes
    # about a second per gigabyte.
    verify_corpus: bool = False
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
    # stack of every thread and ends. This time includes the compilation of the first step.
    watchdog_seconds: float = 1800.0

    def __post_init__(self) -> None:
        steps, epochs, kept = self.steps, self.epochs, self.recompute_every
        require(kept is None or kept >= 1, "train.recompute_every", kept, "at least 1")
        require(
            steps is not None or epochs is not None, "train.steps", None, "set, or train.epochs"
        )
        require(steps is None or steps >= 1, "train.steps", steps, "at least 1")
        require(epochs is None or epochs > 0, "train.epochs", epochs, "above 0")
        for name in (
            "micro_batches",
            "log_every",
            "eval_every",
            "checkpoint_every",
            "keep_checkpoints",
        ):
            require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "at least 1")
        require_seed("train.seed", self.seed)
        dropout, weight = self.dropout, self.label_weight
        require(0 <= dropout < 1, "train.dropout", dropout, "at least 0 and below 1")
        require(weight > 0, "train.label_weight", weight, "above 0")
        factor, bpc = self.rollback_factor, self.divergence_bpc
        require(0 < factor < 1, "train.rollback_factor", factor, "between 0 and 1")
        require(bpc > 0, "train.divergence_bpc", bpc, "above 0")
        code = self.sigterm_exit_code
        require(0 <= code <= 255, "train.sigterm_exit_code", code, "between 0 and 255")
        steps, seconds = self.divergence_steps, self.watchdog_seconds
        require(steps >= 1, "train.divergence_steps", steps, "at least 1")
        require(seconds > 0, "train.watchdog_seconds", seconds, "above 0")


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


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run with its own batch and window."""

    # Number of steps.
    steps: int
    # Rows in the global batch.
    batch: int
    # Bytes per row and step, the length of truncated back-propagation.
    window: int

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "window"):
            require(getattr(self, name) >= 1, f"phases.{name}", getattr(self, name), "at least 1")
