"""The step of dynamic evaluation on one device: score a window, then learn from it.

Krause, Kahembwe, Murray, Renals 2018, "Dynamic Evaluation of Neural Sequence Models" (arXiv
1709.07432). θ_0 are the trained parameters, θ_s those that score window s, and L_s is its loss in
nats per byte, the mean over all rows. The state is carried as usual::

    g_s     = ∇ L_s(θ_s)                    through this window only
    θ_{s+1} = θ_s − η g_s / (r + ε) + min(1, λ r / mean r) (θ_0 − θ_s)

η is the rate and λ the decay towards the trained parameters. In the paper's update r is √MS, where
MS is the mean of g² over windows of the training split, at θ_0. With r = 1 and ε = 0 the update is
plain gradient descent. As in training, fp16 scales the loss, and an update whose gradient is not
finite is skipped.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from mlstm_jax.data.evaluation_stream import EvaluationBatch
from mlstm_jax.model.language_model import Carry, LanguageModel, Parameters
from mlstm_jax.training.objective import cross_entropy
from mlstm_jax.training.state import LossScale, adjust_loss_scale
from mlstm_jax.training.step import reset

Array = jax.Array


class Setting(NamedTuple):
    """The two hyperparameters."""

    rate: float  # η
    decay: float  # λ


class Rule(NamedTuple):
    """The divisor of the gradient: r, a float32 tree like the parameters, its mean, and ε."""

    r: Parameters
    mean: Any
    epsilon: Any


class Adapting(NamedTuple):
    """What changes from window to window, except the carry."""

    params: Parameters  # θ_s
    loss_scale: LossScale


class Window(NamedTuple):
    """The loss of a window, scored before its update."""

    nats_BT: Array  # of each byte, float32; zero where nothing is scored
    skipped: Array  # bool: whether the update was skipped because its gradient was not finite


class Sums(NamedTuple):
    """Sums over the gradients of the training split."""

    squares: Parameters
    windows: Array  # int32
    loss_scale: LossScale


def _gradient(
    model: LanguageModel, params: Parameters, scale: Array, carry: Carry, batch: EvaluationBatch
) -> tuple[Parameters, Array, Array, Carry]:
    """Return ∇L over a window, whether it is finite, the nats of each byte [B, T], the new carry.

    Every byte has the same weight: the mean is over all positions, and those past the end of a
    shard or document add zero.
    """
    before = reset(carry, batch.reset_B)

    def scaled_loss(params: Parameters) -> tuple[Array, tuple[Array, Carry]]:
        read = model.apply({"params": params}, batch.inputs_BT, before)
        nats_BT = jnp.where(batch.mask_BT, cross_entropy(read.logits_BTV, batch.targets_BT), 0)
        return jnp.mean(nats_BT) * scale, (nats_BT, read.carry)

    with model.product_precision():
        gradient, (nats_BT, after) = jax.grad(scaled_loss, has_aux=True)(params)
    gradient = jax.tree.map(lambda g: g / scale, gradient)
    finite = jnp.isfinite(optax.tree.norm(gradient, squared=True))
    return gradient, finite, nats_BT, after


def make_adapting_step(model: LanguageModel) -> Callable[..., tuple[Adapting, Carry, Window]]:
    """Return the step: adapting, carry, θ_0, rule, setting, batch → adapting, carry, window."""

    def step(
        adapting: Adapting,
        carry: Carry,
        trained: Parameters,
        rule: Rule,
        setting: Setting,
        batch: EvaluationBatch,
    ) -> tuple[Adapting, Carry, Window]:
        params, scale = adapting
        gradient, finite, nats_BT, after = _gradient(model, params, scale.scale, carry, batch)

        def update(p: Array, p0: Array, g: Array, r: Array) -> Array:
            back = jnp.minimum(1, setting.decay * r / rule.mean) * (p0 - p)
            return jnp.where(finite, p - setting.rate * g / (r + rule.epsilon) + back, p)

        adapted = Adapting(
            jax.tree.map(update, params, trained, gradient, rule.r),
            adjust_loss_scale(scale, finite, model.precision),
        )
        return adapted, after, Window(nats_BT, ~finite)

    return step


def make_statistics_step(model: LanguageModel) -> Callable[..., tuple[Sums, Carry]]:
    """Return the step: sums, carry, θ_0, batch → sums, carry; θ_0 does not change."""

    def step(
        sums: Sums, carry: Carry, trained: Parameters, batch: EvaluationBatch
    ) -> tuple[Sums, Carry]:
        scale = sums.loss_scale
        gradient, finite, _, after = _gradient(model, trained, scale.scale, carry, batch)
        added = Sums(
            jax.tree.map(
                lambda total, g: jnp.where(finite, total + g**2, total), sums.squares, gradient
            ),
            sums.windows + finite,
            adjust_loss_scale(scale, finite, model.precision),
        )
        return added, after

    return step
