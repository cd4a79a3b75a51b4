"""Recurrent models with one product a step over time: LSTM and GRU.

The pre-activations of a layer are sums of two products and a bias::

    z_t = [h_{t-1} Wh | 0] + [0 | x_t Wx] + b       [B, 4H]

z has Z columns: Wh's K are added at the left, Wx's at the right. For an LSTM both span z; for a GRU
the candidate's two terms stay apart. A cell is the function `advance`: z and the carry → the next
carry.

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

from mlstm_jax.model.architecture import LSTMCarry, Tree
from mlstm_jax.model.ops import (
    as_bits,
    bias_gradient,
    of_bits,
    project,
    project_gradient,
    sum_rows,
    times,
)
from mlstm_jax.model.stack import (
    Cotangents,
    Initialiser,
    Loops,
    Recurrent,
    Residuals,
    Weights,
    forward_loop,
)
from mlstm_jax.model.time_loop import Step, put_step, step_of

Array = jax.Array
# (z [B, Z], carry) → carry, float32; a carry is a NamedTuple of arrays [B, H] with an h.
Advance = Callable[[Array, Tree], Tree]


def _float32(carry: Tree) -> Tree:
    return jax.tree.map(lambda x: x.astype(jnp.float32), carry)


def gated_step(advance: Advance, weights: Weights, rows: int) -> Step:
    """The function of one step of `rows` rows, with rounded weights.

    It keeps the carry before the step, and z in the compute type.
    """
    times_wh = times(weights["wh"], rows)
    size = weights["b"].shape[0]

    def step(
        rounded_h: Array, carry: Tree, x: Array, mask_B: Array | None
    ) -> tuple[Tree, tuple[Tree, Array]]:
        zh_BK = times_wh(rounded_h)
        zx_BG = project(x, weights["wx"])
        zh_BZ = jnp.pad(zh_BK, ((0, 0), (0, size - zh_BK.shape[1])))
        zx_BZ = jnp.pad(zx_BG, ((0, 0), (size - zx_BG.shape[1], 0)))
        z_BZ = zh_BZ + zx_BZ + weights["b"][None]
        before = _float32(carry)
        after = advance(z_BZ, before)
        if mask_B is not None:
            after = jax.tree.map(partial(jnp.where, mask_B[:, None]), before, after)
        after = jax.tree.map(lambda new, old: new.astype(old.dtype), after, carry)
        return after, (carry, z_BZ.astype(rounded_h.dtype))

    return step


def _backward(advance: Advance, residuals: Residuals, dlast: Tree, dh_TBH: Array) -> Cotangents:
    """Run back through the window; see `Backward`."""
    first, x, weights, _, h_TBH, (carries, z_TBZ) = residuals
    compute = h_TBH.dtype
    window, _, size = z_TBZ.shape
    of_h = weights["wh"].shape[1]
    times_wh = times(weights["wh"], first.h.shape[0], transposed=True)
    dh_bits = as_bits(dh_TBH)

    def step(k: Array, later: tuple[Tree, Array, Array]) -> tuple[Tree, Array, Array]:
        dcarry, z_BZ, dz_TBZ = later
        t = window - 1 - k
        bits = step_of(carries, t)
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

    start = (_float32(dlast), step_of(z_TBZ, jnp.int32(window - 1)), z_TBZ)
    dfirst, _, dz_TBZ = jax.lax.fori_loop(0, window, step, start)
    dz_TBZ = of_bits(dz_TBZ, compute)
    before_h_TBH = jnp.concatenate([first.h.astype(compute)[None], h_TBH[:-1]])
    only_h = size - weights["wx"].shape[1]
    dz_TBG = dz_TBZ[..., only_h:]
    dx, dwx_IG = project_gradient(x, weights["wx"], dz_TBG)
    db_K = jnp.sum(dz_TBZ[..., :only_h], (0, 1), dtype=jnp.float32)
    dweights = {
        "wx": dwx_IG,
        "wh": sum_rows(before_h_TBH, dz_TBZ[..., :of_h]),
        "b": jnp.concatenate([db_K, bias_gradient(x, dwx_IG, dz_TBG)]),
    }
    return Cotangents(dfirst, dx, dweights)


def _gate_by_gate(initialise: Any, gates: int) -> Any:
    def together(key: Array, shape: tuple[int, ...]) -> Array:
        gate = shape[0], shape[1] // gates
        parts = [initialise(key, gate) for key in jax.random.split(key, gates)]
        return jnp.concatenate(parts, axis=1)

    return together


@dataclass(frozen=True, kw_only=True)
class GatedCell(Recurrent):
    """A stack of layers of one cell; a subclass is the cell.

    Attributes:
        weight_norm: Normalise the columns of every matrix of the cell, W = g V / ‖V‖, as the mLSTM
            always does.
    """

    weight_norm: bool = False

    @property
    def normalised(self) -> bool:
        return self.weight_norm

    @staticmethod
    @abstractmethod
    def advance(z_BZ: Array, carry: Any) -> Any:
        """A layer's carry after a step; all arrays are float32."""

    def initial(self, name: str) -> tuple[Initialiser, float]:
        initialise = linen.initializers.lecun_normal()
        if name == "wh":
            initialise = linen.initializers.orthogonal()
        return _gate_by_gate(initialise, self.gates[name]), 1.0

    def step(self, weights: Weights, rows: int) -> Step:
        return gated_step(self.advance, weights, rows)

    def loops(self) -> Loops:
        return Loops(partial(forward_loop, self.step), partial(_backward, self.advance))

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
    gates: ClassVar[dict[str, int]] = {"wx": 4, "wh": 4}
    biases: ClassVar[int] = 4

    @staticmethod
    def advance(z_BZ: Array, carry: Any) -> Any:
        i, f, g, o = jnp.split(z_BZ, 4, axis=-1)
        c = jax.nn.sigmoid(f) * carry.c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return LSTMCarry(h=jax.nn.sigmoid(o) * jnp.tanh(c), c=c)


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
    gates: ClassVar[dict[str, int]] = {"wx": 3, "wh": 3}
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
