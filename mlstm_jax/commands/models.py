"""Commands on a trained model: evaluate, report, generate, heatmap, view; import, export."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from mlstm_jax import output, shipped
from mlstm_jax.api import functions
from mlstm_jax.api.model import TrainedModel
from mlstm_jax.commands import Call, RunFolder, command
from mlstm_jax.errors import UserError, extra
from mlstm_jax.run import as_weights, load_run
from mlstm_jax.terminal import is_terminal, show
from mlstm_jax.training.evaluation import corpus_of
from mlstm_jax.training.state import parameter_count
from mlstm_jax.transfer import classifier_file, onnx_file
from mlstm_jax.transfer.classifier_file import Description
from mlstm_jax.transfer.classify import Classifier
from mlstm_jax.transfer.generate import as_text
from mlstm_jax.transfer.heatmap_drawing import require_suffix, word_ends, write
from mlstm_jax.transfer.trace import shown_label
from mlstm_jax.view.server import bind, serve
from mlstm_jax.view.viewer import Viewer


@command(TrainedModel.evaluate)
def evaluate(
    call: Call,
    json_: Annotated[Path | None, arg(name="json")] = None,
    overwrite: bool = False,
) -> None:
    """Score a trained model on a split: bits per character, bytes scored, seconds.

    Args:
        json_: also write the result to this file, as JSON.
        overwrite: replace that file if it exists.
    """
    output.require_file(json_, overwrite=overwrite, name="json")
    run, split, score = call.run, call.arguments["split"], call()
    corpus, is_own = corpus_of(run, call.arguments["corpus"], split)
    result = {
        "run": str(call.given["run"]),
        "step": run.step,
        "corpus": str(corpus.path),
        "trained_on_this_corpus": is_own,
        "split": split,
        "bpc": score.bpc,
        **score._asdict(),
    }
    show(
        f"{split} bpc {score.bpc:.4f} over {score.bytes_scored:,} bytes of {corpus.path} in "
        f"{score.seconds:.1f} s ({run.origin})"
    )
    if corpus.stop is not None:
        print("each protein is read from a zero state; its start is not scored, its stop is.")
    if not is_own and not run.imported:
        print("note: the run was trained on another corpus than this one.")
    if json_:
        output.write_text(json_, json.dumps(result, indent=2) + "\n")


@command(TrainedModel.report)
def report(call: Call) -> None:
    """Compare the BPC of a run with gzip, bz2 and xz, and show a sample of its text."""
    show("\n" + call())


@command(TrainedModel.generate)
def generate(
    call: Call, prompt: str = "", samples: int = 1, set_unit: tuple[str, ...] = (), stop: str = ""
) -> None:
    """Generate text from a trained model, continuing a prompt.

    A file or a pipe gets the text unchanged; in a terminal control characters are shown as escapes,
    such as \\x1b.

    Args:
        prompt: text to continue; empty: start a new document.
        samples: number of texts, up to 1,000.
        set_unit: UNIT=VALUE, once or several times: hold a unit of the top layer's cell state.
        stop: a byte that ends a text, as a character or as \\n, \\x02; a review ends at \\n.
    """
    given = call.arguments | {"set_unit": dict(map(_held, set_unit)), "stop": _byte(stop)}
    pieces = call.model.pieces(samples=samples, **given)
    write = show if is_terminal(sys.stdout) else partial(print, flush=True)
    if samples == 1:
        # Write the prompt with the first piece, so that wrong options are reported before it.
        before = prompt
        for text in as_text(piece for (piece,) in pieces):
            write(before + text, end="")
            before = ""
        write(before)
        return
    rows = list(pieces) or [[b""] * samples]
    for number, whole in enumerate(zip(*rows, strict=True), 1):
        write(f"--- {number} of {samples}\n{prompt}{''.join(as_text(iter(whole)))}")


def _held(text: str) -> tuple[int, float]:
    unit, _, value = text.partition("=")
    try:
        return int(unit), float(value)
    except ValueError:
        raise UserError(f"--set-unit {text!r}: give UNIT=VALUE, such as 236=3.") from None


def _byte(text: str) -> bytes:
    """Return the byte of a character or an escape sequence; b"" for an empty text."""
    try:
        code = text.encode("latin-1").decode("unicode_escape").encode("latin-1")
    except UnicodeError:
        code = b"??"
    if len(code) > 1:
        raise UserError(
            f"--stop {text!r} is not a single byte; give a character, or an escape like \\n or "
            "\\x02."
        )
    return code


@command(TrainedModel.heatmap)
def heatmap(
    call: Call, out: Path, text: str = "", file: Path | None = None, overwrite: bool = False
) -> None:
    """Colour a text by a unit or a classifier's score, as a self-contained HTML page.

    Args:
        out: .html file to write.
        text: the text to read.
        file: read the text from this file instead.
        overwrite: replace OUT if it exists.
    """
    output.require_file(out, file, overwrite=overwrite)
    require_suffix(out)
    if file is not None:
        try:
            call.arguments["text"] = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror}") from error
    heat = call()
    write(out, heat)
    values = heat.values[word_ends(heat.texts)] if heat.by_word else heat.values
    show(
        f"{out}: {len(heat.texts):,} characters of the cleaned text, {heat.name} from "
        f"{values.min():.3f} to {values.max():.3f}{' at the ends of words' if heat.by_word else ''}"
    )


@command()
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
        checkpoint: best (by validation), latest, or a step.
    """
    with extra("view", "the page needs Starlette and uvicorn"):
        import starlette as _
        import uvicorn as _  # noqa: F401, F811
    if not classifier and (classifier := shipped.classifier(run)):
        score = True
    if (score or label) and not classifier:
        raise UserError("--score and --label need --classifier, a folder of `mlstm-jax transfer`.")
    chosen: Classifier | None = None
    about: Description | None = None
    loaded = load_run(run, checkpoint)
    if classifier:
        chosen, about = classifier_file.load_classifier(classifier)
        classifier_file.require_model(classifier, chosen, about, loaded, run)
    if chosen and (score or label):
        chosen.require_no_words("the score after each character")
        loaded.config.model.require_next_byte("a score after each character")
        label = shown_label(chosen, label)
    viewer = Viewer(loaded, chosen, about, label, shipped.example(run).strip())
    address = bind(host, port)
    show(f"{address.url} shows {loaded.name}; Ctrl-C stops it")
    serve(viewer, address)


