"""The Transformer (Vaswani et al. 2017) of bytes: causal, and BERT's (Devlin et al. 2018)::

x' = x + Attention(Norm(x)) Wo        x'' = x' + gelu(Norm(x') Wup) Wdown

It reads each training window on its own, so nothing is carried. To read a text without training, it
carries the text's last bytes and reads them again before each window.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from mlstm_jax.errors import require
from mlstm_jax.model.architecture import VOCABULARY, Architecture, Body, Products, Tree


class Context(NamedTuple):
    """What is carried through a text that is read without training."""

    h: Any  # float32 [B, L, H], after the last byte
    bytes_BP: Any  # uint8, the last bytes; the newest is at the end
    count_B: Any  # int32: how many of them there are


@dataclass(frozen=True, kw_only=True)
class Transformer(Architecture, title="Transformer"):
    """The network; each byte sees those before it."""

    kind: Literal["transformer"] = field(default="transformer", init=False)

    # Hidden units H of a layer. BERT-Large: 1024.
    hidden: int = 256
    # Layers, each of attention and two dense matrices. BERT-Large: 24.
    layers: int = 4
    # Attention heads; they share the hidden units evenly. BERT-Large: 16.
    heads: int = 4
    # The most bytes P that attend to each other; each position has a learned vector. Unset: the
    # run's longest window, or 256 outside of a run. Positions beyond the longest window stay
    # untrained and make scores worse. BERT: 512.
    positions: int | None = None

    states: ClassVar[tuple[str, ...]] = ("h",)

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"1 or more, and divide model.hidden, {self.hidden}"
        divides = self.heads >= 1 and self.hidden % self.heads == 0
        require(divides, "model.heads", self.heads, rule)
        most, places = 2**20, self.positions
        in_range = places is None or 2 <= places <= most
        require(in_range, "model.positions", places, f"2 to {most:,}")

    @property
    def longest_window(self) -> int:
        """Each byte of a window has a place of its own."""
        return 256 if self.positions is None else self.positions

    def for_windows(self, longest: int) -> Self:
        """Return the model with its positions set."""
        return dataclasses.replace(self, positions=longest) if self.positions is None else self

    def init_carry(self, rows: int, cell: Any) -> Tree:
        """Return nothing."""
        return ()

    def reading_carry(self, rows: int, cell: Any) -> Tree:
        """Return a context without a byte."""
        h = np.zeros((rows, *self.shape), np.float32)
        return Context(h, np.zeros((rows, self.longest_window), np.uint8), np.zeros(rows, np.int32))

    def reading_window(self, proposed: int) -> int:
        """Return half of the positions: the others hold what came before."""
        return self.longest_window // 2

    def dropout_shape(self, window: int) -> tuple[int, ...]:
        """Mask the output of each attention and of each pair of dense matrices, as BERT does."""
        return self.layers, 2, window, self.hidden

    def shown(self, carry: Tree) -> dict[str, Any]:
        """Return h: the output of each layer; of the top layer, after the last normalisation."""
        return {"h": carry.h}

    def body(self) -> Body:
        """Return the layers."""
        from mlstm_jax.model import transformer_layers

        return transformer_layers.read

    def matrices(self, name: str) -> int:
        """Count the kernels of the layers, and the one after the embedding."""
        return 1 if name.endswith("/kernel") else super().matrices(name)

    def decays(self, name: str) -> bool:
        """Include the vectors of bytes and places, as BERT's recipe does (You et al. 2020)."""
        return name in ("embedding", "input/positions") or super().decays(name)

    def large(self, layer: int) -> list[str]:
        """Return all matrices of a layer."""
        return [f"{name}/kernel" for name in ("down", "up", "out", "value", "key", "query")]

    def products(self, layer: int) -> Products:
        """Count all outside of loops, for windows of P bytes; attention sees half of them."""
        seen = self.longest_window * (2 if self.sees_ahead else 1)
        return Products(0, 0, 6 * (12 * self.hidden**2 + self.hidden * seen))

    def kept_bytes(self, units: int, window: int, every: int | None, width: int, cell: int) -> int:
        """Count x, both norms, q, k, v, attention's output, up and its gelu, and probabilities."""
        attention = window * self.heads * (4 + width) / self.hidden
        return int(window * units * (3 * 4 + 4 * 4 + 14 * width + attention))


@dataclass(frozen=True, kw_only=True)
class BERT(Transformer, title="BERT"):
    """The network; it sees a whole window, in which some bytes are masked, and predicts these."""

    kind: Literal["bert"] = field(default="bert", init=False)  # type: ignore[assignment]

    objective: ClassVar[str] = "masked bytes"
    sees_ahead: ClassVar[bool] = True
    # And the mask, after the bytes.
    symbols: ClassVar[int] = VOCABULARY + 1
    label_state: ClassVar[Literal["h", "mean_h"]] = "mean_h"
