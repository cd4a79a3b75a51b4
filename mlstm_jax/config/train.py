"""The section `train` of a config, and the phases of a run."""

import math
from dataclasses import dataclass
from typing import Literal

from mlstm_jax.config.sections import MOST_STEPS, require_seed
from mlstm_jax.errors import require
from mlstm_jax.fields import require_types


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
