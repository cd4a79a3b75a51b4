"""A trained model in Python: features, scores, generated text, evaluation, transfer and more."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import run as runs
from mlstm_jax.api.arguments import as_texts, at_least, one_of, public
from mlstm_jax.api.examples import Examples, as_labelled
from mlstm_jax.api.loaded import LoadedModel
from mlstm_jax.config import Devices
from mlstm_jax.data.corpus import SplitName
from mlstm_jax.errors import UserError
from mlstm_jax.interop.weights import fingerprint
from mlstm_jax.progress import ProgressLine
from mlstm_jax.training import parallel
from mlstm_jax.training.evaluation import Evaluator, Score, corpus_of
from mlstm_jax.transfer.classifier_file import load_classifier
from mlstm_jax.transfer.features import STATE_NAMES, Featurizer, State
from mlstm_jax.transfer.finetune import Finetuned
from mlstm_jax.transfer.finetune import finetune as run_finetune
from mlstm_jax.transfer.finetune_options import FinetuneOptions
from mlstm_jax.transfer.generate import as_text
from mlstm_jax.transfer.generate import generate as run_generate
from mlstm_jax.transfer.heatmap import Heat, heat, score_heat
from mlstm_jax.transfer.reader import Reader
from mlstm_jax.transfer.scoring import Scorer
from mlstm_jax.transfer.transfer import Transferred
from mlstm_jax.transfer.transfer import transfer as run_transfer

_STATES = tuple(STATE_NAMES)


class TrainedModel(LoadedModel):
    """A trained or imported model; `load` and `train` return one.

    It is immutable. It keeps the programs that it compiles, so a second call compiles nothing. A
    copy is the model itself, and it is pickled as the path it was loaded from.

    Attributes:
        path: what it was loaded from.
        checkpoint: the argument of `load`: "best", "latest" or a step.
        step: of the checkpoint; 0 for imported weights.
        config: of the run that trained it.
    """

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        # Store the step: if training continues, the best checkpoint may change.
        step = self.checkpoint if self._run.imported else str(self.step)
        return load, (str(self.path.resolve()), step)

    @public
    def encode(
        self,
        texts: Sequence[str],
        state: State = "mean_h",
        *,
        all_layers: bool = False,
        batch_size: int = 64,
        show_progress: bool = False,
    ) -> NDArray[np.float32]:
        """Return the features of texts (Radford et al. 2017; Puri et al. 2018, section VI).

        Args:
            texts: any number, of any length. Up to rounding, a text's features depend only on that
                text: not on other texts, their order or `batch_size`.
            state: "c", the cell state, or "h" after the last byte; or "mean_h", the mean of h over
                all bytes, which predicted sentiment better than c in our tests (docs/transfer.md).
            all_layers: use every layer, the lowest first; otherwise only the top one.
            batch_size: texts read at a time, over all devices.
            show_progress: on standard error.

        Returns:
            float32 [texts, H], or [texts, layers · H].

        Raises:
            ValueError: `texts` is a single string or has an item that is not a string, or the
                state does not exist.
        """
        found = as_texts(texts)
        one_of("state", state, _STATES)
        at_least("batch_size", batch_size, 1)
        featurizer = self._kept(
            (state, all_layers, batch_size),
            lambda: Featurizer(self._run, states=(state,), all_layers=all_layers, rows=batch_size),
        )
        with ProgressLine("encode", len(found), quiet=not show_progress) as progress:
            features: NDArray[np.float32] = featurizer(
                found, partial(progress.update, status="texts")
            )
        return features

    @public
    def bits_per_character(self, texts: Sequence[str], *, show_progress: bool = False) -> float:
        """Return the mean bits per byte of texts, each read on its own from a zero state.

        Every byte after cleaning counts, except the first of each text, which nothing predicts. A
        short text therefore costs more than the same bytes in a corpus, where `evaluate` carries
        the state.

        Raises:
            ValueError: `texts` is a single string, or there is no byte to score.
        """
        found = as_texts(texts)
        scorer = self._kept("score", lambda: Scorer(self._run))
        with ProgressLine("score", len(found), quiet=not show_progress) as progress:
            score = scorer(found, partial(progress.update, status="texts"))
        if not score.bytes_scored:
            raise UserError("texts have no byte to score; give longer texts.")
        return float(score.bits_per_character)

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
        if not isinstance(prompt, str):
            raise UserError(f"prompt has type {type(prompt).__name__}, but it must be a str.")
        pieces = run_generate(
            self._run,
            prompt,
            length=bytes,
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            held=dict(set_unit or {}),
            stop=stop.encode(),
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
        scale: float | None = None,
    ) -> Heat:
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
            scale: the absolute value with the full colour; unset: the 99th percentile of the text.

        Raises:
            ValueError: the text is empty, or the unit, layer or label does not exist.
        """
        one_of("state", state, (None, *_STATES))
        reader = self._kept("read", lambda: Reader(self._run))
        if (unit is None) == (score is None):
            raise UserError("give either unit or score.")
        if score is None:
            return heat(reader, text, unit or 0, scale, state=state, layer=layer)
        if isinstance(score, Transferred):
            classifier, about, given = score.classifier, score.about, "the classifier"
        else:
            (classifier, about), given = load_classifier(Path(score)), str(score)
        if about.model != fingerprint(self._run.params):
            raise UserError(f"{given} was created with other parameters than those of this model.")
        return score_heat(reader, text, classifier, about, label, scale)

    @public
    def evaluate(self, split: SplitName = "test", *, corpus: str | Path | None = None) -> Score:
        """Return the bits per character of a split with a carried state (Puri et al. 2018, VI).

        Args:
            split: "train", "valid" or "test".
            corpus: corpus folder; unset: the one that the model was trained on.

        Raises:
            ValueError: the split or corpus does not exist, or the corpus has changed.
        """
        one_of("split", split, ("train", "valid", "test"))
        scored = corpus_of(self._run, None if corpus is None else Path(corpus)).corpus
        devices = self._kept("devices", lambda: parallel.local(Devices()))
        evaluator = self._kept(
            (scored.identity, split),
            lambda: Evaluator(
                self._run.model, scored.split(split), self.config.data.window, devices, scored.stop
            ),
        )
        score: Score = evaluator(devices.replicate(self._run.params))
        return score

    @public
    def transfer(
        self,
        train: Examples,
        test: Examples,
        valid: Examples | None = None,
        *,
        out: str | Path | None = None,
        state: State | None = None,
        all_layers: bool = False,
        label_column: str | None = None,
        label_columns: Sequence[str] | None = None,
        text_column: str | None = None,
        show_progress: bool = False,
    ) -> Transferred:
        """Fit L1 logistic regression to the frozen features of texts, and measure it.

        This follows the protocol of Puri et al. 2018, section VI, with TF-IDF as a baseline. For
        your own pipeline use `Features`.

        Args:
            train: a file of texts with labels, or a tuple of texts and labels. Several labels of a
                text are a dict of columns: {"joy": [1, 0, None], "anger": [0, 0, 1]}.
            test: the same, to measure the accuracy on.
            valid: the same, to choose C and thresholds on; unset: cross-validation.
            out: folder for the features, the classifier, report.md, report.json and pictures.
            state: see `encode`; unset: c, or h of a model that has no c.
            all_layers: see `encode`.
            label_column: field or column of the label in files; unset: label.
            label_columns: fields or columns of several labels, each 1, 0 or missing.
            text_column: field or column of the text in files; unset: text, sentence, ...
            show_progress: on standard error.

        Returns:
            The classifier and the results; `.result.test` is the test accuracy, a fraction, or of
            several labels the macro F1, and `.result.labels` has the measures of each.

        Raises:
            ValueError: a file cannot be read, the classes do not match, or `out` holds something
                else.
        """
        one_of("state", state, (None, *_STATES))
        texts, names = as_labelled(
            {"train": train, "test": test, "valid": valid},
            text_column,
            label_column,
            label_columns,
        )
        made = run_transfer(
            self._run,
            texts,
            names,
            None if out is None else Path(out),
            states=state and (state,),
            all_layers=all_layers,
            text_column=text_column,
            show_progress=show_progress,
        )
        (only,) = made.values()
        return only

    @public
    def finetune(
        self,
        train: Examples,
        valid: Examples,
        out: str | Path,
        test: Examples | None = None,
        *,
        options: FinetuneOptions | None = None,
        label_column: str | None = None,
        label_columns: Sequence[str] | None = None,
        text_column: str | None = None,
        show_progress: bool = False,
    ) -> Finetuned:
        """Fine-tune all parameters to predict labels, along with the language model loss.

        Args:
            train: a file of texts with labels, or a tuple of texts and labels.
            valid: the same; its bits per character choose the checkpoint, and thresholds of
                several labels are chosen on it.
            out: folder for the corpus, the run and the classifier; the same call resumes in it.
            test: the same, to measure on.
            options: of the training; unset: three epochs.
            label_column: see `transfer`.
            label_columns: see `transfer`.
            text_column: see `transfer`.
            show_progress: show the progress of the features on standard error.

        Raises:
            ValueError: a file cannot be read, the classes do not match, or `out` holds something
                else.
        """
        texts, names = as_labelled(
            {"train": train, "valid": valid, "test": test},
            text_column,
            label_column,
            label_columns,
        )
        return run_finetune(
            self._run,
            texts,
            names,
            Path(out),
            options or FinetuneOptions(),
            text_column=text_column,
            show_progress=show_progress,
        )


@public
def load(path: str | Path, checkpoint: str = "best") -> TrainedModel:
    """Load a trained model.

    Args:
        path: a run folder, trained or imported; or a .safetensors or .npz that `export` wrote.
        checkpoint: "best" by validation bits per character, "latest", or a step.

    Raises:
        ValueError: the model or the checkpoint does not exist.
        OSError: the checkpoint is damaged.
    """
    return TrainedModel(runs.load_run(Path(path), str(checkpoint)), str(checkpoint))
