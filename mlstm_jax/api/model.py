"""A trained model in Python: all of reading.py, and evaluation, transfer and fine-tuning."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlstm_jax import run as runs
from mlstm_jax import shipped
from mlstm_jax.api.arguments import Examples, as_labelled, public
from mlstm_jax.api.reading import ReadingModel
from mlstm_jax.config import Devices
from mlstm_jax.data.corpus import SplitName
from mlstm_jax.training import parallel
from mlstm_jax.training.evaluation import Evaluator, Score, corpus_of
from mlstm_jax.transfer.finetune import Finetuned, FinetuneOptions
from mlstm_jax.transfer.finetune import finetune as run_finetune
from mlstm_jax.transfer.reader import FeatureState
from mlstm_jax.transfer.transfer import Transferred
from mlstm_jax.transfer.transfer import transfer as run_transfer


class TrainedModel(ReadingModel):
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
        # A model of the package is found by its name in any environment.
        path = self.path.name if shipped.is_ours(self.path) else self.path.resolve()
        return load, (str(path), step)

    @public
    def evaluate(self, split: SplitName = "test", *, corpus: str | Path | None = None) -> Score:
        """Return the bits per character of a split with a carried state (Puri et al. 2018, VI).

        Args:
            split: "train", "valid" or "test".
            corpus: corpus folder; unset: the one that the model was trained on.

        Raises:
            ValueError: the split or corpus does not exist, or the corpus has changed.
        """
        scored = corpus_of(self._run, None if corpus is None else Path(corpus), split).corpus
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
        test: Examples | None = None,
        valid: Examples | None = None,
        *,
        out: str | Path | None = None,
        state: FeatureState | None = None,
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
            test: the same, to measure the accuracy on; unset: a fifth of each class of train,
                chosen by a digest of the texts.
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
        valid: Examples | None = None,
        test: Examples | None = None,
        *,
        out: str | Path,
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
                several labels are chosen on it. Unset: a fifth of train, as for `transfer`.
            test: the same, to measure on.
            out: folder for the corpus, the run and the classifier; the same call resumes in it.
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
def load(path: str | Path, checkpoint: str | int = "best") -> TrainedModel:
    """Load a trained model.

    Args:
        path: a run folder, trained or imported; a .safetensors or .npz that `export` wrote; or
            the name of a model of the package, such as "reviews-768".
        checkpoint: "best" by validation bits per character, "latest", or a step.

    Raises:
        ValueError: the model or the checkpoint does not exist.
        OSError: the checkpoint is damaged.
    """
    return TrainedModel(runs.load_run(Path(path), str(checkpoint)), str(checkpoint))
