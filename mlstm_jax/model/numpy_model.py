"""Recurrent models in NumPy alone: weights, step, reading, sampling. It needs no other file.

mlstm.py and gated.py have the equations. One byte costs one product a recurrent matrix; an
input is a byte, so its products with the first layer's matrices are tables of 256 rows. Sigmoids
are tanh(x / 2) / 2 + 1/2, where the weights hold the first half. Rows are sorted by length, so that
one that has ended costs nothing.

mlstm_jax/__init__.py explains the letters of dimensions. `mlstm-jax export NAME.pyz` packs this
file with a model, for programs that have only NumPy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Product = Callable[[Array], Array]  # x [B, H] → x W

_ROWS = 256  # of texts at a time: more are hardly faster
# So few rows are multiplied one by one: BLAS copies a matrix before it multiplies it by another.
_MOST_SINGLE = 4


class NumpyCarry(NamedTuple):
    """The state of all layers, which steps change in place."""

    h: Array  # [L, B, H]
    c: Array  # unused by a kind without one

    def rows(self, first: int) -> "NumpyCarry":
        """The rows from one on, in the same memory."""
        return NumpyCarry(self.h[:, first:], self.c[:, first:])


class Summary(NamedTuple):
    """What reading some texts gives."""

    text_N: NDArray[np.intp]  # which texts they are
    states: dict[str, Array]  # by name, each [N, L, H]
    nats_N: NDArray[np.float64]  # of all bytes of a text but the first; 0 unless scored


class Each(NamedTuple):
    """The states and the prediction after each byte of a text."""

    states: dict[str, Array]  # h and c, each [T, L, H]
    logits_TV: Array


def float_product(v_IO: Array, scale_O: Array) -> Product:
    """The product with W = V · scale in float32."""
    w_IO = np.ascontiguousarray(v_IO * scale_O)

    def product(x: Array) -> Array:
        if len(x) > _MOST_SINGLE:
            return x @ w_IO
        return np.stack([row @ w_IO for row in x])

    return product


class NumpyModel:
    """A recurrent model, read in float32."""

    def __init__(
        self,
        kind: str,
        params: Mapping[str, NDArray[Any]],
        product: Callable[[Array, Array], Product] = float_product,
        rows: int = _ROWS,
        dtype: Any = np.float32,
    ) -> None:
        """Take the parameters of one of `KINDS` by name, as in weights.safetensors.

        `product` makes the function that multiplies by a matrix of columns V · scale. `rows` texts
        are read at a time. The tests compute in float64 and complex numbers.
        """
        cast = {name: np.ascontiguousarray(array, dtype) for name, array in params.items()}
        self.states = KINDS[kind].states
        self._rows = rows
        self._dtype = dtype
        self._advance = KINDS[kind].advance
        self._bias_V = cast["decoder_bias"]
        self._decode = product(cast["decoder_kernel"], np.ones(len(self._bias_V), np.float32))
        self._layers: list[_NumpyLayer] = []
        while f"layer_{len(self._layers)}/b" in cast:
            self._layers.append(_NumpyLayer(kind, len(self._layers), cast, product))
        self.shape = (len(self._layers), len(cast["decoder_kernel"]))

    def init_carry(self, rows: int) -> NumpyCarry:
        """The state of some texts before their first byte, zero."""
        layers, hidden = self.shape
        shape = (layers, rows, hidden)
        return NumpyCarry(np.zeros(shape, self._dtype), np.zeros(shape, self._dtype))

    def step(self, bytes_B: NDArray[np.uint8], carry: NumpyCarry) -> Array:
        """Read a byte of each row: change the carry, and return h of the top layer, [B, H]."""
        x: Any = bytes_B
        for layer, h, c in zip(self._layers, carry.h, carry.c, strict=True):
            self._advance(layer.z(x, h), h, c)
            x = h
        return x

    def logits(self, h_BH: Array) -> Array:
        """The scores of each next byte, float32 [B, 256], after h of the top layer."""
        logits_BV = self._decode(h_BH)
        logits_BV += self._bias_V
        return logits_BV

    def read(
        self,
        texts: Sequence[bytes],
        *,
        score: bool = False,
        rows: int | None = None,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> Iterator[Summary]:
        """Yield what is known after each text, some texts at a time, the shortest first.

        States are c and h after the last byte, and mean_h and max_h over all bytes; a text without
        bytes has zeros. `on_bytes` is told how many bytes have been read.
        """
        lengths = np.array([len(text) for text in texts], np.int64)
        order = np.argsort(lengths, kind="stable")
        rows = rows or self._rows
        for first in range(0, len(order), rows):
            text_B = order[first : first + rows]
            yield self._read_rows(text_B, [texts[n] for n in text_B], score, on_bytes)

    def _read_rows(
        self,
        text_B: NDArray[np.intp],
        texts: Sequence[bytes],
        score: bool,
        on_bytes: Callable[[int], None],
    ) -> Summary:
        length_B = np.array([len(text) for text in texts])
        bytes_TB = np.zeros((length_B[-1], len(texts)), np.uint8)
        for row, text in enumerate(texts):
            bytes_TB[: len(text), row] = np.frombuffer(text, np.uint8)
        carry = self.init_carry(len(texts))
        sum_LBH = np.zeros_like(carry.h)
        max_LBH = np.full_like(carry.h, -1.0)  # h is above it
        nats_B = np.zeros(len(texts))
        for t, bytes_B in enumerate(bytes_TB):
            live = int(np.searchsorted(length_B, t, side="right"))
            rest = carry.rows(live)
            h_BH = self.step(bytes_B[live:], rest)
            sum_LBH[:, live:] += rest.h
            np.maximum(max_LBH[:, live:], rest.h, out=max_LBH[:, live:])
            scored = int(np.searchsorted(length_B, t + 1, side="right"))
            if score and scored < len(texts):
                logits_BV = self.logits(h_BH[scored - live :])
                nats_B[scored:] += nats(logits_BV, bytes_TB[t + 1, scored:])
            on_bytes(len(texts) - live)
        max_LBH[:, length_B == 0] = 0
        mean_LBH = sum_LBH / np.maximum(length_B, 1)[:, None]
        states = {"h": carry.h, "c": carry.c, "mean_h": mean_LBH, "max_h": max_LBH}
        kept = {}
        for name in (*self.states, "mean_h", "max_h"):
            kept[name] = states[name].swapaxes(0, 1).astype(np.float32, copy=False)
        return Summary(text_B, kept, nats_B)

    def read_each(self, text: bytes, carry: NumpyCarry) -> Each:
        """Read a piece of one text, whose carry [L, 1, H] changes: the states after each byte."""
        shape = (len(text), *self.shape)
        each = {name: np.empty(shape, np.float32) for name in self.states}
        logits_TV = np.empty((len(text), len(self._bias_V)), np.float32)
        for t, byte in enumerate(np.frombuffer(text, np.uint8)):
            h_1H = self.step(byte[None], carry)
            for name, array in each.items():
                array[t] = getattr(carry, name)[:, 0]
            logits_TV[t] = self.logits(h_1H)
        return Each(each, logits_TV)


class _NumpyLayer:
    def __init__(self, kind: str, layer: int, params: Mapping[str, Array], product: Any) -> None:
        prefix = f"layer_{layer}/"
        self._kind = kind
        b_Z = params[f"{prefix}b"]
        halves = [np.float32(0.5 if is_sigmoid else 1) for is_sigmoid in KINDS[kind].sigmoids]
        half_Z = np.repeat(halves, len(b_Z) // len(halves))
        only_h = 0  # columns of z; as in gated.py, Wh's are the first and Wx's the last
        names = ("wmx", "wmh", "wx", "wh") if kind == "mlstm" else ("wx", "wh")
        matrices: dict[str, Product] = {}
        tables: dict[str, Array] = {}
        for name in names:
            v_IO, scale_O = _matrix(prefix + name, params)
            if kind == "lstm":  # from the gates i, f, g, o
                v_IO = _gates_in_order(v_IO)
                scale_O = _gates_in_order(scale_O)
            if name == "wh":
                scale_O = scale_O * half_Z[: len(scale_O)]
            if name == "wx":
                only_h = len(half_Z) - len(scale_O)
                scale_O = scale_O * half_Z[only_h:]
            if layer == 0 and name in ("wmx", "wx"):  # a table: the inputs are bytes
                tables[name] = params["embedding"] @ (v_IO * scale_O)
                matrices[name] = tables[name].__getitem__
            else:
                matrices[name] = product(v_IO, scale_O)
        if kind == "lstm":
            b_Z = _gates_in_order(b_Z)
        b_Z = b_Z * half_Z
        self._b_h = b_Z[:only_h]
        self._b = b_Z[only_h:]
        self._has_b_in_table = bool(tables)
        if tables:
            tables["wx"] += self._b
        self._m = matrices

    def z(self, x: Any, h: Array) -> Any:
        """The pre-activations, halved for sigmoids; parts of x and h if some are of h alone."""
        of_x = self._m["wx"](x)
        if not self._has_b_in_table:
            of_x += self._b
        if len(self._b_h):
            of_h = self._m["wh"](h)
            of_h[:, : len(self._b_h)] += self._b_h
            return of_x, of_h
        if self._kind == "mlstm":
            m = self._m["wmh"](h)
            m *= self._m["wmx"](x)
            h = m
        z = self._m["wh"](h)
        z += of_x
        return z


def _advance_lstm(z_BG: Array, h: Array, c: Array) -> None:
    """Change h and c of a layer by its z = [i f o u]."""
    hidden = h.shape[-1]
    np.tanh(z_BG, out=z_BG)
    gates = z_BG[:, : 3 * hidden]
    gates *= 0.5
    gates += 0.5
    i, f, o, u = np.split(z_BG, 4, axis=-1)
    c *= f
    u *= i
    c += u
    np.tanh(c, out=h)
    h *= o


def _advance_gru(z: tuple[Array, Array], h: Array, _: Array) -> None:
    """Change h of a layer by x Wx = [r z n] and h Wh = [n r z]."""
    hidden = h.shape[-1]
    of_x, of_h = z
    gates = np.tanh(of_x[:, : 2 * hidden] + of_h[:, hidden:])
    gates *= 0.5
    gates += 0.5
    r, keep = np.split(gates, 2, axis=-1)
    n = np.tanh(of_x[:, 2 * hidden :] + r * of_h[:, :hidden])
    h -= n
    h *= keep
    h += n


def nats(logits_BV: Array, byte_B: NDArray[np.uint8]) -> Array:
    """The cross-entropy of a byte after each row's logits, [B]."""
    shifted = logits_BV - logits_BV.max(axis=1, keepdims=True)
    total_B: Array = np.log(np.exp(shifted).sum(axis=1))
    return total_B - shifted[np.arange(len(byte_B)), byte_B]


