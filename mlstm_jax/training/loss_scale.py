"""Dynamic loss scaling for fp16 (Puri et al. 2018, section V).

The loss is multiplied by α and the gradient divided by it, so that small values do not underflow in
fp16. After an overflow the update is skipped and α is halved; after `growth_interval` clean updates
α doubles; it has a lower and an upper limit. Every value is a strongly typed array: a Python number
in the state would compile the step twice.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mlstm_jax.config import Precision

Array = jax.Array


class LossScale(NamedTuple):
    """α, float32 scalar, and the number of clean updates since its last change, int32 scalar."""

    scale: Array
    clean: Array


def init(precision: Precision) -> LossScale:
    """Return the initial scale: that of fp16, or 1 for the types that need no scaling."""
    first = precision.initial_loss_scale if precision.compute == "fp16" else 1.0
    return LossScale(scale=jnp.float32(first), clean=jnp.int32(0))


def adjust(loss_scale: LossScale, finite: Array, precision: Precision) -> LossScale:
    """Return the scale after an update; `finite`, a bool scalar, is whether its gradient was."""
    if precision.compute != "fp16":
        return loss_scale
    scale, clean = loss_scale
    grow = clean + 1 >= precision.growth_interval
    doubled = jnp.minimum(scale * 2, precision.max_loss_scale)
    halved = jnp.maximum(scale / 2, precision.min_loss_scale)
    return LossScale(
        scale=jnp.where(finite, jnp.where(grow, doubled, scale), halved),
        clean=jnp.where(finite & ~grow, clean + 1, 0),
    )
