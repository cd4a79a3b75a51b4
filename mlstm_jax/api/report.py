"""The report of a loaded model: its score beside the scores of compressors, and a sample."""

import bz2
import gzip
import lzma
import textwrap
from collections.abc import Callable
from pathlib import Path

from mlstm_jax.api.jax_model import corpus_of
from mlstm_jax.run import Run
from mlstm_jax.training.evaluation import Score

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip -9": lambda data: gzip.compress(data, 9, mtime=0),
    "bz2 -9": lambda data: bz2.compress(data, 9),
    "xz -6": lzma.compress,
}
# Enough to compare compressors; xz takes about a second for it.
_MOST_BYTES = 8_000_000


def compressed_bpc(data: bytes) -> dict[str, float]:
    """Bits per byte that each compressor of the standard library needs for `data`."""
    return {name: 8 * len(compress(data)) / len(data) for name, compress in COMPRESSORS.items()}


def report_of(run: Run, corpus: str | Path | None, score: Score, sample: str) -> str:
    """Compare the score of the validation split with compressors; `sample`: a text of the model."""
    scored, is_own = corpus_of(run, corpus)
    data = scored.split("valid").bytes
    origin = ", not used for training" if is_own else f" of {scored.path}, not the training corpus"
    whose = f"{len(data):,} validation bytes{origin}"
    place: list[str] = []
    if not run.imported:
        files = "config.json, metrics.jsonl, checkpoints/"
        if (run.folder / "tensorboard").is_dir():
            files += ", tensorboard/"
        place = ["", f"The run is in {run.folder}: {files}."]
    objective = run.config.model.objective
    if objective != "next-byte":
        what = f"{objective.replace('-', ' ')} of {whose}"
        return "\n".join([f"Bits per byte over the {what}: {score.bpc:.3f} ({run.origin})", *place])
    text = data[:_MOST_BYTES].tobytes()
    if len(text) < score.bytes_scored:
        whose += f" (compressors: the first {len(text):,})"
    lines = [
        f"Bits per character over {whose}:",
        f"  {'this model':<12}{score.bpc:8.3f}   {run.origin}",
    ]
    compressed = compressed_bpc(text)
    for name, bpc in compressed.items():
        lines.append(f"  {name:<12}{bpc:8.3f}")
    lines += ["", "A sample, drawn at temperature 0.7:"]
    lines += textwrap.wrap(sample, 96, initial_indent="  ", subsequent_indent="  ")
    lines += place
    best = min(compressed, key=lambda name: compressed[name])
    if score.bpc >= compressed[best]:
        lines.append(f"It does not beat {best} yet: train longer, or on more text.")
    return "\n".join(lines)
