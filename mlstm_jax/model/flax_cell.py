"""Models whose layers are a cell of flax.linen under a scan: what these have in common."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from mlstm_jax.model.architecture import Architecture, Body, Products, Tree


@dataclass(frozen=True, kw_only=True)
class FlaxCell(Architecture):
    """A stack of layers of one cell; a subclass in cells/ names the cell."""

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

    def body(self) -> Body:
        """Return the layers."""
        from mlstm_jax.model import flax_layer, stack

        return partial(stack.read, flax_layer)

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

    def kept_bytes(self, units: int, window: int, every: int | None, width: int, cell: int) -> int:
        """Count what JAX keeps of each step: about two numbers a gate, and three a state."""
        return window * units * 4 * (2 * len(self.gates) + 3 * len(self.states))
