"""The Transformer (Vaswani et al. 2017) of bytes: causal, and BERT's (Devlin et al. 2018)::

    x' = x + Attention(Norm(x)) Wo        x'' = x' + gelu(Norm(x') Wup) Wdown

A training window is read on its own: nothing is carried. A text read without training carries its
last bytes, which are read again before each window.

Parameters, all float32; matrices are normal(0, 1/√I), or 1/√(2 L) of it where they end a branch of
the sum, so that the sum keeps its size with any number of layers (Radford et al. 2019)::

    input/positions                    [P, H]    sinusoids, of embedding_std like the bytes
    input/kernel                       [E, H]    unless E = H
    layer_0/attention_norm/{scale,bias} [H]
    layer_0/{query,key,value,out}/kernel [H, H]  and biases [H], except of the keys
    layer_0/dense_norm/{scale,bias}    [H]
    layer_0/up/kernel, down/kernel     [H, 4H], [4H, H]  and biases
    norm/{scale,bias}                  [H]       after the top layer

The sum x is float32; operands of products are of the compute type.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from mlstm_jax.errors import require
from mlstm_jax.fields import Between
from mlstm_jax.model.architecture import (
    Architecture,
    Layers,
    ObjectiveName,
    Products,
    Size,
    Totals,
    Tree,
    Window,
)
from mlstm_jax.model.ops import attention, lookup, matmul

Array = jax.Array
Norm = partial(linen.LayerNorm, epsilon=1e-5)
# Of the variance times I.
normal = partial(linen.initializers.variance_scaling, mode="fan_in", distribution="normal")


class Context(NamedTuple):
    """What is carried through a text that is read without training."""

    h: Any  # float32 [B, L, H], after the last byte
    bytes_BP: Any  # uint8, the last bytes; the newest is at the end
    count_B: Any  # int32: how many of them there are


def _sinusoids(std: float) -> Any:
    """The encoding of Vaswani et al. 2017, section 3.5, of deviation `std`.

    With random vectors a small BERT predicts only the frequency of each byte for far longer.
    """

    def initialise(_: Array, shape: tuple[int, ...]) -> Array:
        places, units = shape
        pair_U = np.arange(units) // 2
        angle_PU = np.arange(places)[:, None] * 10_000.0 ** (-2 * pair_U / units)
        waves_PU = np.where(np.arange(units) % 2, np.cos(angle_PU), np.sin(angle_PU))
        return jnp.asarray(std * math.sqrt(2) * waves_PU, jnp.float32)

    return initialise


class Dense(linen.Module):
    outputs: int
    compute: Any
    gain: float = 1.0
    has_bias: bool = True

    @linen.compact
    def __call__(self, x: Array) -> Array:
        """y = x W + b or x W, float32 [..., O], of x [..., I]."""
        kernel_IO = self.param("kernel", normal(self.gain**2), (x.shape[-1], self.outputs))
        y = matmul(x, kernel_IO, self.compute)
        if not self.has_bias:
            return y
        bias_O = self.param("bias", linen.initializers.zeros, (self.outputs,))
        return y + jnp.expand_dims(bias_O, range(x.ndim - 1))


class Input(linen.Module):
    kind: "Transformer"
    compute: Any

    @linen.compact
    def __call__(self, bytes_BT: Array, embedding_VE: Array, place_BT: Array | None) -> Array:
        """The sum's first terms [B, T, H]; without places the bytes are at the first ones."""
        hidden = self.kind.hidden
        table_VH = embedding_VE
        if self.kind.embedding != hidden:
            kernel_EH = self.param("kernel", normal(1.0), (self.kind.embedding, hidden))
            table_VH = matmul(embedding_VE, kernel_EH, self.compute)
        places = _sinusoids(self.kind.embedding_std)
        positions_PH = self.param("positions", places, (self.kind.longest_window, hidden))
        x_BTH = lookup(bytes_BT.T, table_VH).swapaxes(0, 1)
        if place_BT is None:
            return x_BTH + positions_PH[None, : bytes_BT.shape[1]]
        return x_BTH + positions_PH[place_BT]


