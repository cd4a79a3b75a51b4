"""Layers over time: stacks of recurrent layers, and their gradient.

The first layer reads bytes, each other one the states of the layer below. There are only 256 bytes,
so their products with a layer's input matrices are tables, computed once per window. time_loop.py
runs a layer's step over a window; `run_layer` has the explicit gradient of the kind's own `Loops`.

Parameters of a layer, all float32: each matrix of the kind, normalised as `name_v` and `name_g`, or
`name` alone, and the bias `b`, which starts at zero.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen

from mlstm_jax.errors import UserError
from mlstm_jax.model.architecture import Architecture, Products, Tree, Window
from mlstm_jax.model.ops import is_bytes, matmul, weight_norm, with_transpose
from mlstm_jax.model.time_loop import Step, read_window, run_for_gradient

Array = jax.Array
# A layer's matrices by name and its bias "b", float32. For bytes I is 256, and row v of an input
# matrix belongs to byte v. For reading, those that multiply what comes from h may be `Transposed`.
Weights = dict[str, Any]


class Residuals(NamedTuple):
    """What a loop back reads of its window."""

    carry: Tree  # before the window
    x: Array  # as in `run_layer`
    weights: Weights  # rounded
    h_TBH: Array  # after each step, in the compute type
    kept: Tree  # of each step, by the kind


class Cotangents(NamedTuple):
    """What a loop back returns; sums over rows and steps are float32."""

    carry: Tree
    x: Array | None  # None for bytes
    weights: Weights
    maxima_3: Array | None = None  # of the window's fp8 operands, see fp8.py


class Loops(NamedTuple):
    """The loops of a layer over time under a gradient, with rounded weights and without padding.

    Attributes:
        forward: (carry, x, weights, compute) → the carry after the window, h after each step
            [T, B, H] in the compute type, and what `backward` needs of each step.
        backward: of the cotangents of the carry after the window, and of h after each step.
    """

    forward: Callable[..., tuple[Tree, Array, Tree]]
    backward: Callable[[Residuals, Tree, Array], Cotangents]


def forward_loop(
    make_step: Callable[[Weights, int], Step],
    carry: Tree,
    x: Array,
    weights: Weights,
    compute: jnp.dtype,
) -> tuple[Tree, Array, Tree]:
    """XLA's loop forward, see `Loops`."""
    step = make_step(weights, carry.h.shape[0])
    return run_for_gradient(step, carry, x, compute)


def with_gradient(kind: "Recurrent", compute: jnp.dtype, loops: Loops) -> Callable[..., Any]:
    """The function (carry, x, mask of padding, weights, fp8's scales) → carry, h, and its gradient.

    The scales' "gradient" is the maxima of the window's fp8 operands: a custom_vjp returns only
    gradients, so the maxima are returned as one.
    """

    @jax.custom_vjp
    def run(
        carry: Tree, x: Array, mask_TB: Array | None, weights: Weights, scales_3: Array | None
    ) -> tuple[Tree, Array]:
        rounded = kind.rounded(weights, is_bytes(x), compute, scales_3)
        step = kind.step(rounded, carry.h.shape[0])
        last, h_TBH, _ = read_window(step, carry, x, mask_TB, compute, "none")
        return last, h_TBH

    def forward(
        carry: Tree, x: Array, mask_TB: Array | None, weights: Weights, scales_3: Array | None
    ) -> tuple[tuple[Tree, Array], Residuals]:
        if mask_TB is not None:
            raise UserError(
                "padding_mask_BT: a recurrent model has no gradient with it. Leave it out, and "
                "give the padding no weight in the loss: no byte's output depends on later bytes."
            )
        rounded = kind.rounded(weights, is_bytes(x), compute, scales_3)
        last, h_TBH, kept = loops.forward(carry, x, rounded, compute)
        return (last, h_TBH), Residuals(carry, x, rounded, h_TBH, kept)

    def backward(residuals: Residuals, cotangents: tuple[Tree, Array]) -> tuple[Any, ...]:
        found = loops.backward(residuals, *cotangents)
        dcarry = jax.tree.map(lambda d, x: d.astype(x.dtype), found.carry, residuals.carry)
        dx = None  # of bytes
        if found.x is not None:
            dx = found.x.astype(residuals.x.dtype)
        return dcarry, dx, None, found.weights, found.maxima_3

    run.defvjp(forward, backward)
    return run


