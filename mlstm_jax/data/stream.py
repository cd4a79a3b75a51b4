"""Shards and rows: the view of a corpus as contiguous streams.

A split's bytes are cut into S nearly equal shards, see `cut`. Row j of the global batch reads
shards j, j+B, j+2B, ... in order, a window of T bytes a step, and its state is zero at the start of
each shard (Puri et al. 2018, section VI; the cut is a view, so one corpus serves every batch).
``batch(step)`` is a pure function of (split, B, T, shards, seed, step): to resume is one integer.
Here B is the global batch; a process asks for its own rows.
"""

import functools
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.data.corpus import Split
from mlstm_jax.data.shards import LEAST_WINDOWS, cut
from mlstm_jax.errors import UserError

Int64 = NDArray[np.int64]


class Batch(NamedTuple):
    """One training step of some rows."""

    inputs_BT: NDArray[np.uint8]
    targets_BT: NDArray[np.uint8]  # inputs_BT one byte later
    reset_B: NDArray[np.bool_]  # whether the row starts a shard: its state must be zero
    # float32, at the last byte of each rated document: the rating in standard deviations from the
    # mean, or as it is, the number of a class; NaN elsewhere. None if they are not asked for.
    labels_BT: NDArray[np.float32] | None = None
    # int32: how many of a row's targets, from its first on, count in the loss; the rest is padding.
    # And float32, the same for all rows: what makes a mean over all positions of the global batch
    # the mean over all that count. None: all count.
    targets_B: NDArray[np.int32] | None = None
    weight_B: NDArray[np.float32] | None = None


class Origin(NamedTuple):
    """Where a run changed its batch or window: the step, and where in the new stream it began."""

    step: int = 0
    position: int = 0  # windows of the new stream that count as read
    bytes_seen: int = 0


