"""The phases of a run, each with its batch, window, stream and steps, or one for the whole run."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mlstm_jax.config import MOST_STEPS, Config, Optimizer, Train, by_phase
from mlstm_jax.data.corpus import Corpus, Split
from mlstm_jax.data.shards import TRAINING_SLACK
from mlstm_jax.data.stream import START, Origin, TrainStream
from mlstm_jax.errors import UserError, require
from mlstm_jax.record import Meta
from mlstm_jax.training.schedule import Segment


@dataclass(frozen=True, kw_only=True)
class ResolvedPhase(Segment):
    """A phase of a run, or the whole run: what it reads from step `first` to step `last`."""

    config: Config  # with the batch and window of the phase
    corpus: Corpus
    stream: TrainStream
    total: int  # steps of the run
    continues: bool  # whether it has the rows of the previous phase, with their carry

    @property
    def update_bytes(self) -> int:
        """The bytes of text of an update, on all devices."""
        return self.batch * self.config.data.window

    def describe(self) -> str:
        """Describe what a step reads, and where the rows of a later phase begin."""
        data = self.config.data
        size = self.corpus.manifest.splits["train"].bytes
        text = (
            f"{data.batch} rows x {data.window} bytes per step, from {size:,} bytes in "
            f"{self.stream.shards:,} shards"
        )
        if self.continues:
            text += "; the rows continue"
        elif self.first > 0:
            epoch = self.stream.epoch(self.first)
            text += f"; new rows begin {epoch:.2f} epochs into the text"
        return text

    def meta(self, step: int) -> Meta:
        """What a checkpoint of this phase at `step` was trained on."""
        rows = dataclasses.asdict(self.config.data)
        del rows["corpus"], rows["batch_per_device"]
        rows["slack"] = TRAINING_SLACK
        return Meta(
            corpus=self.corpus.identity,
            cleaning=self.corpus.manifest.cleaning,
            rows=rows,
            origin=self.stream.origin,
            **self.position(step),
        )

    def position(self, step: int) -> dict[str, Any]:
        """How much of the text has been read at `step`."""
        return {"epoch": self.stream.epoch(step), "bytes_seen": self.stream.bytes_seen(step)}


def resolve_phases(config: Config, corpus: Corpus, origin: Origin = START) -> list[ResolvedPhase]:
    """Return the phases of a run, each continuing in the text where the previous one ended.

    A phase with the batch and window of the previous one continues its rows. Otherwise new rows
    begin near the same place, from a zero carry. The rows of a run without phases began at
    `origin`, on which its length may depend.
    """
    phases: list[ResolvedPhase] = []
    first = 0
    if config.phases:
        origin = START
    for part, begins in zip(by_phase(config), _schedules(config), strict=True):
        continues = bool(phases) and phases[-1].config.data == part.data
        stream = phases[-1].stream if continues else train_stream(part, corpus, origin)
        last = first + total_steps(part.train, stream.steps_per_epoch, stream.position(0))
        phase = ResolvedPhase(
            first,
            last,
            part.data.batch,
            stream.steps_per_epoch,
            begins,
            config=part,
            corpus=corpus,
            stream=stream,
            total=last,
            continues=continues,
        )
        phases.append(phase)
        origin = Origin(last, stream.epoch(last), stream.bytes_seen(last))
        first = last
    return [dataclasses.replace(phase, total=first) for phase in phases]


def _schedules(config: Config) -> list[Optimizer | None]:
    """The settings of the learning-rate schedule that begins with each phase, if one does."""
    optimizer = config.optimizer
    schedules: list[Optimizer | None] = []
    for phase in config.phases:
        begins = None
        if phase.learning_rate is not None:
            begins = dataclasses.replace(
                optimizer,
                learning_rate=phase.learning_rate,
                warmup_steps=phase.warmup_steps,
                warmup_epochs=None,
                decay_steps=None,
                # The same peak; the rest of legw is its warm-up.
                scaling="sqrt" if optimizer.scaling == "legw" else optimizer.scaling,
            )
        schedules.append(begins)
    return schedules or [None]


def expected_segments(config: Config, corpus_bytes: float) -> list[Segment]:
    """Estimate the segments of a run from the size of the corpus in bytes."""
    found = []
    first = 0
    for part, begins in zip(by_phase(config), _schedules(config), strict=True):
        per_epoch = max(1.0, corpus_bytes / (part.data.batch * part.data.window))
        last = first + total_steps(part.train, int(per_epoch))
        found.append(Segment(first, last, part.data.batch, per_epoch, begins))
        first = last
    return found


def train_stream(config: Config, corpus: Corpus, origin: Origin = START) -> TrainStream:
    """Return the training rows of a config."""
    data = config.data
    model = config.model
    split = corpus.split("train")
    labels: Literal["ratings", "classes"] | None = None
    if model.labels:
        labels = "ratings" if model.rating_head else "classes"
    if model.classes:
        _require_classes(split, model.classes)
    return TrainStream(
        split,
        batch=data.batch,
        window=data.window,
        shards=data.shards,
        shuffle=data.shuffle_shards,
        seed=data.seed,
        labels=labels,
        # Without a carry, a label can be predicted only from its document's own windows.
        per_document=model.labels > 0 and model.longest_window is not None,
        targets_are_inputs=model.masked,
        origin=origin,
    )


def _require_classes(split: Split, classes: int) -> None:
    """Raise UserError unless every rating of a split is the number of a class."""
    if split.ratings is None:
        return  # TrainStream says so.
    ratings = split.ratings[~np.isnan(split.ratings)]
    wrong = ratings[~np.isin(ratings, np.arange(classes))]
    if len(wrong):
        raise UserError(
            f"model.classes is {classes}, but the {split.name} split has the rating {wrong[0]:g}; "
            f"the ratings must be class numbers, 0 to {classes - 1}. Number them so, or learn "
            "ratings with `model.rating_head`, or labels with `mlstm-jax finetune`."
        )


def total_steps(train: Train, steps_per_epoch: int, ahead: int = 0) -> int:
    """Return the length of a run in steps: the smaller of `steps` and what `epochs` needs.

    After a change of rows the stream is `ahead` windows further than the step. UserError if the run
    has more steps than devices can count.
    """
    limits = []
    if train.steps is not None:
        limits.append(train.steps)
    if train.epochs is not None:
        limits.append(math.ceil(min(train.epochs * steps_per_epoch, 2.0**63)) - ahead)
    steps = min(limits)
    rule = f"so few that they are at most {MOST_STEPS:,} steps"
    require(steps <= MOST_STEPS, "train.epochs", train.epochs, rule)
    return steps
