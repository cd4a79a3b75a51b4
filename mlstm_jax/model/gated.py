"""Recurrent models with one product a step over time: LSTM and GRU.

The pre-activations of a layer are sums of two products and a bias::

    z_t = [h_{t-1} Wh | 0] + [0 | x_t Wx] + b       [B, 4H]

z has Z columns: Wh's K are added at the left, Wx's at the right. For an LSTM both span z; for a GRU
the candidate's two terms stay apart.

The gradient is explicit for the reasons that mlstm.py has: the loop back computes dz_t only, in the
buffer of z, from gates that it computes a second time. Between steps h is float32.

Parameters of a layer: wx [I, 4H], of a GRU [I, 3H]; wh [H, 4H] or [H, 3H]; b [4H]. A gate's Wx is
at first normal(0, 1/√I), and its Wh orthogonal, as in Flax's cells.
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

from mlstm_jax.model import ops
from mlstm_jax.model.architecture import LSTMCarry, Tree
from mlstm_jax.model.stack import Cotangents, Loops, Recurrent, Residuals, Weights, forward_loop
from mlstm_jax.model.time_loop import Step, put_step, step_of

Array = jax.Array


def _float32(carry: Tree) -> Tree:
    return jax.tree.map(lambda x: x.astype(jnp.float32), carry)


def _backward(
    advance: Callable[[Array, Tree], Tree], residuals: Residuals, dlast: Tree, dh_TBH: Array
) -> Cotangents:
    first, x, weights, h_TBH, (carries, z_TBZ) = residuals
    compute = h_TBH.dtype
    window, _, size = z_TBZ.shape
    of_h = weights["wh"].shape[1]
    times_wh = ops.times(weights["wh"], first.h.shape[0], transposed=True)
    dh_bits = ops.as_bits(dh_TBH)

    def step(k: Array, later: tuple[Tree, Array, Array]) -> tuple[Tree, Array, Array]:
        dcarry, z_BZ, dz_TBZ = later
        t = window - 1 - k
        bits = step_of(carries, t)
        before = jax.tree.map(lambda x, like: ops.of_bits(x, like.dtype), bits, first)
        dh = ops.of_bits(step_of(dh_bits, t), compute).astype(jnp.float32)
        dcarry = dcarry._replace(h=dcarry.h + dh)
        z_BZ = ops.of_bits(z_BZ, compute).astype(jnp.float32)
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
    dz_TBZ = ops.of_bits(dz_TBZ, compute)
    before_h_TBH = jnp.concatenate([first.h.astype(compute)[None], h_TBH[:-1]])
    only_h = size - weights["wx"].shape[1]
    dz_TBG = dz_TBZ[..., only_h:]
    dx, dwx_IG = ops.project_gradient(x, weights["wx"], dz_TBG)
    db_K = jnp.sum(dz_TBZ[..., :only_h], (0, 1), dtype=jnp.float32)
    dweights = {
        "wx": dwx_IG,
        "wh": ops.sum_rows(before_h_TBH, dz_TBZ[..., :of_h]),
        "b": jnp.concatenate([db_K, ops.bias_gradient(x, dwx_IG, dz_TBG)]),
    }
    return Cotangents(dfirst, dx, dweights)


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
        """The carry after a step: a NamedTuple of an h and others [B, H]; all are float32."""

    def initial(self, name: str) -> tuple[Any, float]:
        of_gate = linen.initializers.lecun_normal()
        if name == "wh":
            of_gate = linen.initializers.orthogonal()
        gates = self.gates[name]

        def initialise(key: Array, shape: tuple[int, ...]) -> Array:
            gate = shape[0], shape[1] // gates
            parts = [of_gate(key, gate) for key in jax.random.split(key, gates)]
            return jnp.concatenate(parts, axis=1)

        return initialise, 1.0

    def step(self, weights: Weights, rows: int) -> Step:
        """Keep the carry before the step, and z in the compute type."""
        times_wh = ops.times(weights["wh"], rows)
        size = weights["b"].shape[0]

        def step(
            rounded_h: Array, carry: Tree, x: Array, mask_B: Array | None
        ) -> tuple[Tree, tuple[Tree, Array]]:
            zh_BK = times_wh(rounded_h)
            zx_BG = ops.project(x, weights["wx"])
            zh_BZ = jnp.pad(zh_BK, ((0, 0), (0, size - zh_BK.shape[1])))
            zx_BZ = jnp.pad(zx_BG, ((0, 0), (size - zx_BG.shape[1], 0)))
            z_BZ = zh_BZ + zx_BZ + weights["b"][None]
            before = _float32(carry)
            after = self.advance(z_BZ, before)
            if mask_B is not None:
                after = jax.tree.map(partial(jnp.where, mask_B[:, None]), before, after)
            after = jax.tree.map(lambda new, old: new.astype(old.dtype), after, carry)
            return after, (carry, z_BZ.astype(rounded_h.dtype))

        return step

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
