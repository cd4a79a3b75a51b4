"""What a run reads: its rows, how far they are in the text, and where they end."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mlstm_jax.config import MOST_STEPS, Config, Train, function_of
from mlstm_jax.data.corpus import Corpus
from mlstm_jax.data.shards import TRAINING_SLACK
from mlstm_jax.data.stream import BEGINNING, Place, TrainStream
from mlstm_jax.errors import UserError, require
from mlstm_jax.record import Meta


@dataclass(frozen=True)
class Rows:
    """The rows of a run, from the place where a session begins to the last step of the run."""

    config: Config
    corpus: Corpus
    stream: TrainStream
    steps: int  # of the whole run

    def position(self, step: int) -> dict[str, Any]:
        """How much of the text has been read at `step`."""
        return {"epoch": self.stream.epoch(step), "bytes_seen": self.stream.bytes_seen(step)}


def open_rows(config: Config, corpus: Corpus, start: Place = BEGINNING) -> Rows:
    """The rows that a run reads from `start`, where its checkpoint is.

    UserError if a rating is no class of the model, or no steps are left.
    """
    data = config.data
    architecture = config.model
    split = corpus.split("train")
    labels: Literal["ratings", "classes"] | None = None
    if architecture.labels:
        labels = "ratings" if architecture.rating_head else "classes"
    if architecture.classes and split.ratings is not None:
        ratings = split.ratings[~np.isnan(split.ratings)]
        wrong = ratings[~np.isin(ratings, np.arange(architecture.classes))]
        if len(wrong):
            raise UserError(
                f"model.classes is {architecture.classes}, but the train split has the rating "
                f"{wrong[0]:g}; the ratings must be class numbers, 0 to "
                f"{architecture.classes - 1}. Number them so, or learn ratings with "
                "`model.rating_head`, or labels with `mlstm-jax finetune`."
            )
    stream = TrainStream(
        split,
        batch=data.batch,
        window=data.window,
        shards=data.shards,
        shuffle=data.shuffle_shards,
        seed=data.seed,
        labels=labels,
        # Without a carry, a label can be predicted only from its document's own windows.
        per_document=architecture.labels > 0 and architecture.longest_window is not None,
        targets_are_inputs=architecture.masked,
        start=start,
    )
    steps = total_steps(config.train, stream.steps_per_epoch, stream.position(0))
    rule = f"above {start.epoch:.3f}: so many have been read where the run begins"
    require(steps > 0, "train.epochs", config.train.epochs, rule)
    return Rows(config, corpus, stream, steps)


def meta_of(config: Config, corpus: Corpus) -> Meta:
    """What a run is trained on, at its beginning."""
    rows = dataclasses.asdict(config.data)
    del rows["corpus"], rows["batch_per_device"]
    rows["slack"] = TRAINING_SLACK
    return Meta(corpus.identity, corpus.manifest.cleaning, rows, function_of(config))


def total_steps(train: Train, steps_per_epoch: int, ahead: int = 0) -> int:
    """The length of a run in steps, whose rows are `ahead` windows further in the text.

    UserError if devices cannot count them.
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
