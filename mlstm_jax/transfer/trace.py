"""One text, read byte by byte: its states, what the model predicts, and how it writes on.

A prompt is cleaned as the corpus was, but without the padding at its end. Each byte is then drawn
from softmax(logits / temperature), and read in turn.
"""

import codecs
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.corpora.documents import prompt_bytes
from mlstm_jax.errors import require
from mlstm_jax.loaded import Loaded
from mlstm_jax.model.architecture import VOCABULARY
from mlstm_jax.model.numpy_model import nats
from mlstm_jax.model.numpy_sampling import Request, Sampling
from mlstm_jax.options import SamplingOptions, State, byte_of
from mlstm_jax.transfer.engines import ByteEngine, byte_engine
from mlstm_jax.transfer.features import state_of

# Bytes at the end of a text, a character or two, that may be others in the next text.
_LAST_EDITED = 8


class Trace(NamedTuple):
    """A model's states and prediction for some bytes."""

    text: bytes
    values_TH: NDArray[np.float32]  # the requested states of layers, after each byte
    reached: Any  # what the engine knows after the last byte
    logits_V: NDArray[np.float32]  # of the next byte
    nats: float  # of all bytes but the first

    @property
    def next_V(self) -> NDArray[np.float32]:
        """The probability of each possible next byte."""
        with np.errstate(invalid="ignore"):  # of a model that has become inf or NaN
            shares_V = np.exp(self.logits_V - self.logits_V.max())
        next_V: NDArray[np.float32] = shares_V / shares_V.sum()
        return next_V


Layers = Sequence[tuple[State, int]]  # a state of a layer, or several side by side


def go_on() -> None:
    """Check nothing."""


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

    def __init__(self, loaded: Loaded, engine: ByteEngine, layers: Layers) -> None:
        """Use `TrainedModel.reader` instead."""
        architecture = loaded.architecture
        self._engine = engine
        self._layers = layers
        units = len(layers) * architecture.hidden
        self._reached: Any = None
        self._sum_LH = np.zeros(architecture.shape)
        self._max_LH = np.full(architecture.shape, -np.inf, np.float32)
        self._count = 0  # bytes read
        self._nats = 0.0  # of all but the first
        self.states = np.zeros((0, units), np.float32)
        self.state = np.zeros(units, np.float32)
        self.scores = np.zeros(0, np.float32)
        self._logits_1V = np.zeros((0, VOCABULARY), np.float32)  # of the next byte

    def feed(self, piece: bytes) -> Self:
        """Read any number of bytes.

        Args:
            piece: the bytes after the piece of the call before.

        Returns:
            This object.

        Raises:
            ValueError: the piece is not `bytes`.
        """
        require(isinstance(piece, bytes), "piece", piece, "bytes, such as text.encode()")
        return self._read(piece, go_on)

    def _read(self, piece: bytes, check: Callable[[], None]) -> Self:
        states = [self.states[:0]]
        logits = [self._logits_1V]
        for reached, each in self._engine.each(piece, self._reached):
            check()
            self._reached = reached
            size = len(each.logits_TV)
            # In float64, one byte after another, so that cuts do not change it.
            h_TLH = np.asarray(each.states["h"], np.float64)
            sums_TLH = np.concatenate([self._sum_LH[None], h_TLH]).cumsum(axis=0)[1:]
            mean_TLH = sums_TLH / (np.arange(1, size + 1)[:, None, None] + self._count)
            before_1LH = self._max_LH[None]
            max_TLH = np.maximum.accumulate(np.concatenate([before_1LH, each.states["h"]]))[1:]
            named: dict[str, Any] = each.states | {"mean_h": mean_TLH, "max_h": max_TLH}
            values_TH = np.concatenate([named[name][:, n] for name, n in self._layers], axis=1)
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
            self.scores = -nats(logits_TV, read_T).astype(np.float32)
        self._nats -= float(self.scores.sum(dtype=np.float64))
        return self


