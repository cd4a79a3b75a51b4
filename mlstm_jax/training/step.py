"""The training step and the evaluation step on one device; they know only the axis's name.

Puri et al. 2018, sections IV, V and VII: scale the loss, take the gradient over the window, average
it over all devices, divide by the scale in float32, and check it for inf and NaN. If it has any,
the update is discarded, and the carry is the one before the window, after `reset`: one overflow
would otherwise spoil every later step.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from mlstm_jax.config import Config, Optimizer, Precision
from mlstm_jax.data.stream import Batch, EvaluationBatch
from mlstm_jax.model import fp8
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.model.language_model import (
    Carry,
    LanguageModel,
    Parameters,
    cross_entropy,
    reset,
)
from mlstm_jax.parallel import AXIS, PROGRAMS
from mlstm_jax.training import optimizer
from mlstm_jax.training.objective import OBJECTIVES, label_losses, row_keys, weighted
from mlstm_jax.training.replicas import sum_over_devices
from mlstm_jax.training.schedule import Rates, learning_rate, without_rates
from mlstm_jax.training.state import TrainState, adjust_loss_scale
from mlstm_jax.training.tally import Tally, add_to_tally, empty_tally

Array = jax.Array

# Folded into the seed, so that dropout, the objective and the initial parameters draw different
# random numbers.
_DROPOUT = 1
_OBJECTIVE = 2


class StepOptions(NamedTuple):
    """What a training step reads of a config, beside its model.

    Runs that are equal in both share its program.
    """

    optimizer: Optimizer  # its rates are arguments, see `without_rates`
    precision: Precision
    update_bytes: int
    dropout: float
    label_weight: float
    micro_batches: int
    seed: int
    log_every: int


class Means(NamedTuple):
    """Float32 scalars of some rows of one device."""

    loss: Array  # of the language model, nats per byte
    square: Array  # ‖gradient‖², the mean over micro-batches
    label_loss: Array  # of ratings or classes, per byte
    labels: Array  # number of documents with one, per byte


# The gradient of the scaled loss over some rows, their means, the carry after them, and the maxima
# of fp8 operands, [3].
Gradient = tuple[Parameters, Means, Carry, Array | None]


class StepMetrics(NamedTuple):
    """Scalars of a step, the same on every device of every process."""

    tally: Tally
    loss: Array  # of this step only, nats per byte
    stop: Array  # above 0: a process has received a signal to stop
    consecutive_skips: Array


TrainStep = Callable[..., tuple[TrainState, Carry, StepMetrics]]


def _select(condition: Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _noise(square: Array, mean_square: Array, batches: int, rows: int) -> tuple[Array, Array]:
    """Estimate a gradient's signal and noise (McCandlish et al. 2018, arXiv 1812.06162, app. A.1).

    `square` is ‖g‖² of the mean over all batches, and `mean_square` the mean over the batches, of
    `rows` rows, of each one's. Returns unbiased float32 scalars: ‖true gradient‖², and the trace of
    the covariance of one row's gradient. NaN for a single batch.
    """
    if batches == 1:
        return jnp.float32(jnp.nan), jnp.float32(jnp.nan)
    signal = (batches * square - mean_square) / (batches - 1)
    trace = (mean_square - square) * rows * batches / (batches - 1)
    return signal, trace


def _kept_units(
    options: StepOptions, architecture: Architecture, step: Array, row_B: Array, window: int
) -> Array | None:
    """Draw the units that each row keeps in this window, scaled so that their mean is 1.

    In a recurrent model a row has one mask for all bytes of its window (Gal and Ghahramani 2016,
    arXiv 1512.05287).
    """
    if not options.dropout:
        return None
    kept = 1 - options.dropout
    keys_B = row_keys(options.seed, _DROPOUT, step, row_B)
    shape = architecture.dropout_shape(window)
    draw = functools.partial(jax.random.bernoulli, p=kept, shape=shape)
    return jax.vmap(draw)(keys_B) / jnp.float32(kept)


def _gradient_of_rows(
    options: StepOptions,
    model: LanguageModel,
    state: TrainState,
    carry: Carry,
    batch: Batch,
    row_B: Array,
) -> Gradient:
    """Compute the gradient over some rows of this device, the numbers `row_B` of the batch."""
    architecture = model.architecture
    dropout_B = _kept_units(options, architecture, state.step, row_B, batch.inputs_BT.shape[1])
    counted_BT = jnp.arange(batch.inputs_BT.shape[1])[None] < batch.targets_B[:, None]
    keys_B = row_keys(options.seed, _OBJECTIVE, state.step, row_B)
    objective = OBJECTIVES[architecture.objective]
    targets = objective(batch.inputs_BT, batch.targets_BT, counted_BT, keys_B)
    padding_mask_BT = ~counted_BT if architecture.bidirectional else None

    scales_3 = None
    if state.maxima_U3 is not None:
        scales_3 = fp8.scales(state.maxima_U3, batch.inputs_BT.size)

    def scaled_loss(params: Parameters, scales_3: Any) -> tuple[Array, tuple[Any, Carry]]:
        read = model.apply(
            {"params": params},
            targets.inputs_BT,
            carry,
            padding_mask_BT,
            dropout_B=dropout_B,
            scales_3=scales_3,
        )
        nats_BT = cross_entropy(read.logits_BTV, targets.targets_BT)
        loss = jnp.mean(weighted(nats_BT, targets.weight_BT))
        label_loss, labels = label_losses(read.labels_BTK, batch.labels_BT)
        total = loss + options.label_weight * label_loss
        # The reported loss is the mean over positions with a target. The gradient belongs to the
        # mean over all positions, so that every byte has the same weight, even if few rows are
        # left at the end of an epoch.
        loss = loss * jnp.mean(batch.weight_B)
        return total * state.loss_scale.scale, ((loss, label_loss, labels), read.carry)

    with model.product_precision():
        grad = jax.grad(scaled_loss, argnums=(0, 1), has_aux=True)
        (gradient, maxima_3), (losses, after) = grad(state.params, scales_3)
    loss, label_loss, labels = losses
    square = optax.tree.norm(gradient, squared=True)
    return gradient, Means(loss, square, label_loss, labels), after, maxima_3


def _accumulate(
    gradient_of: Callable[[Carry, Batch, Array], Gradient],
    micro_batches: int,
    params: Parameters,
    rows: tuple[Carry, Batch, Array],
) -> Gradient:
    """Compute the gradient over all rows of a device, one micro-batch at a time."""
    if micro_batches == 1:
        return gradient_of(*rows)

    def split(x: Array) -> Array:
        return x.reshape(micro_batches, -1, *x.shape[1:])

    def join(x: Array) -> Array:
        return x.reshape(-1, *x.shape[2:])

    def add(sums: Any, part: tuple[Carry, Batch, Array]) -> tuple[Any, tuple[Carry, Any]]:
        gradient, means, after, maxima_3 = gradient_of(*part)
        sums = jax.tree.map(lambda a, b: a + b / micro_batches, sums, (gradient, means))
        return sums, (after, maxima_3)

    zero = jnp.float32(0)
    zeros = (jax.tree.map(jnp.zeros_like, params), Means(zero, zero, zero, zero))
    (gradient, means), kept = jax.lax.scan(add, zeros, jax.tree.map(split, rows))
    after, maxima_M3 = kept
    maxima_3 = None if maxima_M3 is None else jnp.max(maxima_M3, axis=0)
    return gradient, means, jax.tree.map(join, after), maxima_3


def _gradient_of_batch(
    options: StepOptions,
    model: LanguageModel,
    state: TrainState,
    read: tuple[Carry, Batch],
    stop: Array,
) -> tuple[Gradient, Array]:
    """The gradient of the mean over all devices, float32, with this device's carry; sums `stop`."""
    carry, batch = read
    rows = batch.inputs_BT.shape[0]
    row_B = jax.lax.axis_index(AXIS) * rows + jnp.arange(rows)
    gradient_of = functools.partial(_gradient_of_rows, options, model, state)
    gradient, means, after, maxima_3 = _accumulate(
        gradient_of, options.micro_batches, state.params, (carry, batch, row_B)
    )
    devices = jax.lax.axis_size(AXIS)
    shares, means = jax.tree.map(lambda x: x / devices, (gradient, means))
    reduce_type = model.compute if options.precision.all_reduce == "compute" else jnp.float32
    shares = optax.tree.cast(shares, reduce_type)
    # After a loop over micro-batches all sums are ready at once: pieces would overlap nothing.
    early = model.backward_order() if options.micro_batches == 1 else []
    gradient, (means, stop) = sum_over_devices(shares, (means, stop), early)
    scale = state.loss_scale.scale
    gradient = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, gradient)
    return (gradient, means, after, maxima_3), stop


