"""The loops over time with XLA's kernels, forward and backward; kernels.py has the Pallas loops.

`packed` keeps the parts of a step in one array, which is best on a GPU; otherwise dz overwrites the
gates, which is best on a CPU. The numbers are the same.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlstm_jax.model import cell, stacks
from mlstm_jax.model.architecture import Carry
from mlstm_jax.model.inputs import is_bytes, project
from mlstm_jax.model.layer import LayerWeights, Sequence, layer_step
from mlstm_jax.model.matmul import dot

Array = jax.Array


class Saved(NamedTuple):
    """What the backward scan needs besides the arguments, in stacks (see `stacks.empty`).

    h after each step [T, B, H], c before each step [T, B, H], and mh, i, f, o and u of each step:
    packed as one [T, 5, B, H], which a GPU writes in one kernel, or else mh [T, B, H] and the gates
    side by side [T, B, 4H], which the backward scan overwrites with dz.
    """

    h: Array
    before_c: Array
    made: tuple[Array, ...]

    def h_TBH(self, compute: jnp.dtype) -> Array:
        """Return h after each step, in the compute type."""
        return stacks.of_bits(self.h, compute)


def forward(
    carry: Carry, sequence: Sequence, weights: LayerWeights, compute: jnp.dtype, packed: bool
) -> tuple[Carry, Saved]:
    """Run the window with rounded matrices; return the new carry and what `backward` needs."""
    window, shape = sequence.x.shape[0], carry.h.shape

    def step(t: Array, before: tuple[Array, Carry, Saved]) -> tuple[Array, Carry, Saved]:
        rounded_h, carry, saved = before
        after, (mh, gates) = layer_step(rounded_h, carry, stacks.at(sequence, t), weights)
        rounded_h = after.h.astype(compute)
        made = [x.astype(compute) for x in (mh, *gates)]
        saved = Saved(
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

    saved = Saved(
        h=stacks.empty((window, *shape), compute),
        before_c=stacks.empty((window, *shape), carry.c.dtype),
        made=(stacks.empty((window, 5, *shape), compute),)
        if packed
        else (
            stacks.empty((window, *shape), compute),
            stacks.empty((window, shape[0], 4 * shape[1]), compute),
        ),
    )
    # h is carried in both types: rounding it again at each step would need another kernel.
    first = carry.h.astype(compute), carry, saved
    _, last, saved = jax.lax.fori_loop(0, window, step, first)
    return last, saved


def backward(
    first: Carry,
    sequence: Sequence,
    weights: LayerWeights,
    saved: Saved,
    compute: jnp.dtype,
    packed: bool,
    dlast: Carry,
    dh_TBH: Array,
) -> tuple[Array, Array, Array, Array]:
    """Run back through the window that `forward` ran from the carry `first`.

    Returns:
        The cotangents of h and c before the window, float32 [B, H]; and, in the compute type, dz of
        each step [T, B, 4H], and dmh with dmx [T, 2, B, H].
    """
    window, shape = sequence.x.shape[0], first.h.shape
    mx_TBH = None if is_bytes(sequence.x) else project(sequence.x, weights.wmx_IH)
    # Transpose once: on a CPU a product with a transposed right operand is a third slower.
    wmh_transposed, wh_transposed = weights.wmh_HH.T, weights.wh_HG.T
    dh_bits = stacks.as_bits(dh_TBH)
    gates_BG = None
    dz = stacks.empty((window, shape[0], 4 * shape[1]), compute)
    if not packed:
        # dz overwrites the gates, so a CPU need not allocate new pages of memory. A step is read
        # after the later one has been written; otherwise XLA would copy the stack each time.
        saved, dz = saved._replace(made=saved.made[:1]), saved.made[1]
        gates_BG = stacks.at(dz, jnp.int32(window - 1))

    def step(k: Array, later: tuple[Any, ...]) -> tuple[Any, ...]:
        dh, dc, gates_BG, dz_TBG, dm_T2BH = later
        t = window - 1 - k
        now, here = stacks.at((sequence, saved), t)
        # A lookup here saves a GPU from writing all of mx first.
        mx = project(now.x, weights.wmx_IH) if mx_TBH is None else stacks.at(mx_TBH, t)
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
