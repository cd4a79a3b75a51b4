"""The multiplicative LSTM over time, and its gradient.

For one layer, with the input-side products mx_t = x_t Wmx and zx_t = x_t Wx + b made beforehand
(Krause et al. 2016, eqs. 10-12 and the LSTM around them; Puri et al. 2018, section VI)::

    mh_t = h_{t-1} Wmh                                   [B, H]
    m_t  = mx_t ∘ mh_t                                   [B, H]
    z_t  = zx_t + m_t Wh        = [i f o u]              [B, 4H]
    c_t  = σ(f) ∘ c_{t-1} + σ(i) ∘ tanh(u)               [B, H]
    h_t  = σ(o) ∘ tanh(c_t)                              [B, H]

`recurrence_reference` is these lines and JAX's own gradient. `recurrence` computes the same, and
has the gradient written out, for three reasons:

* Reverse mode through `lax.scan` adds to the gradients of Wh and Wmh at every step, one small
  product at a time, in the compute type. Here the backward scan makes dz_t and dmh_t only, and
  each weight gradient is one product over all T·B rows afterwards, summed in float32.
* The products of the backward scan get operands of the compute type, where JAX would multiply a
  float32 cotangent by a half-precision matrix.
* It saves mh, the four gates and c; m, tanh(c) and the derivatives of σ are cheap to make again.

Arrays are time-major here and only here. h and c are float32 between steps (c optionally in the
compute type), and h is rounded to the compute type where it enters a product.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


class LayerCarry(NamedTuple):
    """State of one layer between two steps: h float32 [B, H], c [B, H]."""

    h: Array
    c: Array


def _dot(x: Array, w: Array) -> Array:
    return jnp.dot(x, w, preferred_element_type=jnp.float32)


def _dot_transposed(x_BO: Array, w_IO: Array) -> Array:
    return jnp.einsum("bo,io->bi", x_BO, w_IO, preferred_element_type=jnp.float32)


def _split_gates(z_BG: Array) -> tuple[Array, Array, Array, Array]:
    i, f, o, u = jnp.split(z_BG, 4, axis=-1)
    return jax.nn.sigmoid(i), jax.nn.sigmoid(f), jax.nn.sigmoid(o), jnp.tanh(u)


def _step(
    carry: LayerCarry, mx_BH: Array, zx_BG: Array, wmh_HH: Array, wh_HG: Array
) -> tuple[LayerCarry, tuple[Array, Array]]:
    """One step: the new carry, then mh [B, H] and the gates after their nonlinearities [B, G]."""
    compute = wh_HG.dtype
    mh_BH = _dot(carry.h.astype(compute), wmh_HH)
    m_BH = mx_BH * mh_BH
    z_BG = zx_BG + _dot(m_BH.astype(compute), wh_HG)
    i, f, o, u = _split_gates(z_BG)
    c = f * carry.c.astype(jnp.float32) + i * u
    carry = LayerCarry(h=o * jnp.tanh(c), c=c.astype(carry.c.dtype))
    return carry, (mh_BH, jnp.concatenate([i, f, o, u], axis=-1))


def recurrence_reference(
    mx_TBH: Array,
    zx_TBG: Array,
    wmh_HH: Array,
    wh_HG: Array,
    carry: LayerCarry,
    compute: jnp.dtype,
) -> tuple[Array, LayerCarry]:
    """Run the equations with JAX's own gradient; arguments and results as `recurrence`."""
    wmh_HH, wh_HG = wmh_HH.astype(compute), wh_HG.astype(compute)

    def step(carry: LayerCarry, inputs: tuple[Array, Array]) -> tuple[LayerCarry, Array]:
        carry, _ = _step(carry, *inputs, wmh_HH, wh_HG)
        return carry, carry.h.astype(compute)

    carry, h_TBH = jax.lax.scan(step, carry, (mx_TBH, zx_TBG))
    return h_TBH, carry


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def recurrence(
    mx_TBH: Array,
    zx_TBG: Array,
    wmh_HH: Array,
    wh_HG: Array,
    carry: LayerCarry,
    compute: jnp.dtype,
) -> tuple[Array, LayerCarry]:
    """Run one layer over a window.

    Args:
        mx_TBH: x Wmx, float32.
        zx_TBG: x Wx + b, float32.
        wmh_HH: Wmh, float32.
        wh_HG: Wh, float32.
        carry: h and c before the window.
        compute: type of the operands of both products.

    Returns:
        h at every step [T, B, H] in the compute type, and the carry after the window. All
        gradients are float32, those of the weights one float32 sum over T and B.
    """
    return recurrence_reference(mx_TBH, zx_TBG, wmh_HH, wh_HG, carry, compute)