class Tracer:
    """Reads one text at a time, byte by byte, with a model that is loaded once.

    It keeps the last text: the page asks for it several times, and then with one more character.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.engine = byte_engine(loaded)
        # By layers: the last trace, and the stream before the last bytes of its text, in which the
        # next text may differ.
        self._kept: dict[tuple[tuple[State, int], ...], tuple[Trace, Stream]] = {}

    def stream(self, state: State | None = None) -> Stream:
        """Return a new stream, with a state of the top layer; unset: c, or h without a c."""
        return Stream(self.loaded, self.engine, [(state_of(self.loaded.architecture, state), -1)])

    def __call__(
        self, text: bytes, layers: Layers | None = None, check: Callable[[], None] = go_on
    ) -> Trace:
        """Read at least one byte from a zero state; trace states of layers; unset: see `stream`.

        `check` is called after each window; an error that it raises ends the reading.
        """
        layers = tuple(layers or [(state_of(self.loaded.architecture), -1)])
        # Other threads may read with this tracer: what it keeps is replaced, never changed.
        usable = {}
        for key, (trace, before) in self._kept.items():
            read = trace.text[: before._count]
            if trace.text == text or (read and text.startswith(read)):
                usable[key] = (trace, before)
        self._kept = usable  # frees the others
        stream = Stream(self.loaded, self.engine, layers)
        values = []
        if layers in usable:
            trace, before = usable[layers]
            if trace.text == text:
                return trace
            stream = copy.copy(before)
            values = [trace.values_TH[: stream._count]]
        # Other models read windows, which must begin at the same places as in the whole text.
        goes_on = self.loaded.architecture.longest_window is None
        piece = text[stream._count : -_LAST_EDITED]
        if goes_on and piece:
            values.append(stream._read(piece, check).states)
        before = copy.copy(stream)
        values.append(stream._read(text[stream._count :], check).states)
        values_TH = np.concatenate(values)
        trace = Trace(text, values_TH, stream._reached, stream._logits_1V[0], stream._nats)
        self._kept = usable | {layers: (trace, before)}
        return trace


def generate(
    tracer: Tracer, prompt: str, options: SamplingOptions, check: Callable[[], None] = go_on
) -> Iterator[list[bytes]]:
    """Yield continuations of a prompt in pieces: each time, the next piece of every sample.

    Sample i does not depend on their number. The units of `set_unit` are set before every byte. An
    error that `check` raises ends the reading or the writing.
    """
    architecture = tracer.loaded.architecture
    architecture.require_next_byte("generating text")
    held = options.set_unit or {}
    has_c = not held or "c" in architecture.states
    rule = f"unset: {architecture.cli_name} has no cell state c"
    require(has_c, "set_unit", dict(held), rule)
    last = architecture.hidden - 1
    for unit in held:
        require(0 <= unit <= last, "set_unit", unit, f"a unit, 0 to {last}")
    top_k = min(options.top_k or VOCABULARY, VOCABULARY)
    top_p = 2 if options.top_p is None else options.top_p
    how = Sampling(np.float32(options.temperature), np.int32(top_k), np.float32(top_p))
    held_H = np.full(architecture.hidden, np.nan, np.float32)
    held_H[list(held)] = list(held.values())
    stop = byte_of(options.stop)

    # One row: all samples share the prompt.
    trace = tracer(prompt_bytes(prompt, tracer.loaded.cleaning), check=check)
    request = Request(options.samples, options.bytes, options.seed, how, held_H)
    ended = [False] * options.samples
    for drawn_TB in tracer.engine.write(trace.reached, trace.logits_V, request):
        check()
        pieces = []
        for sample, row in enumerate(drawn_TB.T):
            piece = b"" if ended[sample] else row.tobytes()
            if stop and stop in piece:
                piece = piece.partition(stop)[0]
                ended[sample] = True
            pieces.append(piece)
        yield pieces
        if all(ended):
            return


def as_text(pieces: Iterator[bytes]) -> Iterator[str]:
    """Decode pieces of UTF-8; a character may span two pieces, and an invalid byte becomes �."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)