def _update(
    tx: optax.GradientTransformation, state: TrainState, gradient: Parameters, batch: Batch
) -> tuple[Parameters, Any, Array]:
    """The parameters and the optimizer's state after an update; and whether a byte had a target."""
    updates, opt_state = tx.update(gradient, state.opt_state, state.params)
    # At the end of an epoch few rows may be left. Most optimizers undo the gradient's own scale, so
    # their updates are multiplied by the fraction of rows that still read.
    fraction = batch.active_fraction_B[0]
    updates = jax.tree.map(lambda update: update * fraction, updates)
    has_target = fraction > 0  # Each of these rows may have one byte left, without a target.
    return optax.apply_updates(state.params, updates), opt_state, has_target


def make_train_step(config: Config, model: LanguageModel) -> TrainStep:
    """The step: state, carry, batch, stop, rates → state, carry, metrics.

    Runs whose steps are equal share one function and its compiled program, of any length. The
    float32 scalar `stop` is above 0 on the devices of a process that has received a signal (see
    guard.py). It is summed with the gradient, so all processes stop together.
    """
    options = StepOptions(
        optimizer=without_rates(config.optimizer),
        precision=config.precision,
        update_bytes=config.data.batch * config.data.window,
        dropout=config.train.dropout,
        label_weight=config.train.label_weight,
        micro_batches=config.train.micro_batches,
        seed=config.train.seed,
        log_every=config.train.log_every,
    )
    return _make_train_step(options, model)


