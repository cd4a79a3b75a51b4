"""Everything that a training step changes, except the carry.

The state is the same on every device; the carry differs from row to row, so it is a separate tree
(see `mlstm_jax.model.architecture`).
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

    They are kept on the device and in the checkpoint, so that a line is the same whether or not the
    run was killed before it was complete.
    """

    loss: Array  # float32, nats per byte
    grad_norm: Array  # float32
    signal: Array  # float32, ‖true gradient‖²: see step.py
    trace: Array  # float32, of the covariance of one row's gradient
    label_loss: Array  # float32, of the ratings or classes seen, per byte
    labels: Array  # float32, number of ratings or classes seen, per byte
    updates: Array  # int32


class TrainState(NamedTuple):
    """Parameters and all values that change with them; every counter is an int32 scalar."""

    step: Array  # batches seen
    applied: Array  # updates applied
    consecutive_skips: Array  # latest updates skipped in a row
    rate_scale: Array  # float32: factor by which rollbacks have multiplied the learning rate
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
    """Return the state before the first step; it depends only on `seed`, uint32.

    The seed is an argument and not a constant, so runs with different seeds share one program.
    """
    # Name the generator, because JAX's default can be changed from outside the process.
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
