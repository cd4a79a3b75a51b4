"""One layer: its state, its input, its weights, and one step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mlstm_jax.model import cell
from mlstm_jax.model.architecture import Carry
from mlstm_jax.model.inputs import is_bytes, project
from mlstm_jax.model.matmul import dot

Array = jax.Array


class Sequence(NamedTuple):
    """The inputs that change from step to step.

    x is the bytes, int32 [T, B], or the states of the layer below, [T, B, I]. Where hold_TB (bool)
    is true, h and c do not change, and their gradient passes unchanged.
    """

    x: Array
    hold_TB: Array | None = None


class LayerWeights(NamedTuple):
    """The matrices and the bias, float32; for bytes I is 256, and row v belongs to byte v."""

    wmx_IH: Array
    wx_IG: Array
    wmh_HH: Array
    wh_HG: Array
    b_G: Array


def rounded(weights: LayerWeights, x: Array, compute: jnp.dtype) -> LayerWeights:
    """Return the matrices of products in the compute type; tables and the bias do not change."""
    wmx_IH, wx_IG, wmh_HH, wh_HG, b_G = weights
    if not is_bytes(x):
        wmx_IH, wx_IG = wmx_IH.astype(compute), wx_IG.astype(compute)
    return LayerWeights(wmx_IH, wx_IG, wmh_HH.astype(compute), wh_HG.astype(compute), b_G)


def layer_step(
    rounded_h: Array, carry: Carry, now: Sequence, w: LayerWeights
) -> tuple[Carry, tuple[Array, cell.Gates]]:
    """Return the new carry, and mh and the four gates after their nonlinearities, [B, H].

    rounded_h is h in the type of the products.
    """
    mh = dot(rounded_h, w.wmh_HH)
    m = project(now.x, w.wmx_IH) * mh
    z_BG = project(now.x, w.wx_IG) + dot(m, w.wh_HG) + w.b_G[None]
    hold_B1 = None if now.hold_TB is None else now.hold_TB[:, None]
    gates, h, c = cell.advance(
        tuple(jnp.split(z_BG, 4, axis=-1)), carry.h, carry.c.astype(jnp.float32), hold_B1
    )
    return Carry(h=h, c=c.astype(carry.c.dtype)), (mh, gates)
