"""One text, byte by byte: the top layer's cell state after each, and what may come next."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mlstm_jax.model.language_model import Carry, LanguageModel, Parameters
from mlstm_jax.run import Run

_WINDOW = 64


class Trace(NamedTuple):
    """What a model made of some bytes."""

    text: bytes
    c_TH: NDArray[np.float32]  # of the top layer, after each byte
    next_V: NDArray[np.float32]  # probability of each byte to come


class Read(NamedTuple):
    """Where a text has left a model."""

    carry: Carry  # of one row
    logits_BV: jax.Array  # of the byte to come
    c_TH: list[NDArray[np.float32]]  # of the top layer, after each byte, a window at a time


class Character(NamedTuple):
    """One character of a text and the place of its last byte."""

    text: str
    end: int


@partial(jax.jit, static_argnums=0)
def _read_window(
    model: LanguageModel, params: Parameters, carry: Carry, bytes_BT: jax.Array, length: jax.Array
) -> tuple[Carry, jax.Array, jax.Array]:
    hold_BT = jnp.arange(bytes_BT.shape[1])[None] >= length
    read = model.apply({"params": params}, bytes_BT, carry, hold_BT, trace=True)
    return read.carry, read.trace.c[0, :, -1], read.logits_BTV[:, length - 1]


def read(model: LanguageModel, params: Parameters, text: bytes) -> Read:
    """Read at least one byte from a zero state, by one compiled step whatever the length."""
    carry, pieces = jax.tree.map(jnp.asarray, model.init_carry(1)), []
    for at in range(0, len(text), _WINDOW):
        piece = text[at : at + _WINDOW]
        bytes_BT = np.zeros((1, _WINDOW), np.uint8)
        bytes_BT[0, : len(piece)] = np.frombuffer(piece, np.uint8)
        carry, c_TH, logits_BV = _read_window(model, params, carry, bytes_BT, jnp.int32(len(piece)))
        pieces.append(np.asarray(c_TH, np.float32)[: len(piece)])
    return Read(carry, logits_BV, pieces)


class Reader:
    """A model that is loaded once and reads texts of any length."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._params = jax.device_put(run.params)

    def __call__(self, text: bytes) -> Trace:
        """Read at least one byte, from a zero state."""
        found = read(self.run.model, self._params, text)
        next_V = np.asarray(jax.nn.softmax(found.logits_BV[0]), np.float32)
        return Trace(text, np.concatenate(found.c_TH), next_V)


def characters(text: bytes) -> list[Character]:
    """Return the characters of UTF-8 text; a byte that is part of none is a � of its own."""
    found, start = [], 0
    while start < len(text):
        piece = text[start : start + 4]
        # The decoder drops what is damaged or cut: a first character that is left whole fits.
        first = piece.decode("utf-8", "ignore")[:1]
        if first and piece.startswith(first.encode()):
            start += len(first.encode())
        else:
            first = "�"
            start += 1
        found.append(Character(first, start - 1))
    return found
