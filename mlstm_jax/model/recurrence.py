"""The multiplicative LSTM over time, and its gradient.

One layer (Krause et al. 2016, eqs. 10-12 and the LSTM around them; Puri et al. 2018, section VI)::

    mx_t = x_t Wmx                                       [B, H]
    mh_t = h_{t-1} Wmh                                   [B, H]
    m_t  = mx_t ∘ mh_t                                   [B, H]
    z_t  = x_t Wx + m_t Wh + b  = [i f o u]              [B, 4H]
    c_t  = σ(f) ∘ c_{t-1} + σ(i) ∘ tanh(u)               [B, H]
    h_t  = σ(o) ∘ tanh(c_t)                              [B, H]

Where x_t is a byte, Wmx and Wx are tables of 256 rows and x_t W is a lookup.

`recurrence_reference` is these lines and JAX's own gradient. `recurrence` computes the same, and
has the gradient written out, for three reasons:

* Reverse mode through `lax.scan` adds to the weight gradients at every step, one small product at
  a time, in the compute type. Here the backward scan makes dz_t, dmh_t and dmx_t only, and each
  weight gradient is one product over all T·B rows afterwards, summed in float32.
* The products of the backward scan get operands of the compute type, where JAX would multiply a
  float32 cotangent by a half-precision matrix.
* It saves mh, the four gates, c and h; m, tanh(c_t) and the derivatives of σ are cheap to make
  again.

With `recompute_every` = k even these are kept for k steps at a time only.

Arrays are time-major here and only here. h and c are float32 between steps (c optionally in the
compute type), and h is rounded to the compute type where it enters a product. Every product of the
forward scan is over B rows, whatever T is: two carried windows give the bits of one long window.
docs/performance.md says what each choice bought.
"""

from functools import partial
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp

from mlstm_jax.model import cell, kernels, stacks
from mlstm_jax.model.inputs import is_bytes, read, read_gradients
from mlstm_jax.model.product import dot, sum_rows

Array = jax.Array


class LayerCarry(NamedTuple):
    """State of one layer between two steps: h float32 [B, H], c [B, H]."""

    h: Array
    c: Array


class Sequence(NamedTuple):
    """What changes from step to step.

    x is the bytes, int32 [T, B], or the states of the layer below, [T, B, I]. Where hold_TB (bool)
    is true, h and c stay as they are, and their gradient passes.
    """

    x: Array
    hold_TB: Array | None = None


class Weights(NamedTuple):
    """The matrices and the bias, float32; for bytes I is 256, and row v is that of byte v."""

    wmx_IH: Array
    wx_IG: Array
    wmh_HH: Array
    wh_HG: Array
    b_G: Array


Outputs = tuple[LayerCarry, Array]
# How the loops of a gradient are made, see `recurrence`.
Loops = Literal["apart", "packed", "pallas", "interpreted"]


def _rounded(weights: Weights, x: Array, compute: jnp.dtype) -> Weights:
    """Return the matrices of products in the compute type; tables and the bias stay as they are."""
    wmx_IH, wx_IG, wmh_HH, wh_HG, b_G = weights
    if not is_bytes(x):
        wmx_IH, wx_IG = wmx_IH.astype(compute), wx_IG.astype(compute)
    return Weights(wmx_IH, wx_IG, wmh_HH.astype(compute), wh_HG.astype(compute), b_G)


def _step(
    rounded_h: Array, carry: LayerCarry, now: Sequence, w: Weights
) -> tuple[LayerCarry, tuple[Array, cell.Gates]]:
    """One step: the new carry, then mh and the four gates after their nonlinearities, [B, H].

    rounded_h is h in the type of the products.
    """
    mh = dot(rounded_h, w.wmh_HH)
    m = read(now.x, w.wmx_IH) * mh
    z_BG = read(now.x, w.wx_IG) + dot(m, w.wh_HG) + w.b_G[None]
    hold_B1 = None if now.hold_TB is None else now.hold_TB[:, None]
    gates, h, c = cell.advance(
        tuple(jnp.split(z_BG, 4, axis=-1)), carry.h, carry.c.astype(jnp.float32), hold_B1
    )
    return LayerCarry(h=h, c=c.astype(carry.c.dtype)), (mh, gates)


