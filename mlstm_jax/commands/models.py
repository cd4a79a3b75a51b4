"""Commands that train with a model or compare it: sweep, evaluate, transfer, import, ..."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from mlstm_jax import output
from mlstm_jax.commands import (
    LOAD,
    Checkpoint,
    Flag,
    Flat,
    LabelColumn,
    LoadOptions,
    Overwrite,
    RunFolder,
    TextColumn,
)
from mlstm_jax.guard import interruptible
from mlstm_jax.options import (
    CSV,
    FINETUNE,
    TRANSFER,
    CsvOptions,
    FinetuneOptions,
    SplitName,
    TransferOptions,
)
from mlstm_jax.terminal import show

_Corpus = Annotated[
    Path | None, arg(help="corpus folder; unset: the one that the model was trained on")
]


def sweep(
    runs: Annotated[Path, Positional, arg(metavar="SPEC")],
    out: Path,
    table_only: Flag = False,
) -> None:
    """Train all runs of a specification, one after the other, and write their tables.

    You can stop a sweep at any time and resume it with the same command. Runs that are finished or
    have diverged are not repeated. The same command in a second terminal, or on another machine
    that sees the same files, takes the runs that the first has not begun.

    Args:
        runs: Python file, which is executed, that sets `runs = {(ROW, COLUMN): Config(...)}`, or
            the name of a sweep that `mlstm-jax configs` lists.
        out: folder of the tables and of the run folders, OUT/ROW/COLUMN.
        table_only: train nothing; write the tables of the existing runs.
    """
    from mlstm_jax.training.sweep import sweep as run_sweep

    run_sweep(runs, out, table_only=table_only, owns_process=True)
    show((out / "table.md").read_text(encoding="utf-8"))
    show(f"all figures: {out / 'table.csv'}")


def evaluate(
    run: RunFolder,
    split: SplitName = "test",
    corpus: _Corpus = None,
    loading: Flat[LoadOptions] = LOAD,
) -> None:
    """Score a trained model on a split: bits per character, bytes scored, seconds.

    Args:
        split: which part of the corpus.
    """
    _require_corpus(corpus)
    from mlstm_jax.api.jax_model import corpus_of  # imports JAX

    model = loading.load(run)
    score = model.evaluate(split, corpus=corpus, show_progress=True)
    opened, is_own = corpus_of(model.run, corpus)
    show(
        f"{split} bpc {score.bpc:.4f} over {score.bytes_scored:,} bytes of {opened.path} in "
        f"{score.seconds:.1f} s ({model.loaded.origin})"
    )
    if not is_own and not model.loaded.imported:
        print("note: the model was trained on a different corpus.")


def report(run: RunFolder, corpus: _Corpus = None, loading: Flat[LoadOptions] = LOAD) -> None:
    """Compare the BPC of a run with gzip, bz2 and xz, and show a sample of its text."""
    _require_corpus(corpus)
    show("\n" + loading.load(run).report(corpus))


def _require_corpus(corpus: Path | None) -> None:
    """Raise UserError for a corpus that cannot be opened, before JAX is imported."""
    from mlstm_jax.data.corpus import open_corpus

    if corpus is not None:
        open_corpus(corpus)


def transfer(
    run: RunFolder,
    train: Path,
    out: Path,
    test: Path | None = None,
    valid: Path | None = None,
    options: Flat[TransferOptions] = TRANSFER,
    label_column: LabelColumn = None,
    text_column: TextColumn = None,
    csv: Flat[CsvOptions] = CSV,
    overwrite: Overwrite = False,
    loading: Flat[LoadOptions] = LOAD,
) -> None:
    """Fit a classifier to a frozen model's features of texts; report accuracies and the best units.

    The report compares the classifier with logistic regression on TF-IDF of the same texts. Each
    of several states gets its own folder in OUT. The features are saved in OUT/features: after a
    stop the same command reads them there, and fits the classifier from the beginning.

    Args:
        train: texts with labels: a table or JSON, such as a .csv, .jsonl or .parquet file.
        out: folder for the features, the classifier for `mlstm-jax classify`, report.md,
            report.json and pictures (extra "plot").
        test: such a file, to measure the accuracy on; unset: a fifth of each class of train, chosen
            by a digest of the texts, so that it is always the same.
        valid: such a file, to choose C, the inverse strength of the penalty; unset:
            cross-validation.
    """
    from mlstm_jax.api.arguments import as_labelled
    from mlstm_jax.api.fitting import fit_states
    from mlstm_jax.transfer.folder import REPORT, require_out

    require_out(out, options, overwrite=overwrite)
    files = {"train": train, "test": test, "valid": valid}
    labelled = as_labelled(files, text_column, label_column, csv)

    def resumes() -> str:
        if not any((out / "features").glob("*.npz")):
            return "no features are saved yet; the same command begins again"
        return f"the same command resumes with the features in {out / 'features'}"

    with interruptible(note=resumes):
        model = loading.load(run)
        made = fit_states(
            model, labelled, out, options, text_column, overwrite=overwrite, show_progress=True
        )
    for one in made.values():
        assert one.folder
        show((one.folder / REPORT).read_text(encoding="utf-8"))
        show(f"in {one.folder}: {', '.join(sorted(path.name for path in one.folder.iterdir()))}")


def finetune(
    run: RunFolder,
    train: Path,
    out: Path,
    valid: Path | None = None,
    test: Path | None = None,
    options: Flat[FinetuneOptions] = FINETUNE,
    label_column: LabelColumn = None,
    text_column: TextColumn = None,
    csv: Flat[CsvOptions] = CSV,
) -> None:
    """Fine-tune a model end to end to predict labels, along with its language model loss.

    The same command resumes a run that was stopped.

    Args:
        train: texts with labels: a table or JSON, such as a .csv, .jsonl or .parquet file.
        out: folder for corpus/, run/ (a run folder), classifier/ (for `mlstm-jax classify OUT/run
            OUT/classifier`) and report.json.
        valid: such a file; the loss of its labels after each epoch chooses the checkpoint, and its
            accuracy is reported. Unset: a fifth of train.
        test: such a file, to measure the accuracy on.
    """
    from mlstm_jax.api.arguments import as_labelled
    from mlstm_jax.api.fitting import fit_parameters
    from mlstm_jax.api.model import load

    output.require_folder(out)
    files = {"train": train, "valid": valid, "test": test}
    labelled = as_labelled(files, text_column, label_column, csv)
    model = load(run)
    tuned = fit_parameters(
        model, labelled, out, options, text_column, owns_process=True, show_progress=True
    )
    show(f"\n{tuned}\nin {out}: run/, classifier/, report.json")


def import_(
    kind: Annotated[Literal["openai", "mlstm"], Positional],
    source: Annotated[Path, Positional, arg(metavar="SOURCE")],
    out: Path,
) -> None:
    """Import weights of openai or `mlstm-jax export` into a run folder.

    The folder works like one of `train`: for features, transfer, generate, evaluate. Nothing in the
    files is executed.

    Args:
        kind: openai: the folder of 0.npy to 14.npy of generating-reviews-discovering-sentiment;
            mlstm: a .safetensors of export.
        source: the folder or file.
        out: run folder to create.
    """
    from mlstm_jax.api.functions import import_weights

    show(repr(import_weights(kind, source, out)))


def export(
    run: RunFolder,
    out: Path | None = None,
    dtype: Literal["float32", "float16", "int8"] = "float32",
    classifier: Path | None = None,
    overwrite: Overwrite = False,
    checkpoint: Checkpoint = "best",
) -> None:
    """Export a model as one .safetensors file, or as a program for Python and NumPy alone.

    The arrays are named as in language_model.py and mlstm.py; the metadata hold the model's
    sizes and the cleaning of its texts. `mlstm-jax import mlstm` reads the file. A .pyz file labels
    texts: `python OUT.pyz "I loved it."` (docs/without_jax.md).

    Args:
        out: file to write, .safetensors or .pyz; unset: the run's name with .safetensors, in the
            current folder.
        dtype: float32; float16 for half the size; or int8 for a quarter, with the matrices of a
            weight normalisation rounded to 8 bits. A .pyz has the smallest that changes no number.
        classifier: for a .pyz: folder of `mlstm-jax transfer`; unset: the one that comes with a
            pretrained model.
    """
    from mlstm_jax.api.arguments import as_classifier, require_export
    from mlstm_jax.api.model import load

    if out is not None:
        require_export(out, classifier, overwrite=overwrite)
        if out.suffix == ".pyz":
            as_classifier(classifier, run)
    model = load(run, checkpoint)
    written = model.export(out, dtype, classifier=classifier, overwrite=overwrite)
    size = written.stat().st_size
    show(f"{written}: {size:,} bytes, the model of {run}, {model.loaded.origin}")
