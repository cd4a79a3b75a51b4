"""The section `optimizer` of a config."""

from dataclasses import dataclass
from typing import Annotated, Literal

from mlstm_jax.config.sections import MOST_STEPS, Steps
from mlstm_jax.errors import require
from mlstm_jax.fields import Between, Checked, Count, Fraction, Positive


@dataclass(frozen=True, kw_only=True)
class Optimizer(Checked, section="optimizer"):
    """The optimizer, and the learning rate over a run."""

    # The optimizer. LAMB with `clip_norm` 1 is NVIDIA's variant. Paper: adam.
    name: Literal["adam", "adamw", "lamb", "lars", "muon"] = "adam"
    # Learning rate before scaling. Paper: 3e-3 for every large batch; Radford: 5e-4.
    learning_rate: Positive = 5e-4
    # How the rate grows with the global batch B, from `learning_rate` at `base_batch` B0. linear:
    # lr·B/B0; sqrt: lr·√(B/B0); legw: lr·√(B/B0), with the epochs of warm-up multiplied by B/B0.
    # Paper: compares the first three and chooses none, with 3e-3.
    scaling: Literal["none", "linear", "sqrt", "legw"] = "none"
    # The batch B0 at which the rate is `learning_rate`. Paper: 128.
    base_batch: Count = 128
    # Upper limit of the scaled rate. Paper: 3e-3.
    learning_rate_cap: Positive | None = None
    # How the rate decays after the warm-up: linear, cosine and polynomial to zero; triangular to
    # 1/32, after a warm-up of a tenth of the run (Howard and Ruder 2018). Paper: linear.
    schedule: Literal["linear", "cosine", "polynomial", "triangular", "constant"] = "linear"
    # The applied update at which the decay ends; unset: the last of the run. Paper: 100,000, at any
    # batch.
    decay_steps: Steps | None = None
    # Exponent of the polynomial schedule.
    power: Positive = 2.0
    # Number of applied updates in the linear warm-up. Paper: none.
    warmup_steps: Annotated[int, Between(0, MOST_STEPS)] = 0
    # Warm-up in epochs (with legw: at `base_batch`), instead of `warmup_steps`.
    warmup_epochs: Annotated[float, Between(0, ends="[)")] | None = None
    # Decay rate of the first moment; with LARS the momentum. Paper: 0.9.
    b1: Fraction = 0.9
    # Adam's decay rate of the second moment. Paper: 0.999.
    b2: Fraction = 0.999
    # Half-life of a gradient in the second moment, in bytes of text, the same at any batch; instead
    # of `b2`. A b2 of 0.999 has a half-life of 693 updates: 710e3 bytes at 16 rows of 64.
    b2_half_life: Positive | None = None
    # Added to Adam's denominator. Paper: 1e-8.
    eps: Positive = 1e-8
    # Maximum global norm of the gradient; larger ones are scaled down. NVIDIA found 1.0 useful.
    clip_norm: Positive | None = 1.0
    # Weight decay of the matrices per update, before multiplication by the learning rate; with
    # adamw, lamb, lars and muon.
    weight_decay: Annotated[float, Between(0, ends="[)")] = 0.0
    # Bytes of text in the update to which `weight_decay` belongs. If set, an update of k times the
    # bytes decays k times as much, so that at one rate a byte decays the same at any batch. Unset:
    # each update decays by `weight_decay`.
    weight_decay_bytes: Positive | None = None
    # Muon's learning rate, for the matrices of the layers. All other parameters use Adam with
    # `learning_rate`; both rates follow one schedule.
    muon_learning_rate: Positive = 0.04
    # Muon's momentum (Nesterov's). Jordan et al. 2024: 0.95. A run of some 1,000 updates was better
    # with 0.9.
    muon_momentum: Fraction = 0.95
    # Whether Muon trains the decoder, too. It was better in a run of 6,000 updates, and worse than
    # Adam in runs of some 1,000.
    muon_decoder: bool = False
    # Muon's Newton-Schulz iterations. Fewer are faster and less exact.
    muon_steps: Count = 5
    # LARS: factor of the trust ratio ‖w‖ / ‖gradient‖.
    trust_coefficient: Positive = 0.001

    @property
    def moments(self) -> int:
        """The numbers of its state for each parameter, at most."""
        return 1 if self.name == "muon" else 2

    @property
    def other_rates(self) -> dict[str, float]:
        """Learning rates that are not the schedule's, by who has them, as multiples of it."""
        return {"Muon": self.muon_learning_rate / self.learning_rate} if self.name == "muon" else {}

    def __post_init__(self) -> None:
        super().__post_init__()
        decay, of, epochs = self.weight_decay, self.weight_decay_bytes, self.warmup_epochs
        takes = decay == 0 or self.name != "adam"
        require(takes, "optimizer.weight_decay", decay, "0 with adam; adamw decays weights")
        possible = of is None or decay > 0
        require(possible, "optimizer.weight_decay_bytes", of, "unset without a weight_decay")
        one = epochs is None or not self.warmup_steps
        require(one, "optimizer.warmup_epochs", epochs, "unset with warmup_steps")
        legw = self.scaling != "legw" or bool(epochs)
        require(legw, "optimizer.warmup_epochs", epochs, "above 0 with scaling legw")
