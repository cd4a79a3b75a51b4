"""JAX baselines for the recurrence: a plain scan with JAX's gradient, and Flax's LSTM."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen

from mlstm_jax.model.architecture import LSTMCarry
from mlstm_jax.model.ops import dot
from mlstm_jax.model.stack import Recurrence, Weights

Array = jax.Array


def autodiff(
    recurrence: Recurrence, carry: LSTMCarry, bytes_TB: Array, weights: Weights, *_: Any
) -> tuple[LSTMCarry, Array]:
    """Run a straightforward scan, with the input projections outside it.

    It takes the arguments of `run_layer`, so that it can replace it, but uses only the compute type
    of the recurrence, and neither a mask nor fp8. JAX computes the gradient. The lookups are
    outside the scan, since JAX's gradient of a lookup inside it would be even slower.
    """
    mx_TBH = weights["wmx"][bytes_TB]
    zx_TBG = weights["wx"][bytes_TB] + weights["b"][None, None]
    compute = recurrence.compute
    wmh_HH = weights["wmh"].astype(compute)
    wh_HG = weights["wh"].astype(compute)

    def step(carry: LSTMCarry, now: tuple[Array, Array]) -> tuple[LSTMCarry, Array]:
        mx, zx = now
        m = mx * dot(carry.h, wmh_HH)
        i, f, o, u = jnp.split(zx + dot(m, wh_HG), 4, axis=-1)
        c = jax.nn.sigmoid(f) * carry.c + jax.nn.sigmoid(i) * jnp.tanh(u)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return LSTMCarry(h, c), h.astype(compute)

    return jax.lax.scan(step, carry, (mx_TBH, zx_TBG))


def flax_lstm(hidden: int, compute: jnp.dtype) -> linen.RNN:
    """Return Flax's scan over its LSTM cell: 4·H² products per byte; an mLSTM has 5·H²."""
    return linen.RNN(linen.OptimizedLSTMCell(hidden, dtype=compute), time_major=True)
