"""The command evaluate: bits per character of a split."""

import json
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from mlstm_jax import output
from mlstm_jax.commands import RunFolder
from mlstm_jax.config import Devices
from mlstm_jax.progress import ProgressLine
from mlstm_jax.run import load_run
from mlstm_jax.terminal import show
from mlstm_jax.training import parallel
from mlstm_jax.training.evaluation import Evaluator, corpus_of


def evaluate(
    run: RunFolder,
    corpus: Path | None = None,
    split: Literal["train", "valid", "test"] = "test",
    checkpoint: str = "best",
    json_path: Annotated[Path | None, arg(name="json")] = None,
    overwrite: bool = False,
) -> None:
    """Score a trained model on a split: bits per character, bytes scored, seconds.

    Args:
        run: run folder, or a model of the package.
        corpus: corpus folder; unset: the one it was trained on.
        split: which part of it.
        checkpoint: best (by validation BPC), latest, or a step.
        json_path: also write the result to this file, as JSON.
        overwrite: replace that file if it exists.
    """
    if json_path:
        output.require_file(json_path, overwrite=overwrite, option="--json")
    loaded = load_run(run, checkpoint)
    opened, is_own = corpus_of(loaded, corpus, split)
    devices = parallel.local(Devices())
    window = loaded.config.data.window
    evaluator = Evaluator(loaded.model, opened.split(split), window, devices, opened.stop)
    stream = evaluator.stream
    with ProgressLine("evaluate", stream.scored, of_bytes=True) as progress:
        score = evaluator(
            devices.replicate(loaded.params),
            lambda step: progress.update(stream.scored * step // stream.steps),
        )
    result = {
        "run": str(run),
        "step": loaded.step,
        "corpus": str(opened.path),
        "trained_on_this_corpus": is_own,
        "split": split,
        "bpc": score.bpc,
        "loss": score.loss,
        "bytes_scored": score.bytes_scored,
        "seconds": score.seconds,
    }
    show(
        f"{split} bpc {score.bpc:.4f} over {score.bytes_scored:,} bytes of {opened.path} in "
        f"{score.seconds:.1f} s ({loaded.origin})"
    )
    if opened.stop is not None:
        print("each protein is read from a zero state; its start is not scored, its stop is.")
    if not is_own and not loaded.imported:
        print("note: the run was trained on another corpus than this one.")
    if json_path:
        with output.write_errors(json_path):
            output.write_text(json_path, json.dumps(result, indent=2) + "\n")
