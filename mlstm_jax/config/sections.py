"""Sections of a config: frozen dataclasses that check their values.

The docstrings are the text of ``--help-all``. The section `model` is a kind of model.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mlstm_jax.errors import require
from mlstm_jax.fields import Between, Checked, Count, Fraction, Positive, Seed
from mlstm_jax.model.architecture import ObjectiveName
from mlstm_jax.options import OPTIMIZERS, Compute, NumberTypes, OptimizerKind

# Devices count steps in int32.
MOST_STEPS = 2**31 - 1

Steps = Annotated[int, Between(1, MOST_STEPS)]
# A host name, an IPv4 address or an IPv6 address in brackets; and a port.
_ADDRESS = re.compile(r"(\[[^\s\]]*:[^\s\]]*\]|[^\s:\[]+):(?P<port>[0-9]{1,5})")
# Infinity is allowed.
Seconds = Annotated[float, Between(0, ends="(]")]


@dataclass(frozen=True, kw_only=True)
class Data(Checked, section="data"):
    """The corpus, and how its text becomes batches.

    Attributes:
        corpus: Folder that `mlstm-jax prepare` created.
        batch: Rows (streams) in the global batch, on all devices together. Paper: 128 to 32,768.
        batch_per_device: Rows on each device. If set, the global batch is this times the number of
            devices. Paper: 256 in mixed precision, 128 in fp32.
        window: Bytes per row and step, the length of truncated back-propagation. Paper: 256.
        shards: Minimum number of shards of the training split; the hidden state is zero at the
            start of each. Rounded up to a multiple of the batch. A small corpus has fewer.
            Paper: 1000.
        shuffle_shards: Read each row's shards in a new order every epoch. Paper: no.
        seed: Seed of the new order.
    """

    corpus: str = "corpora/quickstart"
    batch: Count = 128
    batch_per_device: Count | None = None
    window: Count = 256
    shards: Count = 1000
    shuffle_shards: bool = False
    seed: Seed = 0


if TYPE_CHECKING:
    OptimizerName = str
else:
    OptimizerName = Literal[tuple(OPTIMIZERS)]


@dataclass(frozen=True, kw_only=True)
class Optimizer(Checked, section="optimizer"):
    """The optimizer, and the learning rate over a run.

    Attributes:
        name: The optimizer. LAMB with `clip_norm` 1 is NVIDIA's variant. Paper: adam.
        learning_rate: Learning rate before scaling. Paper: 3e-3 for every large batch;
            Radford: 5e-4.
        scaling: How the rate grows with the global batch B, from `base_batch` B0. linear: lr·B/B0;
            sqrt: lr·√(B/B0); legw: lr·√(B/B0), with the epochs of warm-up multiplied by B/B0.
            Paper: none, with 3e-3.
        base_batch: The batch B0 at which the rate is `learning_rate`. Paper: 128.
        learning_rate_cap: Upper limit of the scaled rate. Paper: 3e-3.
        schedule: How the rate decays after the warm-up: linear, cosine and polynomial to zero;
            triangular to 1/32, after a warm-up of a tenth of the run (Howard and Ruder 2018).
            Paper: linear.
        decay_steps: The applied update at which the decay ends; unset: the last of the run.
            Paper: 100,000, at any batch.
        power: Exponent of the polynomial schedule.
        warmup_steps: Number of applied updates in the linear warm-up. Paper: none.
        warmup_epochs: Warm-up in epochs (with legw: at `base_batch`), instead of `warmup_steps`.
        b1: Decay rate of the first moment; with LARS the momentum. Paper: 0.9.
        b2: Adam's decay rate of the second moment. Paper: 0.999.
        b2_half_life: Half-life of a gradient in the second moment, in bytes of text, instead of
            `b2`. A b2 of 0.999 has one of 693 updates: 710e3 bytes at 16 rows of 64.
        eps: Added to Adam's denominator. Paper: 1e-8.
        clip_norm: Maximum global norm of the gradient; larger ones are scaled down.
        weight_decay: Weight decay of the matrices per update, before multiplication by the learning
            rate; with adamw, lamb, lars and muon.
        weight_decay_bytes: Bytes of text in the update to which `weight_decay` belongs: an update
            of k times the bytes then decays k times as much. Unset: all decay by `weight_decay`.
        muon_learning_rate: Muon's learning rate, for the matrices of the layers, and the one
            between them and a narrower embedding of a Transformer. All other parameters use Adam
            with `learning_rate`; both rates follow one schedule.
        muon_momentum: Muon's momentum (Nesterov's). Jordan et al. 2024: 0.95. A run of some 1,000
            updates was better with 0.9.
        muon_decoder: Whether Muon trains the decoder, too: better in a run of 6,000 updates, worse
            than Adam in runs of some 1,000.
        muon_steps: Muon's Newton-Schulz iterations. Fewer are faster and less exact.
        trust_coefficient: LARS: factor of the trust ratio ‖w‖ / ‖gradient‖.
    """

    name: OptimizerName = "adam"
    learning_rate: Positive = 5e-4
    scaling: Literal["none", "linear", "sqrt", "legw"] = "none"
    base_batch: Count = 128
    learning_rate_cap: Positive | None = None
    schedule: Literal["linear", "cosine", "polynomial", "triangular", "constant"] = "linear"
    decay_steps: Steps | None = None
    power: Positive = 2.0
    warmup_steps: Annotated[int, Between(0, MOST_STEPS)] = 0
    warmup_epochs: Annotated[float, Between(0, ends="[)")] | None = None
    b1: Fraction = 0.9
    b2: Fraction = 0.999
    b2_half_life: Positive | None = None
    eps: Positive = 1e-8
    clip_norm: Positive | None = 1.0
    weight_decay: Annotated[float, Between(0, ends="[)")] = 0.0
    weight_decay_bytes: Positive | None = None
    muon_learning_rate: Positive = 0.04
    muon_momentum: Fraction = 0.95
    muon_decoder: bool = False
    muon_steps: Count = 5
    trust_coefficient: Positive = 0.001

    @property
    def kind(self) -> OptimizerKind:
        """The record of the optimizer."""
        return OPTIMIZERS[self.name]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, default in others_fields(self.name).items():
            value = getattr(self, name)
            users = [other for other, kind in OPTIMIZERS.items() if name in kind.fields]
            rule = f"{default} with {self.name}; it is a field of {', '.join(users)}"
            require(value == default, f"optimizer.{name}", value, rule)
        reference_bytes = self.weight_decay_bytes
        fits = reference_bytes is None or self.weight_decay > 0
        rule = "unset without a weight_decay"
        require(fits, "optimizer.weight_decay_bytes", reference_bytes, rule)
        epochs = self.warmup_epochs
        fits = epochs is None or not self.warmup_steps
        require(fits, "optimizer.warmup_epochs", epochs, "unset with warmup_steps")
        fits = self.scaling != "legw" or bool(epochs)
        require(fits, "optimizer.warmup_epochs", epochs, "above 0 with scaling legw")


def others_fields(name: str) -> dict[str, Any]:
    """The fields of other optimizers, which this one does not have, with their defaults."""
    kinds = OPTIMIZERS.values()
    known = dict.fromkeys(field for kind in kinds for field in kind.fields)
    for field in OPTIMIZERS[name].fields:
        del known[field]
    return {field: getattr(Optimizer, field) for field in known}


@dataclass(frozen=True, kw_only=True)
class Precision(Checked, section="precision"):
    """Number types and loss scaling.

    Attributes:
        compute: Type of the matrix products. Master weights, moments, sums, logits and loss stay
            float32. fp16 uses dynamic loss scaling; bf16 needs none. With tf32, GPUs since the A100
            round the operands of fp32 to 10 bits of mantissa, at about eight times the speed; other
            devices compute in fp32. Unset: bf16, for at least 256 units, on a device that
            multiplies it faster, otherwise fp32; a run that resumes keeps its type. Paper: fp16,
            with fp32 as the baseline.
        recurrent: Operand type of the mLSTM's recurrent products in training: the compute type; or
            fp8 (E4M3, with scales from earlier updates), for one layer and bf16, on GPUs of compute
            capability 8.9 or later; or the same numbers on any device, slowly: fp8_emulated.
        cell: Type of the cell state c: float32, or the compute type.
        all_reduce: Type of the gradient all-reduce: float32, or the compute type (divided by the
            number of devices before the sum, so that the sum cannot overflow). Paper: fp16.
        initial_loss_scale: Initial loss scale of fp16.
        growth_interval: Number of clean updates after which the loss scale doubles.
        min_loss_scale: The smallest loss scale.
        max_loss_scale: The largest loss scale.
        max_consecutive_skips: Number of consecutive skipped updates (inf or NaN in the gradient)
            after which the run stops.
    """

    compute: Compute | None = None
    recurrent: Literal["compute", "fp8", "fp8_emulated"] = "compute"
    cell: Literal["fp32", "compute"] = "fp32"
    all_reduce: Literal["fp32", "compute"] = "fp32"
    initial_loss_scale: float = 2.0**16
    growth_interval: Count = 1000
    min_loss_scale: Annotated[float, Between(0, ends="(]")] = 1.0
    max_loss_scale: float = 2.0**24
    max_consecutive_skips: Count = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        low = self.min_loss_scale
        high = self.max_loss_scale
        first = self.initial_loss_scale
        require(low <= high, "precision.max_loss_scale", high, f"at least {low}")
        rule = f"between {low} and {high}"
        require(low <= first <= high, "precision.initial_loss_scale", first, rule)

    @property
    def types(self) -> NumberTypes:
        """The types that the model computes with."""
        return NumberTypes(self.compute or "fp32", self.cell)


@dataclass(frozen=True, kw_only=True)
class Devices(Checked, section="devices"):
    """The devices of one process.

    Attributes:
        count: Number of devices that each process trains on; unset: all that it has. Paper: 8 per
            machine.
        kernels: Kernels of the elementwise part of a training step on GPUs: XLA's, or this
            package's in Pallas (1.08 to 1.23 times as fast on an H100). auto: Pallas for an mLSTM
            where it is proven, on GPUs of compute capability 9.0 (H100, H200), and with fp8,
            otherwise XLA; a run that resumes keeps its kernels.
        virtual_cpu: Split the CPU into this many virtual devices, to try code for several.
    """

    count: Count | None = None
    kernels: Literal["auto", "xla", "pallas"] = "auto"
    virtual_cpu: Count | None = None


@dataclass(frozen=True, kw_only=True)
class Distributed(Checked, section="distributed"):
    """The processes of a run, on one machine or several.

    Attributes:
        coordinator: Address of process 0, HOST:PORT (an IPv6 address in brackets, [fd00::1]:8476),
            the same for all processes; unset: the one that srun, mpirun or Kubernetes
            tells JAX.
        processes: Number of processes; unset: from srun or mpirun, otherwise one.
        index: Index of this process, from 0; unset: from srun, mpirun or a Kubernetes Job.
        timeout_seconds: Seconds to wait for all processes at the start.
        heartbeat_timeout_seconds: Seconds without a heartbeat after which a process counts as lost,
            and the others end.
    """

    coordinator: str | None = None
    processes: Count | None = None
    index: Annotated[int, Between(0)] | None = None
    timeout_seconds: Seconds = 300.0
    heartbeat_timeout_seconds: Seconds = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coordinator is not None:
            match = _ADDRESS.fullmatch(self.coordinator)
            valid = match is not None and 0 < int(match["port"]) < 65536
            rule = "HOST:PORT, such as node1:8476 or [fd00::1]:8476"
            require(valid, "distributed.coordinator", self.coordinator, rule)


@dataclass(frozen=True, kw_only=True)
class Train(Checked, section="train"):
    """How long a run trains, and when it writes what.

    Attributes:
        steps: Maximum number of optimizer steps; unset: as many as `epochs` needs. Paper: 100,000.
        epochs: Maximum number of passes over the training split; unset: as many as `steps` needs.
            Paper: 3.
        objective: What the model learns to predict: the next byte; or some bytes of a window, most
            of which are masked (Devlin et al. 2018), for features and labels. Unset: masked bytes
            with model:bert, and otherwise the next byte. A Transformer of masked bytes sees a whole
            window.
        recompute_every: Keep the state of every k-th byte of a window for the backward pass, and
            recompute the others. This saves memory; a step takes about a quarter longer. 16 to 64
            are good values; unset: keep everything.
        dropout: Fraction of each layer's output units that are dropped in training, drawn anew for
            each row and window. The recurrent state itself is not dropped. Paper: none.
        label_weight: How many bytes one label counts as, with model.rating_head (the squared error
            of a rating, in standard deviations of the training split) or model.classes (nats).
        micro_batches: Number k of parts into which each device's rows are split (gradient
            accumulation): one update of the same gradient, to rounding, in 1/k of the temporaries.
        start_from: Run folder, trained or imported, from whose parameters the run starts; the sizes
            of the model must be the same. The label head is not copied. Unset: random initial
            parameters.
        start_optimizer: Go on where that run ended: from its newest checkpoint, with the state of
            its optimizer, at its place in the text if the corpus is the same. The rows, their
            carry, the learning rate and the steps begin anew; `epochs` count from the start of
            that run.
        seed: Seed of the initial parameters, dropout and masked bytes.
        deterministic: On GPUs: use only deterministic kernels, slower ones, so that a run that is
            stopped and resumed is bit for bit the same as an uninterrupted one. CPUs always do.
        log_every: Steps between two lines of metrics; the loss of a line is the mean over these
            steps.
        eval_every: Steps between two evaluations of the validation split, each with a checkpoint.
        checkpoint_every: Steps between two checkpoints.
        keep_checkpoints: Number of newest checkpoints to keep. The best by validation
            BPC (in `finetune`, by the loss of the labels) is also kept, and one that is older than
            any divergence that can still be detected.
        divergence_bpc: A run has diverged when its training loss is above this many bits per
            character for `divergence_steps` steps in a row (a uniform prediction has 8), or
            when `precision.max_consecutive_skips` updates in a row contained inf or NaN, or when
            its last validation loss is above this number. The run then stops, and the checkpoints
            written after the divergence began are deleted.
        divergence_steps: Number of such steps in a row.
        sigterm_exit_code: Exit code of a run that SIGTERM or SIGHUP stopped with a checkpoint, such
            as 1 for a supervisor that restarts only failed processes (Kubernetes).
        watchdog_seconds: Seconds without a step, a window of evaluation or a checkpoint after which
            the run writes the stack of every thread and ends. This time includes the compilation of
            the first step, and any in which the process was suspended (Ctrl-Z).
    """

    steps: Steps | None = None
    epochs: Positive | None = 1.0
    objective: ObjectiveName | None = None
    recompute_every: Count | None = None
    dropout: Fraction = 0.0
    label_weight: Positive = 100.0
    micro_batches: Count = 1
    start_from: str | None = None
    start_optimizer: bool = False
    seed: Seed = 0
    deterministic: bool = False
    log_every: Steps = 10
    eval_every: Count = 1000
    checkpoint_every: Count = 1000
    keep_checkpoints: Count = 2
    divergence_bpc: Annotated[float, Between(0, ends="(]")] = 10.0
    divergence_steps: Count = 100
    sigterm_exit_code: Annotated[int, Between(0, 255)] = 0
    watchdog_seconds: Seconds = 1800.0

    def __post_init__(self) -> None:
        super().__post_init__()
        has_end = self.steps is not None or self.epochs is not None
        require(has_end, "train.steps", None, "set, or `train.epochs`")
        fits = self.start_from is not None or not self.start_optimizer
        require(fits, "train.start_optimizer", True, "false without `train.start_from`")