class Recurrence(NamedTuple):
    """What a layer over time computes, and how: all that is no array.

    With `recompute_every` k only the carry of every k-th step is kept for the backward pass, and
    the steps between are computed again, k at a time: less memory for the time of a second forward
    pass.
    """

    kind: "Recurrent"
    compute: jnp.dtype
    loops: Loops | None = None  # None: XLA's fastest
    recompute_every: int | None = None


def run_layer(
    recurrence: Recurrence,
    carry: Tree,
    x: Array,
    weights: Weights,
    padding_mask_TB: Array | None = None,
    scales_3: Array | None = None,
) -> tuple[Tree, Array]:
    """Run one layer over a window; gradients are float32, and weight gradients float32 sums.

    `x` is the bytes, int32 [T, B], or the states of the layer below, [T, B, I]. Where the padding
    mask is true the carry does not change; a gradient with a mask is refused.

    Returns:
        The carry after the window, and h at every step [T, B, H] in the compute type.
    """
    kind, compute, loops, recompute_every = recurrence
    layer = with_gradient(kind, compute, loops or kind.loops())
    inputs = (x, padding_mask_TB)
    if recompute_every is None or recompute_every >= x.shape[0]:
        return layer(carry, *inputs, weights, scales_3)

    @jax.checkpoint
    def run(carry: Tree, inputs: tuple[Array, Array | None]) -> tuple[Tree, Array]:
        return layer(carry, *inputs, weights, scales_3)

    # First a short run of the remainder, then full runs.
    short = x.shape[0] % recompute_every
    h = []
    if short:
        carry, h_TBH = run(carry, jax.tree.map(lambda x: x[:short], inputs))
        h.append(h_TBH)
    full = jax.tree.map(lambda x: x[short:].reshape(-1, recompute_every, *x.shape[1:]), inputs)
    carry, h_RTBH = jax.lax.scan(run, carry, full)
    h.append(h_RTBH.reshape(-1, *h_RTBH.shape[2:]))
    return carry, jnp.concatenate(h)


class LayerParameters(linen.Module):
    kind: "Recurrent"

    @linen.compact
    def __call__(self, inputs: int) -> Weights:
        """The layer's weights; `inputs` is the width I of its input."""
        kind = self.kind
        params = {}
        for name, gates in kind.gates.items():
            rows = inputs if name in kind.input_matrices else kind.hidden
            shape = (rows, gates * kind.hidden)
            initialise, gain = kind.initial(name)
            v_name = f"{name}_v" if kind.normalised else name
            params[v_name] = self.param(v_name, initialise, shape)
            if kind.normalised:
                norms_O = gain * jnp.linalg.norm(params[v_name], axis=0)
                params[f"{name}_g"] = self.param(f"{name}_g", lambda _, norms_O=norms_O: norms_O)
        params["b"] = self.param("b", linen.initializers.zeros, (kind.biases * kind.hidden,))
        return kind.weights(params)


