"""The learning rate: its scaling with the batch, and its linear decay to zero.

lr(n) = lr0 · max(0, 1 − n/N), where n counts *applied* updates: a skipped step advances neither n
nor Adam's count (Puri et al. 2018, section VIII).
"""

import math

import optax

from mlstm_jax.config import Optimizer


def peak_rate(optimizer: Optimizer, batch: int) -> float:
    """Return the first learning rate of a global batch, by the scaling rule and under its cap."""
    ratio = batch / optimizer.base_batch
    factor = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[optimizer.scaling]
    rate = optimizer.learning_rate * factor
    cap = optimizer.learning_rate_cap
    return rate if cap is None else min(rate, cap)


def learning_rate(optimizer: Optimizer, batch: int, steps: int) -> optax.Schedule:
    """Return the rate as a function of the applied updates; `steps` is the length of the run."""
    return optax.linear_schedule(
        peak_rate(optimizer, batch), 0.0, transition_steps=optimizer.decay_steps or steps
    )
