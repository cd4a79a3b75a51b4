"""A trained model in Python: what it is, reads, scores and writes; evaluation and transfer."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import environment, output, shipped
from mlstm_jax import run as runs
from mlstm_jax.api.arguments import LabelledTexts, Texts, as_labelled, as_texts, span_ends
from mlstm_jax.config import Config, Devices
from mlstm_jax.corpora.documents import clean
from mlstm_jax.data.corpus import SplitName
from mlstm_jax.errors import UserError, extra, require
from mlstm_jax.fields import Count, Positive, public
from mlstm_jax.interop import weights
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.terminal import ProgressLine
from mlstm_jax.training import metrics, parallel
from mlstm_jax.training.evaluation import Evaluator, Score, corpus_of, report_of
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.transfer.classifier import Classifier, load_classifier, stamp
from mlstm_jax.transfer.classify import label_texts
from mlstm_jax.transfer.features import FeatureState, Featurizer, State, TextFile, states_of
from mlstm_jax.transfer.finetune import Finetuned, FinetuneOptions
from mlstm_jax.transfer.finetune import finetune as run_finetune
from mlstm_jax.transfer.generate import as_text
from mlstm_jax.transfer.generate import generate as run_generate
from mlstm_jax.transfer.heatmap import Heatmap, heat, score_heat
from mlstm_jax.transfer.reader import TextReader
from mlstm_jax.transfer.trace import Reader, Stream, states_at
from mlstm_jax.transfer.transfer import TransferOptions, Transferred
from mlstm_jax.transfer.transfer import transfer as run_transfer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PIECE = 4096  # bytes
# More are hardly faster on a CPU (reader.py), and the states of a window take their memory.
_SPAN_ROWS = 8


class TrainedModel:
    """A trained or imported model; `load` and `train` return one.

    It is immutable. It keeps the programs that it compiles, so a second call compiles nothing. A
    copy is the model itself, and it is pickled as the path it was loaded from.

    Attributes:
        path: run folder, or file of weights.
        checkpoint, compute: the arguments of `load`.
        step: of the checkpoint, in updates; 0 for imported weights.
        cleaning: how its texts are cleaned.
        config: of the run that trained it.
        hidden: number of units H in a layer.

    Several methods have these arguments:

    - texts: a list of any number of texts, of any length; or a file of them, a `Path`, of any kind
      that `prepare` reads.
    - state: "c", the cell state, or "h"; or "mean_h", the mean of h; unset: c, or h of a model
      that has no c.
    - text_column, label_column: field or column in a file; unset: text, reviewText, sentence, ...,
      and label.
    - show_progress: on standard error.

    A wrong argument is a ValueError that names it; one of another name is a TypeError.
    """

    def __init__(
        self, run: runs.Run, checkpoint: str = "best", compute: runs.ReadingCompute = "auto"
    ) -> None:
        """Wrap a run in memory. Use `load` instead."""
        self._run = run
        self.path = run.folder
        # It stays where it is when the process changes its folder.
        self._place = run.folder.resolve()
        self.checkpoint = checkpoint
        self.compute = compute
        self.step = run.step
        self.cleaning = run.cleaning
        self.config: Config = run.config
        self.hidden = run.config.model.hidden
        self._featurizers: dict[object, Featurizer] = {}
        self._evaluators: dict[object, Evaluator] = {}
        self._classifiers: dict[Path, tuple[object, Classifier]] = {}  # with their `stamp`

    @property
    def parameters(self) -> Mapping[str, NDArray[np.float32]]:
        """The float32 arrays by name, which cannot be written; docs/weights.md lists them."""
        arrays = {}
        for name, array in weights.flatten(self._run.params).items():
            arrays[name] = array.view()
            arrays[name].flags.writeable = False
        return arrays

    @property
    def flax(self) -> tuple[LanguageModel, Parameters]:
        """The Flax module and its tree of parameters, for programs such as those in examples/.

        `module.apply({"params": params}, bytes_BT, module.reading_carry(B))` reads a window.
        """
        return self._run.model, self._run.params

    @property
    def metrics(self) -> Any:
        """The lines of metrics.jsonl as a pandas DataFrame, or without pandas a list of dicts."""
        lines = self._lines()
        try:
            import pandas as pd
        except ImportError:
            return lines
        return pd.DataFrame(lines)

    def _lines(self) -> list[dict[str, Any]]:
        lines = metrics.read_metrics(self._place / "metrics.jsonl")
        if not lines:
            raise UserError(f"{self.path} has no metrics: it was not trained here.")
        return lines

    @public
    def plot(self, x: Literal["step", "megabytes", "epoch", "minutes"] = "megabytes") -> "Figure":
        """Plot bits per character, learning rate, gradient and speed of the run.

        Needs matplotlib and pandas, the extra `notebooks`.
        """
        self._lines()
        with extra("notebooks", "plots need matplotlib and pandas"):
            from mlstm_jax import analysis
        return analysis.plot_runs([self._place], x)

    def __repr__(self) -> str:
        model = self.config.model
        count = sum(array.size for array in self.parameters.values())
        also = ", several texts in bf16" if self._run.batch_model else ""
        return (
            f"{type(self).__name__}({str(self.path)!r}, checkpoint={self.checkpoint!r})\n"
            f"  {model.title}, {model.layers} x {model.hidden} units, {count:,} parameters, "
            f"{self._run.model.precision.compute}{also}\n"
            f"  {self._run.origin}, texts cleaned as {self._run.cleaning}"
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, tuple[str, str, str]]:
        # Store the step: if training continues, the best checkpoint may change.
        step = self.checkpoint if self._run.imported else str(self.step)
        # A pretrained model is found by its name in any environment.
        path = self._place.name if shipped.is_shipped(self._place) else self._place
        return load, (str(path), step, self.compute)

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
            state: "c" or "h" after the last byte; or "mean_h", the mean of h over all bytes; or
                "c+mean_h", first all of c and then all of mean_h; unset: "c+mean_h", which
                predicted sentiment best in our tests, or "mean_h" of a model that has no c.
            all_layers: use every layer, the lowest first; otherwise only the top one.
            batch_size: texts read at a time, over all devices, at most; unset: 256 for each
                device, or 64 of a Transformer.

        Returns:
            float32 [texts, H]; of all layers [texts, layers · H]; of c+mean_h twice as many.
        """
        featurizer = self._featurizer(state, all_layers=all_layers, rows=batch_size)
        return featurizer(self._texts(texts, text_column), "encode", quiet=not show_progress)

    @public
    def bits_per_character(
        self, texts: Texts, *, text_column: str | None = None, show_progress: bool = False
    ) -> float:
        """Return the mean bits per byte of texts, each read on its own from a zero state.

        Every byte after cleaning counts, except the first of each text, which nothing predicts. A
        short text therefore costs more than the same bytes in a corpus, where `evaluate` carries
        the state.
        """
        nats = 0.0
        scored = 0
        strings = self._texts(texts, text_column)
        featurizer = self._featurizer("h", score=True)
        for _, read in featurizer.read_each(strings, "score", quiet=not show_progress):
            nats += float(read.nats_N.sum())
            scored += int(read.scored_N.sum())
        if not scored:
            raise UserError("texts have no byte to score; give longer texts.")
        return nats / float(np.log(2)) / scored

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
        classifier of a pretrained model warns of texts that are unlike those that it knows,
        such as other languages.

        Args:
            classifier: what `transfer` returned, or its folder, or classifier/ of `finetune`;
                unset: the one that comes with a pretrained model.
            text_column: unset: that of the classifier's training texts.
        """
        if classifier is None:
            classifier = shipped.classifier(self.path)
        if classifier is None:
            raise UserError("this model comes with no classifier; give one that `transfer` made.")
        chosen = self._classifier(classifier)
        about = chosen.about
        strings = self._texts(texts, text_column or about.text_column)
        featurizer = self._featurizer(
            about.state, all_layers=about.all_layers, score=bool(about.familiar)
        )
        parts = label_texts(self._run, strings, chosen, featurizer, quiet=not show_progress)
        return list(chain.from_iterable(shares for _, shares in parts))

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
        """
        pieces = run_generate(
            self._reader,
            prompt,
            bytes=int(bytes),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=int(seed),
            held=dict(set_unit or {}),
            stop=stop.encode("utf-8", "surrogatepass"),  # no single byte: refused
        )
        return prompt + "".join(as_text(piece for (piece,) in pieces))

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
            unit: its number in the layer.
            score: instead of a unit: what `transfer` returned, or its folder. The score after a
                character is what the classifier would answer if the text ended there.
            label: with `score`, the class or label; unset: the last, such as "positive".
            layer: 0 is the lowest; unset: the top layer.
            scale: the absolute value with the full colour; unset: the 99th percentile of the text,
                or of a score its largest value after a whole word.
        """
        if (unit is None) == (score is None):
            raise UserError("give either `unit` or `score`.")
        if score is None:
            require(label is None, "label", label, "unset with `unit`")
            return heat(self._reader, text, unit or 0, scale, state=state, layer=layer)
        require(state is None, "state", state, "unset with `score`")
        require(layer is None, "layer", layer, "unset with `score`")
        return score_heat(self._reader, text, self._classifier(score), label, scale)

    @public
    def states(self, text: str, state: State | None = None) -> NDArray[np.float32]:
        """Return a state of the top layer after each byte of a text.

        The bytes are those of the cleaned text, see `cleaned`, read from a zero state; the last row
        is what `encode` gives. "mean_h" is the mean of h up to each byte.

        Returns:
            float32 [bytes, H]; a row of 768 units takes 3 kB.
        """
        return self._reader.stream(state).feed(self.cleaned(text)).states

    @public
    def log_probabilities(self, text: str) -> NDArray[np.float32]:
        """Return the natural logarithm of the probability of each byte of a text, in nats.

        The model predicts each byte of the cleaned text (see `cleaned`) from all before it. Nothing
        predicts the first, so there is one value for each byte after it. Divided by -log(2) they
        are bits, whose mean over all bytes of texts is `bits_per_character`.

        Returns:
            float32 [bytes - 1]; of a blank text, none.
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
            spans: of each text, the (start, end) offsets of characters, as tokenizers and spaCy
                give them: the span is text[start:end]. They are offsets in the text before
                cleaning, which may change its characters: in "a &amp; b" the word b is (8, 9).

        Returns:
            Of each text float32 [spans, H].
        """
        strings = as_texts(texts)
        ends = span_ends(strings, list(spans), self._run.cleaning)
        (name,) = states_of(self.config.model, state and (state,))
        return states_at(self._run, self._spans_reader, self._run.cleaned(strings), ends, name)

    @public
    def reader(self, state: State | None = None) -> Stream:
        """Return a reader of one text that comes in pieces: `reader.feed(b"...").scores`."""
        self.config.model.require_next_byte("reading byte by byte")
        return self._reader.stream(state)

    @public
    def cleaned(self, text: str) -> bytes:
        """Return the bytes that the model reads of a text; b"" of a blank one."""
        return clean(text, self._run.cleaning)

    @public
    def evaluate(
        self,
        split: SplitName = "test",
        *,
        corpus: str | Path | None = None,
        show_progress: bool = False,
    ) -> Score:
        """Return the bits per character of a split with a carried state (Puri et al. 2018, VI).

        Args:
            split: which part of the corpus.
            corpus: corpus folder; unset: the one that the model was trained on.
        """
        scored, _ = corpus_of(self._run, corpus)
        key = (scored.identity, split)
        if key not in self._evaluators:
            model = self._run.batch_model or self._run.model
            window = self.config.data.window
            self._evaluators[key] = Evaluator(model, scored.split(split), window, self._devices)
        evaluator = self._evaluators[key]
        size = evaluator.stream.scored
        steps = evaluator.stream.steps
        with ProgressLine("evaluate", size, of_bytes=True, quiet=not show_progress) as progress:
            return evaluator(
                self._devices.replicate(self._run.params),
                lambda step: progress.update(size * step // steps),
            )

    @public
    def report(self, corpus: str | Path | None = None) -> str:
        """Compare the bits per character of the validation split with gzip's; show a sample.

        A model that does not predict the next byte neither compresses nor writes.

        Args:
            corpus: corpus folder; unset: the one that the model was trained on.
        """
        score = self.evaluate("valid", corpus=corpus)
        sample = self.generate() if self.config.model.objective == "next-byte" else ""
        return report_of(self._run, corpus, score, sample)

    @public
    def transfer(
        self,
        train: LabelledTexts,
        test: LabelledTexts | None = None,
        valid: LabelledTexts | None = None,
        *,
        out: str | Path | None = None,
        options: TransferOptions | None = None,
        label_column: str | None = None,
        text_column: str | None = None,
        show_progress: bool = False,
    ) -> Transferred:
        """Fit logistic regression to the frozen features of texts, and measure it.

        This follows the protocol of Puri et al. 2018, section VI, with an L1 penalty and TF-IDF as
        a baseline. For your own pipeline use `Features`. With fewer labels than features the
        penalty is L2. In that case, with a pretrained model and a state that includes mean_h,
        its own classifier is a prior: it is kept as it is, or its log-odds are one more feature,
        unless held-out texts are clearly better without it. So a few labels hardly lower the
        accuracy that it has without any.

        Args:
            train: texts with labels: a .csv, .tsv, .json, .jsonl or .parquet file, a table, or a
                tuple of texts and labels.
            test: as `train`, to measure the accuracy on; unset: a fifth of each class of `train`,
                chosen by a digest of the texts, so that it is always the same.
            valid: as `train`, to choose C on, the inverse strength of the penalty; unset:
                cross-validation.
            out: folder for the features, the classifier, report.md, report.json and pictures.
            options: how to fit it, with one `state`; unset: the defaults of `TransferOptions`.

        Returns:
            The classifier and the results; `.result.test` is the test accuracy, a fraction, and
            `.result.together["test"]` that with `words`, given or not.
        """
        given = {"train": train, "test": test, "valid": valid}
        texts = as_labelled(given, text_column, label_column)
        options = options or TransferOptions()
        is_one = options.states is None or len(options.states) == 1
        require(is_one, "state", options.state, "one; call `transfer` for each")
        made = run_transfer(
            self._run,
            texts,
            None if out is None else Path(out),
            options,
            text_column=text_column,
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
        options: FinetuneOptions | None = None,
        label_column: str | None = None,
        text_column: str | None = None,
        checkpoint: Literal["best", "latest"] = "best",
        owns_process: bool = False,
        show_progress: bool = False,
    ) -> Finetuned:
        """Fine-tune all parameters to predict labels, along with the language model loss.

        Args:
            train: see `transfer`.
            valid: as `train`; the loss of its labels, after each epoch, chooses the checkpoint,
                and its accuracy is reported. Unset: a fifth of `train`, as for `transfer`.
            test: as `train`, to measure on.
            out: folder for corpus/, run/, classifier/ and report.json; the same call resumes in it.
            options: how to fine-tune; unset: three epochs.
            checkpoint: of the finished run, for the classifier: best (by the loss of the
                validation labels), or latest.
            owns_process: see `mlstm_jax.train`.
        """
        given = {"train": train, "valid": valid, "test": test}
        texts = as_labelled(given, text_column, label_column)
        return run_finetune(
            self._run,
            texts,
            Path(out),
            options or FinetuneOptions(),
            checkpoint=checkpoint,
            text_column=text_column,
            owns_process=owns_process,
            show_progress=show_progress,
        )

    @public
    def export(
        self,
        out: str | Path | None = None,
        dtype: Literal["float32", "float16"] = "float32",
        *,
        overwrite: bool = False,
    ) -> Path:
        """Write the model as one .safetensors file that other programs can read.

        Args:
            out: file to write; unset: the run's name with .safetensors, in the current folder.
            dtype: float32; or float16 for half the size, with parameters rounded to 11 bits.
            overwrite: replace an existing file.

        Raises:
            ValueError: the path has another suffix, or exists; or a parameter is too large for
                float16.
            OSError: it cannot be written.
        """
        path = Path(out or f"{self._place.name}.safetensors")
        is_known = path.suffix == ".safetensors"
        require(is_known, "out", str(path), "a file that ends in .safetensors")
        output.require_file(path, overwrite=overwrite)
        weights.save(path, runs.as_weights(self._run), dtype)
        return path

    @cached_property
    def _devices(self) -> Parallel:
        return parallel.local_devices(Devices())

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self._run)

    @cached_property
    def _spans_reader(self) -> TextReader:
        devices = self._devices
        return TextReader(self._run, devices, _SPAN_ROWS * devices.count, keep_states="each")

    def _texts(self, texts: Texts, text_column: str | None) -> list[str] | TextFile:
        """Return texts in memory as a list, or those of a file."""
        if isinstance(texts, Path):
            return TextFile(texts, text_column, self._run.cleaning)
        return as_texts(texts, files=True)

    def _featurizer(
        self,
        state: FeatureState | None,
        *,
        all_layers: bool = False,
        rows: int | None = None,
        score: bool = False,
    ) -> Featurizer:
        """Return the featurizer of these arguments, with its compiled programs."""
        key = (state, all_layers, rows, score)
        if key not in self._featurizers:
            states = None if state is None else (state,)
            self._featurizers[key] = Featurizer(
                self._run, states=states, all_layers=all_layers, rows=rows, score=score
            )
        return self._featurizers[key]

    def _classifier(self, given: Transferred | str | Path) -> Classifier:
        """Return a classifier; UserError unless it belongs to this model."""
        name = "the classifier"
        if isinstance(given, Transferred):
            classifier = given.classifier
        else:
            name = str(given)
            place = Path(given).resolve()
            now = stamp(Path(given))
            if place not in self._classifiers or self._classifiers[place][0] != now:
                self._classifiers[place] = now, load_classifier(Path(given))
            classifier = self._classifiers[place][1]
        classifier.require_model(name, self._run)
        return classifier


@public
def load(
    path: str | Path, checkpoint: str | int = "best", compute: runs.ReadingCompute = "auto"
) -> TrainedModel:
    """Load a trained model.

    Compiled programs, and whether the CPU multiplies bf16 faster, are kept for the next process, as
    the command line does (docs/runs.md). `os.environ["MLSTM_JAX_CACHE"] = ""` turns this off.

    Args:
        path: run folder, trained or imported, or a pretrained model, such as reviews-1024; or a
            .safetensors that `export` wrote.
        checkpoint: best (by validation bits per character; of a run of `finetune`, by the loss of
            the validation labels), latest, or a step.
        compute: type of the products in reading texts; auto: that of the run's config, but bf16
            instead of fp32 for several texts at a time, and for generated text, where the CPU
            multiplies it faster.

    Raises:
        ValueError: the model or the checkpoint does not exist.
        OSError: the checkpoint is damaged.
    """
    environment.cache_programs()
    run = runs.with_compute(runs.load_run(Path(path), str(checkpoint)), compute)
    return TrainedModel(run, str(checkpoint), compute)
