"""Texts of any length, read one window at a time in batches of one shape.

Every reader of texts uses it, so that one compiled program serves all texts. A single text is also
read byte by byte: a layer's state after each byte, and the next-byte probabilities.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mlstm_jax.errors import UserError
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.model.language_model import Carry, LanguageModel, Parameters
from mlstm_jax.progress import ProgressLine
from mlstm_jax.run import Run, require_known
from mlstm_jax.training.objective import cross_entropy

# c and h after the last byte, or the mean of h over all bytes (Alley et al. 2019).
State = Literal["c", "h", "mean_h"]
# The features of a text: one state, or two side by side.
FeatureState = Literal["c", "h", "mean_h", "c+mean_h"]
STATE_NAMES: dict[FeatureState, str] = {
    "c": "cell state c after the last byte",
    "h": "h after the last byte",
    "mean_h": "mean of h over the text",
    "c+mean_h": "cell state c after the last byte, and mean of h over the text",
}

S = TypeVar("S", bound=FeatureState)

_WINDOW = 64


class Window(NamedTuple):
    """The next bytes of a batch of texts."""

    bytes_BT: NDArray[np.uint8]  # zero after the end of a text
    left_B: NDArray[np.int32]  # how many of the T bytes belong to the text
    next_BT: NDArray[np.uint8]  # the byte after each
    scored_B: NDArray[np.int32]  # how many of these belong to the text


def reading_line(name: str | None, size: int) -> ProgressLine:
    """Return a progress line of the bytes to read, with a name; without one it shows nothing."""
    return ProgressLine(name or "", size, of_bytes=True, quiet=name is None)


def batches(texts: Sequence[bytes], rows: int) -> Iterator[NDArray[np.intp]]:
    """Yield indices of texts of similar length, at most `rows` at a time, the shortest first."""
    order = np.argsort([len(text) for text in texts], kind="stable")
    for start in range(0, len(order), rows):
        yield order[start : start + rows]


def windows(texts: Sequence[bytes], rows: int, width: int) -> Iterator[Window]:
    """Yield the windows of at most `rows` texts, `width` bytes each, until all are read.

    Rows without a text are empty; a batch of only empty texts has no window.
    """
    length_B = np.zeros(rows, np.int32)
    length_B[: len(texts)] = [len(text) for text in texts]
    for at in range(0, int(length_B.max(initial=0)), width):
        bytes_BT = np.zeros((rows, width + 1), np.uint8)
        for row, text in enumerate(texts):
            piece = text[at : at + width + 1]
            bytes_BT[row, : len(piece)] = np.frombuffer(piece, np.uint8)
        left_B, scored_B = np.clip(length_B - at, 0, width), np.clip(length_B - at - 1, 0, width)
        yield Window(bytes_BT[:, :width], left_B, bytes_BT[:, 1:], scored_B)


def single_states(state: FeatureState) -> tuple[State, ...]:
    """Return the states that stand side by side: ("c", "mean_h") for "c+mean_h"."""
    return cast(tuple[State, ...], tuple(state.split("+")))


def states_of(model: Architecture, asked: Sequence[S] | None = None) -> tuple[S, ...]:
    """Return the states asked for, or else the first that the model has: c, or h without a c.

    Raises:
        UserError: the model does not have such a state, or none is named, or one twice.
    """
    if asked is None:
        return cast(tuple[S, ...], model.states[:1])
    single = {*model.states, "mean_h"}
    known = [state for state in STATE_NAMES if set(single_states(state)) <= single]
    for state in asked:
        if state not in known:
            raise UserError(f"state {state!r} is not one of {', '.join(known)} of {model.choice}.")
    if not asked or len(set(asked)) < len(asked):
        raise UserError(f"--state {' '.join(asked)}: name at least one state, each only once.")
    return tuple(asked)


def text_nats(logits_BTV: jax.Array, next_BT: Any, scored_B: Any) -> jax.Array:
    """Return the nats of the first `scored_B` next bytes of each row, float32 [B]."""
    is_scored_BT = jnp.arange(next_BT.shape[1])[None, :] < scored_B[:, None]
    return jnp.where(is_scored_BT, cross_entropy(logits_BTV, next_BT), 0).sum(axis=1)


class Trace(NamedTuple):
    """A model's states and prediction for some bytes."""

    text: bytes
    values_TH: NDArray[np.float32]  # of the requested state and layer, after each byte
    next_V: NDArray[np.float32]  # probability of each possible next byte
    end_LH: dict[str, NDArray[np.float32]]  # every state after the last byte
    nats: float  # of all bytes but the first


