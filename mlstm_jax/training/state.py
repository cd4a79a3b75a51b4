"""Everything a training step changes, the carry apart.

The state is the same on every device; the carry differs from row to row, so it is its own tree
(`mlstm_jax.model.language_model.Carry`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from mlstm_jax.config import Config
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.training import loss_scale

Array = jax.Array


class MetricSums(NamedTuple):
    """Sums over the applied updates since the last line of metrics.

    They live on the device, in the checkpoint, so that a line is the same whether or not the run
    was killed in the middle of it.
    """

    loss: Array  # float32, nats a byte
    grad_norm: Array  # float32
    signal: Array  # float32, ‖true gradient‖²: see step.py
    trace: Array  # float32, of the covariance of one row's gradient
    label_loss: Array  # float32, of the ratings or classes met, a byte
    labels: Array  # float32, how many of these were met, a byte
    updates: Array  # int32


class TrainState(NamedTuple):
    """Parameters and all that moves with them; every counter is an int32 scalar."""

    step: Array  # batches seen
    applied: Array  # updates applied
    consecutive_skips: Array  # updates skipped in a row, up to now
    rate_scale: Array  # float32: what rollbacks have multiplied the learning rate by
    params: Parameters
    opt_state: Any
    loss_scale: loss_scale.LossScale
    tally: MetricSums


def zero_tally() -> MetricSums:
    """Return empty sums."""
    zero = jnp.float32(0)
    floats = {name: zero for name in MetricSums._fields if name != "updates"}
    return MetricSums(updates=jnp.int32(0), **floats)


def init_state(
    config: Config, model: LanguageModel, optimizer: optax.GradientTransformation, seed: Array | int
) -> TrainState:
    """Return the state before the first step; it depends on `seed`, uint32, alone.

    The seed is an argument and not a constant, so runs of different seeds compile to one program.
    """
    # The generator is named: JAX's default can be changed from outside the process.
    key = jax.random.key(seed, impl="threefry2x32")
    params = model.init_parameters(key)
    return TrainState(
        step=jnp.int32(0),
        applied=jnp.int32(0),
        consecutive_skips=jnp.int32(0),
        rate_scale=jnp.float32(1),
        params=params,
        opt_state=optimizer.init(params),
        loss_scale=loss_scale.init(config.precision),
        tally=zero_tally(),
    )
