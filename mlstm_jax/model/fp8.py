"""fp8 operands of the mLSTM's four recurrent products: E4M3 numbers, and a scale for each tensor.

The products are h Wmh and m Wh forward, dz Whᵀ and dmh Wmhᵀ backward (see mlstm.py). An operand is
multiplied by its scale, 448 (the largest number of E4M3) / its maximum, clipped and rounded. The
product is summed in float32 and divided by both scales. Everything else stays in bf16: saved
values, weight gradients, byte tables, decoder.

A matrix is rounded once a window, with its own maximum. The maxima of m, dz and dmh are known only
after the window, so their scales come from the last updates: delayed scaling, as in NVIDIA's
Transformer Engine (Micikevicius et al. 2022, arXiv 2209.05433). |h| < 1 always.

On a GPU the kernels of kernels.py write and multiply E4M3. Elsewhere `emulated` gives the same
numbers: a product of two E4M3 numbers is exact in float32, and each of them is exact in bf16.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
float32 = jnp.float32

E4M3 = jnp.dtype(jnp.float8_e4m3fn)
LARGEST = 448.0
_LEAST_NORMAL = 2.0**-6
_LEAST = 2.0**-9
# How many updates a scale looks back.
UPDATES = 16
# Every eighth step of a window is searched for its maxima: a search of all would read all dz.
_EVERY = 8
# Maxima of m, and of dz and dmh times the positions of the loss, before the first update. With a
# scale of 1 nearly all of the first dz would be rounded to zero.
_GUESS = (LARGEST, 8.0, 8.0)


def no_history() -> Array:
    """The maxima before the first update, float32 [updates, 3]: unknown, which is 0."""
    return jnp.zeros((UPDATES, 3), float32)


def scales(history_U3: Array, positions: int) -> Array:
    """The scales of m, dz and dmh, float32 [3]; the loss is the mean of `positions` bytes."""
    maxima_3 = jnp.max(history_U3, axis=0)
    maxima_3 = jnp.where(maxima_3 > 0, maxima_3, jnp.array(_GUESS, float32))
    return LARGEST / (maxima_3 / _units(positions))


def with_newest(history_U3: Array, maxima_3: Array, positions: int) -> Array:
    """The history with the maxima of one more update, and without the oldest.

    dz and dmh are multiplied by the positions of the loss: so any number of devices gives the same.
    """
    return jnp.concatenate([(maxima_3 * _units(positions))[None], history_U3[:-1]])


def maxima(m_TBH: Array, dz_TBG: Array, dmh_TBH: Array) -> Array:
    """The maxima of a window, float32 [3]; dmh may lack its last place."""
    first = max(0, min(_EVERY // 2, m_TBH.shape[0] - 2))
    parts = [jnp.max(jnp.abs(x[first::_EVERY])) for x in (m_TBH, dz_TBG, dmh_TBH)]
    return jnp.stack(parts).astype(float32)


def _units(positions: int) -> Array:
    return jnp.array([1, positions, positions], float32)


class Quantised(NamedTuple):
    """A matrix in E4M3, its scale, and the scales of what multiplies it; float32 scalars."""

    w_IO: Array
    scale: Array
    x_scale: Array  # of x in x W
    dy_scale: Array  # of dy in dy Wᵀ

    @property
    def dtype(self) -> jnp.dtype:
        return self.w_IO.dtype

    def scale_and_unit(self, *, transposed: bool) -> tuple[Array, Array]:
        """The scale of the other operand of x W, or of dy Wᵀ, and the unit of the product."""
        scale = self.dy_scale if transposed else self.x_scale
        return scale, 1 / (scale * self.scale)


def quantised(w_IO: Array, x_scale: Array, dy_scale: Array) -> Quantised:
    """Round a float32 matrix to E4M3, with its own maximum."""
    largest = jnp.max(jnp.abs(w_IO))
    scale = LARGEST / jnp.where(largest > 0, largest, 1)
    return Quantised(operand(w_IO, scale, E4M3), scale, x_scale, dy_scale)


def operand(x: Array, scale: Array, dtype: jnp.dtype) -> Array:
    """x · scale in the type of an operand; E4M3 saturates."""
    x = x.astype(float32) * scale
    if dtype == E4M3:
        x = jnp.clip(x, -LARGEST, LARGEST)
    return x.astype(dtype)


def _rounded(x: Array) -> Array:
    """As a cast to E4M3 and back, which XLA for CPUs does at a third of the speed."""
    x = jnp.clip(x, -LARGEST, LARGEST)
    normal = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=3)
    subnormal = jnp.round(x / _LEAST) * _LEAST
    return jnp.where(jnp.abs(x) < _LEAST_NORMAL, subnormal, normal)


def emulated(
    product: Callable[[Array], Array], w: Quantised, *, transposed: bool
) -> Callable[[Array], Array]:
    """`product`, which multiplies by the numbers of w in bf16, for x as it is; float32."""
    scale, unit = w.scale_and_unit(transposed=transposed)

    def with_scales(x: Array) -> Array:
        return unit * product(_rounded(x.astype(float32) * scale).astype(jnp.bfloat16))

    return with_scales
