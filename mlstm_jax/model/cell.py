"""The elementwise part of one step: gates, cell and hidden state, and their gradient.

Krause et al. 2016, the LSTM around eqs. 10-12, on arrays of one shape, float32. XLA's steps and the
Pallas kernels both compute these lines.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


class Gates(NamedTuple):
    """Input, forget and output gates after σ, and the update after tanh."""

    i: Array
    f: Array
    o: Array
    u: Array


def advance(
    z: tuple[Array, ...], before_h: Array, before_c: Array, hold: Array | None
) -> tuple[Gates, Array, Array]:
    """Return the gates, and h and c after the step.

    Args:
        z: pre-activations of the gates i, f, o and u.
        before_h: h before the step; only read if `hold` is given.
        before_c: c before the step.
        hold: bool; where it is true, h and c do not change.
    """
    i, f, o = (jax.nn.sigmoid(x) for x in z[:3])
    u = jnp.tanh(z[3])
    if hold is not None:
        i = jnp.where(hold, 0, i)
        f = jnp.where(hold, 1, f)
    c = f * before_c + i * u
    h = o * jnp.tanh(c)
    if hold is not None:
        h = jnp.where(hold, before_h, h)
    return Gates(i, f, o, u), h, c


class Gradient(NamedTuple):
    """Cotangents that a step passes back."""

    z: Gates
    c: Array  # of c before the step
    held_h: Array | None  # of h before the step where it is held, else 0; None without hold


def gradient(gates: Gates, before_c: Array, dh: Array, dc: Array, hold: Array | None) -> Gradient:
    """Propagate the cotangents dh and dc of a step's h and c back through the step."""
    i, f, o, u = gates
    tanh_c = jnp.tanh(f * before_c + i * u)
    held_h = None
    if hold is not None:
        # With i = 0 and f = 1 all other cotangents of a held step are already zero.
        held_h, dh = jnp.where(hold, dh, 0), jnp.where(hold, 0, dh)
    dc = dc + dh * o * (1 - tanh_c * tanh_c)
    dz = Gates(
        i=dc * u * i * (1 - i),
        f=dc * before_c * f * (1 - f),
        o=dh * tanh_c * o * (1 - o),
        u=dc * i * (1 - u * u),
    )
    return Gradient(dz, dc * f, held_h)
