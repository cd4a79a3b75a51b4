"""A model that reads and writes texts: features, scores, classes, generated text, heat maps."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import shipped
from mlstm_jax.api.arguments import Texts, as_texts, public
from mlstm_jax.api.loaded import LoadedModel
from mlstm_jax.errors import UserError, note
from mlstm_jax.fields import Count, Positive
from mlstm_jax.transfer.classifier_file import (
    Description,
    load_classifier,
    require_model,
)
from mlstm_jax.transfer.classify import Classifier
from mlstm_jax.transfer.features import Featurizer, TextFile
from mlstm_jax.transfer.generate import as_text
from mlstm_jax.transfer.generate import generate as run_generate
from mlstm_jax.transfer.heatmap_drawing import Heatmap
from mlstm_jax.transfer.known import (
    FITTED,
    READ,
    Finding,
    digests,
    is_negligible,
    read_with_ratings,
    sentence,
)
from mlstm_jax.transfer.reader import FeatureState, State
from mlstm_jax.transfer.trace import heat, score_heat
from mlstm_jax.transfer.transfer import Transferred

_BLANK = Finding("is blank and gets no label", "are blank and get no label")
_UNLIKE = Finding(
    "is unlike those that the classifier knows, such as in another language; do not rely on its "
    "label",
    "are unlike those that the classifier knows, such as in another language; do not rely on their "
    "labels",
)


class ReadingModel(LoadedModel):
    """What a model does with texts; `TrainedModel` adds data sets."""

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

        Args:
            texts: any number, of any length; or a file of them, a `Path`, of any kind that
                `prepare` reads. Up to rounding, a text's features depend only on that
                text: not on other texts, their order or `batch_size`. A text that repeats a letter
                for hundreds of bytes amplifies rounding, which differs between batch sizes.
            state: "c", the cell state, or "h" after the last byte; or "mean_h", the mean of h over
                all bytes; or "c+mean_h", first all of c and then all of mean_h; unset: "c+mean_h",
                which predicted sentiment best in our tests, or "mean_h" of a model that has no c.
            all_layers: use every layer, the lowest first; otherwise only the top one.
            batch_size: texts read at a time, over all devices, at most; unset: 256 for each
                device, or 64 of a model other than an mLSTM.
            text_column: field or column of the text in a file; unset: text, reviewText,
                or sentence.
            show_progress: on standard error.

        Returns:
            float32 [texts, H]; of all layers [texts, layers · H]; of c+mean_h twice as many.

        Raises:
            ValueError: `texts` is a single string or has an item that is not a string, or the
                state does not exist.
        """
        name = "encode" if show_progress else None
        featurizer = self._featurizer(state, all_layers=all_layers, rows=batch_size)
        return featurizer(self._texts(texts, text_column), name)

    @public
    def bits_per_character(
        self, texts: Texts, *, text_column: str | None = None, show_progress: bool = False
    ) -> float:
        """Return the mean bits per byte of texts, each read on its own from a zero state.

        Every byte after cleaning counts, except the first of each text, which nothing predicts. A
        short text therefore costs more than the same bytes in a corpus, where `evaluate` carries
        the state. For the arguments see `encode`.

        Raises:
            ValueError: `texts` is a single string, or there is no byte to score.
        """
        name = "score" if show_progress else None
        nats, scored = 0.0, 0
        featurizer = self._featurizer("h", score=True)
        for _, read in featurizer.read_each(self._texts(texts, text_column), name):
            nats, scored = nats + float(read.nats_N.sum()), scored + int(read.scored_N.sum())
        if not scored:
            raise UserError("texts have no byte to score; give longer texts.")
        return nats / float(np.log(2)) / scored

    @public
    def generate(
        self,
        prompt: str = "",
        *,
        bytes: int = 400,
        temperature: float = 0.7,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        set_unit: Mapping[int, float] | None = None,
        stop: str = "",
    ) -> str:
        """Return the prompt and the text that the model generates after it.

        Args:
            prompt: text to continue; "" starts a document.
            bytes: maximum number of bytes to draw.
            temperature: 1 samples the model's own distribution; lower values favour likely bytes;
                0 takes the most likely byte.
            top_k: draw only from the k most likely bytes.
            top_p: draw only from the fewest bytes whose total probability is at least this.
            seed: the same seed gives the same text.
            set_unit: units of the top layer's cell state, and the value each is held at (Radford
                et al. 2017, section 4.3).
            stop: a byte that ends the text; it is not part of the text.

        Raises:
            ValueError: an argument is out of range.
        """
        pieces = self.pieces(
            prompt,
            bytes=int(bytes),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=int(seed),
            set_unit=set_unit or {},
            stop=stop.encode(),
        )
        return prompt + "".join(as_text(piece for (piece,) in pieces))

    def pieces(
        self, prompt: str, *, set_unit: Mapping[int, float], **how: Any
    ) -> Iterator[list[bytes]]:
        """Yield the bytes of one or several samples as they are drawn; see `generate`."""
        return run_generate(self._reader, prompt, held=dict(set_unit), **how)

    @public
    def heatmap(
        self,
        text: str,
        unit: int | None = None,
        *,
        score: Transferred | str | Path | None = None,
        label: str | None = None,
        state: State | None = None,
        layer: int | None = None,
        scale: Positive | None = None,
    ) -> Heatmap:
        """Return a unit's value, or a classifier's score, after each character of a text.

        A notebook shows it in colours.

        Args:
            text: the text to read.
            unit: its number in the layer.
            score: instead of a unit: what `transfer` returned, or its folder. The score after a
                character is what the classifier would answer if the text ended there.
            label: with `score`, the class or label; unset: the last, such as "positive".
            state: "c" or "h" after each character, or "mean_h", the mean of h up to it; unset: c,
                or h of a model that has no c.
            layer: 0 is the lowest; unset: the top layer.
            scale: the absolute value with the full colour; unset: the 99th percentile of the text,
                or of a score its largest value after a whole word.

        Raises:
            ValueError: the text is empty, the unit, layer or label does not exist, or an argument
                of units is given for a score or the reverse; or the model reads ahead or the
                classifier has words, so that there is no score after each character.
        """
        if (unit is None) == (score is None):
            raise UserError("give either `unit` or `score`.")
        of_unit = {"state": state, "layer": layer}
        for name, value in of_unit.items() if unit is None else [("label", label)]:
            if value is not None:
                other = "unit" if unit is None else "score"
                raise UserError(f"{name} is for `{other}`; leave it out.")
        if score is None:
            return heat(self._reader, text, unit or 0, scale, state=state, layer=layer)
        return score_heat(self._reader, text, *self._classifier(score), label, scale)

    @public
    def classify(
        self,
        texts: Texts,
        classifier: Transferred | str | Path | None = None,
        *,
        text_column: str | None = None,
        show_progress: bool = False,
    ) -> list[dict[str, float]]:
        """Return the probability of each class, by name.

        A text that is blank after cleaning gets none, an empty dict, and a warning counts them. The
        classifier of a model of the package warns of texts that are unlike those that it knows,
        such as other languages.

        Args:
            texts: see `encode`.
            classifier: what `transfer` returned, or its folder, or classifier/ of `finetune`;
                unset: the one that comes with a model of the package.
            text_column: of a file; unset: that of the classifier's training texts.
            show_progress: on standard error.

        Raises:
            ValueError: the classifier does not exist, or was created with other parameters.
        """
        parts = self.classify_each(
            texts, classifier, text_column=text_column, show_progress=show_progress
        )
        return [one for _, classified in parts for one in classified]

    def classify_each(
        self,
        texts: Texts,
        classifier: Transferred | str | Path | None,
        *,
        text_column: str | None,
        show_progress: bool,
    ) -> Iterator[tuple[Sequence[str], list[dict[str, float]]]]:
        """Check the arguments of `classify`; yield texts, those of a file in parts, as it does."""
        if classifier is None and (classifier := shipped.classifier(self.path)) is None:
            raise UserError("this model comes with no classifier; give one that `transfer` made.")
        chosen, about = self._classifier(classifier)
        strings = self._texts(texts, text_column or about.text_column)
        featurizer = self._featurizer(
            about.state, all_layers=about.all_layers, score=bool(about.familiar)
        )
        read_each = featurizer.read_each(strings, "classify" if show_progress else None)

        fitted = np.zeros(0, np.uint32) if chosen.texts is None else chosen.texts
        learned = {READ: read_with_ratings(self._run), FITTED: fitted}

        def classified() -> Iterator[tuple[Sequence[str], list[dict[str, float]]]]:
            count = 0
            firsts = dict[Finding, int]()
            counts = Counter[Finding]()
            for part, read in read_each:
                blank_N = read.scored_N == 0  # every cleaning adds a byte to a text
                marked = {_BLANK: blank_N}
                if about.familiar:
                    marked[_UNLIKE] = about.familiar.is_out_of_domain(read.nats_N, read.scored_N)
                if any(known.size for known in learned.values()):
                    found_N = digests(part, self._run.cleaning)
                    marked |= {one: np.isin(found_N, known) for one, known in learned.items()}
                for finding, is_marked_N in marked.items():
                    if is_marked_N.any():
                        firsts.setdefault(finding, count + int(is_marked_N.argmax()) + 1)
                        counts[finding] += int(is_marked_N.sum())
                count += len(part)
                rows = chosen.probabilities(read.features, part).tolist()
                yield (
                    part,
                    [
                        {} if is_blank else dict(zip(chosen.classes, row, strict=True))
                        for row, is_blank in zip(rows, blank_N, strict=True)
                    ],
                )
            for finding, first in firsts.items():
                if finding in learned and is_negligible(counts[finding], count):
                    continue
                note(sentence(finding, counts[finding], count, first))

        return classified()

    def _texts(self, texts: Texts, text_column: str | None) -> list[str] | TextFile:
        """Return texts in memory as a list, or those of a file."""
        if isinstance(texts, Path):
            return TextFile(texts, text_column, self._run.cleaning)
        return as_texts(texts, files=True)

    def _featurizer(self, state: FeatureState | None, **how: Any) -> Featurizer:
        """Return the one of these arguments, with its compiled programs."""
        states = state and (state,)
        return self._kept(
            (state, *sorted(how.items())), lambda: Featurizer(self._run, states=states, **how)
        )

    def _classifier(self, given: Transferred | str | Path) -> tuple[Classifier, Description]:
        """Return a classifier and its features; UserError unless it belongs to this model."""
        if isinstance(given, Transferred):
            classifier, about, name = given.classifier, given.about, "the classifier"
        else:
            (classifier, about), name = load_classifier(Path(given)), str(given)
        require_model(name, classifier, about, self._run, "this model")
        return classifier, about