@dataclass(frozen=True, kw_only=True)
class Recurrent(Architecture):
    """A recurrent kind: its matrices, its step, and its loops with a gradient."""

    gates: ClassVar[dict[str, int]]  # how many are side by side in each matrix
    input_matrices: ClassVar[tuple[str, ...]] = ("wx",)  # which multiply a layer's input
    biases: ClassVar[int]  # the size of the bias, in units of H

    @property
    def normalised(self) -> bool:
        """Whether the columns of the matrices are normalised."""
        return True

    @abstractmethod
    def initial(self, name: str) -> tuple[Callable[[Array, tuple[int, ...]], Array], float]:
        """A matrix before training: what draws V; and the gain, if normalised: W = gain · V."""

    @abstractmethod
    def step(self, weights: Weights, rows: int) -> Step:
        """The function of one step of `rows` rows, with rounded weights."""

    @abstractmethod
    def loops(self) -> Loops:
        """The fastest loops of XLA for JAX's default backend."""

    @abstractmethod
    def step_bytes(self, width: int, cell: int) -> int:
        """The bytes of a unit and step for the gradient; see `activation_bytes`."""

    @property
    def recurrent_matrices(self) -> list[str]:
        """The matrices that multiply what comes from h."""
        return [name for name in self.gates if name not in self.input_matrices]

    def weights(self, params: Tree) -> Weights:
        weights = {"b": params["b"]}
        for name in self.gates:
            if self.normalised:
                weights[name] = weight_norm(params[f"{name}_v"], params[f"{name}_g"])
            else:
                weights[name] = params[name]
        return weights

    def with_tables(self, weights: Weights, embedding_VE: Array, compute: Any) -> Weights:
        """The weights of the first layer: its input matrices times the embedding."""
        tables = {}
        for name in self.input_matrices:
            tables[name] = matmul(embedding_VE, weights[name], compute)
        return weights | tables

    def rounded(
        self, weights: Weights, reads_bytes: bool, compute: Any, scales_3: Array | None = None
    ) -> Weights:
        """The matrices of products in the compute type; tables for bytes and the bias stay."""
        rounded = {}
        for name in self.recurrent_matrices if reads_bytes else self.gates:
            rounded[name] = weights[name].astype(compute)
        return weights | rounded

    def reading_weights(self, params: Any, compute: Any, *, several_rows: bool) -> list[Weights]:
        """The rounded weights of all layers; for several rows, with the transposes for h."""
        layers = []
        for layer in range(self.layers):
            weights = self.weights(params[f"layer_{layer}"])
            if layer == 0:
                weights = self.with_tables(weights, params["embedding"], compute)
            weights = self.rounded(weights, layer == 0, compute)
            if several_rows:
                for name in self.recurrent_matrices:
                    weights[name] = with_transpose(weights[name])
            layers.append(weights)
        return layers

    def read(self, window: Window) -> tuple[Tree, Any, Tree]:
        x = window.bytes_TB
        compute = window.compute
        recurrence = Recurrence(self, compute, window.loops, window.recompute_every)
        carries = []
        states = []
        for layer in range(self.layers):
            if window.reading_weights is not None:
                weights = window.reading_weights[layer]
            else:
                inputs = self.hidden if layer else self.embedding
                weights = LayerParameters(self, name=f"layer_{layer}")(inputs)
                if layer == 0:
                    weights = self.with_tables(weights, window.embedding_VE, compute)
            carry = jax.tree.map(lambda part: part[:, layer], window.carry)  # noqa: B023
            mask_TB = window.padding_mask_TB
            if window.states != "none":
                step = self.step(self.rounded(weights, layer == 0, compute), carry.h.shape[0])
                carry, x, kept = read_window(step, carry, x, mask_TB, compute, window.states)
                states.append(kept)
            else:
                carry, x = run_layer(recurrence, carry, x, weights, mask_TB, window.scales_3)
            carries.append(carry)
            if window.dropout_B is not None:
                x = x * window.dropout_B[None, :, layer].astype(x.dtype)
        carry = jax.tree.map(lambda *layers: jnp.stack(layers, axis=1), *carries)
        if window.states == "none":
            return carry, x, None
        if window.states == "totals":
            return carry, x, jax.tree.map(lambda *layers: jnp.stack(layers, axis=1), *states)
        return carry, x, jax.tree.map(lambda *layers: jnp.stack(layers, 2).swapaxes(0, 1), *states)

    def matrices(self, name: str) -> int:
        name = name.rpartition("/")[2].removesuffix("_v")
        return self.gates.get(name) or super().matrices(name)

    def large_parameters(self, layer: int) -> list[str]:
        """Leave out the first layer's input matrices, which are small."""
        names = self.recurrent_matrices
        if layer:
            names += self.input_matrices
        return [f"{name}_v" if self.normalised else name for name in names]

    def products(self, layer: int) -> Products:
        """Count input matrices only above the first layer, and forward in the loop."""
        square = self.hidden * self.hidden
        of_x = sum(self.gates[name] for name in self.input_matrices) * square
        of_h = sum(self.gates.values()) * square - of_x
        if layer == 0:
            return Products(of_h, of_h, 2 * of_h)
        return Products(of_h + of_x, of_h, 2 * of_h + 4 * of_x)

    def carry_bytes(self, cell: int) -> int:
        """The bytes of a unit's carry: h is float32."""
        return 4 + (cell if "c" in self.states else 0)

    def activation_bytes(
        self, units: int, window: int, every: int | None, width: int, cell: int
    ) -> int:
        """Count each step that is kept, the carries between recomputed steps, and h and its dh."""
        kept = window
        carries = 0
        if every is not None and every < window:
            kept = every
            carries = math.ceil(window / every) * self.carry_bytes(cell)
        return units * (kept * self.step_bytes(width, cell) + carries + window * width * 2)
