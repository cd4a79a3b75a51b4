"""Commands on texts: features, transfer, finetune, classify."""

import contextlib
import csv
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from mlstm_jax import output, shipped
from mlstm_jax.api.arguments import as_labelled
from mlstm_jax.api.model import load
from mlstm_jax.commands import Flag, LabelColumn, Overwrite, RunFolder, TextColumn
from mlstm_jax.commands.models import READING, ReadingOptions
from mlstm_jax.errors import UserError, require
from mlstm_jax.guard import interruptible
from mlstm_jax.terminal import is_terminal, one_line, rate, show
from mlstm_jax.transfer.classifier import load_classifier
from mlstm_jax.transfer.classify import label_texts
from mlstm_jax.transfer.features import FeatureState, Featurizer, TextFile, write_parts
from mlstm_jax.transfer.finetune import FinetuneOptions
from mlstm_jax.transfer.transfer import DEFAULTS, REPORT, TransferOptions, require_out
from mlstm_jax.transfer.transfer import transfer as run_transfer


def features(
    run: RunFolder,
    texts: Annotated[Path, Positional, arg(metavar="INPUT")],
    out: Path,
    state: tuple[FeatureState, ...] | None = None,
    all_layers: Flag = False,
    units: tuple[int, ...] | None = None,
    text_column: TextColumn = None,
    overwrite: Overwrite = False,
    reading: ReadingOptions = READING,
) -> None:
    """Write the features of texts: the state of a trained model after each, one row per record.

    OUT is an .npz of `features` float32 [records, columns], and `state`, `layer` and `unit` of each
    column. The features of a record without text are zeros.

    Args:
        texts: in any file that `prepare` reads; -: standard input, as JSON lines or lines of text.
        out: .npz file to write.
        state: c, the cell state, or h after the last byte; or mean_h, the mean of h over all bytes;
            or c+mean_h, first all of c and then all of mean_h; or several, all in one pass over the
            texts, each in the file only once. Unset: c+mean_h, or mean_h of a model without a c.
        all_layers: use every layer, the lowest first; otherwise only the top one.
        units: write only these units; unset: all.
    """
    require(out.suffix == ".npz", "out", str(out), "an .npz file")
    output.require_file(out, texts, overwrite=overwrite)
    loaded = reading.load(run)._run
    file = TextFile(texts, text_column, loaded.cleaning)
    featurizer = Featurizer(loaded, states=state, all_layers=all_layers, units=units)
    started = time.monotonic()
    parts = (read.features for _, read in featurizer.read_each(file, "features", quiet=False))
    write_parts(out, file.count, parts, featurizer)
    seconds = time.monotonic() - started
    show(
        f"{out}: {file.count:,} texts x {len(featurizer.columns)} features, "
        f"{file.count / seconds:,.0f} texts/s, {rate(file.size / seconds)} ({loaded.origin})"
    )


def transfer(
    run: RunFolder,
    train: Path,
    out: Path,
    test: Path | None = None,
    valid: Path | None = None,
    options: Annotated[TransferOptions, FlagCreatePairsOff, arg(name="")] = DEFAULTS,
    label_column: LabelColumn = None,
    text_column: TextColumn = None,
    reading: ReadingOptions = READING,
) -> None:
    """Fit a classifier to a frozen model's features of texts; report accuracies and the best units.

    OUT gets report.md, report.json and pictures (extra "plot"), and the classifier for `mlstm-jax
    classify`. The report compares it with logistic regression on TF-IDF of the same texts. Each of
    several states gets its own folder in OUT. The features are saved in OUT/features: after a stop
    the same command reads them there, and fits the classifier from the beginning.

    Args:
        train: texts with labels: a .csv, .tsv, .json, .jsonl or .parquet file.
        out: folder for the features, the classifier, report.md, report.json and pictures.
        test: as train, to measure the accuracy on; unset: a fifth of each class of train, chosen by
            a digest of the texts, so that it is always the same.
        valid: as train, to choose C on, the inverse strength of the penalty; unset:
            cross-validation.
    """
    shipped.require_model(run)
    require_out(out, options.states or ("c+mean_h",))
    files = {"train": train, "test": test, "valid": valid}
    labelled = as_labelled(files, text_column, label_column)

    def resumes() -> str:
        if not any((out / "features").glob("*.npz")):
            return ""
        return f"the same command resumes with the features in {out / 'features'}"

    with interruptible(note=resumes):
        loaded = reading.load(run)._run
        made = run_transfer(
            loaded, labelled, out, options, text_column=text_column, show_progress=True
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
    options: Annotated[FinetuneOptions, FlagCreatePairsOff, arg(name="")] = FinetuneOptions(),  # noqa: B008
    label_column: LabelColumn = None,
    text_column: TextColumn = None,
    checkpoint: Literal["best", "latest"] = "best",
) -> None:
    """Fine-tune a model end to end to predict labels, along with its language model loss.

    OUT gets corpus/, run/ (a run folder), classifier/ (for `mlstm-jax classify OUT/run`) and
    report.json. The same command resumes a run that was stopped.

    Args:
        train: texts with labels: a .csv, .tsv, .json, .jsonl or .parquet file.
        out: folder for corpus/, run/, classifier/ and report.json.
        valid: as train; the loss of its labels, after each epoch, chooses the checkpoint, and its
            accuracy is reported. Unset: a fifth of train.
        test: as train, to measure on.
        checkpoint: of the finished run, for the classifier: best (by the loss of the validation
            labels), or latest.
    """
    tuned = load(run).finetune(
        train,
        valid,
        test,
        out=out,
        options=options,
        label_column=label_column,
        text_column=text_column,
        checkpoint=checkpoint,
        owns_process=True,
        show_progress=True,
    )
    show(f"\n{tuned}\nin {out}: run/, classifier/, report.json")


