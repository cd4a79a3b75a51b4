"""The parts of a run: its phases, or the whole of it; what each reads, and from where to where."""

import dataclasses
import math
from dataclasses import dataclass

from mlstm_jax.config import Config, Train
from mlstm_jax.data.corpus import Corpus
from mlstm_jax.data.stream import Origin, TrainStream
from mlstm_jax.training.meta import Meta
from mlstm_jax.training.schedule import Stretch


@dataclass(frozen=True)
class Part:
    """A phase of a run, or all of it: what is read from one step to another."""

    config: Config  # with the batch and window of the phase
    stream: TrainStream
    first: int
    last: int


def make_parts(config: Config, corpus: Corpus) -> list[Part]:
    """Return the phases of a run, each taking the text up about where the one before has left it.

    A run without phases is one part; its end may still change with its origin.
    """
    if not config.phases:
        stream = train_stream(config, corpus)
        return [Part(config, stream, 0, total_steps(config.train, stream.steps_per_epoch))]
    parts: list[Part] = []
    for phase in config.phases:
        data = dataclasses.replace(config.data, batch=phase.batch, window=phase.window)
        here = dataclasses.replace(config, data=data)
        stream = train_stream(here, corpus)
        first = parts[-1].last if parts else 0
        if parts:
            before = parts[-1].stream
            position = round(before.epoch(first) * stream.steps_per_epoch)
            stream.origin = Origin(first, position, before.bytes_seen(first))
        parts.append(Part(here, stream, first, first + phase.steps))
    return parts


def stretches(parts: list[Part]) -> list[Stretch]:
    """Return what the learning rate must know of the parts of a run."""
    return [
        Stretch(part.first, part.last, part.config.data.batch, part.stream.steps_per_epoch)
        for part in parts
    ]


def expected_stretches(config: Config, corpus_bytes: float) -> list[Stretch]:
    """Estimate the same for a corpus of which only the size in bytes is known."""
    made: list[Stretch] = []
    for phase in config.phases:
        first = made[-1].last if made else 0
        per_epoch = corpus_bytes / (phase.batch * phase.window)
        made.append(Stretch(first, first + phase.steps, phase.batch, per_epoch))
    if made:
        return made
    data = config.data
    per_epoch = max(1.0, corpus_bytes // (data.batch * data.window))
    return [Stretch(0, total_steps(config.train, int(per_epoch)), data.batch, per_epoch)]


def train_stream(config: Config, corpus: Corpus) -> TrainStream:
    """Return the training rows of a config."""
    data = config.data
    return TrainStream(
        corpus.split("train"),
        batch=data.batch,
        window=data.window,
        shards=data.shards,
        shuffle=data.shuffle_shards,
        seed=data.seed,
        labels="classes"
        if config.model.classes
        else "ratings"
        if config.model.rating_head
        else None,
        stop=corpus.stop,
    )


def total_steps(train: Train, steps_per_epoch: int, ahead: int = 0) -> int:
    """Return the length of a run: the smaller of `steps` and what `epochs` need.

    `ahead` is by how many windows the stream is ahead of the step, after a change of rows.
    """
    limits = [] if train.steps is None else [train.steps]
    if train.epochs is not None:
        limits.append(math.ceil(train.epochs * steps_per_epoch) - ahead)
    return min(limits)


def describe(part: Part, corpus: Corpus, step: int) -> Meta:
    """Return what a checkpoint at `step` is trained on."""
    stream, rows = part.stream, dataclasses.asdict(part.config.data)
    del rows["corpus"], rows["batch_per_device"]
    return Meta(
        corpus=corpus.identity,
        cleaning=corpus.manifest.cleaning,
        rows=rows,
        origin=stream.origin,
        epoch=stream.epoch(step),
        bytes_seen=stream.bytes_seen(step),
    )
