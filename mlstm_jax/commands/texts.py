"""Commands on texts: features, transfer, finetune, classify."""

import contextlib
import csv
import itertools
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated

from tyro.conf import Fixed, Positional, Suppress, arg

from mlstm_jax import output, shipped
from mlstm_jax.api.model import TrainedModel
from mlstm_jax.commands import Call, InputFile, command, require_files
from mlstm_jax.errors import UserError
from mlstm_jax.guard import interruptible
from mlstm_jax.terminal import is_terminal, one_line, rate, show
from mlstm_jax.transfer.classifier_file import load_classifier
from mlstm_jax.transfer.features import Featurizer, TextFile, write_parts
from mlstm_jax.transfer.reader import FeatureState
from mlstm_jax.transfer.transfer import REPORT, require_out

# Of the table that a terminal gets.
_SHOWN_ROWS = 10
_SHOWN_CHARACTERS = 60


@command(TrainedModel.encode)
def features(
    call: Call,
    texts: InputFile,
    out: Path,
    state: tuple[FeatureState, ...] | None = None,
    units: tuple[int, ...] | None = None,
    overwrite: bool = False,
) -> None:
    """Write the features of texts: the state of a trained model after each, one row per record.

    OUT is an .npz of `features` float32 [records, columns], and `state`, `layer` and `unit` of each
    column. The features of a record without text are zeros.

    Args:
        texts: in any file that `prepare` reads; -: standard input, as JSON lines or lines of text.
        out: .npz file to write.
        state: see `encode`. One or several, all in one pass over the texts, each in the file only
            once.
        units: write only these units; unset: all.
        overwrite: replace OUT if it exists.
    """
    require_files(texts)
    if out.suffix != ".npz":
        raise UserError(f"--out {out} does not end in .npz; give such a name.")
    output.require_file(out, texts, overwrite=overwrite)
    file = TextFile(texts, call.arguments["text_column"], call.run.cleaning)
    every = call.arguments["all_layers"]
    featurizer = Featurizer(call.run, states=state, all_layers=every, units=units)
    started = time.monotonic()
    parts = (read.features for _, read in featurizer.read_each(file, "features"))
    write_parts(out, file.count, parts, featurizer)
    seconds = time.monotonic() - started
    show(
        f"{out}: {file.count:,} texts x {len(featurizer.columns)} features, "
        f"{file.count / seconds:,.0f} texts/s, {rate(file.size / seconds)} ({call.run.origin})"
    )


@command(TrainedModel.transfer)
def transfer(
    call: Call,
    train: Path,
    out: Path,
    test: Path | None = None,
    valid: Path | None = None,
    state: tuple[FeatureState, ...] | None = None,
) -> None:
    """Fit a classifier to a frozen model's features of texts; report accuracies and the best units.

    OUT gets report.md, report.json and pictures (extra "plot"), and the classifier for `mlstm-jax
    classify`. The report compares it with logistic regression on TF-IDF of the same texts. Each of
    several states gets its own folder in OUT. The features are saved in OUT/features: after a stop
    the same command reads them there, and fits the classifier from the beginning.

    Args:
        state: see `encode`. One or several, all in one pass over the texts.
    """
    require_files(train, valid, test)
    require_out(out, state or ("c+mean_h",))

    def resumes() -> str:
        kept = any((out / "features").glob("*.npz"))
        return f"the same command resumes with the features in {out / 'features'}" if kept else ""

    with interruptible(note=resumes):
        transferred = call.model.transfer_each(call.arguments.pop("state"), **call.arguments)
    for one in transferred.values():
        assert one.folder
        show((one.folder / REPORT).read_text(encoding="utf-8"))
        show(f"in {one.folder}: {', '.join(sorted(path.name for path in one.folder.iterdir()))}")


@command(TrainedModel.finetune)
def finetune(
    call: Call, train: Path, out: Path, valid: Path | None = None, test: Path | None = None
) -> None:
    """Fine-tune a model end to end to predict labels, along with its language model loss.

    OUT gets corpus/, run/ (a run folder), classifier/ (for `mlstm-jax classify OUT/run`) and
    report.json. The same command resumes a run that was stopped.
    """
    require_files(train, valid, test)
    output.require_folder(out)
    tuned = call()

    def percents(scores: dict[str, float]) -> str:
        return ", ".join(f"{name} {100 * score:.1f}" for name, score in scores.items())

    shown = percents(tuned.accuracy)
    if tuned.without_words:
        shown += f"; without words: {percents(tuned.without_words)}"
    step = f"{tuned.run.step:,}"
    show(f"\naccuracy, %: {shown} (step {step})\nin {out}: run/, classifier/, report.json")


