"""Commands that predict labels: finetune, classify."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from mlstm_jax import output
from mlstm_jax.api.model import load
from mlstm_jax.commands import (
    RunFolder,
    require_files,
)
from mlstm_jax.run import load_run
from mlstm_jax.terminal import one_line, show
from mlstm_jax.transfer import classifier_file
from mlstm_jax.transfer.finetune import FinetuneOptions
from mlstm_jax.transfer.finetune import finetune as run_finetune
from mlstm_jax.transfer.labels import columns_of, read_labelled, read_texts
from mlstm_jax.transfer.report import label_table


def finetune(
    run: RunFolder,
    train: Path,
    out: Path,
    valid: Path | None = None,
    test: Path | None = None,
    label_column: str | None = None,
    label_columns: tuple[str, ...] | None = None,
    text_column: str | None = None,
    training: OmitArgPrefixes[FinetuneOptions] = FinetuneOptions(),  # noqa: B008
    checkpoint: str = "best",
) -> None:
    """Fine-tune a model end to end to predict labels, along with its language model loss.

    OUT gets corpus/, run/ (a run folder), classifier/ (for `mlstm-jax classify OUT/run`) and
    report.json. The same command resumes a run that was stopped.

    Args:
        run: run folder, trained or imported, or a model of the package.
        train: texts with labels of two or more classes: .csv, .tsv, .json, .jsonl or .parquet.
        out: folder to write, or to resume in.
        valid: validation texts with labels, in the same formats; their bits per character choose
            the checkpoint, thresholds of several labels are chosen on them, and their accuracy is
            reported. Unset: a fifth of each class of --train, chosen by a digest of the texts, so
            that it is always the same.
        test: test texts with labels, in the same formats; their accuracy is reported.
        label_column: field or column of the label, a number or a string; unset: label.
        label_columns: fields or columns of several labels, each 1 (yes), 0 (no) or empty (not
            known). Each has its own output, and a threshold of the largest F1.
        text_column: field or column of the text; unset: text, reviewText, sentence, ...
        training: How to fine-tune.
        checkpoint: of the finished run, for the classifier: best (by validation BPC), or latest.
    """
    require_files(train, valid, test)
    column = columns_of(label_column, label_columns)
    output.require_folder(out)
    given = {"train": train, "valid": valid, "test": test}
    paths = {name: path for name, path in given.items() if path}
    made = run_finetune(
        load_run(run),
        {name: read_labelled(path, text_column, column) for name, path in paths.items()},
        {name: str(path) for name, path in paths.items()},
        out,
        training,
        checkpoint=checkpoint,
        text_column=text_column,
        owns_process=True,
        show_progress=True,
    )
    shown = ", ".join(f"{name} {100 * score:.1f}" for name, score in made.accuracy.items())
    step, what = made.run.step, "accuracy"
    for name, scores in made.labels.items():
        what = "macro F1"
        show("\n".join(["", f"{name}, % except of thresholds and numbers:", *label_table(scores)]))
    show(f"\n{what}, %: {shown} (step {step:,})\nin {out}: run/, classifier/, report.json")


def classify(
    run: RunFolder,
    classifier: Annotated[Path, Positional, arg(metavar="DIR")],
    source: Annotated[Path, Positional, arg(metavar="INPUT")],
    out: Path | None = None,
    text_column: str | None = None,
    checkpoint: str = "best",
    overwrite: bool = False,
) -> None:
    """Label texts with a classifier of `transfer` or `finetune`: CSV of labels and probabilities.

    The column `record` is the number of the record in INPUT, from 1. Of several labels, a column
    for each has 1 or 0 by its threshold, and a column p(label) its probability of 1. A record
    without text gets neither labels nor probabilities. The classifier of a model of the package
    notes how many texts are unlike those that it knows, such as other languages.

    Args:
        run: run folder of the model that the classifier was created with.
        classifier: folder of `mlstm-jax transfer`, or classifier/ of `finetune`.
        source: texts, in any file that `prepare` reads; -: standard input, as JSON lines or lines
            of text.
        out: .csv to write; unset: standard output.
        text_column: field or column of the text; unset: that of the classifier's training texts.
        checkpoint: best (by validation BPC), latest, or a step.
        overwrite: replace OUT if it exists.
    """
    require_files(source)
    import csv

    if out:
        output.require_file(out, source, overwrite=overwrite)
    chosen, about = classifier_file.load_classifier(classifier)
    texts = read_texts(source, text_column or about.text_column)
    found = load(run, checkpoint).classify(texts, classifier, show_progress=True)
    # A file or another program gets labels unchanged; for a terminal they are escaped.
    to_people = not out and sys.stdout.isatty()
    names = [one_line(name) for name in chosen.classes] if to_people else chosen.classes
    labels = [_column(name) for name in names] if chosen.thresholds else ["label"]
    header = ["record", "text", *labels, *(f"p({name})" for name in names)]
    with _written(out) as file:
        # Python quotes a carriage return within a field only if lines end with one.
        writer = csv.writer(_Lines(file), lineterminator="\r\n")
        writer.writerow(header)
        for number, (text, by_name) in enumerate(zip(texts, found, strict=True), 1):
            shown, row = one_line(text) if to_people else text, list(by_name.values())
            if not row:
                given: list[object] = [""] * (len(header) - 2)
            elif chosen.thresholds:
                given = [int(p >= least) for p, least in zip(row, chosen.thresholds, strict=True)]
            else:
                given = [names[row.index(max(row))]]
            writer.writerow([number, shown, *given, *(f"{p:.4f}" for p in row)])
    if out:
        show(f"{out}: {len(texts):,} texts")


def _column(label: str) -> str:
    """Return the column of a label, which must not be one that the file already has."""
    return f"label({label})" if label in ("record", "text") else label


@contextlib.contextmanager
def _written(out: Path | None) -> Iterator[IO[str]]:
    """Yield standard output, or a file that is written completely or not at all."""
    if out is None:
        yield sys.stdout
        return
    with (
        output.write_errors(out),
        output.atomic_file(out) as partial,
        partial.open("w", newline="", encoding="utf-8", errors="replace") as file,
    ):
        yield file


class _Lines:
    """A file whose lines end with a newline alone; a CSV writer writes one row at a time."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: str) -> None:
        self._file.write(row.removesuffix("\r\n") + "\n")
