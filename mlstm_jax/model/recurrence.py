"""The multiplicative LSTM over time, and its gradient.

One layer (Krause et al. 2016, eqs. 10-12 and the LSTM around them; Puri et al. 2018, section VI)::

    mx_t = x_t Wmx                                       [B, H]
    mh_t = h_{t-1} Wmh                                   [B, H]
    m_t  = mx_t ∘ mh_t                                   [B, H]
    z_t  = x_t Wx + m_t Wh + b  = [i f o u]              [B, 4H]
    c_t  = σ(f) ∘ c_{t-1} + σ(i) ∘ tanh(u)               [B, H]
    h_t  = σ(o) ∘ tanh(c_t)                              [B, H]

Where x_t is a byte, Wmx and Wx are tables of 256 rows and x_t W is a lookup.

`recurrence_reference` implements these lines with JAX's own gradient. `recurrence` computes the
same with an explicit gradient, for three reasons:

* Reverse mode through `lax.scan` adds to the weight gradients at every step, one small product at
  a time, in the compute type. Here the backward scan computes only dz_t, dmh_t and dmx_t, and each
  weight gradient is one product over all T·B rows afterwards, summed in float32.
* The products of the backward scan have operands of the compute type; JAX would multiply a float32
  cotangent by a half-precision matrix.
* It saves mh, the four gates, c and h; m, tanh(c_t) and the derivatives of σ are cheap to
  recompute.

With `recompute_every` = k even these are kept for only k steps at a time.

Arrays are time-major here and only here. h and c are float32 between steps (c optionally in the
compute type), and h is rounded to the compute type where it enters a product. Every product of the
forward scan is over B rows for any T, so two carried windows give bit for bit the result of one
long window. docs/performance.md has the gain from each choice.
"""

from functools import partial
from typing import Literal, cast

import jax
import jax.numpy as jnp

from mlstm_jax.model import kernels, scans, stacks
from mlstm_jax.model.architecture import Carry
from mlstm_jax.model.inputs import is_bytes, project, read_gradients
from mlstm_jax.model.layer import LayerWeights, Sequence, layer_step, rounded
from mlstm_jax.model.matmul import sum_rows
from mlstm_jax.model.scans import Saved

Array = jax.Array


Outputs = tuple[Carry, Array]
# The implementation of the loops of a gradient, see `recurrence`.
Loops = Literal["apart", "packed", "pallas", "interpreted"]


def recurrence_reference(
    carry: Carry, sequence: Sequence, weights: LayerWeights, compute: jnp.dtype
) -> Outputs:
    """Run the equations with JAX's own gradient; arguments and results as in `recurrence`."""
    weights = rounded(weights, sequence.x, compute)

    def step(carry: Carry, now: Sequence) -> tuple[Carry, Array]:
        carry, _ = layer_step(carry.h, carry, now, weights)
        return carry, carry.h.astype(compute)

    return jax.lax.scan(step, carry, sequence)


def recurrence_states(
    carry: Carry, sequence: Sequence, weights: LayerWeights, compute: jnp.dtype
) -> tuple[Carry, Carry]:
    """Return the carry after the window and after every step, [T, B, H]; no gradient."""
    weights = rounded(weights, sequence.x, compute)
    window = sequence.x.shape[0]

    def step(t: Array, before: tuple[Carry, Carry]) -> tuple[Carry, Carry]:
        carry, steps = before
        after, _ = layer_step(carry.h, carry, stacks.at(sequence, t), weights)
        return after, jax.tree.map(lambda stack, x: stacks.put(stack, x, t), steps, after)

    steps = jax.tree.map(lambda x: stacks.empty((window, *x.shape), x.dtype), carry)
    last, steps = jax.lax.fori_loop(0, window, step, (carry, steps))
    return last, jax.tree.map(lambda stack, x: stacks.of_bits(stack, x.dtype), steps, carry)