class Read(NamedTuple):
    """The state of a model after it has read a text."""

    carry: Carry  # of one row
    logits_BV: jax.Array  # of the next byte
    values_TH: list[NDArray[np.float32]]  # after each byte, one array per window
    mean_h_LH: NDArray[np.float64]
    nats: float  # of all bytes but the first


class Character(NamedTuple):
    """One character of a text and the index of its last byte."""

    text: str
    end: int


@partial(jax.jit, static_argnums=0)
def _read_window(
    model: LanguageModel, params: Parameters, carry: Carry, window: Window
) -> tuple[Carry, Carry, jax.Array, jax.Array]:
    bytes_BT, left_B, next_BT, scored_B = window
    padding_mask_BT = jnp.arange(bytes_BT.shape[1])[None] >= left_B[:, None]
    read = model.apply({"params": params}, bytes_BT, carry, padding_mask_BT, return_states=True)
    nats_B = text_nats(read.logits_BTV, next_BT, scored_B)
    return read.carry, read.states, read.logits_BTV[:, left_B[0] - 1], nats_B


def read_text(
    model: LanguageModel,
    params: Parameters,
    text: bytes,
    state: State | None = None,
    layer: int = -1,
) -> Read:
    """Read at least one byte from a zero state; one compiled step serves all lengths.

    The mean of h after a byte is over the text up to that byte; after the last, it is the feature.
    """
    (state,) = states_of(model.model, state and (state,))
    carry, pieces = jax.tree.map(jnp.asarray, model.reading_carry(1)), []
    sum_LH, width = np.zeros(model.model.shape), model.model.reading_window(_WINDOW)
    nats = 0.0
    for number, window in enumerate(windows([text], 1, width)):
        at, length = number * width, int(window.left_B[0])
        carry, states, logits_BV, nats_B = _read_window(model, params, carry, window)
        nats += float(nats_B[0])
        shown = model.model.shown(states)
        h_TLH = np.asarray(shown["h"][0], np.float64)[:length]
        if state == "mean_h":
            count_T1 = np.arange(at + 1, at + length + 1)[:, None]
            values_TH = (sum_LH[layer] + h_TLH[:, layer].cumsum(axis=0)) / count_T1
        else:
            values_TH = np.asarray(shown[state][0, :, layer])[:length]
        sum_LH += h_TLH.sum(axis=0)
        pieces.append(np.asarray(values_TH, np.float32))
    return Read(carry, logits_BV, pieces, sum_LH / len(text), nats)


class Reader:
    """Reads texts of any length with a model that is loaded once.

    It keeps what it read of the last text: the page asks for its classes and its score.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._params = jax.device_put(run.params)
        self._last = b""
        self._traces: dict[object, Trace] = {}

    def __call__(self, text: bytes, state: State | None = None, layer: int = -1) -> Trace:
        """Read at least one byte from a zero state; trace a state of a layer (-1: the top)."""
        if text != self._last:
            self._last, self._traces = text, {}
        if (state, layer) in self._traces:
            return self._traces[state, layer]
        require_known(self.run.params, "reading", [("the text", text)])
        found = read_text(self.run.model, self._params, text, state, layer)
        next_V = np.asarray(jax.nn.softmax(found.logits_BV[0]), np.float32)
        shown = self.run.config.model.shown(found.carry)
        end_LH: dict[str, NDArray[np.float32]] = {
            **{state: np.asarray(x_BLH[0], np.float32) for state, x_BLH in shown.items()},
            "mean_h": found.mean_h_LH.astype(np.float32),
        }
        trace = Trace(text, np.concatenate(found.values_TH), next_V, end_LH, found.nats)
        self._traces[state, layer] = trace
        return trace


def characters(text: bytes) -> list[Character]:
    """Return the characters of UTF-8 text; each byte that is part of none becomes a �."""
    found, start = [], 0
    while start < len(text):
        piece = text[start : start + 4]
        # The decoder drops damaged or cut characters, so check that its first is really first.
        first = piece.decode("utf-8", "ignore")[:1]
        if first and piece.startswith(first.encode()):
            start += len(first.encode())
        else:
            first = "�"
            start += 1
        found.append(Character(first, start - 1))
    return found
