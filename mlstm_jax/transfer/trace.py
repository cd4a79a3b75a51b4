"""One text, read byte by byte: its states, what the model predicts, and its heat map.

A heat map (Radford et al. 2017, fig. 4) colours each character by a unit's value, or a classifier's
score, after its last byte: blue below zero, orange above, on one stated scale. A curve below the
text shows the same values. heatmap_drawing.py draws it.
"""

import copy
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from numpy.typing import NDArray

from mlstm_jax.corpora.documents import clean, prompt_bytes
from mlstm_jax.errors import UserError, require
from mlstm_jax.model.architecture import VOCABULARY
from mlstm_jax.model.language_model import Carry, LanguageModel
from mlstm_jax.run import Run, require_known
from mlstm_jax.terminal import one_line
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.transfer.classifier import Classifier
from mlstm_jax.transfer.heatmap_drawing import Heatmap, word_ends
from mlstm_jax.transfer.reader import TextReader
from mlstm_jax.transfer.states import State, require_index, states_of

_STATES: dict[State, str] = {"c": "cell state c", "h": "h", "mean_h": "mean of h so far"}
# Bytes at the end of a text, a character or two, that may be others in the next text.
_LAST_EDITED = 8

_NOT_BLANK = "a text with a character that is not a space"


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
        require_known(self._run.params, "reading", [("the text", piece)])
        states = [self.states[:0]]
        logits = [self._logits_1V]
        for step, reached, outputs in self._reader.read([piece], self._reached):
            assert outputs
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


class _CachedTrace(NamedTuple):
    """The last text that was read for a state of a layer, and where the next one may go on."""

    trace: Trace
    stream: Stream  # after that part of the text with which the next one may begin

    def leads_to(self, text: bytes) -> bool:
        read = self.trace.text[: self.stream._count]
        return self.trace.text == text or bool(read and text.startswith(read))


