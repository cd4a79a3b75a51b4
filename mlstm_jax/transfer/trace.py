"""One text, read byte by byte: its states, and what the model predicts."""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from numpy.typing import NDArray

from mlstm_jax.errors import require
from mlstm_jax.model.architecture import VOCABULARY
from mlstm_jax.model.language_model import Carry, LanguageModel
from mlstm_jax.run import Run
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.transfer.features import State, states_of
from mlstm_jax.transfer.reader import TextReader

# Bytes at the end of a text, a character or two, that may be others in the next text.
_LAST_EDITED = 8


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


def _go_on() -> None:
    pass


class Stream:
    """Reads one text in pieces, as they come, from a zero state.

    With a recurrent model on a CPU, all values are bit for bit those of the whole text, wherever it
    is cut. Pieces are read as they are, without cleaning.

    Attributes:
        state: after the last byte, float32 [units]; zero before the first.
        states: after each byte of the last piece, float32 [bytes, units].
        scores: the log-probability, in nats, of each byte of the last piece, float32 [bytes]; the
            first byte of the text, which nothing predicts, has none.
    """

    def __init__(self, run: Run, reader: TextReader, state: State | None, layer: int = -1) -> None:
        """Use `TrainedModel.reader` instead."""
        model = run.config.model
        self._run = run
        self._reader = reader
        self._layer = layer
        (self._state,) = states_of(model, state and (state,))
        self.check: Callable[[], None] = _go_on
        self._reached: Any = None
        self._sum_LH = np.zeros(model.shape)
        self._count = 0  # bytes read
        self._nats = 0.0  # of all but the first
        self.states = np.zeros((0, model.hidden), np.float32)
        self.state = np.zeros(model.hidden, np.float32)
        self.scores = np.zeros(0, np.float32)
        self._logits_1V = np.zeros((0, VOCABULARY), np.float32)  # of the next byte

    def feed(self, piece: bytes) -> Self:
        """Read any number of bytes."""
        require(isinstance(piece, bytes), "piece", piece, "bytes, such as text.encode()")
        states = [self.states[:0]]
        logits = [self._logits_1V]
        for step, reached, outputs in self._reader.read([piece], self._reached):
            assert outputs
            self.check()
            self._reached = reached
            carry, logits_BTV = self._reader.fetch(outputs)
            named = self._run.config.model.named_states(carry)
            # In float64, one byte after another, so that cuts do not change it.
            h_TLH = np.asarray(named["h"][0, : step.size], np.float64)
            sums_TLH = np.concatenate([self._sum_LH[None], h_TLH]).cumsum(axis=0)[1:]
            count_T1 = np.arange(1, step.size + 1)[:, None] + self._count
            if self._state == "mean_h":
                values_TH = sums_TLH[:, self._layer] / count_T1
            else:
                values_TH = named[self._state][0, : step.size, self._layer]
            self._sum_LH = sums_TLH[-1]
            self._count += step.size
            states.append(np.asarray(values_TH, np.float32))
            logits.append(logits_BTV[0, : step.size])
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
        carry = self._reader.fetch(self._reached.carry)
        named = self._run.config.model.named_states(carry)
        end_LH = {name: np.asarray(x[0], np.float32) for name, x in named.items()}
        end_LH["mean_h"] = (self._sum_LH / self._count).astype(np.float32)
        return Trace(text, values_TH, carry, self._logits_1V[0], end_LH, self._nats)


class Reader:
    """Reads one text at a time, byte by byte, with a model that is loaded once.

    It keeps what it read last: the page asks for a text's classes and its score, and then for the
    text with one more character, which a recurrent model reads on from there.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._check = _go_on
        self._device = Parallel(jax.local_devices()[:1])
        self._reader = TextReader(run, self._device, 1, keep_states="each")
        # Any text needs them; the first answer of the page does not wait for them.
        _, self._weights = self._reader.one_row
        # The last text of a state of a layer, and the stream after the part of that text with
        # which the next one may begin.
        self._kept: dict[tuple[State | None, int], tuple[Trace, Stream]] = {}

    @functools.cached_property
    def writer(self) -> tuple[LanguageModel, Any]:
        """The model that generates text, of any number of rows, and its weights [1, ...]."""
        if (model := self.run.batch_model) is None:
            return self.run.model, self._weights
        params = self.run.params
        return model, self._device.replicate((params, model.reading_weights(params)))

    def put(self, tree: Any) -> Any:
        """Copy arrays to where a program of `writer` leaves its own: one serves all calls."""
        return self._device.copy_to_all(tree)

    def checked(self, check: Callable[[], None]) -> "Reader":
        """A copy that calls `check` after each window: an error that it raises ends the reading."""
        reader = copy.copy(self)
        reader._check = check
        return reader

    def stream(self, state: State | None = None, layer: int = -1) -> Stream:
        """Return a new stream, with the state of a layer (-1: the top)."""
        return Stream(self.run, self._reader, state, layer)

    def __call__(self, text: bytes, state: State | None = None, layer: int = -1) -> Trace:
        """Read at least one byte from a zero state; trace a state of a layer (-1: the top).

        The mean of h after a byte is over the text up to that byte; after the last, it is the
        feature.
        """
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
        goes_on = self.run.config.model.longest_window is None
        if goes_on and (piece := text[stream._count : -_LAST_EDITED]):
            values.append(stream.feed(piece).states)
        before = copy.copy(stream)
        values.append(stream.feed(text[stream._count :]).states)
        trace = stream.trace(text, np.concatenate(values))
        self._kept = usable | {(state, layer): (trace, before)}
        return trace


def states_at(
    run: Run, reader: TextReader, texts: Sequence[bytes], places: Sequence[Any], state: str
) -> list[NDArray[np.float32]]:
    """Return a state of the top layer after some bytes of each text, float32 [places, units].

    Args:
        reader: it keeps the states.
        places: of each text, the indices of these bytes, int [places].
    """
    model = run.config.model
    states = [np.zeros((len(place), model.hidden), np.float32) for place in places]
    for step, _, outputs in reader.read(texts):
        assert outputs
        values_BTLH = reader.fetch(model.named_states(outputs.states)[state])
        for row in np.flatnonzero(step.text_B >= 0):
            text = step.text_B[row]
            here = places[text] - step.place_B[row]
            inside = (here >= 0) & (here < values_BTLH.shape[1])
            states[text][inside] = values_BTLH[row, here[inside], -1]
    return states