class Block(linen.Module):
    kind: "Transformer"
    compute: Any

    @linen.compact
    def __call__(
        self, x_BTH: Array, attend: Callable[..., Array], dropout_B2TH: Array | None
    ) -> Array:
        """The sum after attention and two dense matrices; `attend` takes queries, keys, values."""
        hidden = self.kind.hidden
        heads = (*x_BTH.shape[:2], self.kind.heads, hidden // self.kind.heads)
        dense = partial(Dense, compute=self.compute)
        ending = partial(dense, hidden, gain=(2 * self.kind.layers) ** -0.5)

        read = Norm(name="attention_norm")(x_BTH)
        projections = []
        for name in ("query", "key", "value"):
            # A bias of the keys would add the same to all scores of a query.
            projection = dense(hidden, has_bias=name != "key", name=name)(read)
            projections.append(projection.astype(self.compute).reshape(heads))
        attended = ending(name="out")(attend(*projections).reshape(x_BTH.shape))
        if dropout_B2TH is not None:
            attended = attended * dropout_B2TH[:, 0]
        x_BTH = x_BTH + attended
        wide = jax.nn.gelu(dense(4 * hidden, name="up")(Norm(name="dense_norm")(x_BTH)))
        narrow = ending(name="down")(wide.astype(self.compute))
        if dropout_B2TH is not None:
            narrow = narrow * dropout_B2TH[:, 1]
        return x_BTH + narrow


def _with_context(before: Context, bytes_BT: Array, lengths_B: Array) -> tuple[Array, Array, Array]:
    """P bytes, the last T of them new; the place of each in its text; which can be seen."""
    size = bytes_BT.shape[1]
    positions = before.bytes_BP.shape[1]
    start = positions - size
    old_BC = before.bytes_BP[:, size:].astype(bytes_BT.dtype)
    first_B1 = (start - jnp.minimum(before.count_B, start))[:, None]
    index_1P = jnp.arange(positions)[None]
    place_BP = jnp.maximum(index_1P - first_B1, 0)
    is_seen_BP = (index_1P >= first_B1) & (index_1P < start + lengths_B[:, None])
    return jnp.concatenate([old_BC, bytes_BT], axis=1), place_BP, is_seen_BP


def _follow(before: Context, bytes_BT: Array, h_BTLH: Array, lengths_B: Array) -> Context:
    """The context after a window, of which the first `lengths_B` bytes are of the text."""
    positions = before.bytes_BP.shape[1]
    both_BN = jnp.concatenate([before.bytes_BP, bytes_BT.astype(jnp.uint8)], axis=1)

    def row(h_LH: Array, both_N: Array, h_TLH: Array, length: Array) -> tuple[Array, Array]:
        last_LH = jnp.where(length > 0, h_TLH[jnp.maximum(length - 1, 0)], h_LH)
        return last_LH, jax.lax.dynamic_slice(both_N, (length,), (positions,))

    h_BLH, bytes_BP = jax.vmap(row)(before.h, both_BN, h_BTLH, lengths_B)
    return Context(h_BLH, bytes_BP, jnp.minimum(before.count_B + lengths_B, positions))


@dataclass(frozen=True, kw_only=True)
class Transformer(Architecture, title="Transformer"):
    """The network; each byte sees those before it, or with masked bytes all of its window.

    Attributes:
        hidden: Hidden units H of a layer. BERT-Large: 1024.
        layers: Layers, each of attention and two dense matrices. BERT-Large: 24.
        heads: Attention heads; they share the hidden units evenly. BERT-Large: 16.
        positions: The most bytes P that attend to each other; each position has a learned vector.
            Unset: the run's longest window, or 256 outside of a run. Positions beyond the longest
            window stay untrained and make scores worse. BERT: 512.
    """

    kind: Literal["transformer"] = field(default="transformer", init=False)

    hidden: Size = 256
    layers: Layers = 4
    heads: int = 4
    positions: Annotated[int, Between(2, 2**20)] | None = None

    states: ClassVar[tuple[str, ...]] = ("h",)

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"1 or more, and divide `model.hidden`, {self.hidden}"
        divides = self.heads >= 1 and self.hidden % self.heads == 0
        require(divides, "model.heads", self.heads, rule)

    @property
    def bidirectional(self) -> bool:
        return self.masked

    @property
    def longest_window(self) -> int:
        return self.positions or 256

    def for_windows(self, longest: int) -> Self:
        return dataclasses.replace(self, positions=self.positions or longest)

    def init_carry(self, rows: int, cell: Any) -> Tree:
        return ()

    def reading_carry(self, rows: int, cell: Any) -> Tree:
        h = np.zeros((rows, *self.shape), np.float32)
        return Context(h, np.zeros((rows, self.longest_window), np.uint8), np.zeros(rows, np.int32))

    def dropout_shape(self, window: int) -> tuple[int, ...]:
        """Mask the output of each attention and of each pair of dense matrices, as BERT does."""
        return self.layers, 2, window, self.hidden

    def named_states(self, carry: Tree) -> dict[str, Any]:
        return {"h": carry.h}

    def read(self, window: Window) -> tuple[Tree, Array, Tree]:
        bytes_BT = window.bytes_TB.T
        rows, size = bytes_BT.shape
        before = window.carry
        mask_TB = window.padding_mask_TB
        lengths_B = jnp.full(rows, size, jnp.int32)
        if mask_TB is not None:
            lengths_B = lengths_B - jnp.sum(mask_TB, axis=0, dtype=jnp.int32)
        read_BT = bytes_BT
        place_BT = None
        attend = partial(attention, causal=not self.bidirectional)
        if isinstance(before, Context):
            read_BT, place_BT, is_seen_BP = _with_context(before, bytes_BT, lengths_B)
            attend = partial(attend, keys_BS=is_seen_BP)
        elif self.bidirectional and mask_TB is not None:
            attend = partial(attend, lengths_B=lengths_B)

        x = Input(self, window.compute, name="input")(read_BT, window.embedding_VE, place_BT)
        states = []
        for layer in range(self.layers):
            dropout = None if window.dropout_B is None else window.dropout_B[:, layer]
            x = Block(self, window.compute, name=f"layer_{layer}")(x, attend, dropout)
            states.append(x[:, -size:])
        states[-1] = Norm(name="norm")(x)[:, -size:]
        output_TBH = states[-1].astype(window.compute).swapaxes(0, 1)
        h_BTLH = jnp.stack(states, axis=2)
        carry = before
        if isinstance(before, Context):
            carry = _follow(before, bytes_BT, h_BTLH, lengths_B)
        if window.states == "each":
            return carry, output_TBH, Context(h_BTLH, None, None)
        if window.states == "none":
            return carry, output_TBH, None
        highest_BTLH = h_BTLH
        if mask_TB is not None:
            is_padding = mask_TB.T[:, :, None, None]
            h_BTLH = jnp.where(is_padding, 0, h_BTLH)
            highest_BTLH = jnp.where(is_padding, -jnp.inf, highest_BTLH)
        return carry, output_TBH, Totals(h_BTLH.sum(axis=1), highest_BTLH.max(axis=1))

    def matrices(self, name: str) -> int:
        return 1 if name.endswith("/kernel") else super().matrices(name)

    def decays(self, name: str) -> bool:
        """Include the vectors of bytes and places, as BERT's recipe does (You et al. 2020)."""
        return name in ("embedding", "input/positions") or super().decays(name)

    def large_parameters(self, layer: int) -> list[str]:
        return [f"{name}/kernel" for name in ("down", "up", "out", "value", "key", "query")]

    def products(self, layer: int) -> Products:
        """Count all outside of loops, for windows of P bytes; attention sees half of them."""
        seen = self.longest_window * (2 if self.bidirectional else 1)
        return Products(0, 0, 6 * (12 * self.hidden**2 + self.hidden * seen))

    def activation_bytes(
        self, units: int, window: int, every: int | None, width: int, cell: int
    ) -> int:
        """Count x, both norms, q, k, v, attention's output, up and its gelu, and probabilities."""
        probabilities = window * self.heads * (4 + width) / self.hidden
        return int(window * units * (3 * 4 + 4 * 4 + 14 * width + probabilities))


@dataclass(frozen=True, kw_only=True)
class BERT(Transformer, title="BERT"):
    """The Transformer of masked bytes."""

    kind: Literal["bert"] = field(default="bert", init=False)  # type: ignore[assignment]

    objective: ObjectiveName = "masked-bytes"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.masked, "train.objective", "next-byte", f"masked-bytes with {self.cli_name}")
