"""Dynamic loss scaling for fp16 (Puri et al. 2018, section V).

The loss is multiplied by α and the gradient divided by it, so that small values survive fp16. On
an overflow the update is skipped and α halved; after `growth_interval` clean updates it doubles;
it has a floor and a cap. Every value is a strongly typed array: a Python number in the state would
compile the step twice.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mlstm_jax.config import Precision

Array = jax.Array


class LossScale(NamedTuple):
    """α, float32 scalar, and the clean updates since it last changed, int32 scalar."""

    scale: Array
    clean: Array


def init(precision: Precision) -> LossScale:
    """Return the first scale: fp16's, or 1 for the types that need none."""
    first = precision.initial_loss_scale if precision.compute == "fp16" else 1.0
    return LossScale(scale=jnp.float32(first), clean=jnp.int32(0))


def adjust(loss_scale: LossScale, finite: Array, precision: Precision) -> LossScale:
    """Return the scale after an update whose gradient was `finite` (bool scalar) or not."""
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
