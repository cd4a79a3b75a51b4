"""Bits per character of a split: mean cross-entropy · log2 e, with a carried state.

Puri et al. 2018, section VI: 16 shards, each from a zero state to its end. Every byte is scored
once, except the first of each shard, which nothing predicts.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from mlstm_jax.data.corpus import Split
from mlstm_jax.data.stream import EVALUATION_ROWS, EvaluationStream, prefetch
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.parallel import Parallel
from mlstm_jax.training.step import make_evaluation_step
from mlstm_jax.training.tally import BITS_PER_NAT


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
