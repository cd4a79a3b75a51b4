"""Batches: windows of contiguous streams for training, with labels, and of a split to score.

A split's bytes are cut into S nearly equal shards (`shards.cut`). Row j of the global batch reads
shards j, j+B, j+2B, ... in order, a window of T bytes per step, and its state is zero at the start
of each shard (Puri et al. 2018, section VI; the cut is a view, so one corpus serves every batch).
``batch(step)`` is a pure function of (split, B, T, shards, seed, start, step), so a run resumes
from its step and its epoch. Here B is the global batch; a process reads only its own rows.
"""

import functools
import math
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.data.corpus import Split
from mlstm_jax.data.shards import LEAST_WINDOWS, TRAINING_SLACK, Int64, Order, count, cut, regular
from mlstm_jax.errors import UserError

EVALUATION_ROWS = 16

Item = TypeVar("Item")


class Batch(NamedTuple):
    """One training step of some rows."""

    inputs_BT: NDArray[np.uint8]
    targets_BT: NDArray[np.uint8]  # inputs_BT one byte later
    reset_B: NDArray[np.bool_]  # whether the row starts a shard: its state must be zero
    # float32, at the last byte of each rated document, NaN elsewhere: the rating in standard
    # deviations from the mean, or a class number. None if labels are not requested.
    labels_BT: NDArray[np.float32] | None
    # int32: how many of a row's first targets count in the loss; the rest is padding.
    targets_B: NDArray[np.int32]
    # float32, the same for all rows: the factor from the mean over all positions of the global
    # batch to the mean over those that count; and the fraction of its rows that have a target.
    weight_B: NDArray[np.float32]
    active_fraction_B: NDArray[np.float32]


class Place(NamedTuple):
    """Where the rows of a run are in the text at a step; a session reads on from there."""

    step: int = 0
    epoch: float = 0.0
    bytes_seen: int = 0  # targets that were read before


BEGINNING = Place()


class DocumentLabels:
    """The ratings of a split's documents, each at its last byte; `scaled` to mean 0, variance 1.

    With `per_document` no window has two documents, and a label is also at the last byte of each
    other window of its document.
    """

    def __init__(self, split: Split, *, scaled: bool, per_document: bool) -> None:
        ratings = np.asarray([] if split.ratings is None else split.ratings, np.float32)
        self._ratings = ratings
        self._offsets = split.offsets
        self._per_document = per_document
        known = ratings[~np.isnan(ratings)]
        self._mean = 0.0
        self._deviation = 1.0
        if scaled and len(known):
            # Summed in float64: there may be a hundred million.
            self._mean = float(known.mean(dtype=np.float64))
            self._deviation = float(known.std(dtype=np.float64))
        if not len(known) or not self._deviation:
            raise UserError(
                "a head for labels needs texts with ratings, at least two different ones, in the "
                f"{split.name} split; prepare the corpus with `mlstm-jax prepare --rating-column`, "
                "or leave the head out."
            )

    def of(self, start_B: Int64, inputs_B: Int64, window: int) -> NDArray[np.float32]:
        """The labels in windows that begin at `start_B`, float32 [B, T]; elsewhere NaN.

        `inputs_B` is how many bytes of each are inputs.
        """
        if self._per_document:
            row_D = np.flatnonzero(inputs_B)
            starts_D = start_B[row_D].astype(np.uint64)
            document_D = np.searchsorted(self._offsets, starts_D, "right") - 1
            place_D = inputs_B[row_D] - 1
        else:
            # A document whose last byte is p has the end offset p + 1.
            first_B = np.searchsorted(self._offsets, (start_B + 1).astype(np.uint64))
            last_B = np.searchsorted(self._offsets, (start_B + inputs_B + 1).astype(np.uint64))
            row_D = np.repeat(np.arange(len(start_B)), last_B - first_B)
            end_D = np.concatenate([np.arange(a, b) for a, b in zip(first_B, last_B, strict=True)])
            end_D = end_D.astype(np.int64)
            place_D = self._offsets[end_D].astype(np.int64) - 1 - start_B[row_D]
            document_D = end_D - 1
        labels_BT = np.full((len(start_B), window), np.nan, np.float32)
        labels_BT[row_D, place_D] = (self._ratings[document_D] - self._mean) / self._deviation
        return labels_BT


