"""Stacks of recurrent layers, each of which reads the states of the layer below.

The first layer reads bytes. There are only 256 of them, so their products with a layer's input
matrices are tables, computed once per window.

Parameters of a layer, all float32: each matrix of the kind, normalised as `name_v` and `name_g`, or
`name` alone, and the bias `b`, which starts at zero.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen

from mlstm_jax.model.architecture import Architecture, Products, ReadOptions, Tree, Window
from mlstm_jax.model.ops import column_norms, matmul, weight_norm, with_transpose
from mlstm_jax.model.time_loops import Sequence, all_states, sum_of_h

Array = jax.Array


class Matrix(NamedTuple):
    """A matrix of a layer before training; normalised, W = gain · V."""

    shape: tuple[int, int]
    initialise: Callable[[Array, tuple[int, ...]], Array]
    gain: float = 1.0


class Weights(linen.Module):
    """The parameters of one layer."""

    model: "Recurrent"

    @linen.compact
    def __call__(self, inputs: int) -> Tree:
        """Return the layer's matrices and bias; `inputs` is the width I of its input."""
        params = {}
        for name, (shape, initialise, gain) in self.model.initial(inputs).items():
            if not self.model.normalised:
                params[name] = self.param(name, initialise, shape)
                continue
            v_IO = params[f"{name}_v"] = self.param(f"{name}_v", initialise, shape)
            norms = gain * column_norms(v_IO)
            params[f"{name}_g"] = self.param(f"{name}_g", lambda _, norms=norms: norms)
        biases = self.model.biases * self.model.hidden
        params["b"] = self.param("b", linen.initializers.zeros, (biases,))
        return self.model.weights(params)


def matrix(params: Tree, name: str) -> Array:
    """Return a matrix of a layer, normalised if it has a gain."""
    if name in params:
        return params[name]
    return weight_norm(params[f"{name}_v"], params[f"{name}_g"])


