"""Recurrent models with one product a step over time: LSTM and GRU.

The pre-activations of a layer are sums of two products and a bias::

    z_t = [h_{t-1} Wh | 0] + [0 | x_t Wx] + b       [B, 4H]

in which the K columns of Wh are the first of the Z of z, and those of Wx the last. An LSTM's cover
all of z; a GRU keeps the terms of its candidate apart. A cell is the function `advance`, which
makes the next carry of z and the carry.

The gradient is explicit for the reasons that mlstm.py has: the loop back computes dz_t only,
in the buffer of z, and each weight gradient is one product over all steps, summed in float32. It
computes the gates a second time, from z. Between steps h is float32.

Parameters of a layer, all float32::

    wx   [I, 4H] or [I, 3H]      I = E for the first layer, H above
    wh   [H, 4H] or [H, 3H]      with `weight_norm` each as wx_v and its gains wx_g
    b    [4H]                    zero

A gate's Wx is at first normal(0, 1/√I), and its Wh orthogonal, as in Flax's cells.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from mlstm_jax.model.architecture import Carry, Tree
from mlstm_jax.model.ops import (
    as_bits,
    bias_gradient,
    is_bytes,
    of_bits,
    project,
    project_gradient,
    sum_rows,
    times,
)
from mlstm_jax.model.stack import (
    Loops,
    Matrix,
    Recurrent,
    Step,
    empty_buffer,
    empty_buffers,
    matrix,
    put_step,
    step_of,
)

Array = jax.Array
# (z [B, Z], carry) → carry, float32; a carry is a NamedTuple of arrays [B, H] with an h.
Advance = Callable[[Array, Tree], Tree]


class GatedWeights(NamedTuple):
    """The matrices and the bias, float32; for bytes I is 256, and row v belongs to byte v.

    For reading, the one that multiplies h may be `Transposed`, in the compute type.
    """

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
    before: Tree  # the carry before each step, [T, B, H]


def _float32(carry: Tree) -> Tree:
    return jax.tree.map(lambda x: x.astype(jnp.float32), carry)


def gated_step(advance: Advance, weights: GatedWeights, rows: int) -> Step:
    """Return the function of one step of `rows` rows, with rounded matrices; it keeps z."""
    times_wh = times(weights.wh_HK, rows)
    size = weights.b_Z.shape[0]

    def step(
        rounded_h: Array, carry: Tree, x: Array, mask_B: Array | None = None
    ) -> tuple[Tree, Array]:
        zh_BK = times_wh(rounded_h)
        zx_BG = project(x, weights.wx_IG)
        zh_BZ = jnp.pad(zh_BK, ((0, 0), (0, size - zh_BK.shape[1])))
        zx_BZ = jnp.pad(zx_BG, ((0, 0), (size - zx_BG.shape[1], 0)))
        z_BZ = zh_BZ + zx_BZ + weights.b_Z[None]
        before = _float32(carry)
        after = advance(z_BZ, before)
        if mask_B is not None:
            after = jax.tree.map(partial(jnp.where, mask_B[:, None]), before, after)
        return jax.tree.map(lambda new, old: new.astype(old.dtype), after, carry), z_BZ

    return step


def _forward_loop(
    advance: Advance, carry: Tree, x: Array, weights: GatedWeights, compute: jnp.dtype
) -> tuple[Tree, Saved]:
    """Run the window; see `Loops`."""
    window = x.shape[0]
    rows = x.shape[1]
    run = gated_step(advance, weights, rows)

    def step(t: Array, before: tuple[Array, Tree, Saved]) -> tuple[Array, Tree, Saved]:
        rounded_h, carry, saved = before
        after, z_BZ = run(rounded_h, carry, step_of(x, t), None)
        rounded_h = after.h.astype(compute)
        return rounded_h, after, put_step(saved, Saved(rounded_h, z_BZ.astype(compute), carry), t)

    saved = Saved(
        empty_buffer((window, *carry.h.shape), compute),
        empty_buffer((window, rows, weights.b_Z.shape[0]), compute),
        empty_buffers(window, carry),
    )
    first = (carry.h.astype(compute), carry, saved)
    _, last, saved = jax.lax.fori_loop(0, window, step, first)
    return last, saved


def _backward(
    advance: Advance,
    first: Tree,
    x: Array,
    weights: GatedWeights,
    saved: Saved,
    compute: jnp.dtype,
    dlast: Tree,
    dh_TBH: Array,
) -> tuple[Tree, Array | None, GatedWeights]:
    """Run back through the window; see `Loops`."""
    window = x.shape[0]
    of_h = weights.wh_HK.shape[1]
    times_wh = times(weights.wh_HK, first.h.shape[0], transposed=True)
    dh_bits = as_bits(dh_TBH)

    def step(k: Array, later: tuple[Tree, Array, Array]) -> tuple[Tree, Array, Array]:
        dcarry, z_BZ, dz_TBZ = later
        t = window - 1 - k
        bits = step_of(saved.before, t)
        before = jax.tree.map(lambda x, like: of_bits(x, like.dtype), bits, first)
        dh = of_bits(step_of(dh_bits, t), compute).astype(jnp.float32)
        dcarry = dcarry._replace(h=dcarry.h + dh)
        z_BZ = of_bits(z_BZ, compute).astype(jnp.float32)
        _, back = jax.vjp(advance, z_BZ, _float32(before))
        dz_BZ, dcarry = back(dcarry)
        dz_BZ = dz_BZ.astype(compute)
        dcarry = dcarry._replace(h=dcarry.h + times_wh(dz_BZ[:, :of_h]))
        dz_TBZ = put_step(dz_TBZ, dz_BZ, t)
        # A step of z is read after dz of the later one has been written to the same buffer;
        # otherwise XLA would copy the buffer each time.
        return dcarry, step_of(dz_TBZ, jnp.maximum(t - 1, 0)), dz_TBZ

    last_z_BZ = step_of(saved.z_TBZ, jnp.int32(window - 1))
    start = (_float32(dlast), last_z_BZ, saved.z_TBZ)
    dfirst, _, dz_TBZ = jax.lax.fori_loop(0, window, step, start)
    dz_TBZ = of_bits(dz_TBZ, compute)
    h_TBH = of_bits(saved.h_TBH, compute)
    before_h_TBH = jnp.concatenate([first.h.astype(compute)[None], h_TBH[:-1]])
    only_h = dz_TBZ.shape[-1] - weights.wx_IG.shape[1]
    dz_TBG = dz_TBZ[..., only_h:]
    dx, dwx_IG = project_gradient(x, weights.wx_IG, dz_TBG)
    if dx is not None:
        dx = dx.astype(x.dtype)
    db_K = jnp.sum(dz_TBZ[..., :only_h], (0, 1), dtype=jnp.float32)
    dweights = GatedWeights(
        wx_IG=dwx_IG,
        wh_HK=sum_rows(before_h_TBH, dz_TBZ[..., :of_h]),
        b_Z=jnp.concatenate([db_K, bias_gradient(x, dwx_IG, dz_TBG)]),
    )
    return jax.tree.map(lambda x, like: x.astype(like.dtype), dfirst, first), dx, dweights


def _gate_by_gate(initialise: Any, gates: int) -> Any:
    def together(key: Array, shape: tuple[int, ...]) -> Array:
        gate = shape[0], shape[1] // gates
        parts = [initialise(key, gate) for key in jax.random.split(key, gates)]
        return jnp.concatenate(parts, axis=1)

    return together


@dataclass(frozen=True, kw_only=True)
class GatedCell(Recurrent):
    """A stack of layers of one cell; a subclass is the cell."""

    # Normalise the columns of every matrix of the cell, W = g V / ‖V‖, as the mLSTM always does.
    weight_norm: bool = False

    @property
    def normalised(self) -> bool:
        return self.weight_norm

    @staticmethod
    @abstractmethod
    def advance(z_BZ: Array, carry: Any) -> Any:
        """Return a layer's carry after a step; all arrays are float32."""

    def initial(self, inputs: int) -> dict[str, Matrix]:
        """One matrix for the input and one for h."""
        of_x = self.gates["wx"]
        of_h = self.gates["wh"]
        lecun = _gate_by_gate(linen.initializers.lecun_normal(), of_x)
        orthogonal = _gate_by_gate(linen.initializers.orthogonal(), of_h)
        return {
            "wx": Matrix((inputs, of_x * self.hidden), lecun),
            "wh": Matrix((self.hidden, of_h * self.hidden), orthogonal),
        }

    def weights(self, params: Tree) -> GatedWeights:
        return GatedWeights(matrix(params, "wx"), matrix(params, "wh"), params["b"])

    def step(self, weights: GatedWeights, rows: int) -> Step:
        return gated_step(self.advance, weights, rows)

    def loops(self) -> Loops:
        return Loops(partial(_forward_loop, self.advance), partial(_backward, self.advance))

    def step_bytes(self, width: int, cell: int) -> int:
        """Count h, z, which becomes dz, and the carry before the step."""
        return (1 + self.biases) * width + self.carry_bytes(cell)


