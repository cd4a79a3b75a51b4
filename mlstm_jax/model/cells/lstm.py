"""The LSTM (Hochreiter and Schmidhuber 1997, with a forget gate), flax's `OptimizedLSTMCell`::

i, f, o = σ(x Wi + h Wh + b)        g = tanh(x Wi + h Wh + b)
c' = f ∘ c + i ∘ g                  h' = o ∘ tanh(c')
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from mlstm_jax.model.architecture import Carry, Tree
from mlstm_jax.model.flax_cell import FlaxCell


@dataclass(frozen=True, kw_only=True)
class LSTM(FlaxCell, title="LSTM"):
    """The network."""

    kind: Literal["lstm"] = field(default="lstm", init=False)
    gates: ClassVar[str] = "ifgo"

    def cell(self, compute: Any = None) -> Any:
        """Return the cell."""
        from flax import linen

        return linen.OptimizedLSTMCell(self.hidden, dtype=compute, parent=None)

    def step(self, apply: Callable[..., Any], carry: Tree, x: Any) -> Tree:
        """Return h and c after a step."""
        (c, h), _ = apply((carry.c, carry.h), x)
        return Carry(h, c)