@command(TrainedModel.classify)
def classify(
    call: Call,
    texts: Annotated[tuple[Path, ...], Positional, arg(metavar="[DIR] INPUT")] = (),
    classifier: Suppress[Fixed[Path | None]] = None,  # the first of `texts`
    out: Path | None = None,
    overwrite: bool = False,
    escape: bool = False,
) -> None:
    """Label texts with a classifier of `transfer` or `finetune`: CSV of labels and probabilities.

    The column `record` is the number of the record in INPUT, from 1. A record without text gets
    neither a label nor probabilities. The classifier of a model of the package notes how many texts
    are unlike those that it knows, such as other languages.

    Texts and labels are written unchanged. Where strangers wrote them, a spreadsheet runs those
    that begin as a formula, and a terminal obeys escape sequences in them: use --escape.

    Args:
        texts: DIR: folder of `mlstm-jax transfer`, or classifier/ of `finetune`; a model of the
            package has its own. INPUT: any file that `prepare` reads; -: standard input, as JSON
            lines or lines of text.
        out: .csv to write; unset: standard output; a terminal gets the first ten as a table.
        overwrite: replace OUT if it exists.
        escape: write control characters as escapes such as \\x1b, and an apostrophe before a text
            or label that begins with =, +, - or @.
    """
    folder, source = _classifier_and_input(call, texts)
    require_files(source)
    if out and out.suffix != ".csv":
        raise UserError(f"out {out} does not end in .csv; give such a name.")
    output.require_file(out, source, overwrite=overwrite)
    chosen, about = load_classifier(folder)
    call.arguments["texts"] = source
    call.arguments["classifier"] = folder
    is_table = not out and is_terminal(sys.stdout)
    if is_table:
        column = call.arguments["text_column"] or about.text_column
        file = TextFile(source, column, call.run.cleaning)
        call.arguments["texts"] = next(iter(file))[:_SHOWN_ROWS]
    parts = call.model.classify_each(**call.arguments)
    write: Callable[[str], str] = str
    if escape:
        write = _escaped
    elif is_table:
        write = one_line
    names = [write(name) for name in chosen.classes]
    header = ["record", "text", "label", *(f"p({name})" for name in names)]
    rows = _rows(parts, names, write)
    if is_table:
        _show_table([header, *itertools.chain.from_iterable(rows)])
        if file.count > _SHOWN_ROWS:
            show(f"{_SHOWN_ROWS} of {file.count:,} texts; --out labels.csv writes all")
        return
    number = 0
    with _written(out) as written:
        # Python quotes a carriage return within a field only if lines end with one.
        writer = csv.writer(_Lines(written), lineterminator="\r\n")
        writer.writerow(header)
        for part in rows:
            writer.writerows(part)
            written.flush()
            number += len(part)
    if out:
        show(f"{out}: {number:,} texts")


def _classifier_and_input(call: Call, given: tuple[Path, ...]) -> tuple[Path, Path]:
    """Return the classifier's folder and the file of texts; UserError if one is missing."""
    run = call.given["run"]
    own = shipped.classifier(run)
    if len(given) == 2:
        return given[0], given[1]
    if len(given) == 1 and own:
        return own, given[0]
    have = "a model of the package has its own classifier" if own else f"{run} has none of its own"
    raise UserError(
        f"classify takes a classifier and a file of texts, {run} DIR INPUT, where DIR is a folder "
        f"of `mlstm-jax transfer`; {have}."
    )


def _rows(
    parts: Iterable[tuple[Sequence[str], list[dict[str, float]]]],
    names: Sequence[str],
    write: Callable[[str], str],
) -> Iterator[list[list[str]]]:
    """Yield the rows of each part: number, text, label and probabilities."""
    number = 0
    for strings, classified in parts:
        rows = []
        for text, by_name in zip(strings, classified, strict=True):
            number += 1
            row = [str(number), write(text)]
            shares = list(by_name.values())
            if shares:
                row.append(names[shares.index(max(shares))])
                row.extend(f"{share:.4f}" for share in shares)
            else:
                row.extend([""] * (1 + len(names)))
            rows.append(row)
        yield rows


def _show_table(rows: list[list[str]]) -> None:
    """Print rows as a table, texts cut to a part of a line."""
    shown = []
    for number, text, *values in rows:
        short = textwrap.shorten(text, _SHOWN_CHARACTERS, placeholder=" ...")
        shown.append([number, short, *values])
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        show("  ".join(cells).rstrip())


def _escaped(text: str) -> str:
    """Return a text that neither a spreadsheet nor a terminal takes for a command."""
    text = one_line(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


@contextlib.contextmanager
def _written(out: Path | None) -> Iterator[IO[str]]:
    """Yield standard output, or a file that is written completely or not at all."""
    if out is None:
        yield sys.stdout
        return
    with (
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
