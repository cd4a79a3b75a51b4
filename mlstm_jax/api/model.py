"""A trained model in Python: what it is, reads, scores and writes; evaluation and transfer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import output, shipped, weights
from mlstm_jax.api.arguments import (
    AnyClassifier,
    LabelledTexts,
    Texts,
    as_classifier,
    as_labelled,
    as_texts,
    noted,
    require_export,
)
from mlstm_jax.corpora.documents import clean
from mlstm_jax.errors import UserError, extra, require
from mlstm_jax.fields import Between, Count, public
from mlstm_jax.loaded import Loaded, SmallModel, has_gpu, is_worth_jax, load_small
from mlstm_jax.options import (
    FINETUNE,
    HEATMAP,
    SAMPLING,
    TRANSFER,
    FeatureState,
    FinetuneOptions,
    HeatmapOptions,
    ReadingCompute,
    ReadingLibrary,
    SamplingOptions,
    SplitName,
    State,
    TransferOptions,
)
from mlstm_jax.transfer import zipapp
from mlstm_jax.transfer.classifier import Classifier
from mlstm_jax.transfer.classify import label_texts
from mlstm_jax.transfer.features import Featurizer, TextFile
from mlstm_jax.transfer.generate import as_text
from mlstm_jax.transfer.generate import generate as run_generate
from mlstm_jax.transfer.heatmap import Heatmap, heat, require_either, score_heat
from mlstm_jax.transfer.labels import with_held_out
from mlstm_jax.transfer.trace import Reader, Stream

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mlstm_jax.api.jax_model import JaxModel
    from mlstm_jax.config import Config
    from mlstm_jax.model.language_model import LanguageModel, Parameters
    from mlstm_jax.run import Run
    from mlstm_jax.training.evaluation import Score
    from mlstm_jax.transfer.finetune import Finetuned
    from mlstm_jax.transfer.transfer import Transferred as Fitted

Bytes = Annotated[int, Between(2, 2**31)]
_PIECE = 4096  # bytes


class TrainedModel:
    """A trained or imported model; `load` and `train` return one.

    It is immutable. It keeps the programs that it compiles, so a second call compiles nothing. A
    copy is the model itself. It is pickled as the path it was loaded from, which must then have the
    same parameters. A wrong argument of a method is a ValueError that names it; one of another name
    is a TypeError.

    Attributes:
        path: run folder, or file of weights.
        checkpoint: see `load`.
        compute: see `load`.
        step: of the checkpoint, in updates; 0 for imported weights.
        cleaning: how its texts are cleaned.
        hidden: number of units H in a layer.
        loaded: the model in memory, for the package's own programs.

    Examples:
        The examples of its methods begin with these lines, too.

        >>> import mlstm_jax as mlstm
        >>> model = mlstm.load("sentiment")
        >>> model.hidden
        1024
    """

    def __init__(
        self,
        loaded: Loaded,
        checkpoint: str = "best",
        compute: ReadingCompute = "auto",
        reader: ReadingLibrary = "auto",
    ) -> None:
        """Wrap a model in memory. Use `load` instead."""
        self.loaded = loaded
        self.path = loaded.folder
        # It stays where it is when the process changes its folder.
        self._place = loaded.folder.resolve()
        self.checkpoint = checkpoint
        self.compute = compute
        self.step = loaded.step
        self.cleaning = loaded.cleaning
        self.hidden = loaded.architecture.hidden
        self._how = reader
        self._featurizers: dict[object, Featurizer] = {}

    @cached_property
    def _jax(self) -> "JaxModel":
        """The same model in JAX, which this starts."""
        from mlstm_jax.api import jax_model  # imports JAX

        if isinstance(self.loaded, SmallModel):
            again = jax_model.load(self._place, self.checkpoint, self.compute)
            _require_unchanged(again.run, self.loaded.fingerprint)
            return again
        run: Any = self.loaded
        return jax_model.JaxModel(run)

    @property
    def run(self) -> "Run":
        """The run that the model is from, in JAX, which this starts."""
        return self._jax.run

    @property
    def config(self) -> "Config":
        """The config of the run that trained it; JAX is imported."""
        return self.run.config

    @property
    def parameters(self) -> Mapping[str, NDArray[np.float32]]:
        """The float32 arrays by name, which cannot be written; docs/weights.md lists them."""
        arrays = {}
        for name, array in weights.flatten(self.loaded.params).items():
            arrays[name] = array.view()
            arrays[name].flags.writeable = False
        return arrays

    @property
    def flax(self) -> "tuple[LanguageModel, Parameters]":
        """The Flax module and its tree of parameters, for programs such as those in examples/.

        `module.apply({"params": params}, bytes_BT, module.reading_carry(B))` reads a window.
        """
        return self.run.model, self.run.params

    @property
    def metrics(self) -> Any:
        """The lines of metrics.jsonl as a pandas DataFrame, or without pandas a list of dicts."""
        lines = self._metric_lines()
        try:
            import pandas as pd
        except ImportError:
            return lines
        return pd.DataFrame(lines)

    def _metric_lines(self) -> list[dict[str, Any]]:
        from mlstm_jax.training import metrics  # imports JAX

        lines = metrics.read_metrics(self._place / metrics.FILE)
        if not lines:
            raise UserError(
                f"{self.path} has no {metrics.FILE}: imported and pretrained models have no "
                "training log."
            )
        return lines

    @public
    def plot(self, x: Literal["step", "megabytes", "epoch", "minutes"] = "megabytes") -> "Figure":
        """Plot bits per character, learning rate, gradient and speed of the run.

        Args:
            x: the quantity on the horizontal axis.

        Returns:
            A figure of matplotlib, with a panel for each.

        Raises:
            ValueError: the model has no training log, or the extra `notebooks` is missing.

        Examples:
            >>> mlstm.load("runs/mine").plot().savefig("curve.png")
        """
        self._metric_lines()
        with extra("notebooks", "plots need matplotlib and pandas"):
            from mlstm_jax import analysis

            return analysis.plot_runs([self._place], x)

    def __repr__(self) -> str:
        model = self.loaded.architecture
        count = sum(array.size for array in self.parameters.values())
        compute, _, *several = self.loaded.precision
        also = f", several texts in {several[0]}" if several else ""
        return (
            f"{type(self).__name__}({str(self.path)!r}, checkpoint={self.checkpoint!r})\n"
            f"  {model.title}, {model.layers} x {model.hidden} units, {count:,} parameters, "
            f"{compute}{also}\n"
            f"  {self.loaded.origin}, texts cleaned as {self.cleaning}"
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        # Store the step: if training continues, the best checkpoint may change.
        step = self.checkpoint if self.loaded.imported else str(self.step)
        # A pretrained model is found by its name in any environment.
        path = self._place.name if shipped.is_shipped(self._place) else self._place
        return _load_same, (str(path), step, self.compute, self._how, self.loaded.fingerprint)

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
        strings = self._texts(texts, text_column)
        states = state and (state,)
        featurizer = self.featurizer(strings, states, all_layers=all_layers, rows=batch_size)
        return featurizer(strings, "encode", quiet=not show_progress)

    @public
    def bits_per_character(
        self, texts: Texts, *, text_column: str | None = None, show_progress: bool = False
    ) -> float:
        """Return the mean bits per byte of texts, each read on its own from a zero state.

        Every byte after cleaning counts, except the first of each text, which nothing predicts. A
        short text therefore costs more than the same bytes in a corpus, where `evaluate` carries
        the state.

        Args:
            texts: any number, of any length; or a `Path`: a file of any kind that `prepare` reads.
            text_column: field or column in a file; unset: text, reviewText, sentence, ...
            show_progress: on standard error.

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
        strings = self._texts(texts, text_column)
        featurizer = self.featurizer(strings, ("h",), score=True)
        for _, read in featurizer.read_each(strings, "score", quiet=not show_progress):
            nats += float(read.nats_N.sum())
            scored += int(read.scored_N.sum())
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
            texts: any number, of any length; or a `Path`: a file of any kind that `prepare` reads.
            classifier: what `transfer` returned, or its folder, or classifier/ of `finetune`;
                unset: the one that comes with a pretrained model.
            classes: choose between these only, such as ("negative", "positive"); unset: all.
            at_most: read only the head and the tail of a text with more bytes than this, half as
                many of each; unset: all.
            text_column: field or column in a file; unset: as in the classifier's training texts.
            show_progress: on standard error.

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
            texts: any number, of any length; or a `Path`: a file of any kind that `prepare` reads.
            classifier: see `classify`.
            classes: see `classify`.
            at_most: see `classify`.
            text_column: see `classify`.
            show_progress: on standard error.

        Returns:
            An iterator of parts: some texts, and what `classify` returns for them.

        Raises:
            ValueError: as `classify` does.

        Examples:
            >>> for texts, shares in model.classify_parts(["Good.", "Bad."]):
            ...     print(len(texts), len(shares))
            2 2
        """
        chosen = self._classifier(classifier)
        if classes is not None:
            chosen = chosen.between(classes)
        about = chosen.about
        strings = self._texts(texts, text_column or about.text_column)
        how = {"all_layers": about.all_layers, "score": bool(about.familiar), "at_most": at_most}
        featurizer = self.featurizer(strings, (about.state,), **how)
        return label_texts(self.loaded, strings, chosen, featurizer, quiet=not show_progress)

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
            prompt: see `generate`.
            options: how to generate.
            fields: of these options.

        Returns:
            An iterator of the next piece of each sample, without the prompt.

        Raises:
            ValueError: as `generate` does, when the first piece is asked for.

        Examples:
            >>> pieces = list(model.generate_pieces("The film", bytes=9, samples=2))
            >>> len(pieces[0])
            2
        """
        noted([prompt])
        return run_generate(self._reader, prompt, replace(options, **fields))

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
                character is what the classifier would answer if the text ended there.
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
            return heat(self._reader, text, unit or 0, options)
        return score_heat(self._reader, text, self._classifier(score), options)

    @public
    def view(
        self,
        classifier: Path | str | None = None,
        *,
        score: bool = False,
        label: str | None = None,
        host: str = "127.0.0.1",
        port: int = 8000,
    ) -> None:
        """Serve a local page, which shows how the model reads a text, until Ctrl-C.

        Args:
            classifier: folder of `transfer`, to show class probabilities; unset: for a pretrained
                model the one that comes with it, and its score.
            score: start with the classifier's score after each character, not with a unit.
            label: the class of that score; unset: the last, such as positive.
            host: address to listen on; 127.0.0.1 and ::1 accept only this machine. The page has no
                login.
            port: the port; 0 takes a free one. The address is printed.

        Raises:
            ValueError: `score` or `label` is given without a classifier; the classifier belongs to
                another model; the port is in use; or the extra "view" is not installed.
        """
        with extra("view", "the page needs Starlette and uvicorn"):
            from mlstm_jax.view.server import show_page
        show_page(
            self._place,
            lambda: self.loaded,
            Path(classifier) if classifier else None,
            score=score,
            label=label,
            host=host,
            port=port,
        )

    @public
    def states(self, text: str, state: State | None = None) -> NDArray[np.float32]:
        """Return a state of the top layer after each byte of a text.

        The bytes of the cleaned text (see `cleaned`) are read from a zero state; the last row
        is what `encode` gives.

        Args:
            text: the text to read.
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
        return self._reader.stream(state).feed(self.cleaned(text)).states

    @public
    def log_probabilities(self, text: str) -> NDArray[np.float32]:
        """Return the natural logarithm of the probability of each byte of a text, in nats.

        The model predicts each byte of the cleaned text (see `cleaned`) from all before it. Nothing
        predicts the first, so there is one value for each byte after it. Divided by -log(2) they
        are bits, whose mean over all bytes of texts is `bits_per_character`.

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
        return self._reader.stream(state)

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
    def evaluate(
        self,
        split: SplitName = "test",
        *,
        corpus: str | Path | None = None,
        show_progress: bool = False,
    ) -> "Score":
        """Score a split of a corpus with a carried state (Puri et al. 2018, VI).

        Args:
            split: which part of the corpus.
            corpus: corpus folder; unset: the one that the model was trained on.
            show_progress: on standard error.

        Returns:
            Its bits per character and loss.

        Raises:
            ValueError: the corpus is missing or damaged, or the split has too little text.

        Examples:
            >>> mlstm.load("runs/mine").evaluate("valid").bpc < 9
            True
        """
        return self._jax.evaluate(split, corpus=corpus, show_progress=show_progress)

    @public
    def report(self, corpus: str | Path | None = None) -> str:
        """Compare the bits per character of the validation split with gzip's; show a sample.

        A model that does not predict the next byte neither compresses nor writes.

        Args:
            corpus: corpus folder; unset: the one that the model was trained on.

        Returns:
            Lines of text, to print.

        Raises:
            ValueError: as `evaluate` does.

        Examples:
            >>> "gzip" in mlstm.load("runs/mine").report()
            True
        """
        from mlstm_jax.training.evaluation import report_of  # imports JAX

        is_writer = self.loaded.architecture.objective == "next-byte"
        sample = self.generate() if is_writer else ""
        return report_of(self.run, corpus, self.evaluate("valid", corpus=corpus), sample)

    @public
    def transfer(
        self,
        train: LabelledTexts,
        test: LabelledTexts | None = None,
        valid: LabelledTexts | None = None,
        *,
        out: str | Path | None = None,
        options: TransferOptions = TRANSFER,
        label_column: str | None = None,
        text_column: str | None = None,
        overwrite: bool = False,
        show_progress: bool = False,
    ) -> "Fitted":
        """Fit logistic regression to the frozen features of texts, and measure it.

        This follows the protocol of Puri et al. 2018, section VI, with an L1 penalty and TF-IDF as
        a baseline. For your own pipeline use `Features`. With fewer labels than features the
        penalty is L2. In that case, with a pretrained model and a state that includes mean_h,
        its own classifier is a prior: it is kept as it is, or its log-odds are one more feature,
        unless held-out texts are clearly better without it. So a few labels hardly lower the
        accuracy that it has without any.

        Args:
            train: texts with labels: a file such as a .csv, .jsonl or .parquet, a table, or a tuple
                of texts and labels.
            test: as `train`, to measure the accuracy on; unset: a fifth of each class of `train`,
                chosen by a digest of the texts, so that it is always the same.
            valid: as `train`, to choose C on, the inverse strength of the penalty; unset:
                cross-validation.
            out: folder for the features, the classifier, report.md, report.json and pictures.
            options: how to fit it, with one `state`.
            label_column: field or column in a file; unset: label.
            text_column: field or column in a file; unset: text, reviewText, sentence, ...
            overwrite: replace what an earlier call wrote to `out`.
            show_progress: on standard error.

        Returns:
            The classifier and the results; `.result.accuracy` is its test accuracy, a fraction.

        Raises:
            ValueError: the texts have fewer than two classes, or too few texts of one; test texts
                have another class; or `out` has other files.

        Examples:
            >>> made = mlstm.load("runs/mine").transfer("reviews.csv")
            >>> 0 <= made.result.accuracy <= 1
            True
        """
        from mlstm_jax.transfer.transfer import require_out
        from mlstm_jax.transfer.transfer import transfer as run_transfer

        if len(options.states or ("",)) != 1:
            raise UserError("`state` takes one state here; call `transfer` once for each.")
        folder = None if out is None else Path(out)
        if folder:
            require_out(folder, options, overwrite=overwrite)
        files = {"train": train, "test": test, "valid": valid}
        given = as_labelled(files, text_column, label_column)
        sets = with_held_out(given, self.cleaning, "test")  # before JAX has the model
        made = run_transfer(
            self.run,
            sets,
            folder,
            options,
            text_column=text_column,
            overwrite=overwrite,
            show_progress=show_progress,
        )
        (only,) = made.values()
        return only

    @public
    def finetune(
        self,
        train: LabelledTexts,
        valid: LabelledTexts | None = None,
        test: LabelledTexts | None = None,
        *,
        out: str | Path,
        options: FinetuneOptions = FINETUNE,
        label_column: str | None = None,
        text_column: str | None = None,
        owns_process: bool = False,
        show_progress: bool = False,
    ) -> "Finetuned":
        """Fine-tune all parameters to predict labels, along with the language model loss.

        Args:
            train: see `transfer`.
            valid: as `train`; the loss of its labels, after each epoch, chooses the checkpoint,
                and its accuracy is reported. Unset: a fifth of `train`, as for `transfer`.
            test: as `train`, to measure on.
            out: folder for corpus/, run/, classifier/ and report.json; the same call resumes in it.
            options: how to fine-tune.
            label_column: see `transfer`.
            text_column: see `transfer`.
            owns_process: see `mlstm_jax.train`.
            show_progress: on standard error.

        Returns:
            The run, its classifier and accuracies.

        Raises:
            ValueError: as `transfer` does, or there is too little text for a batch.
            mlstm_jax.errors.KnownError: the run diverged or was interrupted.

        Examples:
            >>> mine = mlstm.load("runs/mine")
            >>> short = mlstm.FinetuneOptions(epochs=1)
            >>> tuned = mine.finetune("reviews.csv", out="tuned", options=short)
            >>> 0 <= tuned.accuracy["valid"] <= 1
            True
        """
        from mlstm_jax.transfer.finetune import finetune as run_finetune

        output.require_folder(Path(out))
        files = {"train": train, "valid": valid, "test": test}
        given = as_labelled(files, text_column, label_column)
        sets = with_held_out(given, self.cleaning, "valid")
        return run_finetune(
            self.run,
            sets,
            Path(out),
            options,
            text_column=text_column,
            owns_process=owns_process,
            show_progress=show_progress,
        )

    @public
    def export(
        self,
        out: str | Path | None = None,
        dtype: Literal["float32", "float16", "int8"] = "float32",
        *,
        classifier: AnyClassifier | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write the model as one .safetensors file, or as a program for Python and NumPy alone.

        Args:
            out: file to write, .safetensors or .pyz (docs/without_jax.md); unset: the run's name
                with .safetensors, in the current folder.
            dtype: float32; float16 for half the size; or int8 for a quarter, with the matrices of
                a weight normalisation rounded to 8 bits. A .pyz has the smallest that changes no
                number.
            classifier: of a .pyz; unset: the one that comes with a pretrained model.
            overwrite: replace an existing file.

        Returns:
            The file that was written.

        Raises:
            ValueError: the path has another suffix, or exists; or a parameter is too large for
                float16.
            OSError: it cannot be written.

        Examples:
            >>> model.export("sentiment.pyz").name
            'sentiment.pyz'
        """
        path = Path(out or f"{self._place.name}.safetensors")
        require_export(path, classifier, overwrite=overwrite)
        if path.suffix == ".pyz":
            zipapp.pack(path, self.loaded, self._classifier(classifier))
        else:
            from mlstm_jax.run import as_weights  # imports JAX

            weights.save(path, as_weights(self.run), dtype)
        return path

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self.loaded)

    def _texts(self, texts: Texts | TextFile, text_column: str | None) -> list[str] | TextFile:
        """Return texts in memory as a list, and a file as a `TextFile`."""
        if isinstance(texts, TextFile):
            return texts
        if isinstance(texts, Path):
            return TextFile(texts, text_column, self.cleaning)
        return noted(as_texts(texts, files=True))

    def featurizer(
        self,
        texts: list[str] | TextFile,
        states: tuple[FeatureState, ...] | None,
        **how: Any,
    ) -> Featurizer:
        """Choose what reads some texts, for the package's own programs.

        Args:
            texts: in memory, or a file.
            states: the features.
            how: further arguments of `Featurizer`.

        Returns:
            A reader with NumPy or JAX; it keeps what it compiles.
        """
        loaded = self.loaded
        if isinstance(loaded, SmallModel) and self._how == "auto" and self.compute != "int8":
            size = texts.size if isinstance(texts, TextFile) else sum(map(len, texts))
            if how.get("at_most") is not None:
                count = texts.count if isinstance(texts, TextFile) else len(texts)
                size = min(size, how["at_most"] * count)
            if is_worth_jax(size):
                loaded = self.run
        key = (isinstance(loaded, SmallModel), states, *sorted(how.items()))
        if key not in self._featurizers:
            self._featurizers[key] = Featurizer(loaded, states=states, **how)
        return self._featurizers[key]

    def _classifier(self, given: AnyClassifier | None) -> Classifier:
        """A classifier, unset: the model's own; UserError unless it belongs to this model."""
        name, classifier = as_classifier(given, self.path)
        classifier.require_model(name, self.loaded)
        return classifier


@public
def load(
    path: str | Path,
    checkpoint: str | int = "best",
    compute: ReadingCompute = "auto",
    reader: ReadingLibrary = "auto",
) -> TrainedModel:
    """Load a trained model.

    NumPy reads a recurrent model of the package or of `export` at once, and JAX is not imported.
    For other models the compiled programs, and whether the CPU multiplies bf16 faster, are kept for
    the next process (docs/troubleshooting.md). `os.environ["MLSTM_JAX_CACHE"] = ""` turns this
    off.

    Args:
        path: run folder, trained or imported, or a pretrained model, such as sentiment; or a
            .safetensors that `export` wrote.
        checkpoint: best (by validation bits per character; of a run of `finetune`, by the loss of
            the validation labels), latest, or a step.
        compute: type of the products in reading texts; auto: as in the run's config, but bf16
            instead of fp32 for several texts at a time, and for generated text, where JAX reads
            and the CPU multiplies it faster. int8: NumPy reads whole texts, as `classify` and
            `encode` do, with int8 products by onnxruntime (docs/without_jax.md); the rest is fp32.
        reader: numpy, in fp32; or jax; auto: numpy where it can, unless JAX has a GPU, or the CPU
            multiplies bf16 and the texts of a call are many (docs/without_jax.md).

    Returns:
        The model, ready to read.

    Raises:
        ValueError: the model or the checkpoint does not exist.
        OSError: the checkpoint is damaged.

    Examples:
        >>> model = mlstm.load("sentiment")
        >>> model.classify(["It broke after a week."])[0]["negative"] > 0.8
        True
    """
    chosen = str(checkpoint)
    shipped.require_model(Path(path))
    needs_numpy = reader == "numpy" or compute == "int8"
    can_be_small = compute in ("auto", "fp32", "int8") and chosen in ("best", "latest")
    if can_be_small and reader != "jax" and (needs_numpy or not has_gpu()):
        small = load_small(Path(path))
        if small:
            if compute == "int8":
                small = replace(small, compute=compute)
            return TrainedModel(small, chosen, compute, reader)
    small_kinds = "mLSTMs, LSTMs and GRUs of the package or of `export`"
    rule = f"another type: NumPy alone reads in int8, {small_kinds}"
    require(compute != "int8", "compute", compute, rule)
    rule = f"auto or jax: NumPy reads {small_kinds}, in fp32 or int8"
    require(reader != "numpy", "reader", reader, rule)
    from mlstm_jax.api import jax_model  # imports JAX

    return TrainedModel(jax_model.load(Path(path), chosen, compute).run, chosen, compute, reader)


def _load_same(
    path: str,
    checkpoint: str,
    compute: ReadingCompute,
    reader: ReadingLibrary,
    fingerprint: str,
) -> TrainedModel:
    """Load a pickled model, with the parameters that it had."""
    model = load(path, checkpoint, compute, reader)
    _require_unchanged(model.loaded, fingerprint)
    return model


def _require_unchanged(again: Loaded, fingerprint: str) -> None:
    """Raise UserError if a path has other parameters than before: what was fitted would be wrong.

    A file can be replaced, and a pretrained model can differ in another version of the package.
    """
    if again.fingerprint != fingerprint:
        raise UserError(
            f"{again.place} has other parameters than when it was loaded before; restore it, or "
            "load it again, and fit again what was fitted to it."
        )
