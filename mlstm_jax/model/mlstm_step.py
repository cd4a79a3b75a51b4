"""One step of the mLSTM: a layer's weights and input, gates, cell and hidden state, their gradient.

The elementwise part is Krause et al. 2016, the LSTM around eqs. 10-12, on arrays of one shape,
float32. XLA's loops and the Pallas kernels both compute these lines.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mlstm_jax.model.architecture import Carry
from mlstm_jax.model.ops import is_bytes, project, times
from mlstm_jax.model.time_loops import Sequence

Array = jax.Array


class Gates(NamedTuple):
    """Input, forget and output gates after σ, and the update after tanh."""

    i: Array
    f: Array
    o: Array
    u: Array


def advance(
    z: tuple[Array, ...], before_c: Array, padding: tuple[Array, Array] | None = None
) -> tuple[Gates, Array, Array]:
    """Return the gates, and h and c after the step.

    Args:
        z: pre-activations of the gates i, f, o and u.
        before_c: c before the step.
        padding: where h and c do not change, bool, and h before the step.
    """
    i, f, o = (jax.nn.sigmoid(x) for x in z[:3])
    u = jnp.tanh(z[3])
    if padding is not None:
        i = jnp.where(padding[0], 0, i)
        f = jnp.where(padding[0], 1, f)
    c = f * before_c + i * u
    h = o * jnp.tanh(c)
    if padding is not None:
        h = jnp.where(*padding, h)
    return Gates(i, f, o, u), h, c


def step_gradient(gates: Gates, before_c: Array, dh: Array, dc: Array) -> tuple[Gates, Array]:
    """Return the cotangents of z and of c before the step, of those of h and c after it."""
    i, f, o, u = gates
    tanh_c = jnp.tanh(f * before_c + i * u)
    dc = dc + dh * o * (1 - tanh_c * tanh_c)
    dz = Gates(
        i=dc * u * i * (1 - i),
        f=dc * before_c * f * (1 - f),
        o=dh * tanh_c * o * (1 - o),
        u=dc * i * (1 - u * u),
    )
    return dz, dc * f


class LayerWeights(NamedTuple):
    """The matrices and the bias, float32; for bytes I is 256, and row v belongs to byte v."""

    wmx_IH: Array
    wx_IG: Array
    wmh_HH: Array
    wh_HG: Array
    b_G: Array

    def rounded(self, x: Array, compute: jnp.dtype) -> "LayerWeights":
        """Return the matrices of products in the compute type; tables and the bias stay."""
        wmx_IH, wx_IG, wmh_HH, wh_HG, b_G = self
        if not is_bytes(x):
            wmx_IH, wx_IG = wmx_IH.astype(compute), wx_IG.astype(compute)
        return LayerWeights(wmx_IH, wx_IG, wmh_HH.astype(compute), wh_HG.astype(compute), b_G)


def layer_step(
    w: LayerWeights, rows: int
) -> Callable[[Array, Carry, Sequence], tuple[Carry, tuple[Array, Gates]]]:
    """Return the function of one step of `rows` rows, with rounded matrices.

    It takes h in the type of the products, the carry, and the input of the step; it returns the new
    carry, and mh and the four gates after their nonlinearities, [B, H].
    """
    times_wmh, times_wh = times(w.wmh_HH, rows), times(w.wh_HG, rows)

    def step(rounded_h: Array, carry: Carry, now: Sequence) -> tuple[Carry, tuple[Array, Gates]]:
        mh = times_wmh(rounded_h)
        m = project(now.x, w.wmx_IH) * mh
        z_BG = project(now.x, w.wx_IG) + times_wh(m) + w.b_G[None]
        mask_B = now.padding_mask_TB
        padding = None if mask_B is None else (mask_B[:, None], carry.h)
        z = tuple(jnp.split(z_BG, 4, axis=-1))
        gates, h, c = advance(z, carry.c.astype(jnp.float32), padding)
        return Carry(h=h, c=c.astype(carry.c.dtype)), (mh, gates)

    return step