def recurrence_reference(
    carry: LayerCarry, sequence: Sequence, weights: Weights, compute: jnp.dtype
) -> Outputs:
    """Run the equations with JAX's own gradient; arguments and results as `recurrence`."""
    weights = _rounded(weights, sequence.x, compute)

    def step(carry: LayerCarry, now: Sequence) -> tuple[LayerCarry, Array]:
        carry, _ = _step(carry.h, carry, now, weights)
        return carry, carry.h.astype(compute)

    return jax.lax.scan(step, carry, sequence)


def recurrence_trace(
    carry: LayerCarry, sequence: Sequence, weights: Weights, compute: jnp.dtype
) -> tuple[LayerCarry, LayerCarry]:
    """Return the carry after the window, and that after every step, [T, B, H]; no gradient."""
    weights = _rounded(weights, sequence.x, compute)
    window = sequence.x.shape[0]

    def step(t: Array, before: tuple[LayerCarry, LayerCarry]) -> tuple[LayerCarry, LayerCarry]:
        carry, steps = before
        after, _ = _step(carry.h, carry, stacks.at(sequence, t), weights)
        return after, jax.tree.map(lambda stack, x: stacks.put(stack, x, t), steps, after)

    steps = jax.tree.map(lambda x: stacks.empty((window, *x.shape), x.dtype), carry)
    last, steps = jax.lax.fori_loop(0, window, step, (carry, steps))
    return last, jax.tree.map(lambda stack, x: stacks.of_bits(stack, x.dtype), steps, carry)


def recurrence(
    carry: LayerCarry,
    sequence: Sequence,
    weights: Weights,
    compute: jnp.dtype,
    recompute_every: int | None = None,
    loops: Loops = "apart",
) -> Outputs:
    """Run one layer over a window.

    Args:
        carry: the state before the window.
        sequence: what it reads, T steps of it.
        weights: its matrices and bias.
        compute: type of the operands of every product.
        recompute_every: keep the carry of every k-th step for the backward pass, and what lies
            between for one run of k steps at a time, made again then: memory for the time of a
            second forward pass. Unset: keep everything.
        loops: what runs where a gradient is taken. apart: XLA's kernels, and the parts of a step
            in arrays of their own, as is best on a CPU. packed: XLA's, and these parts in one
            array, as is best on a GPU; the same numbers. pallas: kernels of our own, for GPUs, see
            kernels.py; the same numbers to rounding. interpreted: the same on a CPU, for tests.

    Returns:
        The carry after the window, and h at every step [T, B, H] in the compute type. Gradients
        are float32, those of the weights summed in float32. Without a gradient nothing is kept.
    """
    window = sequence.x.shape[0]
    if recompute_every is None or recompute_every >= window:
        return _recurrence(carry, sequence, weights, compute, loops)

    @jax.checkpoint
    def run(carry: LayerCarry, sequence: Sequence) -> Outputs:
        return _recurrence(carry, sequence, weights, compute, loops)

    # A run of what is left over, then whole ones.
    short = window % recompute_every
    h = []
    if short:
        carry, first_h_TBH = run(carry, jax.tree.map(lambda x: x[:short], sequence))
        h.append(first_h_TBH)
    runs = jax.tree.map(lambda x: x[short:].reshape(-1, recompute_every, *x.shape[1:]), sequence)
    carry, run_h = jax.lax.scan(run, carry, runs)
    h.append(run_h.reshape(-1, *run_h.shape[2:]))
    return carry, jnp.concatenate(h)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _recurrence(
    carry: LayerCarry, sequence: Sequence, weights: Weights, compute: jnp.dtype, loops: Loops
) -> Outputs:
    # What is not asked for is not made: the compiler drops what XLA's loop saves.
    return _forward_by_xla(carry, sequence, weights, compute, loops)[0]


class _Saved(NamedTuple):
    """What the backward scan needs beside the arguments, in stacks, see `stacks.empty`.

    h after each step [T, B, H], c before it [T, B, H], and of each step mh, i, f, o and u: packed
    as one [T, 5, B, H], which a GPU writes in one kernel; else mh [T, B, H], and the gates side by
    side [T, B, 4H], where the backward scan puts dz in their place.
    """

    h: Array
    before_c: Array
    made: tuple[Array, ...]


