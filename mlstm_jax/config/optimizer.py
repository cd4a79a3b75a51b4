"""The section `optimizer` of a config."""

import math
from dataclasses import dataclass
from typing import Literal

from mlstm_jax.config.sections import MOST_STEPS
from mlstm_jax.errors import require
from mlstm_jax.fields import require_types


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
    # Bytes of text in the update to which `weight_decay` belongs. If set, an update of k times the
    # bytes decays k times as much, so that at one rate a byte decays the same at any batch. Unset:
    # each update decays by `weight_decay`.
    weight_decay_bytes: float | None = None
    # Muon's learning rate, for the matrices of the layers. All other parameters use Adam with
    # `learning_rate`; both rates follow one schedule.
    muon_learning_rate: float = 0.04
    # Muon's momentum (Nesterov's). Jordan et al. 2024: 0.95. A run of some 1,000 updates was better
    # with 0.9.
    muon_momentum: float = 0.95
    # Whether Muon trains the decoder, too. It was better in a run of 6,000 updates, and worse than
    # Adam in runs of some 1,000.
    muon_decoder: bool = False
    # Muon's Newton-Schulz iterations. Fewer are faster and less exact.
    muon_steps: int = 5
    # LARS: factor of the trust ratio ‖w‖ / ‖gradient‖.
    trust_coefficient: float = 0.001

    def __post_init__(self) -> None:
        require_types(self, "optimizer")
        for name, value in vars(self).items():
            finite = not isinstance(value, float) or math.isfinite(value)
            require(finite, f"optimizer.{name}", value, "finite")
        rate, cap = self.learning_rate, self.learning_rate_cap
        require(rate > 0, "optimizer.learning_rate", rate, "above 0")
        require(cap is None or cap > 0, "optimizer.learning_rate_cap", cap, "above 0")
        require(self.base_batch >= 1, "optimizer.base_batch", self.base_batch, "at least 1")
        steps, clip = self.decay_steps, self.clip_norm
        in_range = steps is None or 1 <= steps <= MOST_STEPS
        require(in_range, "optimizer.decay_steps", steps, f"1 to {MOST_STEPS:,}")
        require(clip is None or clip > 0, "optimizer.clip_norm", clip, "above 0")
        for name in ("b1", "b2", "muon_momentum"):
            value = getattr(self, name)
            require(0 <= value < 1, f"optimizer.{name}", value, "in [0, 1)")
        for name in ("eps", "power", "trust_coefficient", "muon_learning_rate"):
            require(getattr(self, name) > 0, f"optimizer.{name}", getattr(self, name), "above 0")
        half = self.b2_half_life
        require(half is None or half > 0, "optimizer.b2_half_life", half, "above 0")
        of = self.weight_decay_bytes
        possible = of is None or (of > 0 and self.weight_decay > 0)
        require(possible, "optimizer.weight_decay_bytes", of, "above 0, with a weight_decay")
        require(self.muon_steps >= 1, "optimizer.muon_steps", self.muon_steps, "at least 1")
        in_range = 0 <= self.warmup_steps <= MOST_STEPS
        rule = f"0 to {MOST_STEPS:,}"
        require(in_range, "optimizer.warmup_steps", self.warmup_steps, rule)
        epochs, decay = self.warmup_epochs, self.weight_decay
        one = epochs is None or (epochs >= 0 and not self.warmup_steps)
        require(one, "optimizer.warmup_epochs", epochs, "at least 0; set it or warmup_steps")
        require(decay >= 0, "optimizer.weight_decay", decay, "at least 0")
        takes = decay == 0 or self.name != "adam"
        require(takes, "optimizer.weight_decay", decay, "0 with adam; adamw decays weights")
        legw = self.scaling != "legw" or bool(epochs)
        require(legw, "optimizer.warmup_epochs", epochs, "above 0 with scaling legw")
