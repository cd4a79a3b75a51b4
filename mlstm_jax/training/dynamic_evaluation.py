"""Dynamic evaluation: scoring a split while the parameters learn from what they have scored.

Krause et al. 2018, arXiv 1709.07432; the update is in training/adapting_step.py. Each window is
scored before the parameters learn from it, so no byte is scored by parameters that have read it.

With the rule "rms" r is √MS, and MS is computed anew from the training split. Adam's second moments
could replace MS, but imported weights have none, and a gradient of the few rows that adapt is
larger than that of a training batch. MS uses windows and rows of the same size, so the rate is how
far a typical step moves a parameter, for any model. ε is EPSILON · mean r. With the rule "sgd" r is
1 and ε is 0.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlstm_jax.data.corpus import Split
from mlstm_jax.data.evaluation_stream import DocumentStream, EvaluationStream
from mlstm_jax.data.stream import prefetch
from mlstm_jax.errors import KnownError
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.training.adapting_step import (
    Adapting,
    Rule,
    Setting,
    Sums,
    Window,
    make_adapting_step,
    make_statistics_step,
)
from mlstm_jax.training.metrics import BITS_PER_NAT
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.state import init_loss_scale

RuleName = Literal["rms", "sgd"]
Stream = EvaluationStream | DocumentStream

# Number of windows of the training split over which MS is the mean.
STATISTICS_WINDOWS = 256
# ε in units of mean r. A parameter that the statistics have hardly seen, such as the embedding of a
# rare byte, has an r near 0, and its first gradient would move it far. Of 0.01, 0.1 and 1 this
# value gave the lowest BPC on the quickstart's validation split.
EPSILON = 0.1
# Rates and decays tried on the validation split, in all combinations.
RATES: dict[RuleName, tuple[float, ...]] = {
    "rms": (1e-4, 3e-4, 1e-3, 3e-3),
    "sgd": (0.03, 0.1, 0.3, 1.0),
}
DECAYS = (0.0, 0.01, 0.1, 0.3)
# The parameters do not change.
STATIC = Setting(0.0, 0.0)


class DynamicScore(NamedTuple):
    """The score of a split with one setting; loss and bpc are NaN if it has diverged."""

    setting: Setting
    loss: float  # nats per byte
    bpc: float  # bits per byte
    bytes_scored: int
    skipped: int  # updates
    seconds: float

    @property
    def diverged(self) -> bool:
        """Whether the rate was so high that the loss is not finite."""
        return not math.isfinite(self.loss)


def grid(name: RuleName) -> list[Setting]:
    """Return the settings to try: no adaptation, and each rate with each decay."""
    return [STATIC, *(Setting(r, d) for r in RATES[name] for d in DECAYS)]


def is_at_edge(setting: Setting, name: RuleName) -> bool:
    """Return whether a better setting may lie outside the grid of rates and decays."""
    rates = RATES[name]
    return setting.rate in (rates[0], rates[-1]) or setting.decay == DECAYS[-1]


def best(scores: Sequence[DynamicScore]) -> DynamicScore:
    """Return the score with the lowest loss, the first of equals; a diverged one counts as inf."""
    return min(scores, key=lambda score: math.inf if score.diverged else score.loss)


class DynamicResult(NamedTuple):
    """The result of dynamic evaluation of a split, and its settings."""

    static: DynamicScore  # of the same streams, with the trained parameters
    score: DynamicScore
    rule: RuleName
    rows: int  # as used; a split with few documents has fewer
    window: int
    statistics: int  # windows of the training split
    tried: list[DynamicScore]  # on the validation split; empty if the user gave the rate

    def as_json(self) -> dict[str, Any]:
        """Return the result as numbers and names; a diverged setting has no bpc."""
        return {
            "bpc": self.score.bpc,
            "loss": self.score.loss,
            "rule": self.rule,
            "rate": self.score.setting.rate,
            "decay": self.score.setting.decay,
            "rows": self.rows,
            "window": self.window,
            "statistics_windows": self.statistics,
            "skipped_updates": self.score.skipped,
            "seconds": self.score.seconds,
            "chosen_on": "valid" if self.tried else None,
            "tried": [
                {**one.setting._asdict(), "bpc": None if one.diverged else one.bpc}
                for one in self.tried
            ],
        }

    def describe(self, split: str) -> str:
        """Return readable lines: the score, how the setting was chosen, and how it adapted."""
        score, setting = self.score, self.score.setting
        numbers = f"rate {setting.rate:g} and decay {setting.decay:g}"
        lines = [f"{split} bpc {score.bpc:.4f} by dynamic evaluation, in {score.seconds:.1f} s"]
        if not self.tried:
            lines.append(f"{numbers} were given; no other settings were tried")
        elif not setting.rate:
            lines.append(
                "no rate lowers the bpc of the validation split, so the parameters do not change"
            )
        else:
            lines.append(
                f"{numbers} were chosen on the validation split ({self.tried[0].bpc:.4f} static, "
                f"{best(self.tried).bpc:.4f} dynamic) from {len(self.tried)} settings; the "
                f"{split} split was scored once with them"
            )
        rows = f"{self.rows} row" + "s" * (self.rows > 1)
        lines.append(f"a step of {self.rule} after each window of {rows} x {self.window} bytes")
        if self.statistics:
            lines[-1] += (
                f", scaled by the gradients of {self.statistics} windows of the training split"
            )
        if score.skipped:
            lines.append(f"{score.skipped:,} steps were skipped: their gradient was not finite")
        if self.tried and setting.rate and is_at_edge(setting, self.rule):
            lines.append(
                "note: this setting is at the edge of the grid; try others with `--split valid "
                "--dynamic-rate R --dynamic-decay D`"
            )
        return "\n".join(lines)


def statistics_places(train: Stream) -> list[int]:
    """Return the windows of the training split that MS is computed from: evenly spread, or all."""
    count = min(STATISTICS_WINDOWS, train.steps)
    return [int(place) for place in np.linspace(0, train.steps - 1, count)]


class DynamicEvaluator:
    """Scores splits while it adapts; one compiled step serves all rates and splits."""

    def __init__(
        self,
        model: LanguageModel,
        params: Parameters,
        device: Parallel,
        *,
        window: int,
        rows: int,
        stop: int | None = None,
    ) -> None:
        """Set the size of the windows and the number of rows.

        Args:
            model: of the run.
            params: θ_0, NumPy; they do not change.
            device: a single device, because each window needs the update of the previous one.
            window: bytes of a row between two updates.
            rows: streams of a split that adapt the same parameters together; fewer if a split has
                too few documents. A single row reads the text in its order.
            stop: see `Corpus.stop`. Each document is then read from a zero state; the parameters
                are kept from one document to the next.
        """
        if device.count != 1:
            raise ValueError(f"dynamic evaluation runs on one device, not {device.count}")
        self._model, self._params, self._device = model, params, device
        model.model.require_next_byte("dynamic evaluation")
        self.window = model.model.reading_window(window)
        self._rows, self._stop = rows, stop
        self._trained = device.replicate(params)
        self._adapt = device.map(make_adapting_step(model), donate=(0, 1))
        self._gather = device.map(make_statistics_step(model), donate=(0, 1))

    def stream(self, split: Split) -> Stream:
        """Return the stream of a split; raise UserError if the split is too small."""
        if self._stop is None:
            return EvaluationStream(split, window=self.window, rows=self._rows)
        return DocumentStream(split, window=self.window, rows=self._rows, stop=self._stop)

    def sgd(self) -> Rule:
        """Return the rule of plain gradient descent."""
        ones = jax.tree.map(np.ones_like, self._params)
        return self._device.replicate(Rule(ones, np.float32(1), np.float32(0)))

    def rms(self, train: Stream, on_window: Callable[[int], None] = lambda count: None) -> Rule:
        """Return the paper's rule, with statistics of the training split.

        The statistics use the windows of `statistics_places`; the state is carried from each to the
        next.

        Args:
            train: the training split of the corpus that is scored, or of the run's corpus.
            on_window: called with the number of windows done, for a progress line.

        Raises:
            KnownError: no gradient is finite, or all are zero.
        """
        device, places = self._device, statistics_places(train)
        sums = device.replicate(
            Sums(
                jax.tree.map(np.zeros_like, self._params),
                jnp.int32(0),
                init_loss_scale(self._model.precision),
            )
        )
        carry = device.split_rows(self._model.reading_carry(train.rows))
        batches = prefetch(lambda n: train.batch(places[n], train.rows), range(len(places)))
        for done, batch in enumerate(batches, 1):
            sums, carry = self._gather(sums, carry, self._trained, device.split_rows(batch))
            on_window(done)
        found = device.unreplicate(sums)
        r = jax.tree.map(lambda total: np.sqrt(total / max(1, found.windows)), found.squares)
        leaves = jax.tree.leaves(r)
        mean = sum(leaf.sum(dtype=np.float64) for leaf in leaves) / sum(x.size for x in leaves)
        if not (np.isfinite(mean) and mean > 0):
            raise KnownError(
                f"the gradients of {len(places)} windows of the training split are not finite or "
                "all zero, so this model cannot adapt; score it without --dynamic."
            )
        return device.replicate(Rule(r, np.float32(mean), np.float32(EPSILON * mean)))

    def windows(self, stream: Stream, rule: Rule, setting: Setting) -> Iterator[Window]:
        """Yield the loss of each window in order, NumPy, while the next one is computed."""
        device = self._device
        adapting = device.replicate(Adapting(self._params, init_loss_scale(self._model.precision)))
        carry = device.split_rows(self._model.reading_carry(stream.rows))
        numbers = device.replicate(jax.tree.map(np.float32, setting))
        pending: Window | None = None
        for batch in prefetch(lambda s: stream.batch(s, stream.rows), range(stream.steps)):
            adapting, carry, window = self._adapt(
                adapting, carry, self._trained, rule, numbers, device.split_rows(batch)
            )
            if pending is not None:
                yield device.unreplicate(pending)
            pending = window
        yield device.unreplicate(pending)

    def __call__(
        self,
        stream: Stream,
        rule: Rule,
        setting: Setting,
        on_window: Callable[[int], None] = lambda count: None,
    ) -> DynamicScore:
        """Score a split, starting from the trained parameters.

        Args:
            stream: the stream of the split that is scored and adapted to.
            rule: the result of `rms` or `sgd`.
            setting: with rate 0 and decay 0 the parameters do not change.
            on_window: called with the number of windows done, for a progress line.
        """
        started, nats, skipped = time.monotonic(), 0.0, 0
        for done, window in enumerate(self.windows(stream, rule, setting), 1):
            nats += float(window.nats_BT.sum(dtype=np.float64))
            skipped += int(window.skipped)
            on_window(done)
            if not math.isfinite(nats):
                break
        loss = nats / stream.scored if math.isfinite(nats) else math.nan
        seconds = time.monotonic() - started
        return DynamicScore(setting, loss, loss * BITS_PER_NAT, stream.scored, skipped, seconds)