def recurrence(
    carry: Carry,
    sequence: Sequence,
    weights: LayerWeights,
    compute: jnp.dtype,
    recompute_every: int | None = None,
    loops: Loops = "apart",
) -> Outputs:
    """Run one layer over a window.

    Args:
        carry: the state before the window.
        sequence: its input, T steps.
        weights: its matrices and bias.
        compute: operand type of every product.
        recompute_every: keep the carry of every k-th step for the backward pass, and recompute the
            steps between, k at a time. This saves memory and costs the time of a second forward
            pass. Unset: keep everything.
        loops: the implementation if a gradient is taken. apart: XLA's kernels, with the parts of a
            step in separate arrays; best on a CPU. packed: XLA's kernels, with these parts in one
            array; best on a GPU, with the same numbers. pallas: this package's kernels for GPUs,
            see kernels.py; the same numbers to rounding. interpreted: these on a CPU, for tests.

    Returns:
        The carry after the window, and h at every step [T, B, H] in the compute type. Gradients
        are float32; those of the weights are summed in float32. Without a gradient nothing is kept.
    """
    window = sequence.x.shape[0]
    if recompute_every is None or recompute_every >= window:
        return _recurrence(carry, sequence, weights, compute, loops)

    @jax.checkpoint
    def run(carry: Carry, sequence: Sequence) -> Outputs:
        return _recurrence(carry, sequence, weights, compute, loops)

    # First a short run of the remainder, then full runs.
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
    carry: Carry, sequence: Sequence, weights: LayerWeights, compute: jnp.dtype, loops: Loops
) -> Outputs:
    # The compiler removes unused values, so without a gradient XLA's loop saves nothing.
    weights = rounded(weights, sequence.x, compute)
    last, saved = scans.forward(carry, sequence, weights, compute, loops == "packed")
    return last, saved.h_TBH(compute)


Residuals = tuple[Carry, Sequence, LayerWeights, Saved]


def _forward(
    carry: Carry, sequence: Sequence, weights: LayerWeights, compute: jnp.dtype, loops: Loops
) -> tuple[Outputs, Residuals]:
    weights = rounded(weights, sequence.x, compute)
    if loops in ("apart", "packed"):
        last, saved = scans.forward(carry, sequence, weights, compute, loops == "packed")
        return (last, saved.h_TBH(compute)), (carry, sequence, weights, saved)
    made = kernels.forward(
        *(carry.h, carry.c, *sequence, tuple(weights), compute, loops == "interpreted")
    )
    saved = Saved(made.h_TBH, made.before_c, (made.made,))
    return (Carry(made.h, made.c), made.h_TBH), (carry, sequence, weights, saved)


def _backward(
    compute: jnp.dtype, loops: Loops, residuals: Residuals, cotangents: Outputs
) -> tuple[Carry, Sequence, LayerWeights]:
    first, sequence, weights, saved = residuals
    dlast, dh_TBH = cotangents
    packed = loops != "apart"
    if loops in ("apart", "packed"):
        dh0_BH, dc0_BH, dz_TBG, dm_T2BH = scans.backward(
            *(first, sequence, weights, saved, compute, loops == "packed", dlast, dh_TBH)
        )
    else:
        dh0_BH, dc0_BH, dz_TBG, dm_T2BH = kernels.backward(
            *(dlast.h, dlast.c.astype(jnp.float32), dh_TBH, *sequence, tuple(weights)),
            *(saved.before_c, saved.made[0], compute, loops == "interpreted"),
        )
    dmh_TBH, dmx_TBH = dm_T2BH[:, 0], dm_T2BH[:, 1]
    h_TBH = saved.h_TBH(compute)
    mh_TBH = stacks.of_bits(saved.made[0][:, 0] if packed else saved.made[0], compute)
    before_h_TBH = jnp.concatenate([first.h.astype(compute)[None], h_TBH[:-1]])
    mx_TBH = project(sequence.x, weights.wmx_IH)
    m_TBH = (mx_TBH * mh_TBH.astype(jnp.float32)).astype(compute)
    dx, dwmx_IH, dwx_IG = read_gradients(sequence.x, weights.wmx_IH, weights.wx_IG, dmx_TBH, dz_TBG)
    # Each byte adds one row of the table and the bias, so the bias's gradient is the sum of the
    # table's gradient over its rows.
    b_G = (
        jnp.sum(dwx_IG, axis=0)
        if is_bytes(sequence.x)
        else jnp.sum(dz_TBG, (0, 1), dtype=jnp.float32)
    )
    return (
        Carry(h=dh0_BH, c=dc0_BH.astype(first.c.dtype)),
        Sequence(x=cast(Array, dx), hold_TB=None),
        LayerWeights(
            wmx_IH=dwmx_IH,
            wx_IG=dwx_IG,
            wmh_HH=sum_rows(before_h_TBH, dmh_TBH),
            wh_HG=sum_rows(m_TBH, dz_TBG),
            b_G=b_G,
        ),
    )


_recurrence.defvjp(_forward, _backward)
