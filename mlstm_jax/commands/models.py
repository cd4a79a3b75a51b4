"""Commands on a trained model: report, generate, heatmap, view; import and export."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from mlstm_jax import output, shipped
from mlstm_jax import run as runs
from mlstm_jax.commands import RunFolder
from mlstm_jax.errors import UserError
from mlstm_jax.interop import nvidia, openai, unirep, weights
from mlstm_jax.report import report as make_report
from mlstm_jax.run import Run, load_run, read_config, write_imported
from mlstm_jax.terminal import show
from mlstm_jax.training.state import parameter_count
from mlstm_jax.transfer import classifier_file
from mlstm_jax.transfer.classifier_file import Description
from mlstm_jax.transfer.classify import Classifier
from mlstm_jax.transfer.generate import as_text
from mlstm_jax.transfer.generate import generate as run_generate
from mlstm_jax.transfer.heatmap import heat, require_suffix, score_heat, shown_label, write
from mlstm_jax.transfer.reader import Reader
from mlstm_jax.view.server import bind, serve
from mlstm_jax.view.viewer import Viewer


def report(run: RunFolder, corpus: Path | None = None) -> None:
    """Compare the BPC of a run with gzip, bz2 and xz, and show a sample of its text.

    Args:
        run: run folder, or a model of the package.
        corpus: corpus folder; unset: the one it was trained on.
    """
    show("\n" + make_report(run, corpus))


def generate(
    run: RunFolder,
    prompt: str = "",
    bytes: int = 400,
    temperature: float = 0.7,
    top_k: int | None = None,
    top_p: float | None = None,
    samples: int = 1,
    set_unit: tuple[str, ...] = (),
    stop: str = "",
    seed: int = 0,
    checkpoint: str = "best",
) -> None:
    """Generate text from a trained model, continuing a prompt.

    A file or a pipe gets the text unchanged; in a terminal control characters are shown as escapes,
    such as \\x1b.

    Args:
        run: run folder, or a model of the package.
        prompt: text to continue; empty: start a new document.
        bytes: maximum number of bytes to generate; less than 2 GiB in all samples together.
        temperature: 1 is the model's own distribution; lower values favour likely bytes; 0 takes
            the most likely byte.
        top_k: draw only from the k most likely bytes.
        top_p: draw only from the fewest bytes whose total probability is at least this.
        samples: number of texts, up to 1,000.
        set_unit: UNIT=VALUE, once or several times: hold a unit of the top layer's cell state.
        stop: a byte that ends a text, as a character or as \\n, \\x02; a review ends at \\n.
        seed: the same seed gives the same texts; 0 to 4,294,967,295.
        checkpoint: best (by validation BPC), latest, or a step.
    """
    held = dict(_held(text) for text in set_unit)
    loaded = load_run(run, checkpoint)
    pieces = run_generate(
        loaded,
        prompt,
        bytes=bytes,
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        samples=samples,
        held=held,
        stop=_byte(stop),
    )
    write = show if sys.stdout.isatty() else partial(print, flush=True)
    if samples == 1:
        # Write the prompt with the first piece, so that wrong options are reported before it.
        before = prompt
        for text in as_text(piece for (piece,) in pieces):
            write(before + text, end="")
            before = ""
        write(before)
        return
    for number, whole in enumerate(zip(*pieces, strict=True), 1):
        write(f"--- {number} of {samples}\n{prompt}{''.join(as_text(iter(whole)))}")


def _held(text: str) -> tuple[int, float]:
    unit, _, value = text.partition("=")
    try:
        return int(unit), float(value)
    except ValueError:
        raise UserError(f"--set-unit {text!r}: give UNIT=VALUE, such as 2388=1.5.") from None


def _byte(text: str) -> bytes:
    """Return the byte of a character or an escape sequence; b"" for an empty text."""
    try:
        found = text.encode("latin-1").decode("unicode_escape").encode("latin-1")
    except UnicodeError:
        found = b"??"
    if len(found) > 1:
        raise UserError(
            f"--stop {text!r} is not a single byte; give a character, or an escape like \\n or "
            "\\x02."
        )
    return found


def heatmap(
    run: RunFolder,
    out: Path,
    unit: int | None = None,
    score: Path | None = None,
    label: str | None = None,
    text: str = "",
    file: Path | None = None,
    state: Literal["c", "h", "mean_h"] | None = None,
    layer: int | None = None,
    scale: float | None = None,
    checkpoint: str = "best",
    overwrite: bool = False,
) -> None:
    """Colour a text by a unit or a classifier's score, as a self-contained HTML page or a picture.

    Args:
        run: run folder, or a model of the package.
        out: .html or .png file to write.
        unit: its number in the layer; `mlstm-jax transfer` finds the best units for a label.
        score: instead of a unit: folder of `mlstm-jax transfer` with this run. The classifier's
            score after each character shows what it would answer if the text ended there.
        label: with --score, the class or label; unset: the last, such as positive.
        text: the text to read.
        file: read the text from this file instead.
        state: c, the cell state, or h, after each character; or mean_h, the mean of h up to it, as
            in `transfer --state mean_h`: h shows what each character adds to this mean; unset: c,
            or h of a model that has no c.
        layer: 0 is the lowest; unset: the top layer.
        scale: the absolute value with the full colour; unset: the 99th percentile of the text, or
            of a score its largest value after a whole word.
        checkpoint: best (by validation BPC), latest, or a step.
        overwrite: replace OUT if it exists.
    """
    if (unit is None) == (score is None):
        raise UserError("give either --unit or --score, a unit's number or a classifier's folder.")
    output.require_file(out, file, overwrite=overwrite)
    require_suffix(out)
    of_unit = {"--state": state, "--layer": layer}
    for name, value in of_unit.items() if score else [("--label", label)]:
        if value is not None:
            other = "--unit" if score else "--score"
            raise UserError(f"{name} is for {other}; leave it out.")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror}") from error
    loaded = load_run(run, checkpoint)
    if score:
        classifier, about = _classifier_of(score, loaded, run)
        made = score_heat(Reader(loaded), text, classifier, about, label, scale)
    else:
        made = heat(Reader(loaded), text, unit or 0, scale, state=state, layer=layer)
    missing = write(out, made)
    show(
        f"{out}: {len(made.texts):,} characters, {made.name} from {made.values.min():.3f} to "
        f"{made.values.max():.3f}"
    )
    if missing:
        show(
            f"note: no font on this machine has {missing[:20]}{'…' if missing[20:] else ''}; an "
            ".html page uses the fonts of the browser."
        )


def _classifier_of(folder: Path, loaded: "Run", run: Path) -> "tuple[Classifier, Description]":
    """Return a classifier and its features; UserError unless it was created with the run."""
    classifier, about = classifier_file.load_classifier(folder)
    classifier_file.require_model(folder, classifier, about, loaded, run)
    return classifier, about


def view(
    run: RunFolder = Path(shipped.MODEL),
    classifier: Path | None = None,
    score: bool = False,
    label: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    checkpoint: str = "best",
) -> None:
    """Serve a local page: type a text to see units, classes and next bytes, or continue it.

    Args:
        run: run folder, or a model of the package.
        classifier: folder of `mlstm-jax transfer` with this run, to show class probabilities;
            unset: for a model of the package the one that comes with it, and its score.
        score: start with the classifier's score after each character and word, not with a unit.
        label: the class or label of that score; unset: the last, such as positive.
        host: address to listen on; 127.0.0.1 and ::1 accept only this machine. The page has no
            login.
        port: 0 takes a free one.
        checkpoint: best (by validation BPC), latest, or a step.
    """
    try:
        import starlette as _
        import uvicorn as _  # noqa: F401, F811
    except ImportError as error:
        raise UserError(f"the page needs {error.name}: pip install 'mlstm-jax[view]'") from error
    if not classifier and (classifier := shipped.classifier(run)):
        score = True
    if (score or label) and not classifier:
        raise UserError("--score and --label need --classifier, a folder of `mlstm-jax transfer`.")
    loaded, chosen, about = load_run(run, checkpoint), None, None
    if classifier:
        chosen, about = _classifier_of(classifier, loaded, run)
    if chosen and (score or label):
        loaded.config.model.require_next_byte("a score after each character")
        label = shown_label(chosen, label)
    address = bind(host, port)
    viewer = Viewer(loaded, chosen, about, label, shipped.example(run).strip())
    show(f"{address.url} shows {loaded.name}; Ctrl-C stops it")
    serve(viewer, address)


def import_(
    kind: Annotated[
        Literal["openai", "nvidia", "unirep", "mlstm"], Positional, arg(metavar="KIND")
    ],
    source: Annotated[Path, Positional, arg(metavar="SOURCE")],
    out: Path,
) -> None:
    """Import weights of openai, nvidia, unirep or `mlstm-jax export` into a run folder.

    The folder works like one of `train`: for features, transfer, generate, evaluate. Nothing in the
    files is executed.

    Args:
        kind: openai: the folder of 0.npy to 14.npy of generating-reviews-discovering-sentiment;
            nvidia: a state_dict .pt of sentiment-discovery (needs the extra "torch"); unirep: the
            folder of embed_matrix:0.npy and the others; mlstm: a .safetensors or .npz of export.
        source: the folder or file.
        out: run folder to create.
    """
    readers = {
        "openai": openai.read_openai,
        "nvidia": nvidia.read_nvidia,
        "unirep": unirep.read_unirep,
        "mlstm": weights.load_weights,
    }
    found = readers[kind](source)
    write_imported(out, found)
    config = read_config(out)
    assert config is not None
    for note in found.notes:
        show(f"note: {note}")
    show(
        f"{out}: {found.model.layers} x {found.model.hidden}-d, {parameter_count(config):,} "
        f"parameters, cleaning {found.cleaning}, from {found.source}"
    )


def export(
    run: RunFolder,
    out: Path | None = None,
    format: Literal["safetensors", "npz"] | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    checkpoint: str = "best",
    overwrite: bool = False,
) -> None:
    """Export a model as one file, .safetensors or .npz, that other programs can read.

    The arrays are named as in language_model.py and mlstm.py; the metadata hold the model's
    sizes and the cleaning of its texts. `mlstm-jax import mlstm` reads the file.

    Args:
        run: run folder, or a model of the package.
        out: file to write; unset: the run's name, in the current folder.
        format: unset: the suffix of `out`, or safetensors.
        dtype: float16 halves the file; it rounds each parameter to 11 bits.
        checkpoint: best (by validation BPC), latest, or a step.
        overwrite: replace OUT if it exists.
    """
    ending = format or (out.suffix.removeprefix(".") if out else "safetensors")
    out = out or Path(f"{run.resolve().name}.{ending}")
    if out.suffix != f".{ending}":
        raise UserError(f"--out {out} does not end in .{ending}, its --format; change one of them.")
    output.require_file(out, overwrite=overwrite)
    loaded = runs.load_run(run, checkpoint)
    weights.save(out, runs.as_weights(loaded), dtype)
    show(f"{out}: {out.stat().st_size:,} bytes, the model of {run}, {loaded.origin}")
