"""Everything that a training step changes, except the carry.

The state is the same on every device; the carry differs from row to row, so it is a separate tree
(see `mlstm_jax.model.architecture`).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlstm_jax.arrays import Arrays, flatten, unflatten
from mlstm_jax.config import Config, Optimizer, Precision, differing
from mlstm_jax.errors import UserError
from mlstm_jax.model import fp8
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.model.language_model import LanguageModel, Parameters, parameter_shapes
from mlstm_jax.training import optimizer
from mlstm_jax.training.schedule import without_rates
from mlstm_jax.training.tally import Tally, empty_tally
from mlstm_jax.weights import expected_shapes

Array = jax.Array


class LossScale(NamedTuple):
    """Dynamic loss scaling for fp16 (Puri et al. 2018, section V).

    The loss is multiplied by α and the gradient divided by it, so that small values do not
    underflow in fp16. After an overflow the update is skipped and α is halved; after
    `growth_interval` clean updates α doubles; it has a lower and an upper limit.

    A Python number in the state would compile the step twice.
    """

    scale: Array  # α, float32 scalar
    clean: Array  # clean updates since its last change, int32 scalar


def adjust_loss_scale(loss_scale: LossScale, finite: Array, precision: Precision) -> LossScale:
    """The scale after an update; `finite`, a bool scalar: whether its gradient was finite."""
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


class TrainState(NamedTuple):
    """Parameters and all values that change with them; every counter is an int32 scalar."""

    step: Array  # batches seen
    applied: Array  # updates applied
    consecutive_skips: Array  # latest updates skipped in a row
    params: Parameters
    opt_state: Any
    loss_scale: LossScale
    tally: Tally  # since the last line of metrics
    maxima_U3: Array | None = None  # of fp8 operands in the last updates, see fp8.py


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _init_state(
    options: Optimizer, architecture: Architecture, precision: Precision, params: Parameters
) -> TrainState:
    """The state before the first step."""
    # The types that need no scaling have the scale 1.
    scale = precision.initial_loss_scale if precision.compute == "fp16" else 1.0
    # The state of an optimizer depends on neither rates nor decays.
    tx = optimizer.build(options, architecture, lambda count: 0.0)
    return TrainState(
        step=jnp.int32(0),
        applied=jnp.int32(0),
        consecutive_skips=jnp.int32(0),
        params=params,
        opt_state=tx.init(params),
        loss_scale=LossScale(scale=jnp.float32(scale), clean=jnp.int32(0)),
        tally=empty_tally(),
        maxima_U3=None if precision.recurrent == "compute" else fp8.no_history(),
    )


@functools.partial(jax.jit, static_argnums=0)
def _draw_parameters(model: LanguageModel, seed: Array) -> Parameters:
    """Draw initial parameters from a uint32 scalar; all seeds share one program."""
    # Name the generator, because JAX's default can be changed from outside the process.
    return model.init_parameters(jax.random.key(seed, impl="threefry2x32"))


def state_shapes(config: Config) -> TrainState:
    """The shapes and types of the state of a run."""
    init = functools.partial(_init_state, config.optimizer, config.model, config.precision)
    return jax.eval_shape(init, parameter_shapes(config.model))


def fresh_state(config: Config, model: LanguageModel, start: Arrays | None = None) -> TrainState:
    """The state before the first step, NumPy, from `train.seed` and parameters to start from.

    `start` replaces all parameters but the label head, which is for the other run's labels;
    UserError if its arrays have other shapes.
    """
    if start is not None:
        _require_shapes(config, start)
    params = jax.device_get(_draw_parameters(model, np.uint32(config.train.seed)))
    if start is not None:
        named = flatten(params)
        for name in named:
            if not name.startswith("label_"):
                named[name] = np.asarray(start[name])
        params = unflatten(named)
    options = without_rates(config.optimizer)  # Runs of other rates share one program.
    return jax.device_get(_init_state(options, config.model, config.precision, params))


def _require_shapes(config: Config, theirs: Arrays) -> None:
    """Raise UserError if the initial parameters have other shapes than the run."""
    shapes = {name: array.shape for name, array in theirs.items()}
    for name, other, shape in differing(shapes, expected_shapes(config.model)):
        if name.startswith("label_"):
            continue
        problem = f"{name} has the shape {other}, but this run needs {shape}"
        if other is None:
            problem = f"{name} is missing"
        elif shape is None:
            problem = f"this run lacks {name}"
        raise UserError(
            f"`train.start_from` {config.train.start_from} is another model: {problem}; set the "
            "same model, hidden, embedding, layers and positions."
        )
