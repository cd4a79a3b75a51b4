"""Fit a classifier to labels: to frozen features (`transfer`), or with the model (`finetune`).

The commands call the same two functions as the methods, after they have read the files.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from mlstm_jax import output
from mlstm_jax.api.arguments import LabelledTexts, as_labelled
from mlstm_jax.api.texts import TextModel
from mlstm_jax.errors import UserError
from mlstm_jax.fields import public
from mlstm_jax.options import FINETUNE, TRANSFER, FeatureState, FinetuneOptions, TransferOptions
from mlstm_jax.transfer.folder import require_out
from mlstm_jax.transfer.labels import Labelled
from mlstm_jax.transfer.sets import with_held_out

if TYPE_CHECKING:
    from mlstm_jax.transfer.finetune import Finetuned
    from mlstm_jax.transfer.transfer import Transferred


def fit_states(
    model: TextModel,
    labelled: dict[str, Labelled],
    out: Path | None,
    options: TransferOptions,
    text_column: str | None,
    *,
    overwrite: bool,
    show_progress: bool,
) -> "dict[FeatureState, Transferred]":
    """Fit a classifier to each of several states; see `TrainedModel.transfer`."""
    from mlstm_jax.transfer.transfer import transfer

    sets = with_held_out(labelled, model.cleaning, "test", text_column)  # before JAX has the model
    return transfer(model.run, sets, out, options, overwrite=overwrite, show_progress=show_progress)


def fit_parameters(
    model: TextModel,
    labelled: dict[str, Labelled],
    out: Path,
    options: FinetuneOptions,
    text_column: str | None,
    *,
    owns_process: bool,
    show_progress: bool,
) -> "Finetuned":
    """Fine-tune all parameters; see `TrainedModel.finetune`."""
    sets = with_held_out(labelled, model.cleaning, "valid", text_column)
    from mlstm_jax.transfer.finetune import finetune  # imports JAX

    return finetune(
        model.run, sets, out, options, owns_process=owns_process, show_progress=show_progress
    )


class FittingModel(TextModel):
    """The part of `TrainedModel` that learns labels."""

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
    ) -> "Transferred":
        """Fit logistic regression to the frozen features of texts, and measure it.

        This follows the protocol of Puri et al. 2018, section VI, with an L1 penalty and TF-IDF as
        a baseline. With fewer labels than features the penalty is L2, and the classifier that comes
        with a pretrained model is a prior (docs/transfer.md). See also `Features`.

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
        if options.states is not None and len(options.states) > 1:
            raise UserError("`state` takes one state here; call `transfer` once for each.")
        folder = None if out is None else Path(out)
        if folder:
            require_out(folder, options, overwrite=overwrite)
        files = {"train": train, "test": test, "valid": valid}
        labelled = as_labelled(files, text_column, label_column)
        made = fit_states(
            self,
            labelled,
            folder,
            options,
            text_column,
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
            train, label_column, text_column, show_progress: see `transfer`.
            valid: as `train`; the loss of its labels, after each epoch, chooses the checkpoint,
                and its accuracy is reported. Unset: a fifth of `train`, as for `transfer`.
            test: as `train`, to measure on.
            out: folder for corpus/, run/, classifier/ and report.json; the same call resumes in it.
            options: how to fine-tune.
            owns_process: see `mlstm_jax.train`.

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
        output.require_folder(Path(out))
        files = {"train": train, "valid": valid, "test": test}
        labelled = as_labelled(files, text_column, label_column)
        return fit_parameters(
            self,
            labelled,
            Path(out),
            options,
            text_column,
            owns_process=owns_process,
            show_progress=show_progress,
        )
