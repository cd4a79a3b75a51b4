"""Recurrent models with one product a step: LSTM and GRU; see gated_recurrence.py.

Parameters of a layer, all float32::

    wx   [I, 4H] or [I, 3H]      I = E for the first layer, H above
    wh   [H, 4H] or [H, 3H]      with `weight_norm` each as wx_v and its gains wx_g
    b    [4H]                    zero

A gate's Wx is at first normal(0, 1/√I), and its Wh orthogonal, as in Flax's cells.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from mlstm_jax.model.architecture import Carry, ReadOptions, Tree
from mlstm_jax.model.gated_recurrence import GatedWeights, gated_recurrence, gated_step
from mlstm_jax.model.recurrent import Matrix, Recurrent, matrix
from mlstm_jax.model.time_loops import Sequence

Array = jax.Array


def _gate_by_gate(initialise: Any, gates: int) -> Any:
    def together(key: Array, shape: tuple[int, ...]) -> Array:
        gate = shape[0], shape[1] // gates
        return jnp.concatenate([initialise(key, gate) for key in jax.random.split(key, gates)], 1)

    return together


@dataclass(frozen=True, kw_only=True)
class GatedCell(Recurrent):
    """A stack of layers of one cell; a subclass is the cell."""

    # Normalise the columns of every matrix of the cell, W = g V / ‖V‖, as the mLSTM always does.
    weight_norm: bool = False

    @property
    def normalised(self) -> bool:
        """Whether the columns of the matrices are normalised."""
        return self.weight_norm

    @staticmethod
    @abstractmethod
    def advance(z_BZ: Array, carry: Any) -> Any:
        """Return a layer's carry after a step; all arrays are float32."""

    def initial(self, inputs: int) -> dict[str, Matrix]:
        """Return one matrix for the input and one for h."""
        x, h = self.gates["wx"], self.gates["wh"]
        lecun, orthogonal = linen.initializers.lecun_normal(), linen.initializers.orthogonal()
        return {
            "wx": Matrix((inputs, x * self.hidden), _gate_by_gate(lecun, x)),
            "wh": Matrix((self.hidden, h * self.hidden), _gate_by_gate(orthogonal, h)),
        }

    def weights(self, params: Tree) -> GatedWeights:
        """Return both matrices and the bias."""
        return GatedWeights(matrix(params, "wx"), matrix(params, "wh"), params["b"])

    def step(self, weights: GatedWeights, rows: int) -> Callable[[Tree, Sequence], Tree]:
        """Return the function of the carry and the input to the carry after a step."""
        advance = gated_step(self.advance, weights, rows)
        return lambda carry, now: advance(carry.h, carry, now)[0]

    def run(
        self, weights: GatedWeights, carry: Tree, sequence: Sequence, options: ReadOptions
    ) -> tuple[Tree, Array]:
        """Run the recurrence over a window."""
        every = options.recompute_every
        return gated_recurrence(self.advance, carry, sequence, weights, options.compute, every)

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
        """Return h and c after a step."""
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
        """Return a zero h; there is no c."""
        return HiddenCarry(np.zeros((rows, *self.shape), np.float32))

    @staticmethod
    def advance(z_BZ: Array, carry: Any) -> Any:
        """Return h after a step."""
        nh, r, z, nx = jnp.split(z_BZ, 4, axis=-1)
        z = jax.nn.sigmoid(z)
        n = jnp.tanh(nx + jax.nn.sigmoid(r) * nh)
        return HiddenCarry((1 - z) * n + z * carry.h)
