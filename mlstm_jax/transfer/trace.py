"""One text, read byte by byte: its states and what the model predicts, for pages and generation."""

from typing import NamedTuple, cast

import jax
import numpy as np
from numpy.typing import NDArray

from mlstm_jax.model.language_model import Carry
from mlstm_jax.run import Run, require_known
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.transfer.reader import State, TextReader, Trail, states_of


class Trace(NamedTuple):
    """A model's states and prediction for some bytes."""

    text: bytes
    values_TH: NDArray[np.float32]  # of the requested state and layer, after each byte
    carry: Carry  # after the last byte, of one row
    logits_V: NDArray[np.float32]  # of the next byte
    end_LH: dict[str, NDArray[np.float32]]  # every state after the last byte
    nats: float  # of all bytes but the first

    @property
    def next_V(self) -> NDArray[np.float32]:
        """The probability of each possible next byte."""
        return np.asarray(jax.nn.softmax(self.logits_V), np.float32)


class Character(NamedTuple):
    """One character of a text and the index of its last byte."""

    text: str
    end: int


class Reader:
    """Reads one text at a time, byte by byte, with a model that is loaded once.

    It keeps what it read of the last text: the page asks for its classes and its score.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        device = Parallel(jax.local_devices()[:1])
        self._reader = TextReader(
            run, device, 1, score=not run.config.model.bidirectional, trail=True
        )
        self.weights = self._reader.one_row[1]  # [1, ...]
        self._last = b""
        self._traces: dict[object, Trace] = {}

    def __call__(self, text: bytes, state: State | None = None, layer: int = -1) -> Trace:
        """Read at least one byte from a zero state; trace a state of a layer (-1: the top).

        The mean of h after a byte is over the text up to that byte; after the last, it is the
        feature.
        """
        if text != self._last:
            self._last, self._traces = text, {}
        if (state, layer) in self._traces:
            return self._traces[state, layer]
        require_known(self.run.params, "reading", [("the text", text)])
        model = self.run.config.model
        (named,) = states_of(model, state and (state,))
        pieces, sum_LH, at = [], np.zeros(model.shape), 0
        for turn, reached, trail in self._reader.read([text]):  # noqa: B007
            states = model.named_states(self._reader.fetch(cast(Trail, trail).states))
            h_TLH = np.asarray(states["h"][0], np.float64)[: turn.bytes]
            if named == "mean_h":
                count_T1 = np.arange(at + 1, at + turn.bytes + 1)[:, None]
                values_TH = (sum_LH[layer] + h_TLH[:, layer].cumsum(axis=0)) / count_T1
            else:
                values_TH = np.asarray(states[named][0, :, layer])[: turn.bytes]
            sum_LH, at = sum_LH + h_TLH.sum(axis=0), at + turn.bytes
            pieces.append(np.asarray(values_TH, np.float32))
        carry, _, nats_B = self._reader.fetch(reached)
        (logits_V,) = self._reader.fetch(cast(Trail, trail).logits_BV)
        end_LH = {
            name: np.asarray(x[0], np.float32) for name, x in model.named_states(carry).items()
        }
        end_LH["mean_h"] = (sum_LH / len(text)).astype(np.float32)
        trace = Trace(text, np.concatenate(pieces), carry, logits_V, end_LH, float(nats_B[0]))
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