@command(functions.import_weights, "kind", "source")
def import_(call: Call) -> None:
    """Import weights of openai, nvidia, unirep or `mlstm-jax export` into a run folder.

    The folder works like one of `train`: for features, transfer, generate, evaluate. Nothing in the
    files is executed.
    """
    model = call()
    config, imported = model.config, as_weights(model._run)
    show(
        f"{call.arguments['out']}: {config.model.layers} x {config.model.hidden}-d, "
        f"{parameter_count(config):,} parameters, cleaning {imported.cleaning}, "
        f"from {imported.source}"
    )


@command(TrainedModel.export)
def export(call: Call) -> None:
    """Export a model as one file, .safetensors or .onnx, that other programs can read.

    The arrays are named as in language_model.py and mlstm.py; the metadata hold the model's
    sizes and the cleaning of its texts. `mlstm-jax import mlstm` reads the file. A program that
    reads an .onnx file needs neither JAX nor this package (docs/onnx.md).
    """
    given = call.arguments
    output.require_file(given["out"], overwrite=given["overwrite"])
    out, run = call(), call.given["run"]
    show(f"{out}: {out.stat().st_size:,} bytes, the model of {run}, {call.run.origin}")
    if out.suffix == ".onnx":
        about = onnx_file.read_about(out)
        show(f"{about['versions']}: within {about['difference']:.1e} of JAX, by the largest value")
