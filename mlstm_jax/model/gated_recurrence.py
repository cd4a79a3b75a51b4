"""A recurrent layer with one product a step over time, and its gradient: LSTM, GRU.

The layer's pre-activations are sums of two products and a bias::

    z_t = [h_{t-1} Wh | 0] + [0 | x_t Wx] + b       [B, 4H]

in which the columns of Wh are the first ones of z, and those of Wx the last. An LSTM's cover all of
z; a GRU keeps the terms of its candidate apart (see gated_cells.py). A function of the kind,
`advance`, makes the next carry of z and the carry.

The gradient is explicit for the reasons that recurrence.py has: the loop back computes dz_t only,
in the buffer of z, and each weight gradient is one product over all steps, summed in float32. It
computes the gates a second time, from z. Between steps h is float32.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from mlstm_jax.model.ops import (
    bias_gradient,
    is_bytes,
    project,
    project_gradient,
    sum_rows,
    times,
)
from mlstm_jax.model.time_loops import (
    Sequence,
    as_bits,
    empty_buffer,
    of_bits,
    put_step,
    recomputed,
    require_no_padding,
    step_of,
)

Array = jax.Array
Carry = Any  # a NamedTuple of arrays [B, H]; its h is float32
Advance = Callable[[Array, Carry], Carry]  # (z [B, Z], carry), float32 → carry, float32


class GatedWeights(NamedTuple):
    """The matrices and the bias, float32; for bytes I is 256, and row v belongs to byte v."""

    wx_IG: Array
    wh_HK: Array
    b_Z: Array

    def rounded(self, x: Array, compute: jnp.dtype) -> "GatedWeights":
        """Return the matrices of products in the compute type; tables and the bias stay."""
        wx_IG = self.wx_IG if is_bytes(x) else self.wx_IG.astype(compute)
        return GatedWeights(wx_IG, self.wh_HK.astype(compute), self.b_Z)


class Saved(NamedTuple):
    """What the loop back needs besides the arguments, in time buffers (see `empty_buffer`)."""

    h_TBH: Array  # after each step
    z_TBZ: Array
    before: Carry  # the carry before each step, [T, B, H]


def _float32(carry: Carry) -> Carry:
    return jax.tree.map(lambda x: x.astype(jnp.float32), carry)


def gated_step(
    advance: Advance, weights: GatedWeights, rows: int
) -> Callable[[Array, Carry, Sequence], tuple[Carry, Array]]:
    """Return the function of one step of `rows` rows, with rounded matrices.

    It takes h in the type of the products, the carry, and the input of the step; it returns the new
    carry, and z.
    """
    times_wh, size = times(weights.wh_HK, rows), weights.b_Z.shape[0]

    def step(rounded_h: Array, carry: Carry, now: Sequence) -> tuple[Carry, Array]:
        zh_BK, zx_BG = times_wh(rounded_h), project(now.x, weights.wx_IG)
        zh_BZ = jnp.pad(zh_BK, ((0, 0), (0, size - zh_BK.shape[1])))
        zx_BZ = jnp.pad(zx_BG, ((0, 0), (size - zx_BG.shape[1], 0)))
        z_BZ = zh_BZ + zx_BZ + weights.b_Z[None]
        before, mask_B = _float32(carry), now.padding_mask_TB
        after = advance(z_BZ, before)
        if mask_B is not None:
            after = jax.tree.map(partial(jnp.where, mask_B[:, None]), before, after)
        return jax.tree.map(lambda new, old: new.astype(old.dtype), after, carry), z_BZ

    return step


def _forward_loop(
    advance: Advance, carry: Carry, sequence: Sequence, weights: GatedWeights, compute: jnp.dtype
) -> tuple[Carry, Saved]:
    """Run the window with rounded matrices; return the new carry and what the loop back needs."""
    window, shape = sequence.x.shape[0], carry.h.shape
    run = gated_step(advance, weights, shape[0])

    def step(t: Array, before: tuple[Array, Carry, Saved]) -> tuple[Array, Carry, Saved]:
        rounded_h, carry, saved = before
        after, z_BZ = run(rounded_h, carry, step_of(sequence, t))
        rounded_h = after.h.astype(compute)
        saved = Saved(
            put_step(saved.h_TBH, rounded_h, t),
            put_step(saved.z_TBZ, z_BZ.astype(compute), t),
            jax.tree.map(lambda buffer, x: put_step(buffer, x, t), saved.before, carry),
        )
        return rounded_h, after, saved

    saved = Saved(
        empty_buffer((window, *shape), compute),
        empty_buffer((window, shape[0], weights.b_Z.shape[0]), compute),
        jax.tree.map(lambda x: empty_buffer((window, *x.shape), x.dtype), carry),
    )
    first = carry.h.astype(compute), carry, saved
    _, last, saved = jax.lax.fori_loop(0, window, step, first)
    return last, saved


def _backward_loop(
    advance: Advance,
    first: Carry,
    sequence: Sequence,
    weights: GatedWeights,
    saved: Saved,
    compute: jnp.dtype,
    dlast: Carry,
    dh_TBH: Array,
) -> tuple[Carry, Array]:
    """Return the cotangents of the carry before the window, and of z, [T, B, Z]."""
    window, columns = sequence.x.shape[0], weights.wh_HK.shape[1]
    times_wh = times(weights.wh_HK, first.h.shape[0], transposed=True)
    dh_bits = as_bits(dh_TBH)

    def step(k: Array, later: tuple[Carry, Array, Array]) -> tuple[Carry, Array, Array]:
        dcarry, z_BZ, dz_TBZ = later
        t = window - 1 - k
        before = jax.tree.map(
            lambda x, like: of_bits(x, like.dtype), step_of(saved.before, t), first
        )
        dh = of_bits(step_of(dh_bits, t), compute).astype(jnp.float32)
        dcarry = dcarry._replace(h=dcarry.h + dh)
        z_BZ = of_bits(z_BZ, compute).astype(jnp.float32)
        _, back = jax.vjp(advance, z_BZ, _float32(before))
        dz_BZ, dcarry = back(dcarry)
        dz_BZ = dz_BZ.astype(compute)
        dcarry = dcarry._replace(h=dcarry.h + times_wh(dz_BZ[:, :columns]))
        dz_TBZ = put_step(dz_TBZ, dz_BZ, t)
        # A step of z is read after dz of the later one has been written to the same buffer;
        # otherwise XLA would copy the buffer each time.
        return dcarry, step_of(dz_TBZ, jnp.maximum(t - 1, 0)), dz_TBZ

    z_TBZ = saved.z_TBZ
    start = _float32(dlast), step_of(z_TBZ, jnp.int32(window - 1)), z_TBZ
    dfirst, _, dz_TBZ = jax.lax.fori_loop(0, window, step, start)
    return dfirst, of_bits(dz_TBZ, compute)


def gated_recurrence(
    advance: Advance,
    carry: Carry,
    sequence: Sequence,
    weights: GatedWeights,
    compute: jnp.dtype,
    recompute_every: int | None = None,
) -> tuple[Carry, Array]:
    """Run one layer over a window.

    Args:
        advance: the kind's function of z and the carry, elementwise.
        carry: the state before the window.
        sequence: its input, T steps.
        weights: its matrices and bias.
        compute: operand type of every product.
        recompute_every: see `recomputed`.

    Returns:
        The carry after the window, and h at every step [T, B, H] in the compute type. Gradients
        are float32; those of the weights are summed in float32. Without a gradient nothing is kept.
    """

    def run(carry: Carry, sequence: Sequence) -> tuple[Carry, Array]:
        return _recurrence(advance, carry, sequence, weights, compute)

    return recomputed(run, carry, sequence, recompute_every)


@partial(jax.custom_vjp, nondiff_argnums=(0, 4))
def _recurrence(
    advance: Advance, carry: Carry, sequence: Sequence, weights: GatedWeights, compute: jnp.dtype
) -> tuple[Carry, Array]:
    # The compiler removes unused values, so without a gradient this loop saves nothing.
    weights = weights.rounded(sequence.x, compute)
    last, saved = _forward_loop(advance, carry, sequence, weights, compute)
    return last, of_bits(saved.h_TBH, compute)


def _forward(
    advance: Advance, carry: Carry, sequence: Sequence, weights: GatedWeights, compute: jnp.dtype
) -> tuple[tuple[Carry, Array], tuple[Carry, Sequence, GatedWeights, Saved]]:
    require_no_padding(sequence)
    weights = weights.rounded(sequence.x, compute)
    last, saved = _forward_loop(advance, carry, sequence, weights, compute)
    return (last, of_bits(saved.h_TBH, compute)), (carry, sequence, weights, saved)


def _backward(
    advance: Advance,
    compute: jnp.dtype,
    residuals: tuple[Carry, Sequence, GatedWeights, Saved],
    cotangents: tuple[Carry, Array],
) -> tuple[Carry, Sequence, GatedWeights]:
    first, sequence, weights, saved = residuals
    dfirst, dz_TBZ = _backward_loop(advance, first, sequence, weights, saved, compute, *cotangents)
    h_TBH = of_bits(saved.h_TBH, compute)
    before_h_TBH = jnp.concatenate([first.h.astype(compute)[None], h_TBH[:-1]])
    of_h = weights.wh_HK.shape[1]
    only_h = dz_TBZ.shape[-1] - weights.wx_IG.shape[1]
    dz_TBG = dz_TBZ[..., only_h:]
    dx, dwx_IG = project_gradient(sequence.x, weights.wx_IG, dz_TBG)
    db_G = bias_gradient(sequence.x, dwx_IG, dz_TBG)
    db_K = jnp.sum(dz_TBZ[..., :only_h], (0, 1), dtype=jnp.float32)
    return (
        jax.tree.map(lambda x, like: x.astype(like.dtype), dfirst, first),
        Sequence(cast(Array, dx if dx is None else dx.astype(sequence.x.dtype)), None),
        GatedWeights(
            wx_IG=dwx_IG,
            wh_HK=sum_rows(before_h_TBH, dz_TBZ[..., :of_h]),
            b_Z=jnp.concatenate([db_K, db_G]),
        ),
    )


_recurrence.defvjp(_forward, _backward)