class TrainStream:
    """The contiguous windows of every row, epoch after epoch.

    In an epoch every byte of every shard is an input once and, except the first of each shard, a
    target once. The last window of a shard is padded, and a row that has read its shards is idle
    until the row with the most windows has. Positions without a target have no weight in the loss.

    With `per_document`, each document is a shard. With `targets_are_inputs` a byte is a target
    where it is an input (training/objective.py).

    Attributes:
        start: where a session reads on; `position` rounds its epoch to a window.
        shards: number of shards of the split.
        steps_per_epoch: number of windows of the row with the most.
        padding_fraction: fraction of an epoch's positions without a target: padding, idle rows.
    """

    def __init__(
        self,
        split: Split,
        *,
        batch: int,
        window: int,
        shards: int = 1000,
        shuffle: bool = False,
        seed: int = 0,
        labels: Literal["ratings", "classes"] | None = None,
        per_document: bool = False,
        targets_are_inputs: bool = False,
        start: Place = BEGINNING,
    ) -> None:
        size = int(split.offsets[-1])
        documents = len(split.offsets) - 1
        if per_document:
            self.shards = max(1, -(-documents // batch)) * batch
            # The last shards are empty.
            more = (0, self.shards - documents)
            bounds = np.pad(split.offsets.astype(np.int64), more, mode="edge")
        else:
            self.shards = count(size, shards=shards, batch=batch, window=window)
            bounds = cut(split.offsets, self.shards, slack=TRAINING_SLACK)
        self._bytes = split.bytes
        self._window = window
        self._batch = batch
        self._shuffle = shuffle
        self._seed = seed
        # Bytes of a shard without a target: its first.
        self._untargeted = 0 if targets_are_inputs else 1
        self._regular = regular(bounds, batch, window)
        self.steps_per_epoch = self._regular.windows
        self.start = start
        self._position = round(start.epoch * self.steps_per_epoch)
        targets_BK = self._targets_of(self._regular)
        # Each row needs a whole window, or a document, which may be shorter.
        least = 1 if per_document else window
        is_short = size <= window and not per_document
        if is_short or (targets_BK // least).sum(axis=1).min() == 0:
            raise UserError(
                f"the {split.name} split has {size:,} bytes in {documents:,} documents, too few "
                f"for {batch} rows of {window} bytes; lower `data.batch` or `data.window`, or "
                "prepare more text."
            )
        self._targets = int(targets_BK.sum())
        self.padding_fraction = 1 - self._targets / (self.steps_per_epoch * batch * window)
        self._labels: DocumentLabels | None = None
        if labels:
            self._labels = DocumentLabels(
                split, scaled=labels == "ratings", per_document=per_document
            )

    def position(self, step: int) -> int:
        """The number of windows of each row before `step`."""
        return step - self.start.step + self._position

    def epoch(self, step: int) -> float:
        """The number of epochs in `step` steps."""
        return self.position(step) / self.steps_per_epoch

    def bytes_seen(self, step: int) -> int:
        """The number of targets read in `step` steps."""
        before = self._targets_before(self._position)
        return self.start.bytes_seen + self._targets_before(self.position(step)) - before

    def _targets_of(self, order: Order) -> Int64:
        """The number of targets in each shard: int64 [B, K]."""
        return np.maximum(order.lengths_BK - self._untargeted, 0)

    def _targets_before(self, position: int) -> int:
        epoch, window = divmod(position, self.steps_per_epoch)
        order = self._order(epoch)
        targets_BK = self._targets_of(order)
        read_BK = np.maximum(window - order.before_BK, 0) * self._window
        return epoch * self._targets + int(np.minimum(read_BK, targets_BK).sum())

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """What `rows` of the global batch read at `step`, counted from 0 over all epochs."""
        epoch, window = divmod(self.position(step), self.steps_per_epoch)
        order = self._order(epoch)
        first_B, length_B, read_B = order.at(window, self._window)
        reset_B = read_B == 0
        targets_B = np.clip(length_B - self._untargeted - read_B, 0, self._window)
        weight = self._batch * self._window / max(1, int(targets_B.sum()))
        start_B = (first_B + read_B)[rows]
        bytes_BT = self._bytes.windows(start_B, self._window + 1)
        labels_BT = None
        if self._labels:
            inputs_B = np.clip((length_B - read_B)[rows], 0, self._window)
            labels_BT = self._labels.of(start_B, inputs_B, self._window)
        return Batch(
            bytes_BT[:, :-1],
            bytes_BT[:, 1:],
            reset_B[rows],
            labels_BT,
            targets_B[rows].astype(np.int32),
            np.full(len(start_B), weight, np.float32),
            np.full(len(start_B), np.mean(targets_B > 0), np.float32),
        )

    @functools.lru_cache(maxsize=2)  # noqa: B019 - a stream lives as long as its run
    def _order(self, epoch: int) -> Order:
        """Return what each row reads in a whole epoch."""
        if not self._shuffle:
            return self._regular
        return self._regular.shuffled(self._window, [self._seed, epoch])


class EvaluationBatch(NamedTuple):
    """One window of every row of a split to score."""

    inputs_BT: NDArray[np.uint8]
    targets_BT: NDArray[np.uint8]
    mask_BT: NDArray[np.bool_]  # False past a piece's end
    reset_B: NDArray[np.bool_]  # whether the row's state must be zero before it
    window_B: NDArray[np.uint32]  # a number of its own for each window of the split


class EvaluationStream:
    """Every byte of a split once, except those that nothing predicts; each piece from a zero state.

    The pieces are at most 16 shards, a row each, and their first bytes are not scored.

    Attributes:
        rows: number of rows.
        steps: number of windows of the longest row.
        scored: number of bytes scored, over all rows.
    """

    def __init__(self, split: Split, *, window: int) -> None:
        size = int(split.offsets[-1])
        rows = EVALUATION_ROWS
        # Starting from a zero state costs some bits, negligible in a long shard.
        if size >= rows * LEAST_WINDOWS * window:
            bounds = cut(split.offsets, rows)
        else:
            shards = min(rows, len(split.offsets) - 1) or 1
            bounds = cut(split.offsets, shards, slack=math.inf)
        bounds = np.unique(bounds)
        self.rows = len(bounds) - 1
        self.scored = size - self.rows
        if self.scored <= 0:
            raise UserError(
                f"the {split.name} split has {size} bytes, too few to score; prepare the corpus "
                "again with a larger share for it, such as `mlstm-jax prepare --split 20,1,1`."
            )
        self._bytes = split.bytes
        self._window = window
        self._start_B = bounds[:-1]
        self._end_B = bounds[1:]
        self.steps = int((-((1 - np.diff(bounds)) // window)).max())

    def batch(self, step: int, rows: int) -> EvaluationBatch:
        """Return the windows at `step`, padded with empty rows to `rows` rows."""
        # A row that has ended stays at its end.
        start_B = np.minimum(self._start_B + step * self._window, self._end_B)
        inside_BT = start_B[:, None] + np.arange(self._window + 1) < self._end_B[:, None]
        read_BT = self._bytes.windows(start_B, self._window + 1)
        read_BT *= inside_BT
        empty = (0, rows - self.rows)
        bytes_BT = np.pad(read_BT, (empty, (0, 0)))
        mask_BT = np.pad(inside_BT[:, 1:], (empty, (0, 0)))
        reset_B = np.pad(np.full(self.rows, step == 0), empty)
        # Only the step and the row determine a window's number, not the number of empty rows.
        window_B = (np.arange(rows) + step * 2**12).astype(np.uint32)
        return EvaluationBatch(bytes_BT[:, :-1], bytes_BT[:, 1:], mask_BT, reset_B, window_B)


def prefetch(
    make: Callable[[int], Item], steps: range, depth: int = 2
) -> Generator[Item, None, None]:
    """Yield ``make(step)`` for each step, computed up to `depth` steps ahead in one thread."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch") as pool:
        waiting = deque(pool.submit(make, step) for step in steps[:depth])
        for step in range(steps.start, steps.stop):
            item = waiting.popleft().result()
            if step + depth < steps.stop:
                waiting.append(pool.submit(make, step + depth))
            yield item
