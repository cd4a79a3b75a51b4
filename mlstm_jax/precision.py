"""The section `precision` of a config: number types and loss scaling."""

from dataclasses import dataclass
from typing import Annotated, Literal

from mlstm_jax.errors import require
from mlstm_jax.fields import Between, Checked, Count

Compute = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class Precision(Checked, section="precision"):
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
    growth_interval: Count = 1000
    # Limits of the loss scale.
    min_loss_scale: Annotated[float, Between(0, ends="(]")] = 1.0
    max_loss_scale: float = 2.0**24
    # Number of consecutive skipped updates (inf or NaN in the gradient) after which the run stops.
    max_consecutive_skips: Count = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high, first = self.min_loss_scale, self.max_loss_scale, self.initial_loss_scale
        require(low <= high, "precision.max_loss_scale", high, f"at least {low}")
        rule = f"between {low} and {high}"
        require(low <= first <= high, "precision.initial_loss_scale", first, rule)
