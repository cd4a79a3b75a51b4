"""A model that reads a text byte by byte: states, log-probabilities, vectors of words, a stream."""

import reprlib
from collections.abc import Iterable, Sequence
from operator import index
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.api.arguments import as_texts, public
from mlstm_jax.api.loaded import LoadedModel
from mlstm_jax.config import Devices
from mlstm_jax.corpora.documents import clean, cleaned_spans
from mlstm_jax.errors import UserError
from mlstm_jax.fields import Wrong
from mlstm_jax.training import parallel
from mlstm_jax.transfer.reader import State, TextReader, states_of
from mlstm_jax.transfer.trace import Reader, Stream, states_at

_PIECE = 4096  # bytes
# More are hardly faster on a CPU (reader.py), and the states of a window take their memory.
_SPAN_ROWS = 8


class ByteByByte(LoadedModel):
    """What a model knows after each byte of a text."""

    @public
    def states(self, text: str, state: State | None = None) -> NDArray[np.float32]:
        """Return a state of the top layer after each byte of a text.

        The bytes are those of the cleaned text, see `cleaned`; the last row is what `encode` gives.

        Args:
            text: to read, from a zero state.
            state: "c" or "h" after each byte, or "mean_h", the mean of h up to it; unset: c, or h
                of a model that has no c.

        Returns:
            float32 [bytes, H]; a row of 768 units takes 3 kB.

        Raises:
            ValueError: the state does not exist.
        """
        return self._stream(state).feed(self.cleaned(text)).states

    @public
    def log_probabilities(self, text: str) -> NDArray[np.float32]:
        """Return the natural logarithm of the probability of each byte of a text, in nats.

        The model predicts each byte of the cleaned text (see `cleaned`) from all before it. Nothing
        predicts the first, so there is one value for each byte after it. Divided by -log(2) they
        are bits, whose mean over all bytes of texts is `bits_per_character`.

        Args:
            text: to read, from a zero state.

        Returns:
            float32 [bytes - 1]; of a blank text, none.

        Raises:
            ValueError: the model does not predict the next byte.
        """
        reader, cleaned = self.reader(), self.cleaned(text)
        # In pieces, because the states of a piece are kept.
        pieces = [cleaned[at : at + _PIECE] for at in range(0, len(cleaned), _PIECE)]
        return np.concatenate([reader.scores, *(reader.feed(piece).scores for piece in pieces)])

    @public
    def spans(
        self,
        texts: Iterable[str],
        spans: Sequence[Sequence[tuple[int, int]]],
        state: Literal["c", "h"] | None = None,
    ) -> list[NDArray[np.float32]]:
        """Return a state of the top layer after the last byte of each span, such as of each word.

        Args:
            texts: each is read from a zero state.
            spans: of each text, the (start, end) offsets of characters, as tokenizers and spaCy
                give them: the span is text[start:end]. They are offsets in the text before
                cleaning, which may change its characters: in "a &amp; b" the word b is (8, 9).
            state: "c" or "h"; unset: c, or h of a model that has no c.

        Returns:
            Of each text float32 [spans, H].

        Raises:
            ValueError: an offset is not in the text; nothing is left of a span after cleaning, such
                as of a space at the text's end; or a span cuts characters that cleaning makes one,
                such as "&amp;".
        """
        strings, places = as_texts(texts), []
        if len(strings) != len(spans):
            raise UserError(f"spans has {len(spans):,} lists, but texts has {len(strings):,}.")
        for number, (text, one) in enumerate(zip(strings, spans, strict=True)):
            try:
                pairs = [(index(start), index(end)) for start, end in one]
                last = cleaned_spans(text, pairs, self._run.cleaning)
            except Wrong as error:
                raise UserError(f"spans[{number}]: {error}.") from None
            except (TypeError, ValueError):
                rule = "a list of pairs of integers, (start, end)"
                shown = reprlib.repr(one)
                raise UserError(f"spans[{number}] is {shown}, but it must be {rule}.") from None
            places.append(np.array(last, np.int64))
        (name,) = states_of(self.config.model, state and (state,))
        devices = self._kept("devices", lambda: parallel.local(Devices()))
        reader = self._kept(
            "spans", lambda: TextReader(self._run, devices, _SPAN_ROWS * devices.count, trail=True)
        )
        return states_at(self._run, reader, self._run.cleaned(strings), places, name)

    @public
    def reader(self, state: State | None = None) -> Stream:
        """Return a reader of one text that comes in pieces: `reader.feed(b"...").scores`.

        Args:
            state: what `reader.states` has; see `states`.

        Raises:
            ValueError: the state does not exist, or the model does not predict the next byte.
        """
        self.config.model.require_next_byte("reading byte by byte")
        return self._stream(state)

    def _stream(self, state: State | None) -> Stream:
        reader: Reader = self._kept("read", lambda: Reader(self._run))
        return reader.stream(state)

    @public
    def cleaned(self, text: str) -> bytes:
        """Return the bytes that the model reads of a text; b"" of a blank one."""
        return clean(text, self._run.cleaning)