class _Saved(NamedTuple):
    """What the backward scan needs; all but mx and the carry in the compute type."""

    mx_TBH: Array
    wmh_HH: Array
    wh_HG: Array
    carry: LayerCarry
    h_TBH: Array
    c_TBH: Array
    mh_TBH: Array
    gates_TBG: Array


def _forward(
    mx_TBH: Array,
    zx_TBG: Array,
    wmh_HH: Array,
    wh_HG: Array,
    carry: LayerCarry,
    compute: jnp.dtype,
) -> tuple[tuple[Array, LayerCarry], _Saved]:
    wmh_HH, wh_HG = wmh_HH.astype(compute), wh_HG.astype(compute)

    def step(
        carry: LayerCarry, inputs: tuple[Array, Array]
    ) -> tuple[LayerCarry, tuple[Array, Array, Array, Array]]:
        carry, (mh_BH, gates_BG) = _step(carry, *inputs, wmh_HH, wh_HG)
        saved = (carry.h.astype(compute), carry.c, mh_BH.astype(compute), gates_BG.astype(compute))
        return carry, saved

    last, (h_TBH, c_TBH, mh_TBH, gates_TBG) = jax.lax.scan(step, carry, (mx_TBH, zx_TBG))
    saved = _Saved(mx_TBH, wmh_HH, wh_HG, carry, h_TBH, c_TBH, mh_TBH, gates_TBG)
    return (h_TBH, last), saved


def _backward(
    compute: jnp.dtype, saved: _Saved, cotangents: tuple[Array, LayerCarry]
) -> tuple[Array, Array, Array, Array, LayerCarry]:
    dh_TBH, dlast = cotangents
    before_c_TBH = jnp.concatenate([saved.carry.c[None], saved.c_TBH[:-1]])

    def step(
        later: tuple[Array, Array], inputs: tuple[Array, ...]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        dh, dc = later
        dh_out, mx, mh, gates, c, before_c = (x.astype(jnp.float32) for x in inputs)
        i, f, o, u = jnp.split(gates, 4, axis=-1)
        tanh_c = jnp.tanh(c)
        dh = dh + dh_out
        dc = dc + dh * o * (1 - tanh_c * tanh_c)
        dz_BG = jnp.concatenate(
            [
                dc * u * i * (1 - i),
                dc * before_c * f * (1 - f),
                dh * tanh_c * o * (1 - o),
                dc * i * (1 - u * u),
            ],
            axis=-1,
        ).astype(compute)
        dm = _dot_transposed(dz_BG, saved.wh_HG)
        dmh_BH = (dm * mx).astype(compute)
        dh = _dot_transposed(dmh_BH, saved.wmh_HH)
        return (dh, dc * f), (dz_BG, dmh_BH, dm * mh)

    (dh0_BH, dc0_BH), (dz_TBG, dmh_TBH, dmx_TBH) = jax.lax.scan(
        step,
        (dlast.h, dlast.c.astype(jnp.float32)),
        (dh_TBH, saved.mx_TBH, saved.mh_TBH, saved.gates_TBG, saved.c_TBH, before_c_TBH),
        reverse=True,
    )
    before_h_TBH = jnp.concatenate([saved.carry.h.astype(compute)[None], saved.h_TBH[:-1]])
    m_TBH = (saved.mx_TBH * saved.mh_TBH.astype(jnp.float32)).astype(compute)
    # Sums over t and b by einsum, not by a reshape to [T·B, H], which under a sharded program
    # becomes an all-gather of the activations.
    sum_rows = partial(jnp.einsum, "tbi,tbo->io", preferred_element_type=jnp.float32)
    return (
        dmx_TBH,
        dz_TBG.astype(jnp.float32),
        sum_rows(before_h_TBH, dmh_TBH),
        sum_rows(m_TBH, dz_TBG),
        LayerCarry(h=dh0_BH, c=dc0_BH.astype(saved.carry.c.dtype)),
    )


recurrence.defvjp(_forward, _backward)