class TrainStream:
    """The contiguous windows of every row, epoch after epoch.

    In an epoch every byte of every shard is an input once and, save the first of each shard, a
    target once. The last window of a shard is padded, and a row that has read its shards waits for
    the row with the most windows: what is not a target has no weight in the loss.

    With `stop` each document is a shard, and the byte `stop`, which is not in the corpus, is the
    target of its last byte: as UniRep reads proteins, from their start token to their stop token.

    Attributes:
        origin: the run's step and the place in this stream where it was taken up; set by the loop.
        shards: how many the split was cut into.
        steps_per_epoch: windows of the row that has most.
        idle: the fraction of an epoch's positions that are no target: padding and waiting.
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
        stop: int | None = None,
    ) -> None:
        size = int(split.offsets[-1])
        if not size:
            raise UserError(
                f"the {split.name} split is empty: the corpus was prepared with none to train on; "
                "prepare it with a share for it, such as --split 1000,1,1."
            )
        if stop is None:
            wanted = -(-max(shards, batch) // batch) * batch
            affordable = size // (LEAST_WINDOWS * window + 1) // batch * batch
            self.shards = max(batch, min(wanted, affordable))
            bounds = cut(split.offsets, self.shards)
        else:
            documents = len(split.offsets) - 1
            wanted = self.shards = -(-documents // batch) * batch
            # The last of them are empty.
            bounds = np.pad(split.offsets.astype(np.int64), (0, wanted - documents), mode="edge")
        self.wanted_shards = wanted
        self.origin = Origin()
        self._bytes, self._window, self._batch = split.bytes, window, batch
        self._shuffle, self._seed, self._stop = shuffle, seed, stop
        # What of a shard is no target: its first byte, unless there is a stop in its place.
        self._first = stop is None
        per_row = (self.shards // batch, batch)
        # Shard k·B + j is the k-th of row j.
        self._starts_BK = bounds[:-1].reshape(per_row).T
        self._lengths_BK = np.diff(bounds).reshape(per_row).T
        self.steps_per_epoch = int((-(-self._lengths_BK // window)).sum(axis=1).max())
        targets_BK = np.maximum(self._lengths_BK - self._first, 0)
        # A whole window for each row, or a document, which may be shorter.
        if (targets_BK // (window if stop is None else 1)).sum(axis=1).min() == 0:
            raise UserError(
                f"the {split.name} split has {size:,} bytes in {len(split.offsets) - 1:,} "
                f"documents, too few for data.batch {batch} rows of data.window {window} bytes; "
                "lower data.batch or data.window, or prepare more text."
            )
        self._targets = int(targets_BK.sum())
        self.idle = 1 - self._targets / (self.steps_per_epoch * batch * window)
        self._labels = _Labels(split, scaled=labels == "ratings") if labels else None

    def position(self, step: int) -> int:
        """Return the windows of each row that lie before `step`."""
        return step - self.origin.step + self.origin.position

    def epoch(self, step: int) -> float:
        """Return how many epochs `step` steps are."""
        return self.position(step) / self.steps_per_epoch

    def bytes_seen(self, step: int) -> int:
        """Return the targets read in `step` steps."""
        since = self._targets_before(self.position(step))
        return self.origin.bytes_seen + since - self._targets_before(self.origin.position)

    def _targets_before(self, position: int) -> int:
        epoch, step = divmod(position, self.steps_per_epoch)
        _, lengths_BK, before_BK = self._order(epoch if self._shuffle else 0)
        read_BK = np.maximum(step - before_BK, 0) * self._window
        return epoch * self._targets + int(
            np.minimum(read_BK, np.maximum(lengths_BK - self._first, 0)).sum()
        )

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """Return what `rows` of the global batch read at `step`, counted from 0 over all epochs."""
        epoch, step = divmod(self.position(step), self.steps_per_epoch)
        starts_BK, lengths_BK, before_BK = self._order(epoch if self._shuffle else 0)
        shard_B1 = _last_begun(before_BK, step)[:, None]
        first_B, length_B, before_B = (
            np.take_along_axis(x_BK, shard_B1, axis=1)[:, 0]
            for x_BK in (starts_BK, lengths_BK, before_BK)
        )
        # A row that has read all waits at the end of its last shard.
        read_B = np.minimum((step - before_B) * self._window, length_B)
        targets_B = np.clip(length_B - self._first - read_B, 0, self._window)
        weight = self._batch * self._window / max(1, int(targets_B.sum()))
        start_B = (first_B + read_B)[rows]
        bytes_BT = self._windows(start_B)
        if self._stop is not None:
            left_B = (length_B - read_B)[rows]
            ending = np.flatnonzero((left_B > 0) & (left_B <= self._window))
            bytes_BT[ending, left_B[ending]] = self._stop
        labels_BT = None
        if self._labels:
            inputs_B = np.clip((length_B - read_B)[rows], 0, self._window)
            labels_BT = self._labels.of(start_B, inputs_B, self._window)
        return Batch(
            bytes_BT[:, :-1],
            bytes_BT[:, 1:],
            (read_B == 0)[rows],
            labels_BT,
            targets_B[rows].astype(np.int32),
            np.full(len(start_B), weight, np.float32),
        )

    def _windows(self, start_B: Int64) -> NDArray[np.uint8]:
        """Return the bytes from each start on, and one more than a window has; zeros past the end.

        A view of all windows is indexed by their starts: that copies each in one go, where indices
        of all bytes would be eight times as large as the bytes themselves.
        """
        width = self._window + 1
        last = len(self._bytes) - width
        views = np.lib.stride_tricks.sliding_window_view(self._bytes, width)
        bytes_BT = views[np.minimum(start_B, last)]
        for row in np.flatnonzero(start_B > last):
            tail = self._bytes[start_B[row] :]
            bytes_BT[row] = np.pad(tail, (0, width - len(tail)))
        return bytes_BT

    @functools.lru_cache(maxsize=2)  # noqa: B019 - a stream lives as long as its run
    def _order(self, epoch: int) -> tuple[Int64, Int64, Int64]:
        """Return each row's shards in reading order: starts, lengths, and windows before each."""
        starts_BK, lengths_BK = self._starts_BK, self._lengths_BK
        if self._shuffle:
            # Within a row, so that a row's number of windows, and so an epoch's, never changes.
            order_BK = np.random.default_rng([self._seed, epoch]).permuted(
                np.tile(np.arange(starts_BK.shape[1]), (self._batch, 1)), axis=1
            )
            starts_BK = np.take_along_axis(starts_BK, order_BK, axis=1)
            lengths_BK = np.take_along_axis(lengths_BK, order_BK, axis=1)
        windows_BK = -(-lengths_BK // self._window)
        return starts_BK, lengths_BK, np.cumsum(windows_BK, axis=1) - windows_BK


def _last_begun(before_BK: Int64, step: int) -> Int64:
    """Return each row's last shard that has begun by `step`; empty ones begin where the next does.

    By bisection of all rows at once: proteins are shards of their own, so there are millions.
    """
    rows = np.arange(len(before_BK))
    low_B, high_B = np.zeros_like(rows), np.full_like(rows, before_BK.shape[1])
    for _ in range(before_BK.shape[1].bit_length()):
        middle_B = (low_B + high_B) // 2
        has_begun_B = before_BK[rows, middle_B] <= step
        low_B = np.where(has_begun_B, middle_B, low_B)
        high_B = np.where(has_begun_B, high_B, middle_B)
    return low_B


class _Labels:
    """The ratings of a split's documents, each at its last byte; scaled: mean 0, variance 1."""

    def __init__(self, split: Split, *, scaled: bool) -> None:
        self._offsets, self._ratings = split.offsets, split.ratings
        ratings = np.zeros(0, np.float32) if split.ratings is None else split.ratings
        known = ratings[~np.isnan(ratings)]
        # Summed in float64: there may be as many as a hundred million.
        self._mean = float(np.mean(known, dtype=np.float64)) if len(known) else 0.0
        self._deviation = float(np.std(known, dtype=np.float64)) if len(known) else 0.0
        if not scaled:
            self._mean, self._deviation = 0.0, 1.0
        if not len(known) or not self._deviation:
            raise UserError(
                f"a label head needs ratings, but the {split.name} split has "
                + ("only one of them" if len(known) else "none")
                + "; prepare the corpus with --rating-column, or leave the option out."
            )

    def of(self, start_B: Int64, inputs_B: Int64, window: int) -> NDArray[np.float32]:
        """Return the ratings of the documents that end in the inputs of each row's window."""
        assert self._ratings is not None
        # The document that ends with byte p ends before offset p + 1.
        first_B = np.searchsorted(self._offsets, (start_B + 1).astype(np.uint64))
        last_B = np.searchsorted(self._offsets, (start_B + inputs_B + 1).astype(np.uint64))
        labels_BT = np.full((len(start_B), window), np.nan, np.float32)
        row_D = np.repeat(np.arange(len(start_B)), last_B - first_B)
        end_D = np.concatenate([np.arange(a, b) for a, b in zip(first_B, last_B, strict=True)])
        end_D = end_D.astype(np.int64)
        place_D = self._offsets[end_D].astype(np.int64) - 1 - start_B[row_D]
        labels_BT[row_D, place_D] = (self._ratings[end_D - 1] - self._mean) / self._deviation
        return labels_BT