def classify(
    run: RunFolder,
    texts: Annotated[tuple[Path, ...], Positional, arg(metavar="[DIR] INPUT")] = (),
    text_column: TextColumn = None,
    out: Path | None = None,
    overwrite: Overwrite = False,
    reading: ReadingOptions = READING,
) -> None:
    """Label texts with a classifier of `transfer` or `finetune`: CSV of labels and probabilities.

    The column `record` is the number of the record in INPUT, from 1. A record without text gets
    neither a label nor probabilities. The classifier of a pretrained model notes how many texts
    are unlike those that it knows, such as in another language. Without OUT a terminal gets a
    table of the first ten texts, and a pipe the CSV.

    CSV has texts and labels unchanged. Where strangers wrote them, a spreadsheet runs those that
    begin as a formula; JSON lines (OUT.jsonl) are safe.

    Args:
        texts: DIR: folder of `mlstm-jax transfer`, or classifier/ of `finetune`; a model of the
            package has its own. INPUT: any file that `prepare` reads; -: standard input, as JSON
            lines or lines of text.
        out: .csv or .jsonl to write; unset: standard output.
    """
    folder, source = _classifier_and_input(run, texts)
    is_known = out is None or out.suffix in (".csv", ".jsonl")
    require(is_known, "out", str(out), "a .csv or .jsonl file")
    output.require_file(out, source, overwrite=overwrite)
    chosen = load_classifier(folder)
    about = chosen.about
    loaded = reading.load(run)._run
    chosen.require_model(folder, loaded)
    file = TextFile(source, text_column or about.text_column, loaded.cleaning)
    featurizer = Featurizer(
        loaded, states=(about.state,), all_layers=about.all_layers, score=bool(about.familiar)
    )
    if out is None and is_terminal(sys.stdout):
        first = next(iter(file))[:_SHOWN]
        _show_table(label_texts(loaded, first, chosen, featurizer))
        more = "with the probability of each class"
        show(f"{len(first)} of {file.count:,} texts; for all, {more}: --out labels.csv")
        return
    labelled = label_texts(loaded, file, chosen, featurizer, quiet=False)
    with contextlib.ExitStack() as stack:
        written: IO[str] = sys.stdout
        if out:  # which is written completely or not at all
            partial = stack.enter_context(output.atomic_file(out))
            opened = partial.open("w", newline="", encoding="utf-8", errors="replace")
            written = stack.enter_context(opened)
        if out and out.suffix == ".jsonl":
            _write_json(written, labelled)
        else:
            _write_csv(written, labelled, chosen.classes)
    if out:
        show(f"{out}: {file.count:,} texts")


_SHOWN = 10  # texts in a table

# Parts of a file: their texts, and the probability of each class, none of a blank text.
_Labelled = Iterable[tuple[Sequence[str], list[dict[str, float]]]]


def _records(labelled: _Labelled) -> Iterator[tuple[int, str, str, dict[str, float]]]:
    """Yield number, text, likeliest class and probabilities; of a blank text "" and none."""
    number = 0
    for texts, answers in labelled:
        for text, shares in zip(texts, answers, strict=True):
            number += 1
            yield number, text, max(shares, key=lambda name: shares[name], default=""), shares


def _show_table(labelled: _Labelled) -> None:
    """Show each text in a line of the terminal."""
    records = list(_records(labelled))
    width = max(len("label"), *(len(one_line(label)) for _, _, label, _ in records))
    lines = [f"{'record':>6}  {'label':<{width}}  {'p':<6}  text"]
    for number, text, label, shares in records:
        best = f"{shares[label]:.4f}" if shares else ""
        lines.append(f"{number:>6}  {one_line(label):<{width}}  {best:<6}  {one_line(text)}")
    columns = shutil.get_terminal_size().columns
    show("\n".join(line[:columns] for line in lines))


def _write_csv(file: IO[str], labelled: _Labelled, classes: Sequence[str]) -> None:
    # Python quotes a carriage return within a field only if lines end with one.
    writer = csv.writer(_Lines(file), lineterminator="\r\n")
    writer.writerow(["record", "text", "label", *(f"p({name})" for name in classes)])
    for number, text, label, shares in _records(labelled):
        values = [f"{share:.4f}" for share in shares.values()] or [""] * len(classes)
        writer.writerow([number, text, label, *values])


def _write_json(file: IO[str], labelled: _Labelled) -> None:
    for number, text, label, shares in _records(labelled):
        rounded = {name: round(share, 4) for name, share in shares.items()}
        row = {"record": number, "text": text, "label": label or None, "p": rounded}
        file.write(json.dumps(row) + "\n")


def _classifier_and_input(run: Path, given: tuple[Path, ...]) -> tuple[Path, Path]:
    """Return the classifier's folder and the file of texts; UserError if one is missing."""
    own = shipped.classifier(run)
    if len(given) == 2:
        return given[0], given[1]
    if len(given) == 1 and own:
        return own, given[0]
    have = "a pretrained model has its own classifier" if own else f"{run} has none of its own"
    raise UserError(
        f"classify takes a classifier and a file of texts, {run} DIR INPUT, where DIR is a folder "
        f"of `mlstm-jax transfer`; {have}."
    )


class _Lines:
    """A file whose lines end with a newline alone; a CSV writer writes one row at a time."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: str) -> None:
        self._file.write(row.removesuffix("\r\n") + "\n")
