"""Commands on models: sweep; evaluate, report, generate, heatmap, view; import, export."""

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from mlstm_jax import output, shipped
from mlstm_jax.api import functions
from mlstm_jax.api.model import TrainedModel, load
from mlstm_jax.commands import Checkpoint, Flag, Overwrite, RunFolder
from mlstm_jax.data.corpus import SplitName
from mlstm_jax.errors import UserError, extra
from mlstm_jax.run import ReadingCompute, as_weights, load_run
from mlstm_jax.terminal import is_terminal, show
from mlstm_jax.training.evaluation import corpus_of
from mlstm_jax.training.state import parameter_count
from mlstm_jax.training.sweep import sweep as run_sweep
from mlstm_jax.transfer.classifier import Classifier, load_classifier
from mlstm_jax.transfer.features import State
from mlstm_jax.transfer.generate import as_text
from mlstm_jax.transfer.generate import generate as run_generate
from mlstm_jax.transfer.heatmap import require_suffix, shown_label
from mlstm_jax.transfer.trace import Reader
from mlstm_jax.view.server import bind, serve
from mlstm_jax.view.viewer import Viewer


@dataclass(frozen=True)
class Reading:
    """What to load of a run, and how it reads.

    Attributes:
        compute: type of the products in reading texts; auto: that of the run's config, but bf16
            instead of fp32 for several texts at a time, and for generated text, where the CPU
            multiplies it faster.
    """

    checkpoint: Checkpoint = "best"
    compute: ReadingCompute = "auto"

    def load(self, run: Path) -> TrainedModel:
        """Load the model."""
        return load(run, self.checkpoint, self.compute)


READING = Reading()
ReadingOptions = Annotated[Reading, arg(name="")]
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
    run_sweep(runs, out, table_only=table_only, owns_process=True)
    show((out / "table.md").read_text(encoding="utf-8"))
    show(f"all figures: {out / 'table.csv'}")


def evaluate(
    run: RunFolder,
    split: SplitName = "test",
    corpus: _Corpus = None,
    json_: Annotated[Path | None, arg(name="json")] = None,
    overwrite: Overwrite = False,
    reading: ReadingOptions = READING,
) -> None:
    """Score a trained model on a split: bits per character, bytes scored, seconds.

    Args:
        split: which part of the corpus.
        json_: also write the result to this file, as JSON.
    """
    output.require_file(json_, overwrite=overwrite, name="json")
    model = reading.load(run)
    score = model.evaluate(split, corpus=corpus, show_progress=True)
    opened, is_own = corpus_of(model._run, corpus)
    result = {
        "run": str(run),
        "step": model.step,
        "corpus": str(opened.path),
        "trained_on_this_corpus": is_own,
        "split": split,
        "bpc": score.bpc,
        **score._asdict(),
    }
    show(
        f"{split} bpc {score.bpc:.4f} over {score.bytes_scored:,} bytes of {opened.path} in "
        f"{score.seconds:.1f} s ({model._run.origin})"
    )
    if not is_own and not model._run.imported:
        print("note: the run was trained on another corpus than this one.")
    if json_:
        output.write_text(json_, json.dumps(result, indent=2) + "\n")


def report(run: RunFolder, corpus: _Corpus = None, reading: ReadingOptions = READING) -> None:
    """Compare the BPC of a run with gzip, bz2 and xz, and show a sample of its text."""
    show("\n" + reading.load(run).report(corpus))


def generate(
    run: RunFolder,
    prompt: str = "",
    bytes: int = 400,
    samples: int = 1,
    temperature: float = 0.7,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    set_unit: tuple[str, ...] = (),
    stop: str = "",
    reading: ReadingOptions = READING,
) -> None:
    """Generate text from a trained model, continuing a prompt.

    A file or a pipe gets the text unchanged; in a terminal control characters are shown as escapes,
    such as \\x1b.

    Args:
        prompt: text to continue; empty: start a new document.
        bytes: maximum number of bytes to draw.
        samples: number of texts, up to 1,000.
        temperature: 1 samples the model's own distribution; lower values favour likely bytes; 0
            takes the most likely byte.
        top_k: draw only from the k most likely bytes.
        top_p: draw only from the fewest bytes whose total probability is at least this.
        seed: the same seed gives the same text.
        set_unit: UNIT=VALUE, once or several times: hold a unit of the top layer's cell state
            (Radford et al. 2017, section 4.3).
        stop: a byte that ends a text, as a character or as \\n, \\x02; a review ends at \\n.
    """
    pieces = run_generate(
        Reader(reading.load(run)._run),
        prompt,
        bytes=bytes,
        samples=samples,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        held=dict(map(_held, set_unit)),
        stop=_byte(stop),
    )
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
        raise UserError(f"set_unit {text!r}: give UNIT=VALUE, such as 236=3.") from None


