"""Commands that read or write texts: features, classify, generate, heatmap, view."""

import json
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from mlstm_jax import output, shipped
from mlstm_jax.commands import (
    LOAD,
    Checkpoint,
    Flag,
    Flat,
    LoadOptions,
    Overwrite,
    RunFolder,
    TextColumn,
)
from mlstm_jax.corpora.sources import Source, check_source
from mlstm_jax.errors import UserError, extra, require
from mlstm_jax.options import (
    CSV,
    HEATMAP,
    SAMPLING,
    CsvOptions,
    FeatureState,
    HeatmapOptions,
    SamplingOptions,
)
from mlstm_jax.terminal import is_terminal, one_line, show

if TYPE_CHECKING:
    from mlstm_jax.transfer.standalone import Labelled


def features(
    run: RunFolder,
    texts: Annotated[Path, Positional, arg(metavar="INPUT")],
    out: Path,
    state: tuple[FeatureState, ...] | None = None,
    all_layers: Flag = False,
    text_column: TextColumn = None,
    csv: Flat[CsvOptions] = CSV,
    overwrite: Overwrite = False,
    loading: Flat[LoadOptions] = LOAD,
) -> None:
    """Write the features of texts: the state of a trained model after each, one row per record.

    OUT is an .npz of `features` float32 [records, columns], and `state`, `layer` and `unit` of each
    column. The features of a record without text are zeros.

    Args:
        texts: any file that `prepare` reads; -: standard input, as JSON, CSV or lines of text.
        out: .npz file to write.
        state: c, the cell state, or h after the last byte; or mean_h, the mean of h over all bytes;
            or c+mean_h, first all of c and then all of mean_h; or several, all in one pass over the
            texts, each in the file only once. Unset: c+mean_h, or mean_h of a model without a c.
        all_layers: use every layer, the lowest first; otherwise only the top one.
    """
    from mlstm_jax.transfer.features import TextFile, write_features

    require(out.suffix == ".npz", "out", str(out), "an .npz file")
    output.require_file(out, texts, overwrite=overwrite)
    check_source(Source(str(texts)), or_stdin=True)
    model = loading.load(run)
    file = TextFile(texts, text_column, model.cleaning, csv)
    featurizer = model.featurizer(file, state, all_layers=all_layers)
    parts = (
        read.features for _, read in featurizer.read_each(file, "features", show_progress=True)
    )
    write_features(out, file.count, parts, featurizer)
    show(f"{out}: {file.count:,} texts x {len(featurizer.columns)} features")


def classify(
    run: RunFolder,
    texts: Annotated[
        tuple[Path, ...], Positional, arg(metavar="[DIR] INPUT", help_behavior_hint="")
    ] = (),
    at_most: int | None = None,
    text_column: TextColumn = None,
    csv: Flat[CsvOptions] = CSV,
    classes: tuple[str, ...] | None = None,
    out: Path | None = None,
    overwrite: Overwrite = False,
    loading: Flat[LoadOptions] = LOAD,
) -> None:
    """Label texts with a classifier of `transfer` or `finetune`: CSV of labels and probabilities.

    The columns are `record`, the number of the record in INPUT, from 1; `text`; `label`, the
    likeliest class; and p(CLASS) for each class; no other column of INPUT (docs/recipes.md joins
    them). A record without text has only its number. The classifier of a pretrained model notes how
    many texts are unlike its own. Without OUT a terminal gets a table of the first ten texts, and a
    pipe the CSV. A spreadsheet runs a text that begins as a formula: for texts of strangers write
    JSON lines (OUT.jsonl).

    Args:
        texts: DIR: folder of `mlstm-jax transfer`, or classifier/ of `finetune`; a model of the
            package has its own. INPUT: any file that `prepare` reads; -: standard input, as JSON,
            CSV with a header or lines of text.
        classes: choose between these only, such as `--classes negative positive`; unset: all.
        at_most: read only the head and the tail of a text with more bytes than this, half as many
            of each; unset: all.
        out: .csv or .jsonl to write; unset: standard output.
    """
    from mlstm_jax.transfer.classifier import load_classifier
    from mlstm_jax.transfer.features import TextFile
    from mlstm_jax.transfer.standalone import write_csv

    folder, source = _classifier_and_input(run, texts)
    is_known = out is None or out.suffix in (".csv", ".jsonl")
    require(is_known, "out", str(out), "a .csv or .jsonl file")
    output.require_file(out, source, overwrite=overwrite)
    check_source(Source(str(source)), or_stdin=True)
    chosen = load_classifier(folder)
    if classes is not None:
        chosen = chosen.between(classes)
    model = loading.load(run)
    chosen.require_model(folder, model.loaded)
    file = TextFile(source, text_column or chosen.about.text_column, model.cleaning, csv)
    if out is None and is_terminal(sys.stdout):
        first = next(iter(file))[:_SHOWN]
        _show_table(model.classify_parts(first, chosen, at_most=at_most))
        more = "with the probability of each class"
        show(f"{len(first)} of {file.count:,} texts; for all, {more}: --out labels.csv")
        return
    labelled = model.classify_parts(file, chosen, at_most=at_most, show_progress=True)
    if out is None:
        write_csv(sys.stdout, labelled, chosen.classes)
        return
    _write_file(out, labelled, chosen.classes)
    show(f"{out}: {file.count:,} texts")


