"""A short report on a run: its bits per character compared with gzip's, and a sample of text."""

import bz2
import gzip
import lzma
import textwrap
from collections.abc import Callable
from pathlib import Path

from mlstm_jax.config import Devices
from mlstm_jax.run import load_run
from mlstm_jax.training import parallel
from mlstm_jax.training.evaluation import Evaluator, corpus_of
from mlstm_jax.transfer.generate import as_text, generate

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip -9": lambda data: gzip.compress(data, 9, mtime=0),
    "bz2 -9": lambda data: bz2.compress(data, 9),
    "xz -6": lzma.compress,
}
# Enough to compare compressors; xz takes about a second for it.
_MOST_BYTES = 8_000_000


def compressed_bpc(data: bytes) -> dict[str, float]:
    """Return the bits per byte that each compressor of the standard library needs for `data`."""
    return {name: 8 * len(compress(data)) / len(data) for name, compress in COMPRESSORS.items()}


def report(folder: Path, corpus: Path | None = None) -> str:
    """Score the best checkpoint of a run on its validation split, and draw a sample.

    A model that does not predict the next byte neither compresses nor writes.

    Args:
        folder: the run folder.
        corpus: another corpus folder; unset: the one that the run was trained on.
    """
    run = load_run(folder)
    config = run.config
    opened, is_own = corpus_of(run, corpus, "valid")
    split = opened.split("valid")
    devices = parallel.local(Devices())  # of this machine, not the one that trained the run
    evaluator = Evaluator(run.model, split, config.data.window, devices, opened.stop)
    score = evaluator(devices.replicate(run.params))
    whose = ", not used for training" if is_own else f" of {opened.path}, not the training corpus"
    place = f"The run is in {folder}: config.json, metrics.jsonl, checkpoints/" + (
        ", tensorboard/." if (folder / "tensorboard").is_dir() else "."
    )
    if config.model.masked:
        asked = f"masked bytes of {len(split.bytes):,} validation bytes{whose}"
        return f"Bits per byte over the {asked}: {score.bpc:.3f} (step {run.step:,})\n\n{place}"
    text = split.bytes[:_MOST_BYTES].tobytes()
    others = compressed_bpc(text)
    note = f" (compressors: the first {len(text):,})" if len(text) < score.bytes_scored else ""
    best_other = min(others, key=lambda name: others[name])
    pieces = generate(run, "", bytes=400, temperature=0.7, seed=0)
    sample = "".join(as_text(piece for (piece,) in pieces))
    lines = [
        f"Bits per character over {len(split.bytes):,} validation bytes{whose}{note}:",
        f"  {'this model':<12}{score.bpc:8.3f}   step {run.step:,}",
        *(f"  {name:<12}{bpc:8.3f}" for name, bpc in others.items()),
        "",
        "A sample, drawn at temperature 0.7:",
        *textwrap.wrap(sample, 96, initial_indent="  ", subsequent_indent="  "),
        "",
        place,
    ]
    if score.bpc >= others[best_other]:
        lines.append(f"It does not beat {best_other} yet: train longer, or on more text.")
    return "\n".join(lines)
