"""The phases of a run, each with its batch, window, stream and steps, or one for the whole run."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from mlstm_jax.checkpoint import Meta
from mlstm_jax.config import MOST_STEPS, Config, Optimizer, Phase, Train
from mlstm_jax.data.corpus import Corpus
from mlstm_jax.data.shards import TRAINING_SLACK
from mlstm_jax.data.stream import Origin, TrainStream
from mlstm_jax.errors import require
from mlstm_jax.training.schedule import Segment


@dataclass(frozen=True)
class ResolvedPhase:
    """A phase of a run, or the whole run: what it reads from step `first` to step `last`."""

    config: Config  # with the batch and window of the phase
    stream: TrainStream
    first: int
    last: int
    rows_before: int | None = None  # rows of the previous phase; None for the first phase
    begins: Optimizer | None = None  # of the learning-rate schedule that begins here

    @property
    def growth(self) -> int | None:
        """The number k of rows per row of the previous phase; None if the carry is not kept."""
        return _growth(self.rows_before, self.config.data.batch)

    @property
    def update_bytes(self) -> int:
        """The bytes of text of an update, on all devices."""
        return self.config.data.batch * self.config.data.window

    @property
    def padding_fraction(self) -> float:
        """The fraction of the positions without a target: padding and waiting."""
        data = self.config.data
        targets = self.stream.bytes_seen(self.last) - self.stream.bytes_seen(self.first)
        return 1 - targets / ((self.last - self.first) * data.batch * data.window)

    def begin(self, carry: Any) -> Any:
        """Return the initial carry of the phase: row j becomes row k·j, the others are zero.

        Args:
            carry: at the end of the previous phase; NumPy [rows of a process, ...], or None.

        Returns:
            NumPy [k · rows, ...]; None if all rows begin at zero.
        """
        growth = self.growth
        if growth is None:
            return None

        def grow(x: np.ndarray) -> np.ndarray:
            grown = np.zeros((len(x) * growth, *x.shape[1:]), x.dtype)
            grown[::growth] = x
            return grown

        return jax.tree.map(grow, carry)

    def describe_carry(self) -> str:
        """Describe what happens to the rows of the previous phase."""
        rows, before = self.config.data.batch, self.rows_before or 0
        if self.growth is None:
            return f"the carry starts from zero, because {rows} rows are not a multiple of {before}"
        if self.growth == 1:
            return f"all {rows} rows continue"
        return f"{before} rows continue, {rows - before} begin at shard starts"


def _growth(before: int | None, rows: int) -> int | None:
    if before is None or rows % before:
        return None
    return rows // before


def resolve_phases(config: Config, corpus: Corpus) -> list[ResolvedPhase]:
    """Return the phases of a run, each continuing in the text where the previous one ended.

    If a phase's batch is a multiple of the previous one, it continues exactly there, and the rows
    keep their carry. Otherwise it continues near the same place, from shard starts. A run without
    phases is one phase; its end may still change with its origin.
    """
    if not config.phases:
        stream = train_stream(config, corpus)
        return [ResolvedPhase(config, stream, 0, total_steps(config.train, stream.steps_per_epoch))]
    phases: list[ResolvedPhase] = []
    for phase, shard_layout in zip(config.phases, _cuts(config.phases), strict=True):
        data = dataclasses.replace(config.data, batch=phase.batch, window=phase.window)
        phase_config = dataclasses.replace(config, data=data)
        stream = train_stream(phase_config, corpus, shard_layout)
        begins = _begins(phase, config.optimizer)
        if not phases:
            phases.append(ResolvedPhase(phase_config, stream, 0, phase.steps, begins=begins))
            continue
        first, before = phases[-1].last, phases[-1].stream
        rows = phases[-1].config.data.batch
        resolved = ResolvedPhase(phase_config, stream, first, first + phase.steps, rows, begins)
        if resolved.growth is None:
            position = round(before.epoch(first) * stream.steps_per_epoch)
            stream.origin = Origin(first, position, before.bytes_seen(first))
        else:
            stream.continue_from(before, first)
        phases.append(resolved)
    return phases


def _begins(phase: Phase, optimizer: Optimizer) -> Optimizer | None:
    """Return the settings of the schedule that begins with a phase, if it has its own."""
    if phase.learning_rate is None:
        return None
    return dataclasses.replace(
        optimizer,
        learning_rate=phase.learning_rate,
        warmup_steps=phase.warmup_steps,
        warmup_epochs=None,
        decay_steps=None,
        # The same peak; the rest of legw is its warm-up.
        scaling="sqrt" if optimizer.scaling == "legw" else optimizer.scaling,
    )


def _cuts(phases: Sequence[Phase]) -> list[tuple[int, int]]:
    """Return the batch and window for which each phase's shards are cut.

    They are the same for all consecutive phases whose rows continue: the last batch, which is a
    multiple of the others, and the longest window.
    """
    groups: list[list[Phase]] = []
    for phase in phases:
        if groups and _growth(groups[-1][-1].batch, phase.batch):
            groups[-1].append(phase)
        else:
            groups.append([phase])
    cuts: list[tuple[int, int]] = []
    for group in groups:
        cuts += [(group[-1].batch, max(phase.window for phase in group))] * len(group)
    return cuts


def segments(phases: list[ResolvedPhase]) -> list[Segment]:
    """Return what the learning rate must know of the phases of a run."""
    return [
        Segment(
            *(phase.first, phase.last, phase.config.data.batch),
            *(phase.stream.steps_per_epoch, phase.begins),
        )
        for phase in phases
    ]


def expected_segments(config: Config, corpus_bytes: float) -> list[Segment]:
    """Estimate the segments of a run from the size of the corpus in bytes."""
    segments: list[Segment] = []
    for phase in config.phases:
        first = segments[-1].last if segments else 0
        per_epoch = corpus_bytes / (phase.batch * phase.window)
        begins = _begins(phase, config.optimizer)
        segments.append(Segment(first, first + phase.steps, phase.batch, per_epoch, begins))
    if segments:
        return segments
    data = config.data
    per_epoch = max(1.0, corpus_bytes // (data.batch * data.window))
    return [Segment(0, total_steps(config.train, int(per_epoch)), data.batch, per_epoch)]


def train_stream(
    config: Config, corpus: Corpus, shard_layout: tuple[int, int] | None = None
) -> TrainStream:
    """Return the training rows of a config; see TrainStream for `shard_layout`."""
    data = config.data
    return TrainStream(
        corpus.split("train"),
        batch=data.batch,
        window=data.window,
        shards=data.shards,
        shuffle=data.shuffle_shards,
        seed=data.seed,
        labels="ratings"
        if config.model.rating_head
        else "classes"
        if config.model.labels
        else None,
        several=config.model.binary_labels,
        stop=corpus.stop,
        # Without a carry, a label can be predicted only from its document's own windows.
        per_document=config.model.labels > 0 and config.model.longest_window is not None,
        targets_are_inputs=config.model.masked,
        shard_layout=shard_layout,
    )


def total_steps(train: Train, steps_per_epoch: int, ahead: int = 0) -> int:
    """Return the length of a run in steps: the smaller of `steps` and what `epochs` needs.

    `ahead` is the number of windows by which the stream is ahead of the step, after a change of
    rows.

    Raises UserError if these are more steps than devices can count.
    """
    limits = [] if train.steps is None else [train.steps]
    if train.epochs is not None:
        limits.append(math.ceil(min(train.epochs * steps_per_epoch, 2.0**63)) - ahead)
    steps = min(limits)
    rule = f"so few that they are at most {MOST_STEPS:,} steps"
    require(steps <= MOST_STEPS, "train.epochs", train.epochs, rule)
    return steps


def checkpoint_meta(phase: ResolvedPhase, corpus: Corpus, step: int) -> Meta:
    """Return the meta of a checkpoint at `step`."""
    stream, rows = phase.stream, dataclasses.asdict(phase.config.data)
    del rows["corpus"], rows["batch_per_device"]
    if corpus.stop is None:
        rows["slack"] = TRAINING_SLACK
    if not stream.has_default_shards:
        rows["cut_into"] = stream.shards
    return Meta(
        corpus=corpus.identity,
        cleaning=corpus.manifest.cleaning,
        rows=rows,
        origin=stream.origin,
        epoch=stream.epoch(step),
        bytes_seen=stream.bytes_seen(step),
    )
