"""Models whose layers are a cell of flax.linen under a scan: LSTM and GRU.

Parameters of a layer, float32, as flax names them, such as those of the gate i::

    cell/ii/kernel  [I, H]      I = E for the first layer, H above
    cell/hi/kernel  [H, H]      a kernel_v and its kernel_g [H] with `weight_norm`
    cell/hi/bias    [H]
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

from mlstm_jax.model.architecture import Carry, Products, ReadOptions, Recurrent, Tree
from mlstm_jax.model.ops import column_norms, lookup, weight_norm

Array = jax.Array


class Weights(linen.Module):
    """The parameters of one layer."""

    model: "FlaxCell"

    @linen.compact
    def __call__(self, inputs: int) -> Tree:
        """Return the cell's parameters; `inputs` is the width I of the layer's input."""
        model = self.model

        def initialise(key: Array) -> Tree:
            cell, x = model.cell(), jnp.zeros((1, inputs))
            params = cell.init(key, cell.initialize_carry(key, x.shape), x)["params"]
            return {gate: _split(one) for gate, one in params.items()} if normalised else params

        normalised = model.weight_norm
        params = self.param("cell", initialise)
        return {gate: _join(one) for gate, one in params.items()} if normalised else params


def _split(gate: dict[str, Array]) -> dict[str, Array]:
    others = {name: x for name, x in gate.items() if name != "kernel"}
    return others | {"kernel_v": gate["kernel"], "kernel_g": column_norms(gate["kernel"])}


def _join(gate: dict[str, Array]) -> dict[str, Array]:
    others = {name: x for name, x in gate.items() if name not in ("kernel_v", "kernel_g")}
    return others | {"kernel": weight_norm(gate["kernel_v"], gate["kernel_g"])}


@dataclass(frozen=True, kw_only=True)
class FlaxCell(Recurrent):
    """A stack of layers of one cell; a subclass names the cell."""

    # Normalise the columns of every matrix of the cell, W = g V / ‖V‖, as the mLSTM always does.
    weight_norm: bool = False

    # One letter for each gate, as in the names of flax's parameters: hi and ii for i.
    gates: ClassVar[str] = ""

    @abstractmethod
    def cell(self, compute: Any = None) -> Any:
        """Return the cell, a Linen module of no parent; its parameters are float32."""

    @abstractmethod
    def step(self, apply: Callable[..., Any], carry: Tree, x: Any) -> Tree:
        """Return a layer's carry after a step; `apply` takes the cell's own carry, and x [B, I]."""

    def layer_weights(self, name: str, inputs: int) -> Tree:
        """Create the cell's parameters."""
        return Weights(self, name=name)(inputs)

    def first_input(
        self, weights: Tree, embedding_VE: Array, bytes_TB: Array, compute: Any
    ) -> tuple[Tree, Array]:
        """Return the embeddings of the bytes, in the compute type."""
        return weights, lookup(bytes_TB, embedding_VE).astype(compute)

    def read_layer(
        self,
        weights: Tree,
        before: Tree,
        x: Array,
        padding_mask_TB: Array | None,
        options: ReadOptions,
    ) -> tuple[Tree, Array, Tree]:
        """Scan the cell: products and gates are of the compute type, the carry keeps its own."""
        apply = partial(self.cell(options.compute).apply, {"params": weights})

        def step(carry: Tree, now: tuple[Array, Array | None]) -> tuple[Tree, tuple[Array, Tree]]:
            x_BI, mask_B = now

            def keep(new: Array, old: Array) -> Array:
                new = new.astype(old.dtype)
                return new if mask_B is None else jnp.where(mask_B[:, None], old, new)

            after = jax.tree.map(keep, self.step(apply, carry, x_BI), carry)
            return after, (after.h.astype(options.compute), after if options.states else None)

        after, (h_TBH, steps) = jax.lax.scan(step, before, (x, padding_mask_TB))
        return after, h_TBH, steps

    def matrices(self, name: str) -> int:
        """Count each kernel as a matrix: flax has one for each gate."""
        is_kernel = name.endswith(("/kernel", "/kernel_v"))
        return 1 if is_kernel else super().matrices(name)

    def large(self, layer: int) -> list[str]:
        """Leave out the first layer's input matrices, which have E rows, not H."""
        kernel = "kernel_v" if self.weight_norm else "kernel"
        sides = "hi" if layer else "h"
        return [f"cell/{side}{gate}/{kernel}" for side in sides for gate in self.gates]

    def products(self, layer: int) -> Products:
        """Count all in the loops: JAX adds to the weights' gradients at every step."""
        inputs = self.hidden if layer else self.embedding
        once = len(self.gates) * self.hidden * (inputs + self.hidden)
        return Products(once, 2 * once, 0)

    def activation_bytes(
        self, units: int, window: int, every: int | None, width: int, cell: int
    ) -> int:
        """Count what JAX keeps of each step: about two numbers a gate, and three a state."""
        return window * units * 4 * (2 * len(self.gates) + 3 * len(self.states))


@dataclass(frozen=True, kw_only=True)
class LSTM(FlaxCell, title="LSTM"):
    """The LSTM (Hochreiter and Schmidhuber 1997, with a forget gate), flax's `OptimizedLSTMCell`::

    i, f, o = σ(x Wi + h Wh + b)        g = tanh(x Wi + h Wh + b)
    c' = f ∘ c + i ∘ g                  h' = o ∘ tanh(c')
    """

    kind: Literal["lstm"] = field(default="lstm", init=False)
    gates: ClassVar[str] = "ifgo"

    def cell(self, compute: Any = None) -> Any:
        """Return the cell."""
        return linen.OptimizedLSTMCell(self.hidden, dtype=compute, parent=None)

    def step(self, apply: Callable[..., Any], carry: Tree, x: Any) -> Tree:
        """Return h and c after a step."""
        (c, h), _ = apply((carry.c, carry.h), x)
        return Carry(h, c)


class HiddenCarry(NamedTuple):
    """The state of all layers between two windows: h float32 [B, L, H]."""

    h: Any


@dataclass(frozen=True, kw_only=True)
class GRU(FlaxCell, title="GRU"):
    """The gated recurrent unit (Cho et al. 2014, arXiv 1406.1078), flax's `GRUCell`::

    r, z = σ(x Wi + b + h Wh)           n = tanh(x Wi + bi + r ∘ (h Wh + bh))
    h' = (1 − z) ∘ n + z ∘ h
    """

    kind: Literal["gru"] = field(default="gru", init=False)
    gates: ClassVar[str] = "rzn"
    states: ClassVar[tuple[str, ...]] = ("h",)

    def init_carry(self, rows: int, cell: Any) -> Tree:
        """Return a zero h; there is no c."""
        return HiddenCarry(np.zeros((rows, *self.shape), np.float32))

    def cell(self, compute: Any = None) -> Any:
        """Return the cell."""
        return linen.GRUCell(self.hidden, dtype=compute, parent=None)

    def step(self, apply: Callable[..., Any], carry: Tree, x: Any) -> Tree:
        """Return h after a step."""
        h, _ = apply(carry.h, x)
        return HiddenCarry(h)