def _byte(text: str) -> bytes:
    """Return the byte of a character or an escape sequence; b"" for an empty text."""
    try:
        code = text.encode("ascii").decode("unicode_escape").encode("latin-1")
    except UnicodeError:
        code = b"??"
    if len(code) > 1:
        raise UserError(
            f"stop {text!r} is not a single byte; give a character, or an escape like \\n or \\x02."
        )
    return code


def heatmap(
    run: RunFolder,
    out: Path,
    text: str = "",
    file: Path | None = None,
    unit: int | None = None,
    score: Path | None = None,
    label: str | None = None,
    state: State | None = None,
    layer: int | None = None,
    scale: float | None = None,
    overwrite: Overwrite = False,
    reading: ReadingOptions = READING,
) -> None:
    """Colour a text by a unit or a classifier's score, as a self-contained HTML page.

    Args:
        out: .html file to write.
        text: the text to read.
        file: read the text from this file instead.
        unit: its number in the layer.
        score: instead of a unit: folder of `mlstm-jax transfer`. The score after a character is
            what the classifier would answer if the text ended there.
        label: with score, the class or label; unset: the last, such as positive.
        state: c or h after each character, or mean_h, the mean of h up to it; unset: c, or h of a
            model that has no c.
        layer: 0 is the lowest; unset: the top layer.
        scale: the absolute value with the full colour; unset: the 99th percentile of the text, or
            of a score its largest value after a whole word.
    """
    output.require_file(out, file, overwrite=overwrite)
    require_suffix(out, "out")
    if file is not None:
        text = file.read_text(encoding="utf-8-sig", errors="replace")
    heat = reading.load(run).heatmap(
        text, unit, score=score, label=label, state=state, layer=layer, scale=scale
    )
    heat.save(out, overwrite=overwrite)
    show(f"{heat}, in {out}")


def view(
    run: RunFolder = Path(shipped.MODEL),
    classifier: Path | None = None,
    score: Flag = False,
    label: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    checkpoint: Checkpoint = "best",
) -> None:
    """Serve a local page: type a text to see units, classes and next bytes, or continue it.

    Args:
        classifier: folder of `mlstm-jax transfer` with this run, to show class probabilities;
            unset: for a pretrained model the one that comes with it, and its score.
        score: start with the classifier's score after each character and word, not with a unit.
        label: the class or label of that score; unset: the last, such as positive.
        host: address to listen on; 127.0.0.1 and ::1 accept only this machine. The page has no
            login.
        port: 0 takes a free one.
    """
    with extra("view", "the page needs Starlette and uvicorn"):
        import starlette as _
        import uvicorn as _  # noqa: F401, F811
    if not classifier and (classifier := shipped.classifier(run)):
        score = True
    if (score or label) and not classifier:
        raise UserError("score and label need `classifier`, a folder of `mlstm-jax transfer`.")
    chosen: Classifier | None = None
    loaded = load_run(run, checkpoint)
    if classifier:
        chosen = load_classifier(classifier)
        chosen.require_model(classifier, loaded)
    if chosen and (score or label):
        chosen.require_no_words("the score after each character")
        loaded.config.model.require_next_byte("a score after each character")
        label = shown_label(chosen, label)
    viewer = Viewer(loaded, chosen, label, shipped.example(run).strip())
    address = bind(host, port)
    show(f"{address.url} shows {loaded.name}; Ctrl-C stops it")
    serve(viewer, address)


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
    model = functions.import_weights(kind, source, out)
    config = model.config
    imported = as_weights(model._run)
    show(
        f"{out}: {config.model.layers} x {config.model.hidden}-d, "
        f"{parameter_count(config):,} parameters, cleaning {imported.cleaning}, "
        f"from {imported.source}"
    )


def export(
    run: RunFolder,
    out: Path | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    overwrite: Overwrite = False,
    checkpoint: Checkpoint = "best",
) -> None:
    """Export a model as one .safetensors file that other programs can read.

    The arrays are named as in language_model.py and mlstm.py; the metadata hold the model's
    sizes and the cleaning of its texts. `mlstm-jax import mlstm` reads the file.

    Args:
        out: file to write; unset: the run's name with .safetensors, in the current folder.
        dtype: float32; or float16 for half the size, with parameters rounded to 11 bits.
    """
    output.require_file(out, overwrite=overwrite)
    model = load(run, checkpoint)
    written = model.export(out, dtype, overwrite=overwrite)
    size = written.stat().st_size
    show(f"{written}: {size:,} bytes, the model of {run}, {model._run.origin}")
