"""The gated recurrent unit (Cho et al. 2014, arXiv 1406.1078), flax's `GRUCell`::

r, z = σ(x Wi + b + h Wh)           n = tanh(x Wi + bi + r ∘ (h Wh + bh))
h' = (1 − z) ∘ n + z ∘ h
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from mlstm_jax.model.architecture import Tree
from mlstm_jax.model.flax_cell import FlaxCell


class Carry(NamedTuple):
    """The state of all layers between two windows: h float32 [B, L, H]."""

    h: Any


@dataclass(frozen=True, kw_only=True)
class GRU(FlaxCell, title="GRU"):
    """The network."""

    kind: Literal["gru"] = field(default="gru", init=False)
    gates: ClassVar[str] = "rzn"
    states: ClassVar[tuple[str, ...]] = ("h",)

    def init_carry(self, rows: int, cell: Any) -> Tree:
        """Return a zero h; there is no c."""
        return Carry(np.zeros((rows, *self.shape), np.float32))

    def cell(self, compute: Any = None) -> Any:
        """Return the cell."""
        from flax import linen

        return linen.GRUCell(self.hidden, dtype=compute, parent=None)

    def step(self, apply: Callable[..., Any], carry: Tree, x: Any) -> Tree:
        """Return h after a step."""
        h, _ = apply(carry.h, x)
        return Carry(h)
