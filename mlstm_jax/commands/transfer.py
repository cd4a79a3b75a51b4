"""Commands on the state of a frozen model: features, transfer."""

import signal
import time
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from mlstm_jax.commands import RunFolder, require_files
from mlstm_jax.errors import UserError
from mlstm_jax.guard import interruptible
from mlstm_jax.output import require_file
from mlstm_jax.run import load_run
from mlstm_jax.terminal import show
from mlstm_jax.transfer.features import Featurizer, write_features
from mlstm_jax.transfer.labels import columns_of, read_labelled, read_texts
from mlstm_jax.transfer.report import REPORT
from mlstm_jax.transfer.transfer import require_out
from mlstm_jax.transfer.transfer import transfer as run_transfer

FeatureState = Literal["c", "h", "mean_h", "c+mean_h"]


def features(
    run: RunFolder,
    source: Annotated[Path, Positional, arg(metavar="INPUT")],
    out: Path,
    state: tuple[FeatureState, ...] | None = None,
    all_layers: bool = False,
    units: tuple[int, ...] | None = None,
    text_column: str | None = None,
    checkpoint: str = "best",
    overwrite: bool = False,
) -> None:
    """Write the features of texts: the state of a trained model after each, one row per record.

    OUT is an .npz of `features` float32 [records, columns], and `state`, `layer` and `unit` of each
    column. The features of a record without text are zeros.

    Args:
        run: run folder, or a model of the package.
        source: texts, in any file that `prepare` reads; -: standard input, as JSON lines or lines
            of text.
        out: .npz file to write.
        state: c, the cell state, or h, after the last byte; mean_h, the mean of h over all bytes;
            or c+mean_h, first c and then mean_h; one or several, all in one pass over the texts,
            each in the file only once; unset: c, or h of a model that has no c.
        all_layers: use every layer, in each state the lowest first; otherwise only the top one.
        units: write only these units; unset: all.
        text_column: field or column of the text; unset: text, reviewText, sentence, ...
        checkpoint: best (by validation BPC), latest, or a step.
        overwrite: replace OUT if it exists.
    """
    require_files(source)
    if out.suffix != ".npz":
        raise UserError(f"--out {out} does not end in .npz; give such a name.")
    require_file(out, source, overwrite=overwrite)
    texts = read_texts(source, text_column)
    loaded = load_run(run, checkpoint)
    featurizer = Featurizer(loaded, states=state, all_layers=all_layers, units=units)
    started = time.monotonic()
    found = featurizer(texts, "features")
    seconds = time.monotonic() - started
    write_features(out, found, featurizer)
    show(
        f"{out}: {len(texts):,} texts x {found.shape[1]} features, {len(texts) / seconds:,.0f} "
        f"texts/s ({loaded.origin})"
    )


def transfer(
    run: RunFolder,
    train: Path,
    out: Path,
    test: Path | None = None,
    valid: Path | None = None,
    label_column: str | None = None,
    label_columns: tuple[str, ...] | None = None,
    text_column: str | None = None,
    state: tuple[FeatureState, ...] | None = None,
    all_layers: bool = False,
    checkpoint: str = "best",
) -> None:
    """Fit a classifier to a frozen model's features of texts; report accuracies and the best units.

    OUT gets report.md, report.json and pictures (extra "plot"), and the classifier for `mlstm-jax
    classify`. The report compares it with logistic regression on TF-IDF of the same texts. Each of
    several states gets its own folder in OUT. The features are saved in OUT/features, so the same
    command resumes at any point where it was stopped.

    Args:
        run: run folder, or a model of the package.
        train: texts with labels of two or more classes: .csv, .tsv, .json, .jsonl or .parquet.
        out: folder to write.
        test: test texts with labels, in the same formats; the report is of them. Unset: a fifth of
            each class of --train, chosen by a digest of the texts, so that it is always the same.
        valid: validation texts with labels, in the same formats, to choose C on, the inverse
            strength of the L1 penalty, and the thresholds of several labels; unset:
            cross-validation.
        label_column: field or column of the label, a number or a string; unset: label.
        label_columns: fields or columns of several labels, each 1 (yes), 0 (no) or empty (not
            known). Each has its own classifier, C, and threshold of the largest F1.
        text_column: field or column of the text; unset: text, reviewText, sentence, ...
        state: c, the cell state, or h, after the last byte; mean_h, the mean of h over all bytes;
            or c+mean_h, first c and then mean_h; one or several, all in one pass over the texts;
            unset: c, or h of a model that has no c.
        all_layers: use every layer; otherwise only the top one.
        checkpoint: best (by validation BPC), latest, or a step.
    """
    require_files(train, valid, test)
    given = {"train": train, "test": test, "valid": valid}
    paths = {name: path for name, path in given.items() if path}
    require_out(out, state or ("c",))
    column = columns_of(label_column, label_columns)
    texts = {name: read_labelled(path, text_column, column) for name, path in paths.items()}

    def resumes() -> str:
        kept = any((out / "features").glob("*.npz"))
        return f"the same command resumes with the features in {out / 'features'}" if kept else ""

    with interruptible(signal.SIGINT, note=resumes):
        made = run_transfer(
            load_run(run, checkpoint),
            texts,
            {name: str(path) for name, path in paths.items()},
            out,
            states=state,
            all_layers=all_layers,
            text_column=text_column,
            show_progress=True,
        )
    for one in made.values():
        assert one.folder
        show((one.folder / REPORT).read_text(encoding="utf-8"))
        show(f"in {one.folder}: {', '.join(sorted(path.name for path in one.folder.iterdir()))}")
