"""The multiplicative LSTM: one step, its loops over time, and its gradient.

One layer (Krause et al. 2016, eqs. 10-12 and the LSTM around them; Puri et al. 2018, section VI)::

    mx_t = x_t Wmx                                       [B, H]
    mh_t = h_{t-1} Wmh                                   [B, H]
    m_t  = mx_t ∘ mh_t                                   [B, H]
    z_t  = x_t Wx + m_t Wh + b  = [i f o u]              [B, 4H]
    c_t  = σ(f) ∘ c_{t-1} + σ(i) ∘ tanh(u)               [B, H]
    h_t  = σ(o) ∘ tanh(c_t)                              [B, H]

Where x_t is a byte, Wmx and Wx are tables of 256 rows and x_t W is a lookup.

A layer has an explicit gradient instead of JAX's own, for three reasons:

* Reverse mode through `lax.scan` adds to the weight gradients at every step, one small product at
  a time, in the compute type. Here the backward scan computes only dz_t, dmh_t and dmx_t, and each
  weight gradient is one product over all T·B rows afterwards, summed in float32.
* The products of the backward scan have operands of the compute type; JAX would multiply a float32
  cotangent by a half-precision matrix.
* It saves mh, the four gates, c and h; m, tanh(c_t) and the derivatives of σ are cheap to
  recompute.

`time_loops.recurrence` runs a layer with a value of `Loops`: `SEPARATE` and `STACKED` are XLA's,
with equal numbers, and pallas.py has those of our own kernels.

h and c are float32 between steps (c optionally in the compute type), and h is rounded to the
compute type where it enters a product. Every product of the forward scan is over B rows for any T,
so two carried windows give bit for bit the result of one long window. docs/performance.md has the
gain from each choice.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlstm_jax.model.architecture import Carry
from mlstm_jax.model.ops import (
    bias_gradient,
    is_bytes,
    project,
    project_gradient,
    sum_rows,
    times,
)
from mlstm_jax.model.time_loops import (
    Loops,
    Sequence,
    as_bits,
    empty_buffer,
    of_bits,
    put_side_by_side,
    put_step,
    step_of,
)

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

    All arrays have one shape and are float32; the Pallas kernels compute these lines, too.

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
    """The matrices and the bias, float32; for bytes I is 256, and row v belongs to byte v.

    For reading, those that multiply h and m may be `Transposed`, in the compute type.
    """

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


class Saved(NamedTuple):
    """What the backward loop needs besides the arguments, in time buffers (see `empty_buffer`).

    h after each step [T, B, H], c before each step [T, B, H], and mh, i, f, o and u of each step:
    stacked as one [T, 5, B, H], which a GPU writes in one kernel, or separate: mh [T, B, H], and
    the gates side by side [T, B, 4H], which the backward loop overwrites with dz.
    """

    h: Array
    before_c: Array
    mh_gates: tuple[Array, ...]


def _forward_loop(
    stacked: bool, carry: Carry, sequence: Sequence, weights: LayerWeights, compute: jnp.dtype
) -> tuple[Carry, Saved]:
    """Run the window with rounded matrices; return the new carry and what the loop back needs."""
    window, shape = sequence.x.shape[0], carry.h.shape
    run = layer_step(weights, shape[0])

    def step(t: Array, before: tuple[Array, Carry, Saved]) -> tuple[Array, Carry, Saved]:
        rounded_h, carry, saved = before
        after, (mh, gates) = run(rounded_h, carry, step_of(sequence, t))
        rounded_h = after.h.astype(compute)
        parts = [x.astype(compute) for x in (mh, *gates)]
        saved = Saved(
            h=put_step(saved.h, rounded_h, t),
            before_c=put_step(saved.before_c, carry.c, t),
            mh_gates=(put_step(saved.mh_gates[0], jnp.stack(parts), t),)
            if stacked
            else (
                put_step(saved.mh_gates[0], parts[0], t),
                put_side_by_side(saved.mh_gates[1], parts[1:], t),
            ),
        )
        return rounded_h, after, saved

    saved = Saved(
        h=empty_buffer((window, *shape), compute),
        before_c=empty_buffer((window, *shape), carry.c.dtype),
        mh_gates=(empty_buffer((window, 5, *shape), compute),)
        if stacked
        else (
            empty_buffer((window, *shape), compute),
            empty_buffer((window, shape[0], 4 * shape[1]), compute),
        ),
    )
    # h is carried in both types: rounding it again at each step would need another kernel.
    first = carry.h.astype(compute), carry, saved
    _, last, saved = jax.lax.fori_loop(0, window, step, first)
    return last, saved


def _backward_loop(
    stacked: bool,
    first: Carry,
    sequence: Sequence,
    weights: LayerWeights,
    saved: Saved,
    compute: jnp.dtype,
    dlast: Carry,
    dh_TBH: Array,
) -> tuple[Array, Array, Array, Array]:
    """Run back through the window that `_forward_loop` ran from the carry `first`."""
    window, shape = sequence.x.shape[0], first.h.shape
    mx_TBH = None if is_bytes(sequence.x) else project(sequence.x, weights.wmx_IH)
    times_wmh, times_wh = (
        times(w, shape[0], transposed=True) for w in (weights.wmh_HH, weights.wh_HG)
    )
    dh_bits = as_bits(dh_TBH)
    gates_BG = None
    dz = empty_buffer((window, shape[0], 4 * shape[1]), compute)
    if not stacked:
        # dz overwrites the gates, so a CPU need not allocate new pages of memory. A step is read
        # after the later one has been written; otherwise XLA would copy the buffer each time.
        saved, dz = saved._replace(mh_gates=saved.mh_gates[:1]), saved.mh_gates[1]
        gates_BG = step_of(dz, jnp.int32(window - 1))

    def step(k: Array, later: tuple[Any, ...]) -> tuple[Any, ...]:
        dh, dc, gates_BG, dz_TBG, dm_T2BH = later
        t = window - 1 - k
        now, here = step_of((sequence, saved), t)
        # A lookup here saves a GPU from writing all of mx first.
        mx = project(now.x, weights.wmx_IH) if mx_TBH is None else step_of(mx_TBH, t)
        parts = here.mh_gates[0] if stacked else (*here.mh_gates, *jnp.split(gates_BG, 4, axis=-1))
        mh, *gates = (of_bits(x, compute).astype(jnp.float32) for x in parts)
        before_c = of_bits(here.before_c, first.c.dtype).astype(jnp.float32)
        dh = dh + of_bits(step_of(dh_bits, t), compute).astype(jnp.float32)
        dz, dc = step_gradient(Gates(*gates), before_c, dh, dc)
        dz_BG = jnp.concatenate(dz, axis=-1).astype(compute)
        dm = times_wh(dz_BG)
        dmh, dmx = (dm * mx).astype(compute), (dm * mh).astype(compute)
        dz_TBG = put_step(dz_TBG, dz_BG, t)
        return (
            times_wmh(dmh),
            dc,
            None if stacked else step_of(dz_TBG, jnp.maximum(t - 1, 0)),
            dz_TBG,
            put_step(dm_T2BH, jnp.stack([dmh, dmx]), t),
        )

    dm = empty_buffer((window, 2, *shape), compute)
    dh0_BH, dc0_BH, _, dz, dm = jax.lax.fori_loop(
        0, window, step, (dlast.h, dlast.c.astype(jnp.float32), gates_BG, dz, dm)
    )
    return dh0_BH, dc0_BH, of_bits(dz, compute), of_bits(dm, compute)


def gradient(
    backward_loop: Callable[..., tuple[Array, Array, Array, Array]],
    first: Carry,
    sequence: Sequence,
    weights: LayerWeights,
    saved: Saved,
    compute: jnp.dtype,
    *cotangents: Any,
) -> tuple[Carry, Array | None, LayerWeights]:
    """Return the cotangents of the carry, of x and of the weights.

    The loop returns those of h and c before the window, float32 [B, H]; and, in the compute type,
    dz of each step [T, B, 4H], and dmh with dmx [T, 2, B, H].
    """
    dh0_BH, dc0_BH, dz_TBG, dm_T2BH = backward_loop(
        first, sequence, weights, saved, compute, *cotangents
    )
    dmh_TBH, dmx_TBH = dm_T2BH[:, 0], dm_T2BH[:, 1]
    h_TBH, mh = of_bits(saved.h, compute), saved.mh_gates[0]
    mh_TBH = of_bits(mh[:, 0] if mh.ndim == 4 else mh, compute)
    before_h_TBH = jnp.concatenate([first.h.astype(compute)[None], h_TBH[:-1]])
    mx_TBH = project(sequence.x, weights.wmx_IH)
    m_TBH = (mx_TBH * mh_TBH.astype(jnp.float32)).astype(compute)
    dx_of_mx, dwmx_IH = project_gradient(sequence.x, weights.wmx_IH, dmx_TBH)
    dx_of_z, dwx_IG = project_gradient(sequence.x, weights.wx_IG, dz_TBG)
    dx = None
    if dx_of_mx is not None and dx_of_z is not None:
        dx = (dx_of_mx + dx_of_z).astype(sequence.x.dtype)
    return (
        Carry(h=dh0_BH, c=dc0_BH.astype(first.c.dtype)),
        dx,
        LayerWeights(
            wmx_IH=dwmx_IH,
            wx_IG=dwx_IG,
            wmh_HH=sum_rows(before_h_TBH, dmh_TBH),
            wh_HG=sum_rows(m_TBH, dz_TBG),
            b_G=bias_gradient(sequence.x, dwx_IG, dz_TBG),
        ),
    )


def loops_of(forward: Any, backward: Any) -> Loops:
    """Return the loops of an mLSTM with these two under a gradient."""
    return Loops(partial(_forward_loop, False), forward, partial(gradient, backward))


# The parts of a step in separate arrays, where dz overwrites the gates: best on a CPU. Stacked in
# one array: best on a GPU.
SEPARATE, STACKED = (
    loops_of(partial(_forward_loop, stacked), partial(_backward_loop, stacked))
    for stacked in (False, True)
)