def _matrix(name: str, params: Mapping[str, Array]) -> tuple[Array, Array]:
    """V and the scale of each column, with W = V · scale."""
    if name in params:
        return params[name], np.ones(params[name].shape[1], np.float32)
    v_IO = params[f"{name}_v"]
    # As ops.weight_norm, which keeps a column of zeros.
    norm_O = np.sqrt(np.maximum((v_IO * v_IO).sum(axis=0), 1e-12))
    return v_IO, params[f"{name}_g"] / norm_O


def _gates_in_order(x: Array) -> Array:
    """From the gates i, f, g, o to i, f, o, u, in the last dimension."""
    i, f, g, o = np.split(x, 4, axis=-1)
    return np.concatenate([i, f, o, g], axis=-1)


class Kind(NamedTuple):
    """What a recurrent kind has of its own."""

    title: str
    states: tuple[str, ...]
    sigmoids: tuple[bool, ...]  # whether each gate of z is one
    advance: Callable[[Any, Array, Array], None]


KINDS = {
    "mlstm": Kind("mLSTM", ("c", "h"), (True, True, True, False), _advance_lstm),
    "lstm": Kind("LSTM", ("c", "h"), (True, True, True, False), _advance_lstm),
    "gru": Kind("GRU", ("h",), (False, True, True, False), _advance_gru),
}