class Reader:
    """Reads one text at a time, byte by byte, with a model that is loaded once.

    It keeps what it read last: the page asks for a text's classes and its score, and then for the
    text with one more character, which a recurrent model reads on from there.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._device = Parallel(jax.local_devices()[:1])
        self._reader = TextReader(run, self._device, 1, keep_states="each")
        # Any text needs them; the first answer of the page does not wait for them.
        _, self._weights = self._reader.one_row
        self._kept: dict[tuple[State | None, int], _CachedTrace] = {}

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

    def stream(self, state: State | None = None, layer: int = -1) -> Stream:
        """Return a new stream, with the state of a layer (-1: the top)."""
        return Stream(self.run, self._reader, state, layer)

    def __call__(self, text: bytes, state: State | None = None, layer: int = -1) -> Trace:
        """Read at least one byte from a zero state; trace a state of a layer (-1: the top).

        The mean of h after a byte is over the text up to that byte; after the last, it is the
        feature.
        """
        # Other threads may read with this reader: what it keeps is replaced, never changed.
        usable = {key: kept for key, kept in self._kept.items() if kept.leads_to(text)}
        self._kept = usable  # frees the others
        kept = usable.get((state, layer))
        if kept and kept.trace.text == text:
            return kept.trace
        stream = self.stream(state, layer)
        values = []
        if kept:
            stream = copy.copy(kept.stream)
            values = [kept.trace.values_TH[: stream._count]]
        # Other models read windows, which must begin at the same places as in the whole text.
        goes_on = self.run.config.model.longest_window is None
        if goes_on and (piece := text[stream._count : -_LAST_EDITED]):
            values.append(stream.feed(piece).states)
        before = copy.copy(stream)
        values.append(stream.feed(text[stream._count :]).states)
        trace = stream.trace(text, np.concatenate(values))
        self._kept = usable | {(state, layer): _CachedTrace(trace, before)}
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


def characters(text: bytes) -> tuple[list[str], list[int]]:
    """Split UTF-8 text into characters; each byte that is part of none becomes a �.

    Also returns the index of the last byte of each.
    """
    texts = []
    ends = []
    end = -1
    for character in text.decode("utf-8", "surrogateescape"):
        is_lost = "\udc80" <= character <= "\udcff"
        end += 1 if is_lost else len(character.encode())
        texts.append("�" if is_lost else character)
        ends.append(end)
    return texts, ends


def heat(
    reader: Reader,
    text: str,
    unit: int,
    scale: float | None = None,
    *,
    state: State | None = None,
    layer: int | None = None,
) -> Heatmap:
    """Read a text, cleaned as `generate` cleans its prompt; see `TrainedModel.heatmap`."""
    layers, hidden = reader.run.config.model.shape
    (state,) = states_of(reader.run.config.model, state and (state,))
    layer = layers - 1 if layer is None else layer
    require_index("layer", layer, layers)
    require_index("unit", unit, hidden)
    require(bool(text.strip()), "text", text, _NOT_BLANK)
    trace = reader(prompt_bytes(text, reader.run.cleaning), state, layer)
    heading = f"Unit {unit} of layer {layer}"
    name = f"{_STATES[state]} of unit {unit} of layer {layer}"
    return _heatmap(reader, trace.text, trace.values_TH[:, unit], scale, heading, name)


def score_heat(
    reader: Reader,
    text: str,
    classifier: Classifier,
    label: str | None = None,
    scale: float | None = None,
) -> Heatmap:
    """Read a text, cleaned as a document: a classifier's score after each character.

    See `TrainedModel.heatmap`. The scale is that of whole words: the mean of a few bytes, far from
    that of any whole text, has a larger score.
    """
    label = shown_label(classifier, label)
    cleaned, values_T = running_score(reader, classifier, text, label)
    shown = one_line(label)
    heading = f"Score of {shown}"
    by_byte = _heatmap(reader, cleaned, values_T, scale, heading, f"log-odds of {shown}")
    largest = float(np.abs(by_byte.values[word_ends(by_byte.texts)]).max())
    return by_byte._replace(by_word=True, scale=scale or largest or 1.0)


def running_score(
    reader: Reader, classifier: Classifier, text: str, label: str
) -> tuple[bytes, NDArray[np.float64]]:
    """Return the cleaned text, and the score of one class after each of its bytes, float64.

    The text is cleaned as a document is, so that the last score is the classifier's own. Raises
    UserError if it is then empty, the model is bidirectional, or the classifier has words.
    """
    reader.run.config.model.require_next_byte("a score after each character")
    cleaned = clean(text, reader.run.cleaning)
    require(bool(cleaned), "text", text, _NOT_BLANK)
    layers = classifier.about.layers(reader.run.config.model)
    read = [reader(cleaned, state, layer).values_TH for state, layer in layers]
    scores_TK = classifier.scores(np.concatenate(read, axis=1))
    return cleaned, scores_TK[:, classifier.classes.index(label)]


def shown_label(classifier: Classifier, label: str | None) -> str:
    """Return the class to show: the given one, or the last; UserError if it does not exist.

    Of two classes the last is the one whose probability rises with the classifier's score.
    """
    known = classifier.classes
    if label is None:
        return known[-1]
    require(label in known, "label", label, f"one of {', '.join(known)}")
    return label


def _heatmap(
    reader: Reader, text: bytes, values_T: Any, scale: float | None, heading: str, name: str
) -> Heatmap:
    texts, ends = characters(text)
    values = values_T[ends]
    if not np.isfinite(values).all():
        raise UserError(
            f"the {name} is infinite or not a number; the model may have diverged, so load an "
            "earlier checkpoint."
        )
    # In a long text a few outliers would make all other characters white.
    largest = float(np.percentile(np.abs(values), 99, method="higher"))
    title = one_line(reader.run.name)
    return Heatmap(texts, values, scale or largest or 1.0, heading, name, title)
