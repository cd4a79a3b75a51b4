"""What `TrainedModel` keeps of JAX: its run, and what compiles for `spans` and `evaluate`."""

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import environment, fields, parallel
from mlstm_jax import run as runs
from mlstm_jax.api.arguments import as_texts, noted
from mlstm_jax.config import Devices
from mlstm_jax.corpora.documents import cleaned_spans
from mlstm_jax.data.corpus import Corpus, open_corpus
from mlstm_jax.errors import UserError
from mlstm_jax.options import Cleaning, ReadingCompute, SplitName
from mlstm_jax.parallel import Parallel
from mlstm_jax.terminal import ProgressLine
from mlstm_jax.transfer.features import state_of
from mlstm_jax.transfer.windows import WindowReader

if TYPE_CHECKING:
    from mlstm_jax.training.evaluation import Evaluator, Score

# More are hardly faster on a CPU (windows.py), and the states of a window take their memory.
_SPAN_ROWS = 8


def load_run(path: Path, checkpoint: str, compute: ReadingCompute) -> runs.Run:
    """Load a model; see `mlstm_jax.load`. What NumPy reads in int8 is fp32 here."""
    environment.cache_programs()
    run = runs.load_run(path, checkpoint)
    return runs.with_compute(run, "fp32" if compute == "int8" else compute)


def corpus_of(run: runs.Run, given: str | Path | None) -> tuple[Corpus, bool]:
    """The corpus to score, by default the run's, and whether it is the one of its training."""
    if given is not None:
        found = open_corpus(Path(given))
        return found, found.identity == run.corpus
    if run.imported:
        raise UserError(f"{run.place}, comes without a corpus; name one with `corpus`.")
    path = Path(run.config.data.corpus)
    if not path.exists():
        raise UserError(
            f"the run {run.folder} was trained on {path}, which is not here; name the corpus with "
            "`corpus`."
        )
    found = open_corpus(path)
    if found.identity != run.corpus:
        raise UserError(
            f"{found.path} is not the corpus that {run.folder} was trained on: its identity is "
            f"{found.identity[:12]}…, not {str(run.corpus)[:12]}…. Its splits may contain text "
            "that the run was trained on. Prepare the original corpus again, or name a corpus to "
            "score with `corpus`."
        )
    return found, True


@dataclass(frozen=True, eq=False)
class JaxModel:
    """A run, and the work of `TrainedModel.spans` and `evaluate`, which say what they do."""

    run: runs.Run
    _evaluators: dict[object, "Evaluator"] = field(default_factory=dict)

    @cached_property
    def _devices(self) -> Parallel:
        return parallel.local_devices(Devices())

    @cached_property
    def _spans_reader(self) -> WindowReader:
        rows = _SPAN_ROWS * self._devices.count
        return WindowReader(self.run, self._devices, rows, keep_states="each")

    def spans(
        self,
        texts: Iterable[str],
        spans: Sequence[Sequence[tuple[int, int]]],
        state: Literal["c", "h"] | None,
    ) -> list[NDArray[np.float32]]:
        strings = noted(as_texts(texts))
        ends = _span_ends(strings, list(spans), self.run.cleaning)
        name = state_of(self.run.architecture, state)
        return self._spans_reader.states_at(self.run.cleaned(strings), ends, name)

    def evaluate(
        self, split: SplitName, *, corpus: str | Path | None, show_progress: bool
    ) -> "Score":
        from mlstm_jax.training.evaluation import Evaluator

        scored, _ = corpus_of(self.run, corpus)
        key = (scored.identity, split)
        if key not in self._evaluators:
            model = self.run.batch_model or self.run.model
            window = self.run.config.data.window
            self._evaluators[key] = Evaluator(model, scored.split(split), window, self._devices)
        evaluator = self._evaluators[key]
        size = evaluator.stream.scored
        steps = evaluator.stream.steps
        with ProgressLine("evaluate", size, of_bytes=True, shown=show_progress) as progress:
            return evaluator(
                self._devices.replicate(self.run.params),
                lambda step: progress.update(size * step // steps),
            )


def _span_ends(
    texts: Sequence[str], spans: Sequence[Sequence[tuple[int, int]]], cleaning: Cleaning
) -> list[NDArray[np.int64]]:
    """The last byte of each span in its cleaned text, of each text int [spans]."""
    if len(texts) != len(spans):
        raise UserError(f"spans has {len(spans):,} lists, but texts has {len(texts):,}.")
    ends = []
    for number, (text, given) in enumerate(zip(texts, spans, strict=True)):
        try:
            pairs = [(index(start), index(end)) for start, end in given]
            ends.append(np.array(cleaned_spans(text, pairs, cleaning), np.int64))
        except fields.InvalidField as error:
            raise UserError(f"spans[{number}]: {error}.") from None
        except (TypeError, ValueError):
            rule = "a list of pairs of integers, (start, end)"
            shown = reprlib.repr(given)
            raise UserError(f"spans[{number}] is {shown}, but it must be {rule}.") from None
    return ends