@dataclass(frozen=True, kw_only=True)
class Recurrent(Architecture):
    """A recurrent kind: its matrices, its step, and its run over a window with a gradient."""

    # How many gates are side by side in each matrix, in the order of their gradients.
    gates: ClassVar[dict[str, int]]
    # Those of them that multiply a layer's input.
    input_matrices: ClassVar[tuple[str, ...]] = ("wx",)
    # The size of the bias, in units of H.
    biases: ClassVar[int]

    @property
    def normalised(self) -> bool:
        """Whether the columns of the matrices are normalised."""
        return True

    @abstractmethod
    def initial(self, inputs: int) -> dict[str, Matrix]:
        """Return a layer's matrices before training, by name; `inputs` is its input's width I."""

    @abstractmethod
    def weights(self, params: Tree) -> Any:
        """Return what a step needs of a layer's parameters, such as wx_IG for wx.

        It is a NamedTuple with the method `rounded` of the input x and the compute type.
        """

    @abstractmethod
    def step(self, weights: Any, rows: int) -> Callable[[Tree, Sequence], Tree]:
        """Return the function of a layer's carry, [rows, ...], and a step's input to its next one.

        The weights are rounded.
        """

    @abstractmethod
    def run(
        self, weights: Any, carry: Tree, sequence: Sequence, options: ReadOptions
    ) -> tuple[Tree, Array]:
        """Return a layer's carry after a window, and h at every step [T, B, H], compute type."""

    @abstractmethod
    def step_bytes(self, width: int, cell: int) -> int:
        """Return the bytes that a unit keeps of each step for the gradient, and needs in it.

        See `activation_bytes`.
        """

    def with_tables(self, weights: Any, embedding_VE: Array, compute: Any) -> Any:
        """Return the weights of the first layer: its input matrices times the embedding."""
        tables = {
            field: matmul(embedding_VE, w_IO, compute)
            for field, w_IO in weights._asdict().items()
            if field.rpartition("_")[0] in self.input_matrices
        }
        return weights._replace(**tables)

    def ready(self, params: Any, compute: Any, *, several_rows: bool) -> list[Any]:
        """Return the rounded matrices of all layers, normalised, and the tables of the first.

        For several rows, the matrices that multiply h have their transposes.
        """
        layers = []
        for layer in range(self.layers):
            weights, x = self.weights(params[f"layer_{layer}"]), jnp.zeros(())
            if layer == 0:
                weights, x = self.with_tables(weights, params["embedding"], compute), jnp.int32(0)
            weights = weights.rounded(x, compute)
            if several_rows:
                weights = self._with_transposes(weights)
            layers.append(weights)
        return layers

    def _with_transposes(self, weights: Any) -> Any:
        matrices = {}
        for field, w_IO in weights._asdict().items():
            name = field.rpartition("_")[0]
            if name in self.gates and name not in self.input_matrices:
                matrices[field] = with_transpose(w_IO)
        return weights._replace(**matrices)

    def read(self, window: Window, options: ReadOptions) -> tuple[Tree, Any, Tree]:
        """Read a window with all layers."""
        x, ends, states = window.bytes_TB, [], []
        for layer in range(self.layers):
            if window.ready is not None:
                weights = window.ready[layer]
            else:
                inputs = self.hidden if layer else self.embedding
                weights = Weights(self, name=f"layer_{layer}")(inputs)
                if layer == 0:
                    weights = self.with_tables(weights, window.embedding_VE, options.compute)
            before = jax.tree.map(lambda part: part[:, layer], window.carry)  # noqa: B023
            sequence = Sequence(x, window.padding_mask_TB)
            after, x, steps = self._read_layer(weights, before, sequence, options)
            ends.append(after)
            states.append(steps)
            if window.dropout_B is not None:
                x = x * window.dropout_B[None, :, layer].astype(x.dtype)
        carry = jax.tree.map(lambda *layers: jnp.stack(layers, axis=1), *ends)
        if not options.states:
            return carry, x, None
        if options.states == "sum":
            return carry, x, jnp.stack(states, axis=1)
        return carry, x, jax.tree.map(lambda *layers: jnp.stack(layers, 2).swapaxes(0, 1), *states)

    def _read_layer(
        self, weights: Any, before: Tree, sequence: Sequence, options: ReadOptions
    ) -> tuple[Tree, Array, Tree]:
        """Return the carry after a window, h, and the carry of every step or the sum of h."""
        if not options.states:
            return *self.run(weights, before, sequence, options), None
        weights = weights.rounded(sequence.x, options.compute)
        step = self.step(weights, before.h.shape[0])
        if options.states == "sum":
            return sum_of_h(step, before, sequence, options.compute)
        after, steps = all_states(step, before, sequence)
        return after, steps.h.astype(options.compute), steps

    def matrices(self, name: str) -> int:
        """Count each gate of a matrix as a matrix."""
        name = name.rpartition("/")[2].removesuffix("_v")
        return self.gates.get(name) or super().matrices(name)

    def large(self, layer: int) -> list[str]:
        """Leave out the first layer's input matrices: they read a table of bytes, and are small."""
        names = [name for name in self.gates if layer or name not in self.input_matrices]
        return [f"{name}_v" if self.normalised else name for name in names]

    def products(self, layer: int) -> Products:
        """Count input matrices only above the first layer, and forward in the loop."""
        square = self.hidden * self.hidden
        of_x = sum(self.gates[name] for name in self.input_matrices) * square
        of_h = sum(self.gates.values()) * square - of_x
        upper = of_x if layer else 0
        return Products(of_h + upper, of_h, 2 * of_h + 4 * upper)

    def carry_bytes(self, cell: int) -> int:
        """Return the bytes of a unit's carry: h is float32."""
        return 4 + (cell if "c" in self.states else 0)

    def activation_bytes(
        self, units: int, window: int, every: int | None, width: int, cell: int
    ) -> int:
        """Count each step that is kept, the carries between recomputed steps, and h and its dh."""
        kept = window if every is None else min(every, window)
        carries = 0 if kept == window else -(-window // kept) * self.carry_bytes(cell)
        return units * (kept * self.step_bytes(width, cell) + carries + window * width * 2)
