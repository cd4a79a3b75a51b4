"""What a loaded model makes of one text: a value for each byte, and the text that follows."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.api.arguments import AnyClassifier, noted
from mlstm_jax.api.base import LoadedModel
from mlstm_jax.corpora.documents import clean
from mlstm_jax.errors import require
from mlstm_jax.fields import public
from mlstm_jax.options import HEATMAP, SAMPLING, HeatmapOptions, SamplingOptions, State
from mlstm_jax.transfer.heatmap import Heatmap, heat, require_either, score_heat
from mlstm_jax.transfer.trace import Stream, Tracer, as_text
from mlstm_jax.transfer.trace import generate as run_generate

_PIECE = 4096  # bytes


class OneTextModel(LoadedModel):
    """The part of `TrainedModel` that is given one text."""

    @public
    def cleaned(self, text: str) -> bytes:
        """Clean a text as the training texts were.

        Args:
            text: any text.

        Returns:
            The bytes that the model reads, in UTF-8; b"" of a blank text.

        Examples:
            >>> model.cleaned("Good &amp; bad")
            b'\\n Good & bad '
        """
        noted([text])
        return clean(text, self.cleaning)

    @public
    def states(self, text: str, state: State | None = None) -> NDArray[np.float32]:
        """Return a state of the top layer after each byte of a text, as `cleaned` gives it.

        Args:
            text: the text to read, from a zero state; the last row is what `encode` gives.
            state: "c" or "h"; or "mean_h", the mean of h up to each byte; unset: c, or h of a model
                that has no c.

        Returns:
            float32 [bytes, H]; a row of 768 units takes 3 kB.

        Raises:
            ValueError: the model has no such state.

        Examples:
            >>> model.states("Good.").shape  # the cleaned text is "\\n Good. "
            (8, 1024)
        """
        return self._tracer.stream(state).feed(self.cleaned(text)).states

    @public
    def log_probabilities(self, text: str) -> NDArray[np.float32]:
        """Return the natural logarithm of the probability of each byte of a text, in nats.

        The model predicts each byte of the cleaned text (see `cleaned`) from all before it; nothing
        predicts the first. Divided by -log(2) they are bits: see `bits_per_character`.

        Args:
            text: the text to read.

        Returns:
            float32 [bytes - 1]; of a blank text, none.

        Raises:
            ValueError: the model does not predict the next byte.

        Examples:
            >>> model.log_probabilities("Good.").shape
            (7,)
        """
        reader = self.reader()
        cleaned = self.cleaned(text)
        # In pieces, because the states of a piece are kept.
        starts = range(0, len(cleaned), _PIECE)
        scores = [reader.feed(cleaned[start : start + _PIECE]).scores for start in starts]
        return np.concatenate([reader.scores[:0], *scores])

    @public
    def reader(self, state: State | None = None) -> Stream:
        """Read one text that comes in pieces.

        Args:
            state: see `states`.

        Returns:
            A reader that has read nothing.

        Raises:
            ValueError: the model does not predict the next byte, or has no such state.

        Examples:
            >>> reader = model.reader().feed(b"It was ")
            >>> reader.feed(b"good").scores.shape
            (4,)
        """
        self.loaded.architecture.require_next_byte("reading byte by byte")
        return self._tracer.stream(state)

    @public
    def generate(self, prompt: str = "", options: SamplingOptions = SAMPLING, **fields: Any) -> str:
        """Write one text; `generate_pieces` gives several.

        Args:
            prompt: text to continue; "" starts a document.
            options: how to generate.
            fields: of these options, such as `bytes=100`.

        Returns:
            The prompt and the text after it; � for bytes that are not UTF-8.

        Raises:
            ValueError: `samples` is not 1, the model does not predict the next byte, or has no
                unit of `set_unit`.

        Examples:
            >>> text = model.generate("The film", bytes=40, seed=1)
            >>> text.startswith("The film")
            True
        """
        options = replace(options, **fields)
        rule = "1; `generate_pieces` gives several texts"
        require(options.samples == 1, "samples", options.samples, rule)
        pieces = self.generate_pieces(prompt, options)
        return prompt + "".join(as_text(piece for (piece,) in pieces))

    @public
    def generate_pieces(
        self, prompt: str = "", options: SamplingOptions = SAMPLING, **fields: Any
    ) -> Iterator[list[bytes]]:
        """Write up to 1,000 samples at once; a sample does not depend on their number.

        Args:
            prompt, options, fields: see `generate`.

        Returns:
            An iterator of the next piece of each sample, without the prompt.

        Examples:
            >>> pieces = list(model.generate_pieces("The film", bytes=9, samples=2))
            >>> len(pieces[0])
            2
        """
        noted([prompt])
        return run_generate(self._tracer, prompt, replace(options, **fields))

    @public
    def heatmap(
        self,
        text: str,
        unit: int | None = None,
        *,
        score: AnyClassifier | None = None,
        options: HeatmapOptions = HEATMAP,
        **fields: Any,
    ) -> Heatmap:
        """Read a unit's value, or a classifier's score, after each character of a text.

        Args:
            text: the text to read.
            unit: the unit's number in its layer.
            score: instead of a unit: what `transfer` returned, or its folder. The score after a
                character is the classifier's of the bytes so far; after a space, of the text
                before it.
            options: what is shown.
            fields: of these options, such as `label="positive"` or `layer=0`.

        Returns:
            What a notebook shows in colours, and `save` writes as a page.

        Raises:
            ValueError: the text is blank; both or neither of `unit` and `score` are given; or there
                is no such unit, layer, state or class.

        Examples:
            >>> model.heatmap("It was good.", 236).save("heat.html")
        """
        options = replace(options, **fields)
        require_either(unit, score, options)
        noted([text])
        if score is None:
            return heat(self._tracer, text, unit or 0, options)
        return score_heat(self._tracer, text, self._classifier(score), options)

    @cached_property
    def _tracer(self) -> Tracer:
        return Tracer(self.loaded)