Residuals = tuple[LayerCarry, Sequence, Weights, _Saved]


def _forward(
    carry: LayerCarry, sequence: Sequence, weights: Weights, compute: jnp.dtype, loops: Loops
) -> tuple[Outputs, Residuals]:
    if loops in ("apart", "packed"):
        return _forward_by_xla(carry, sequence, weights, compute, loops)
    weights = _rounded(weights, sequence.x, compute)
    made = kernels.forward(
        *(carry.h, carry.c, *sequence, tuple(weights), compute, loops == "interpreted")
    )
    saved = _Saved(made.h_TBH, made.before_c, (made.made,))
    return (LayerCarry(made.h, made.c), made.h_TBH), (carry, sequence, weights, saved)


def _forward_by_xla(
    carry: LayerCarry, sequence: Sequence, weights: Weights, compute: jnp.dtype, loops: Loops
) -> tuple[Outputs, Residuals]:
    weights = _rounded(weights, sequence.x, compute)
    window, shape, packed = sequence.x.shape[0], carry.h.shape, loops == "packed"

    def step(
        t: Array, before: tuple[Array, LayerCarry, _Saved]
    ) -> tuple[Array, LayerCarry, _Saved]:
        rounded_h, carry, saved = before
        after, (mh, gates) = _step(rounded_h, carry, stacks.at(sequence, t), weights)
        rounded_h = after.h.astype(compute)
        made = [x.astype(compute) for x in (mh, *gates)]
        saved = _Saved(
            h=stacks.put(saved.h, rounded_h, t),
            before_c=stacks.put(saved.before_c, carry.c, t),
            made=(stacks.put(saved.made[0], jnp.stack(made), t),)
            if packed
            else (
                stacks.put(saved.made[0], made[0], t),
                stacks.put_side_by_side(saved.made[1], made[1:], t),
            ),
        )
        return rounded_h, after, saved

    saved = _Saved(
        h=stacks.empty((window, *shape), compute),
        before_c=stacks.empty((window, *shape), carry.c.dtype),
        made=(stacks.empty((window, 5, *shape), compute),)
        if packed
        else (
            stacks.empty((window, *shape), compute),
            stacks.empty((window, shape[0], 4 * shape[1]), compute),
        ),
    )
    # h goes from step to step in both types: rounded anew it would be a kernel more.
    first = carry.h.astype(compute), carry, saved
    _, last, saved = jax.lax.fori_loop(0, window, step, first)
    return (last, stacks.of_bits(saved.h, compute)), (carry, sequence, weights, saved)


