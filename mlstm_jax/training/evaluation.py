"""Bits per character of a split: mean cross-entropy · log2 e, with a carried state.

Puri et al. 2018, section VI: 16 shards, each from a zero state to its end. Every byte is scored
once, except the first of each shard, which nothing predicts.
"""

import bz2
import gzip
import lzma
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from mlstm_jax.data.corpus import Corpus, Split, open_corpus, open_corpus_of
from mlstm_jax.data.stream import EVALUATION_ROWS, EvaluationStream, prefetch
from mlstm_jax.errors import UserError
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.parallel import Parallel
from mlstm_jax.run import Run
from mlstm_jax.training.metrics import BITS_PER_NAT
from mlstm_jax.training.step import make_evaluation_step

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip -9": lambda data: gzip.compress(data, 9, mtime=0),
    "bz2 -9": lambda data: bz2.compress(data, 9),
    "xz -6": lzma.compress,
}
# Enough to compare compressors; xz takes about a second for it.
_MOST_BYTES = 8_000_000


class Score(NamedTuple):
    """The score of a split.

    Attributes:
        loss: nats per byte.
        bpc: bits per byte.
        bytes_scored: all but the first byte of each stream.
        seconds: wall time.
        label_loss: nats per document, where the run learns labels of documents.
        accuracy: a fraction.
    """

    loss: float
    bpc: float
    bytes_scored: int
    seconds: float
    label_loss: float | None = None
    accuracy: float | None = None


def corpus_of(run: Run, given: str | Path | None) -> tuple[Corpus, bool]:
    """The corpus to score, by default the run's, and whether it is the one of its training."""
    if given is not None:
        found = open_corpus(Path(given))
        return found, found.identity == run.corpus
    if run.imported:
        raise UserError(f"{run.place}, comes without a corpus; name one with `corpus`.")
    found = open_corpus_of(run.folder, Path(run.config.data.corpus), "corpus")
    if found.identity != run.corpus:
        raise UserError(
            f"{found.path} is not the corpus that {run.folder} was trained on: its identity is "
            f"{found.identity[:12]}…, not {str(run.corpus)[:12]}…. Its splits may contain text "
            "that the run was trained on. Prepare the original corpus again, or name a corpus to "
            "score with `corpus`."
        )
    return found, True


class Evaluator:
    """Scores one split, any number of times, with one compiled step."""

    def __init__(self, model: LanguageModel, split: Split, window: int, devices: Parallel) -> None:
        """Set what is scored; a model of masked bytes reads windows as in training."""
        kind = model.architecture
        if kind.masked:
            window = min(window, kind.longest_window or window)
            self._start = model.init_carry
        else:
            window = kind.reading_window(window)
            self._start = model.reading_carry
        self.stream = EvaluationStream(split, window=window)
        self._devices = devices
        self._rows = -(-EVALUATION_ROWS // devices.count) * devices.count
        self._step = devices.map(make_evaluation_step(model), donate=(1,))

    def __call__(self, params: Any, on_step: Callable[[int], None] = lambda step: None) -> Score:
        """Score the split with parameters replicated on the devices, [N, ...]."""
        started = time.monotonic()
        rows = self._devices.rows(self._rows)

        def own(tree: Any) -> Any:
            return jax.tree.map(lambda x: x[rows], tree)

        carry = self._devices.split_rows(own(self._start(self._rows)))
        nats = 0.0
        pending = None
        batches = prefetch(lambda s: self.stream.batch(s, self._rows), range(self.stream.steps))
        for step, batch in enumerate(batches):
            carry, step_nats = self._step(params, carry, self._devices.split_rows(own(batch)))
            if pending is not None:
                nats += float(self._devices.unreplicate(pending))
                on_step(step)
            pending = step_nats
        nats += float(self._devices.unreplicate(pending))
        loss = nats / self.stream.scored
        return Score(loss, loss * BITS_PER_NAT, self.stream.scored, time.monotonic() - started)


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
