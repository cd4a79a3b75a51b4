"""One text, read byte by byte: its states, and what the model predicts."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.errors import require
from mlstm_jax.loaded import Loaded
from mlstm_jax.model.architecture import VOCABULARY
from mlstm_jax.model.numpy_sampling import Drawn, Request
from mlstm_jax.options import FeatureState
from mlstm_jax.transfer.features import single_states, states_of
from mlstm_jax.transfer.reading import BytesReader, bytes_reader_of

# Bytes at the end of a text, a character or two, that may be others in the next text.
_LAST_EDITED = 8


class Trace(NamedTuple):
    """A model's states and prediction for some bytes."""

    text: bytes
    # Of the requested state and layer, after each byte; of several side by side, in their order.
    values_TH: NDArray[np.float32]
    reached: Any  # what the reader knows after the last byte
    logits_V: NDArray[np.float32]  # of the next byte
    end_LH: dict[str, NDArray[np.float32]]  # every state after the last byte
    nats: float  # of all bytes but the first

    @property
    def next_V(self) -> NDArray[np.float32]:
        """The probability of each possible next byte."""
        with np.errstate(invalid="ignore"):  # of a model that has become inf or NaN
            shares_V = np.exp(self.logits_V - self.logits_V.max())
        next_V: NDArray[np.float32] = shares_V / shares_V.sum()
        return next_V


def _go_on() -> None:
    pass


class Stream:
    """Reads one text in pieces, as they come, from a zero state.

    With a recurrent model on a CPU, all values equal the whole text's, bit for bit, wherever it
    is cut. Pieces are read as they are, without cleaning.

    Attributes:
        state: after the last byte, float32 [units]; zero before the first.
        states: after each byte of the last piece, float32 [bytes, units].
        scores: the log-probability, in nats, of each byte of the last piece, float32 [bytes]; the
            first byte of the text, which nothing predicts, has none.
    """

    def __init__(
        self, loaded: Loaded, reader: BytesReader, state: FeatureState | None, layer: int = -1
    ) -> None:
        """Use `TrainedModel.reader` instead."""
        model = loaded.architecture
        self._reader = reader
        self._layer = layer
        (chosen,) = states_of(model, state and (state,))
        self._states = single_states(chosen)
        units = len(self._states) * model.hidden
        self.check: Callable[[], None] = _go_on
        self._reached: Any = None
        self._end_LH: dict[str, NDArray[np.float32]] = {}
        self._sum_LH = np.zeros(model.shape)
        self._max_LH = np.full(model.shape, -np.inf, np.float32)
        self._count = 0  # bytes read
        self._nats = 0.0  # of all but the first
        self.states = np.zeros((0, units), np.float32)
        self.state = np.zeros(units, np.float32)
        self.scores = np.zeros(0, np.float32)
        self._logits_1V = np.zeros((0, VOCABULARY), np.float32)  # of the next byte

    def feed(self, piece: bytes) -> Self:
        """Read any number of bytes."""
        require(isinstance(piece, bytes), "piece", piece, "bytes, such as text.encode()")
        states = [self.states[:0]]
        logits = [self._logits_1V]
        for reached, each in self._reader.each(piece, self._reached):
            self.check()
            self._reached = reached
            size = len(each.logits_TV)
            # In float64, one byte after another, so that cuts do not change it.
            h_TLH = np.asarray(each.states["h"], np.float64)
            sums_TLH = np.concatenate([self._sum_LH[None], h_TLH]).cumsum(axis=0)[1:]
            count_T1 = np.arange(1, size + 1)[:, None] + self._count
            before_1LH = self._max_LH[None]
            max_TLH = np.maximum.accumulate(np.concatenate([before_1LH, each.states["h"]]))[1:]
            named = {name: x[:, self._layer] for name, x in each.states.items()}
            named["mean_h"] = (sums_TLH[:, self._layer] / count_T1).astype(np.float32)
            named["max_h"] = max_TLH[:, self._layer]
            values_TH = np.concatenate([named[name] for name in self._states], axis=1)
            self._end_LH = {name: x[-1] for name, x in each.states.items()}
            self._sum_LH = sums_TLH[-1]
            self._max_LH = max_TLH[-1]
            self._count += size
            states.append(np.asarray(values_TH, np.float32))
            logits.append(each.logits_TV)
        self.states = np.concatenate(states)
        if piece:
            self.state = self.states[-1]
        logits_TV = np.concatenate(logits)
        self._logits_1V = logits_TV[-1:]
        logits_TV = logits_TV[:-1].astype(np.float64)
        read_T = np.frombuffer(piece, np.uint8)[len(piece) - len(logits_TV) :]
        with np.errstate(invalid="ignore"):  # of a model that has become inf or NaN
            logits_TV -= logits_TV.max(axis=1, keepdims=True)
            normaliser_T = np.log(np.exp(logits_TV).sum(axis=1))
        scores_T = logits_TV[np.arange(len(read_T)), read_T] - normaliser_T
        self.scores = scores_T.astype(np.float32)
        self._nats -= float(self.scores.sum(dtype=np.float64))
        return self

    def trace(self, text: bytes, values_TH: NDArray[np.float32]) -> Trace:
        """Return what is known after `text`, with the values after each of its bytes."""
        end_LH = {name: np.asarray(x, np.float32) for name, x in self._end_LH.items()}
        end_LH["mean_h"] = (self._sum_LH / self._count).astype(np.float32)
        end_LH["max_h"] = self._max_LH.astype(np.float32)
        return Trace(text, values_TH, self._reached, self._logits_1V[0], end_LH, self._nats)