def _backward_by_xla(
    compute: jnp.dtype, loops: Loops, residuals: Residuals, dlast: LayerCarry, dh_TBH: Array
) -> tuple[Array, Array, Array, Array]:
    """Return dh and dc of before the window, and of each step dz, and dmh with dmx."""
    first, sequence, weights, saved = residuals
    window, shape, packed = sequence.x.shape[0], first.h.shape, loops == "packed"
    mx_TBH = None if is_bytes(sequence.x) else read(sequence.x, weights.wmx_IH)
    # Transposed once: on a CPU a product with a transposed right side is a third slower.
    wmh_transposed, wh_transposed = weights.wmh_HH.T, weights.wh_HG.T
    dh_bits = stacks.as_bits(dh_TBH)
    gates_BG = None
    dz = stacks.empty((window, shape[0], 4 * shape[1]), compute)
    if not packed:
        # dz takes the gates' place: no fresh memory, whose pages a CPU would have to be given. A
        # step is read after the one behind it was written, or XLA would copy the stack each time.
        saved, dz = saved._replace(made=saved.made[:1]), saved.made[1]
        gates_BG = stacks.at(dz, jnp.int32(window - 1))

    def step(k: Array, later: tuple[Any, ...]) -> tuple[Any, ...]:
        dh, dc, gates_BG, dz_TBG, dm_T2BH = later
        t = window - 1 - k
        now, here = stacks.at((sequence, saved), t)
        # A lookup here saves a GPU from writing all of mx first.
        mx = read(now.x, weights.wmx_IH) if mx_TBH is None else stacks.at(mx_TBH, t)
        mh, *gates = (
            stacks.of_bits(x, compute).astype(jnp.float32)
            for x in (here.made[0] if packed else (*here.made, *jnp.split(gates_BG, 4, axis=-1)))
        )
        before_c = stacks.of_bits(here.before_c, first.c.dtype).astype(jnp.float32)
        dh = dh + stacks.of_bits(stacks.at(dh_bits, t), compute).astype(jnp.float32)
        hold_B1 = None if now.hold_TB is None else now.hold_TB[:, None]
        found = cell.gradient(cell.Gates(*gates), before_c, dh, dc, hold_B1)
        dz_BG = jnp.concatenate(found.z, axis=-1).astype(compute)
        dm = dot(dz_BG, wh_transposed)
        dmh, dmx = (dm * mx).astype(compute), (dm * mh).astype(compute)
        dh = dot(dmh, wmh_transposed)
        if found.held_h is not None:
            dh = dh + found.held_h
        dz_TBG = stacks.put(dz_TBG, dz_BG, t)
        return (
            dh,
            found.c,
            None if packed else stacks.at(dz_TBG, jnp.maximum(t - 1, 0)),
            dz_TBG,
            stacks.put(dm_T2BH, jnp.stack([dmh, dmx]), t),
        )

    dm = stacks.empty((window, 2, *shape), compute)
    dh0_BH, dc0_BH, _, dz, dm = jax.lax.fori_loop(
        0, window, step, (dlast.h, dlast.c.astype(jnp.float32), gates_BG, dz, dm)
    )
    return dh0_BH, dc0_BH, stacks.of_bits(dz, compute), stacks.of_bits(dm, compute)


def _backward(
    compute: jnp.dtype, loops: Loops, residuals: Residuals, cotangents: Outputs
) -> tuple[LayerCarry, Sequence, Weights]:
    first, sequence, weights, saved = residuals
    dlast, dh_TBH = cotangents
    packed = loops != "apart"
    if loops in ("apart", "packed"):
        dh0_BH, dc0_BH, dz_TBG, dm_T2BH = _backward_by_xla(compute, loops, residuals, dlast, dh_TBH)
    else:
        dh0_BH, dc0_BH, dz_TBG, dm_T2BH = kernels.backward(
            *(dlast.h, dlast.c.astype(jnp.float32), dh_TBH, *sequence, tuple(weights)),
            *(saved.before_c, saved.made[0], compute, loops == "interpreted"),
        )
    dmh_TBH, dmx_TBH = dm_T2BH[:, 0], dm_T2BH[:, 1]
    h_TBH = stacks.of_bits(saved.h, compute)
    mh_TBH = stacks.of_bits(saved.made[0][:, 0] if packed else saved.made[0], compute)
    before_h_TBH = jnp.concatenate([first.h.astype(compute)[None], h_TBH[:-1]])
    mx_TBH = read(sequence.x, weights.wmx_IH)
    m_TBH = (mx_TBH * mh_TBH.astype(jnp.float32)).astype(compute)
    dx, dwmx_IH, dwx_IG = read_gradients(sequence.x, weights.wmx_IH, weights.wx_IG, dmx_TBH, dz_TBG)
    # Each byte adds one row of the table and the bias, so the table's gradient has the bias's.
    b_G = (
        jnp.sum(dwx_IG, axis=0)
        if is_bytes(sequence.x)
        else jnp.sum(dz_TBG, (0, 1), dtype=jnp.float32)
    )
    return (
        LayerCarry(h=dh0_BH, c=dc0_BH.astype(first.c.dtype)),
        Sequence(x=cast(Array, dx), hold_TB=None),
        Weights(
            wmx_IH=dwmx_IH,
            wx_IG=dwx_IG,
            wmh_HH=sum_rows(before_h_TBH, dmh_TBH),
            wh_HG=sum_rows(m_TBH, dz_TBG),
            b_G=b_G,
        ),
    )


_recurrence.defvjp(_forward, _backward)