@dataclass(frozen=True, kw_only=True)
class LSTM(GatedCell, title="LSTM"):
    """The LSTM (Hochreiter and Schmidhuber 1997) with a forget gate (Gers et al. 2000)::

    z = x Wx + h Wh + b = [i f g o]
    c' = σ(f) ∘ c + σ(i) ∘ tanh(g)      h' = σ(o) ∘ tanh(c')
    """

    kind: Literal["lstm"] = field(default="lstm", init=False)
    gates: ClassVar[dict[str, int]] = {"wh": 4, "wx": 4}
    biases: ClassVar[int] = 4

    @staticmethod
    def advance(z_BZ: Array, carry: Any) -> Any:
        i, f, g, o = jnp.split(z_BZ, 4, axis=-1)
        c = jax.nn.sigmoid(f) * carry.c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return Carry(h=jax.nn.sigmoid(o) * jnp.tanh(c), c=c)


class HiddenCarry(NamedTuple):
    """The state of all layers between two windows: h float32 [B, L, H]."""

    h: Any


@dataclass(frozen=True, kw_only=True)
class GRU(GatedCell, title="GRU"):
    """The gated recurrent unit (Cho et al. 2014, arXiv 1406.1078, with h's own bias of n)::

    h Wh + b = [nh r z]   x Wx + b = [r z nx]
    r, z = σ(of both sums)              n = tanh(nx + r ∘ nh)
    h' = (1 − z) ∘ n + z ∘ h
    """

    kind: Literal["gru"] = field(default="gru", init=False)
    gates: ClassVar[dict[str, int]] = {"wh": 3, "wx": 3}
    biases: ClassVar[int] = 4
    states: ClassVar[tuple[str, ...]] = ("h",)

    def init_carry(self, rows: int, cell: Any) -> Tree:
        return HiddenCarry(np.zeros((rows, *self.shape), np.float32))

    @staticmethod
    def advance(z_BZ: Array, carry: Any) -> Any:
        nh, r, z, nx = jnp.split(z_BZ, 4, axis=-1)
        z = jax.nn.sigmoid(z)
        n = jnp.tanh(nx + jax.nn.sigmoid(r) * nh)
        return HiddenCarry((1 - z) * n + z * carry.h)