class Reader:
    """Reads one text at a time, byte by byte, with a model that is loaded once.

    It keeps the last text: the page asks for it several times, and then with one more character.
    """

    def __init__(self, run: Loaded) -> None:
        self.run = run
        self._check = _go_on
        self._reader = bytes_reader_of(run)
        # The last text of a state of a layer, and the stream after the part of that text with
        # which the next one may begin.
        self._kept: dict[tuple[FeatureState | None, int], tuple[Trace, Stream]] = {}

    def write(self, trace: Trace, request: Request) -> Iterator[Drawn]:
        """Yield the bytes that continue a text, a block of each sample at a time."""
        return self._reader.write(trace.reached, trace.logits_V, request)

    def checked(self, check: Callable[[], None]) -> "Reader":
        """A copy that calls `check` after each window: an error that it raises ends the reading."""
        reader = copy.copy(self)
        reader._check = check
        return reader

    def stream(self, state: FeatureState | None = None, layer: int = -1) -> Stream:
        """Return a new stream, with the state of a layer (-1: the top)."""
        return Stream(self.run, self._reader, state, layer)

    def __call__(self, text: bytes, state: FeatureState | None = None, layer: int = -1) -> Trace:
        """Read at least one byte from a zero state; trace a state of a layer (-1: the top)."""
        # Other threads may read with this reader: what it keeps is replaced, never changed.
        usable = {}
        for key, (trace, before) in self._kept.items():
            read = trace.text[: before._count]
            if trace.text == text or (read and text.startswith(read)):
                usable[key] = (trace, before)
        self._kept = usable  # frees the others
        stream = self.stream(state, layer)
        values = []
        if (state, layer) in usable:
            trace, before = usable[state, layer]
            if trace.text == text:
                return trace
            stream = copy.copy(before)
            values = [trace.values_TH[: stream._count]]
        stream.check = self._check
        # Other models read windows, which must begin at the same places as in the whole text.
        goes_on = self.run.architecture.longest_window is None
        if goes_on and (piece := text[stream._count : -_LAST_EDITED]):
            values.append(stream.feed(piece).states)
        before = copy.copy(stream)
        values.append(stream.feed(text[stream._count :]).states)
        trace = stream.trace(text, np.concatenate(values))
        self._kept = usable | {(state, layer): (trace, before)}
        return trace
