"""The learning rate: its scaling with the batch, its warm-up and its decay.

The schedule counts *applied* updates n: a skipped step advances neither n nor Adam's count (Puri et
al. 2018, section VIII, whose schedule is linear decay to zero). After a warm-up of W updates the
decay covers the remaining N − W.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlstm_jax.config import MOST_STEPS, Optimizer
from mlstm_jax.errors import UserError

# Fields of an optimizer that only determine its `Rates`.
_ONLY_RATES = (
    *("learning_rate", "scaling", "base_batch", "learning_rate_cap"),
    *("decay_steps", "warmup_steps", "warmup_epochs"),
)


class Rates(NamedTuple):
    """The numbers of a run's schedule: arguments of the compiled step."""

    peak: Any  # float32 scalar
    warmup: Any  # int32 scalar, the update at which the warm-up ends
    decay: Any  # int32 scalar, the update at which the decay ends


def without_rates(optimizer: Optimizer) -> Optimizer:
    """What a compiled step depends on: the settings without what only its `Rates` need."""
    usual = Optimizer()
    fields = {name: getattr(usual, name) for name in _ONLY_RATES}
    if any(name.endswith("_learning_rate") for name in optimizer.kind.fields):
        fields.pop("learning_rate")  # Its own rate, such as Muon's, is a multiple of this one.
    return dataclasses.replace(optimizer, **fields)


def rates_of(optimizer: Optimizer, batch: int, steps: int, steps_per_epoch: float = 0) -> Rates:
    """The peak rate, and the updates where warm-up and decay end, in a run of `steps` updates.

    The rate of the batch B0 is scaled with k = B / B0, of the global batch B, and capped. LEGW (You
    et al. 2019, arXiv 1901.08256) multiplies the rate by √k and the epochs of warm-up by k, so the
    warm-up has the same number of updates at any batch. Raises UserError if nothing is left for the
    decay.
    """
    k = batch / optimizer.base_batch
    decay = optimizer.decay_steps or steps
    warmup = optimizer.warmup_steps
    if optimizer.warmup_epochs:
        epochs = optimizer.warmup_epochs
        if optimizer.scaling == "legw":
            epochs *= k
        warmup = math.ceil(min(epochs * steps_per_epoch, MOST_STEPS))
    if optimizer.schedule == "triangular" and not warmup:
        warmup = min(max(1, decay // 10), decay - 1)
    if optimizer.schedule != "constant" and warmup >= decay:
        raise UserError(
            f"the warm-up is {warmup:,} updates, but the learning rate's decay ends at {decay:,}; "
            "reduce `optimizer.warmup_steps` or `optimizer.warmup_epochs`, or train for longer."
        )
    factors = {"none": 1.0, "linear": k, "sqrt": math.sqrt(k), "legw": math.sqrt(k)}
    peak = optimizer.learning_rate * factors[optimizer.scaling]
    if optimizer.learning_rate_cap is not None:
        peak = min(peak, optimizer.learning_rate_cap)
    return Rates(np.float32(peak), np.int32(warmup), np.int32(decay))


def learning_rate(optimizer: Optimizer, rates: Rates, n: Any) -> jax.Array:
    """The rate of the update after `n` applied ones, float32; `n` has any shape."""
    peak, warmup, decay = rates
    rest = jnp.maximum(decay - warmup, 1)
    past = jnp.clip(n - warmup, 0, rest)
    left = 1 - past / rest
    match optimizer.schedule:
        case "constant":
            falling = jnp.full_like(left, peak)
        case "cosine":
            falling = peak * (0.5 * (1 + jnp.cos(jnp.pi * past / rest)))
        case "polynomial":
            falling = peak * left**optimizer.power
        case "triangular":
            end = peak / 32  # Howard and Ruder 2018, section 3.2
            falling = (peak - end) * left + end
        case _:
            falling = peak * left
    # The first update has the rate peak / W, not zero.
    first = peak / jnp.maximum(warmup, 1)
    last = jnp.maximum(warmup - 1, 1)
    rising = (first - peak) * (1 - jnp.clip(n, 0, last) / last) + peak
    return jnp.where(n < warmup, rising, falling)