def generate(
    run: RunFolder,
    prompt: str = "",
    options: Flat[SamplingOptions] = SAMPLING,
    loading: Flat[LoadOptions] = LOAD,
) -> None:
    """Generate text from a trained model, continuing a prompt.

    A file or a pipe gets the text unchanged; in a terminal control characters are shown as escapes,
    such as \\x1b.

    Args:
        prompt: text to continue; empty: start a new document.
    """
    from mlstm_jax.transfer.trace import as_text

    pieces = loading.load(run).generate_pieces(prompt, options)
    write = show if is_terminal(sys.stdout) else partial(print, flush=True)
    if options.samples == 1:
        # Write the prompt with the first piece, so that wrong options are reported before it.
        before = prompt
        for text in as_text(piece for (piece,) in pieces):
            write(before + text, end="")
            before = ""
        write(before)
        return
    rows = list(pieces) or [[b""] * options.samples]
    for number, whole in enumerate(zip(*rows, strict=True), 1):
        write(f"--- {number} of {options.samples}\n{prompt}{''.join(as_text(iter(whole)))}")


def heatmap(
    run: RunFolder,
    out: Path,
    text: str = "",
    unit: int | None = None,
    score: Path | None = None,
    options: Flat[HeatmapOptions] = HEATMAP,
    overwrite: Overwrite = False,
    loading: Flat[LoadOptions] = LOAD,
) -> None:
    """Colour a text by a unit or a classifier's score, as a self-contained HTML page.

    Args:
        out: .html file to write.
        text: the text to read.
        unit: the unit's number in its layer.
        score: instead of a unit: folder of `mlstm-jax transfer`. The score after a character is
            the classifier's of the bytes so far; after a space, of the text before it.
    """
    from mlstm_jax.transfer.classifier import load_classifier
    from mlstm_jax.transfer.heatmap import require_either, require_suffix

    output.require_file(out, overwrite=overwrite)
    require_suffix(out, "out")
    require_either(unit, score, options)
    if score is not None:
        load_classifier(score)
    heat = loading.load(run).heatmap(text, unit, score=score, options=options)
    heat.save(out, overwrite=overwrite)
    show(f"{heat}, in {out}")


def view(
    run: RunFolder = Path(shipped.MODEL),
    classifier: Path | None = None,
    label: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    checkpoint: Checkpoint = "best",
) -> None:
    """Serve a local page: type a text to see units, classes and next bytes, or continue it.

    Args:
        classifier: folder of `mlstm-jax transfer` with this run, to show class probabilities and a
            score; unset: the one that comes with a pretrained model.
        label: the class of the score with which the page begins; unset: the last, such as positive.
        host: address to listen on; 127.0.0.1 and ::1 accept only this machine. The page has no
            login.
        port: the port; 0 takes a free one.
    """
    from mlstm_jax.api.model import load
    from mlstm_jax.transfer.classifier import load_classifier

    if classifier is not None:
        load_classifier(classifier)
    with extra("view", "the page needs Starlette and uvicorn"):
        from mlstm_jax.view.server import bind
    bind(host, port).socket.close()  # A port that is in use is told before a model is loaded.
    load(run, checkpoint).view(classifier, label=label, host=host, port=port)


_SHOWN = 10  # texts in a table


def _show_table(labelled: "Labelled") -> None:
    """Show each text in a line of the terminal."""
    from mlstm_jax.transfer.standalone import records

    rows = list(records(labelled))
    labels = ["label", *(one_line(label) for _, _, label, _ in rows)]
    width = max(map(len, labels))
    lines = [f"{'record':>6}  {'label':<{width}}  {'p':<6}  text"]
    for number, text, label, shares in rows:
        best = f"{shares[label]:.4f}" if shares else ""
        lines.append(f"{number:>6}  {one_line(label):<{width}}  {best:<6}  {one_line(text)}")
    columns = shutil.get_terminal_size().columns
    show("\n".join(line[:columns] for line in lines))


def _write_file(out: Path, labelled: "Labelled", classes: Sequence[str]) -> None:
    from mlstm_jax.transfer.standalone import records, write_csv

    with (
        output.atomic_file(out) as partial,
        partial.open("w", newline="", encoding="utf-8", errors="replace") as file,
    ):
        if out.suffix == ".csv":
            write_csv(file, labelled, classes)
            return
        for number, text, label, shares in records(labelled):
            rounded = {name: round(share, 4) for name, share in shares.items()}
            row = {"record": number, "text": text, "label": label or None, "p": rounded}
            file.write(json.dumps(row) + "\n")


def _classifier_and_input(run: Path, given: tuple[Path, ...]) -> tuple[Path, Path]:
    """The folder of the classifier and the file of texts; UserError if they are not both there."""
    own = shipped.classifier(run)
    if own and len(given) == 1:
        given = (own, given[0])
    if len(given) == 2:
        folder, source = given
        is_turned = folder.is_file() or _is_classifier(run) or _is_classifier(source)
        if not is_turned:
            return folder, source
    model = shipped.MODEL if _is_classifier(run) else run
    unset = ", or unset: the model's own" if own else ""
    raise UserError(
        f"write `mlstm-jax classify {model} DIR INPUT`, in this order: DIR is a folder of "
        f"`mlstm-jax transfer`{unset}; INPUT is one file of texts, or -. A file to write goes "
        "after --out. --classes takes all words after it, so write it last. To label a text, pipe "
        f"it: echo TEXT | mlstm-jax classify {model} -"
    )


def _is_classifier(path: Path) -> bool:
    return (shipped.model(path) / "classifier.json").is_file()