@functools.lru_cache(maxsize=PROGRAMS)
def _make_train_step(options: StepOptions, model: LanguageModel) -> TrainStep:
    def train_step(
        state: TrainState, carry: Carry, batch: Batch, stop: Array, rates: Rates
    ) -> tuple[TrainState, Carry, StepMetrics]:
        rate = functools.partial(learning_rate, options.optimizer, rates)
        tx = optimizer.build(
            options.optimizer,
            model.architecture,
            rate,
            update_bytes=options.update_bytes,
            axis_name=AXIS,
            compute=options.precision.compute,
        )
        scale = state.loss_scale.scale
        carry = reset(carry, batch.reset_B)
        found, stop = _gradient_of_batch(options, model, state, (carry, batch), stop)
        gradient, means, after, maxima_3 = found
        loss = means.loss
        square = optax.tree.norm(gradient, squared=True)
        batches = jax.lax.axis_size(AXIS) * options.micro_batches
        rows = batch.inputs_BT.shape[0] // options.micro_batches
        signal, trace = _noise(square, means.square / scale**2, batches, rows)
        # An inf or NaN anywhere in the gradient makes its norm inf or NaN; the square overflows if
        # the norm exceeds 2^64.
        finite = jnp.isfinite(loss) & jnp.isfinite(square)

        params, opt_state, has_target = _update(tx, state, gradient, batch)
        history_U3 = state.maxima_U3
        if history_U3 is not None:
            positions = batch.inputs_BT.size // options.micro_batches
            history_U3 = fp8.with_newest(history_U3, jax.lax.pmax(maxima_3, AXIS), positions)
        params, opt_state, after, history_U3 = _select(
            finite,
            (params, opt_state, after, history_U3),
            (state.params, state.opt_state, carry, state.maxima_U3),
        )

        step = state.step + 1
        applied = state.applied + finite
        values = {
            "loss": loss,
            "grad_norm": jnp.sqrt(square),
            "gradient_signal": signal,
            "gradient_trace": trace,
            "label_loss": means.label_loss,
            "learning_rate": rate(state.applied),
            "loss_scale": scale,
            "skipped": jnp.float32(step - applied),
            "updates": jnp.int32(1),
            "labels": means.labels,
        }
        tally = add_to_tally(state.tally, values, has_loss=finite & has_target)
        # Emptied after a line, not before the next: a session may have lines of another length.
        ends_line = step % options.log_every == 0
        new = TrainState(
            step=step,
            applied=applied,
            consecutive_skips=jnp.where(finite, 0, state.consecutive_skips + 1),
            params=params,
            opt_state=opt_state,
            loss_scale=adjust_loss_scale(state.loss_scale, finite, options.precision),
            tally=_select(ends_line, empty_tally(), tally),
            maxima_U3=history_U3,
        )
        return new, after, StepMetrics(tally, loss, stop, new.consecutive_skips)

    return train_step


@functools.lru_cache(maxsize=PROGRAMS)
def make_evaluation_step(model: LanguageModel) -> Callable[..., tuple[Carry, Array]]:
    """The step: parameters, carry, batch → carry, nats summed over all devices."""
    objective = OBJECTIVES[model.architecture.objective]

    def evaluation_step(
        params: Parameters, carry: Carry, batch: EvaluationBatch
    ) -> tuple[Carry, Array]:
        carry = reset(carry, batch.reset_B)
        keys_B = row_keys(0, _OBJECTIVE, jnp.uint32(0), batch.window_B)
        targets = objective(batch.inputs_BT, batch.targets_BT, batch.mask_BT, keys_B)
        padding_mask_BT = ~batch.mask_BT if model.architecture.bidirectional else None
        read = model.apply({"params": params}, targets.inputs_BT, carry, padding_mask_BT)
        nats_BT = cross_entropy(read.logits_BTV, targets.targets_BT)
        nats_BT = weighted(nats_BT, targets.weight_BT)
        return read.carry, jax.lax.psum(jnp.sum(nats_BT), AXIS)

    return evaluation_step
