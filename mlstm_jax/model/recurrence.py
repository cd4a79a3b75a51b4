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


class Inputs(NamedTuple):
    """What one layer reads over a window; all float32, but c as in `LayerCarry`."""

    mx_TBH: Array  # x Wmx
    zx_TBG: Array  # x Wx + b
    wmh_HH: Array
    wh_HG: Array
    carry: LayerCarry  # before the window

    def rounded(self, compute: jnp.dtype) -> "Inputs":
        """Return the same with both matrices in the compute type."""
        wmh_HH, wh_HG = self.wmh_HH.astype(compute), self.wh_HG.astype(compute)
        return self._replace(wmh_HH=wmh_HH, wh_HG=wh_HG)


Outputs = tuple[Array, LayerCarry]


def recurrence_reference(inputs: Inputs, compute: jnp.dtype) -> Outputs:
    """Run the equations with JAX's own gradient; arguments and results as `recurrence`."""
    mx_TBH, zx_TBG, wmh_HH, wh_HG, carry = inputs.rounded(compute)

    def step(carry: LayerCarry, x: tuple[Array, Array]) -> tuple[LayerCarry, Array]:
        carry, _ = _step(carry, *x, wmh_HH, wh_HG)
        return carry, carry.h.astype(compute)

    carry, h_TBH = jax.lax.scan(step, carry, (mx_TBH, zx_TBG))
    return h_TBH, carry


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def recurrence(inputs: Inputs, compute: jnp.dtype) -> Outputs:
    """Run one layer over a window.

    Args:
        inputs: input-side products, recurrent matrices and state.
        compute: type of the operands of both recurrent products.

    Returns:
        h at every step [T, B, H] in the compute type, and the carry after the window. All
        gradients are float32, those of the matrices one float32 sum over T and B.
    """
    return recurrence_reference(inputs, compute)


class _Saved(NamedTuple):
    """What the backward scan needs beside the inputs; in the compute type, c as in the carry."""

    h_TBH: Array
    c_TBH: Array
    mh_TBH: Array
    gates_TBG: Array


def _forward(inputs: Inputs, compute: jnp.dtype) -> tuple[Outputs, tuple[Inputs, _Saved]]:
    inputs = inputs.rounded(compute)

    def step(carry: LayerCarry, x: tuple[Array, Array]) -> tuple[LayerCarry, _Saved]:
        carry, (mh, gates) = _step(carry, *x, inputs.wmh_HH, inputs.wh_HG)
        h, mh, gates = (value.astype(compute) for value in (carry.h, mh, gates))
        return carry, _Saved(h, carry.c, mh, gates)

    last, saved = jax.lax.scan(step, inputs.carry, (inputs.mx_TBH, inputs.zx_TBG))
    # zx is not needed again: its shape is that of the gates.
    return (saved.h_TBH, last), (inputs._replace(zx_TBG=jnp.zeros(())), saved)


def _backward(
    compute: jnp.dtype, residuals: tuple[Inputs, _Saved], cotangents: Outputs
) -> tuple[Inputs]:
    inputs, saved = residuals
    dh_TBH, dlast = cotangents
    before_c_TBH = jnp.concatenate([inputs.carry.c[None], saved.c_TBH[:-1]])

    def step(
        later: tuple[Array, Array], now: tuple[Array, ...]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        dh, dc = later
        dh_out, mx, mh, gates, c, before_c = (x.astype(jnp.float32) for x in now)
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
        dm = _dot_transposed(dz_BG, inputs.wh_HG)
        dmh_BH = (dm * mx).astype(compute)
        dh = _dot_transposed(dmh_BH, inputs.wmh_HH)
        return (dh, dc * f), (dz_BG, dmh_BH, dm * mh)

    (dh0_BH, dc0_BH), (dz_TBG, dmh_TBH, dmx_TBH) = jax.lax.scan(
        step,
        (dlast.h, dlast.c.astype(jnp.float32)),
        (dh_TBH, inputs.mx_TBH, saved.mh_TBH, saved.gates_TBG, saved.c_TBH, before_c_TBH),
        reverse=True,
    )
    before_h_TBH = jnp.concatenate([inputs.carry.h.astype(compute)[None], saved.h_TBH[:-1]])
    m_TBH = (inputs.mx_TBH * saved.mh_TBH.astype(jnp.float32)).astype(compute)
    # Sums over t and b by einsum, not by a reshape to [T·B, H], which under a sharded program
    # becomes an all-gather of the activations.
    sum_rows = partial(jnp.einsum, "tbi,tbo->io", preferred_element_type=jnp.float32)
    gradient = Inputs(
        mx_TBH=dmx_TBH,
        zx_TBG=dz_TBG.astype(jnp.float32),
        wmh_HH=sum_rows(before_h_TBH, dmh_TBH),
        wh_HG=sum_rows(m_TBH, dz_TBG),
        carry=LayerCarry(h=dh0_BH, c=dc0_BH.astype(inputs.carry.c.dtype)),
    )
    return (gradient,)


recurrence.defvjp(_forward, _backward)
