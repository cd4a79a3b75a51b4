"""The layers of flax's cells: their parameters, and how a window is read.

Parameters of a layer, float32, as flax names them, such as those of the gate i::

    cell/ii/kernel  [I, H]      I = E for the first layer, H above
    cell/hi/kernel  [H, H]      a kernel_v and its kernel_g [H] with `weight_norm`
    cell/hi/bias    [H]
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen

from mlstm_jax.model.architecture import How, Tree
from mlstm_jax.model.flax_cell import FlaxCell
from mlstm_jax.model.inputs import lookup
from mlstm_jax.model.weight_norm import column_norms, weight_norm

Array = jax.Array


class Weights(linen.Module):
    """The parameters of one layer."""

    model: FlaxCell

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


def start(weights: Tree, embedding_VE: Array, bytes_TB: Array, compute: Any) -> tuple[Tree, Array]:
    """Return the embeddings of the bytes, in the compute type."""
    return weights, lookup(bytes_TB, embedding_VE).astype(compute)


def read(
    model: FlaxCell, weights: Tree, before: Tree, x: Array, hold_TB: Array | None, how: How
) -> tuple[Tree, Array, Tree]:
    """Read a window; see `Layers`.

    The products and gates are of the compute type, the carry keeps its own.
    """
    apply = partial(model.cell(how.compute).apply, {"params": weights})

    def step(carry: Tree, now: tuple[Array, Array | None]) -> tuple[Tree, tuple[Array, Tree]]:
        x_BI, hold_B = now

        def keep(new: Array, old: Array) -> Array:
            new = new.astype(old.dtype)
            return new if hold_B is None else jnp.where(hold_B[:, None], old, new)

        after = jax.tree.map(keep, model.step(apply, carry, x_BI), carry)
        return after, (after.h.astype(how.compute), after if how.states else None)

    after, (h_TBH, steps) = jax.lax.scan(step, before, (x, hold_TB))
    return after, h_TBH, steps
