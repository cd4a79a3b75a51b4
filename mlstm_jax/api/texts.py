"""What a loaded model makes of texts: features, scores, classes."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.api.arguments import AnyClassifier, Texts, as_read
from mlstm_jax.api.choice import is_worth_jax
from mlstm_jax.api.one_text import OneTextModel
from mlstm_jax.errors import UserError
from mlstm_jax.fields import Between, Count, public
from mlstm_jax.loaded import SmallModel
from mlstm_jax.options import FeatureState
from mlstm_jax.transfer.classify import label_texts
from mlstm_jax.transfer.features import Featurizer, TextFile

Bytes = Annotated[int, Between(2, 2**31)]


class TextModel(OneTextModel):
    """The part of `TrainedModel` that is given any number of texts."""

    @public
    def encode(
        self,
        texts: Texts,
        state: FeatureState | None = None,
        *,
        all_layers: bool = False,
        batch_size: Count | None = None,
        text_column: str | None = None,
        show_progress: bool = False,
    ) -> NDArray[np.float32]:
        """Return the features of texts (Radford et al. 2017; Puri et al. 2018, section VI).

        Up to rounding, a text's features depend only on that text: not on other texts, their order
        or `batch_size`. A text that repeats a letter for hundreds of bytes amplifies rounding,
        which differs between batch sizes.

        Args:
            texts: any number, of any length; or a `Path`: a file of any kind that `prepare` reads.
            state: "c" or "h" after the last byte; or "mean_h", the mean of h over all bytes; or
                "c+mean_h", first all of c and then all of mean_h; unset: "c+mean_h", or
                "mean_h" of a model that has no c.
            all_layers: use every layer, the lowest first; otherwise only the top one.
            batch_size: texts read at a time, over all devices, at most; unset: 256 for each
                device, or 64 of a Transformer.
            text_column: field or column in a file; unset: text, reviewText, sentence, ...
            show_progress: on standard error.

        Returns:
            float32 [texts, H]; of all layers [texts, layers · H]; of c+mean_h twice as many.

        Raises:
            ValueError: the model has no such state, or a file cannot be read.

        Examples:
            >>> model.encode(["Good.", "Bad."], "mean_h").shape
            (2, 1024)
        """
        read = as_read(texts, text_column, self.cleaning)
        states = state and (state,)
        featurizer = self.featurizer(read, states, all_layers=all_layers, rows=batch_size)
        return featurizer(read, "encode", show_progress=show_progress)

    @public
    def bits_per_character(
        self, texts: Texts, *, text_column: str | None = None, show_progress: bool = False
    ) -> float:
        """Return the mean bits per byte of texts, each read on its own from a zero state.

        Every byte after cleaning counts, except the first of each text, which nothing predicts.

        Args:
            texts, text_column, show_progress: see `encode`.

        Returns:
            Bits per byte, over all texts together.

        Raises:
            ValueError: no text has two bytes, or the model does not predict the next byte.

        Examples:
            >>> model.bits_per_character(["It is a film."]) < 3
            True
        """
        nats = 0.0
        scored = 0
        read = as_read(texts, text_column, self.cleaning)
        featurizer = self.featurizer(read, ("h",), score=True)
        for _, part in featurizer.read_each(read, "score", show_progress=show_progress):
            nats += float(part.nats_N.sum())
            scored += int(part.scored_N.sum())
        if not scored:
            raise UserError(
                "nothing to score: the first byte of a text is never scored, so a text needs at "
                "least two bytes after cleaning."
            )
        return nats / float(np.log(2)) / scored

    @public
    def classify(
        self,
        texts: Texts,
        classifier: AnyClassifier | None = None,
        *,
        classes: Sequence[str] | None = None,
        at_most: Bytes | None = None,
        text_column: str | None = None,
        show_progress: bool = False,
    ) -> list[dict[str, float]]:
        """Return the probability of each class, by name.

        A text that is blank after cleaning gets none, an empty dict, and a warning counts them. The
        classifier of a pretrained model warns of texts unlike its own, such as other languages.

        Args:
            texts, show_progress: see `encode`.
            classifier: what `transfer` returned, or its folder, or classifier/ of `finetune`;
                unset: the one that comes with a pretrained model.
            classes: choose between these only, such as ("negative", "positive"); unset: all.
            at_most: read only the head and the tail of a text with more bytes than this, half as
                many of each; unset: all.
            text_column: field or column in a file; unset: as in the classifier's training texts.

        Returns:
            For each text a dict from class to probability.

        Raises:
            ValueError: no classifier is given and the model has none; or the classifier belongs to
                another model, or has no such class.

        Examples:
            >>> (shares,) = model.classify(["Arrived on time, works as it should."])
            >>> max(shares, key=shares.get)
            'positive'
        """
        parts = self.classify_parts(
            texts,
            classifier,
            classes=classes,
            at_most=at_most,
            text_column=text_column,
            show_progress=show_progress,
        )
        return list(chain.from_iterable(shares for _, shares in parts))

    @public
    def classify_parts(
        self,
        texts: Texts | TextFile,
        classifier: AnyClassifier | None = None,
        *,
        classes: Sequence[str] | None = None,
        at_most: Bytes | None = None,
        text_column: str | None = None,
        show_progress: bool = False,
    ) -> Iterator[tuple[Sequence[str], list[dict[str, float]]]]:
        """Classify texts part by part, as a file is read.

        Args:
            texts, classifier, classes, at_most, text_column, show_progress: see `classify`.

        Returns:
            An iterator of parts: some texts, and what `classify` returns for them.

        Examples:
            >>> for texts, shares in model.classify_parts(["Good.", "Bad."]):
            ...     print(len(texts), len(shares))
            2 2
        """
        chosen = self._classifier(classifier)
        if classes is not None:
            chosen = chosen.between(classes)
        about = chosen.about
        read = as_read(texts, text_column or about.text_column, self.cleaning)
        featurizer = self.featurizer(
            read,
            (about.state,),
            all_layers=about.all_layers,
            score=about.familiar is not None,
            at_most=at_most,
        )
        return label_texts(self.loaded, read, chosen, featurizer, show_progress=show_progress)

    @public
    def spans(
        self,
        texts: Iterable[str],
        spans: Sequence[Sequence[tuple[int, int]]],
        state: Literal["c", "h"] | None = None,
    ) -> list[NDArray[np.float32]]:
        """Return a state of the top layer after the last byte of each span, such as of each word.

        Args:
            texts: any number, in memory.
            spans: of each text, the (start, end) offsets of characters, as tokenizers and spaCy
                give them: the span is text[start:end]. They are offsets in the text before
                cleaning, which may change its characters: in "a &amp; b" the word b is (8, 9).
            state: "c" or "h"; unset: c, or h of a model that has no c.

        Returns:
            For each text float32 [spans, H].

        Raises:
            ValueError: a span is not in its text, or a text has no list of spans.

        Examples:
            >>> (words,) = model.spans(["I loved it."], [[(0, 1), (2, 7)]])
            >>> words.shape
            (2, 1024)
        """
        return self._jax.spans(texts, spans, state)

    @public
    def featurizer(
        self,
        texts: list[str] | TextFile,
        states: tuple[FeatureState, ...] | None,
        *,
        all_layers: bool = False,
        rows: int | None = None,
        score: bool = False,
        at_most: int | None = None,
    ) -> Featurizer:
        """Choose whether NumPy or JAX reads some texts, for the package's own programs.

        Args:
            texts: in memory, or a file.
            states: the features, side by side; unset: see `encode`.
            all_layers: see `encode`.
            rows: `batch_size` of `encode`.
            score: also compute how probable each text is.
            at_most: see `classify`.

        Returns:
            What reads them; it keeps what it compiles.
        """
        loaded = self.loaded
        is_small = isinstance(loaded, SmallModel)
        may_choose = is_small and self._library == "auto" and self.compute != "int8"
        if may_choose and is_worth_jax(texts, at_most):
            loaded = self.run
        key = (isinstance(loaded, SmallModel), states, all_layers, rows, score, at_most)
        if key not in self._featurizers:
            self._featurizers[key] = Featurizer(
                loaded,
                states=states,
                all_layers=all_layers,
                rows=rows,
                score=score,
                at_most=at_most,
            )
        return self._featurizers[key]

    @cached_property
    def _featurizers(self) -> dict[object, Featurizer]:
        return {}
