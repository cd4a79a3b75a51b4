"""Shards: nearly equal parts of a split, and the order in which each row reads them in an epoch.

Positions are of bytes; B is the global batch, K the number of shards per row.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

# Shorter shards have more of their steps just after a reset, and more padding.
LEAST_WINDOWS = 64
# In training, rows whose shards end early are idle, so lengths may differ by 2% only.
TRAINING_SLACK = 0.01


def count(size: int, *, shards: int, batch: int, window: int) -> int:
    """The number of shards of `size` bytes: a multiple of `batch`, and at least `shards`.

    A small split has fewer: each has LEAST_WINDOWS windows or more, unless `batch` needs them.
    """
    wanted = -(-max(shards, batch) // batch) * batch
    affordable = size // (LEAST_WINDOWS * window + 1) // batch * batch
    return max(batch, min(wanted, affordable))


def cut(offsets: NDArray[np.uint64], shards: int, *, slack: float = 0.5) -> NDArray[np.int64]:
    """Cut documents, uint64 [documents + 1], into `shards` nearly equal parts, int64 [shards + 1].

    A cut is the document boundary nearest to its equal share, or the share itself if that boundary
    is more than `slack` shares away. If this is infinite, a long document leaves some parts empty.
    """
    size = int(offsets[-1])
    shares = np.arange(shards + 1) * size // shards
    above = np.minimum(np.searchsorted(offsets, shares.astype(np.uint64)), len(offsets) - 1)
    high = np.asarray(offsets[above], np.int64)
    low = np.asarray(offsets[np.maximum(above - 1, 0)], np.int64)
    nearest = np.where(shares - low < high - shares, low, high)
    is_far = np.abs(nearest - shares) > size / shards * slack
    return np.where(is_far, shares, nearest)


class Order(NamedTuple):
    """The shards of each row in reading order."""

    starts_BK: Int64  # in bytes, from the start of the split
    lengths_BK: Int64  # in bytes
    windows: int  # of the row with the most
    # before_BK + row · (windows + 1): it ascends over all rows, so that one searchsorted finds the
    # shard of every row.
    ascending_BK: Int64

    @property
    def before_BK(self) -> Int64:
        """Windows that the row reads before the shard."""
        return self.ascending_BK - np.arange(len(self.ascending_BK))[:, None] * (self.windows + 1)

    def at(self, step: int, window: int) -> tuple[Int64, Int64, Int64]:
        """The start and length of each row's shard at `step`, and the bytes read of it.

        A row that has finished stays at the end of its last shard.
        """
        # Each row's last shard that starts by `step`; empty ones start with the next.
        ascending = self.ascending_BK.reshape(-1)
        steps_B = step + np.arange(len(self.ascending_BK)) * (self.windows + 1)
        shard_B = np.searchsorted(ascending, steps_B, "right") - 1
        length_B = self.lengths_BK.reshape(-1)[shard_B]
        read_B = np.minimum((steps_B - ascending[shard_B]) * window, length_B)
        return self.starts_BK.reshape(-1)[shard_B], length_B, read_B

    def shuffled(self, window: int, seed: Sequence[int]) -> "Order":
        """Each row's own shards in an order drawn from `seed`: so its windows stay as many."""
        shards = np.tile(np.arange(self.starts_BK.shape[1]), (len(self.starts_BK), 1))
        drawn_BK = np.random.default_rng(seed).permuted(shards, axis=1)
        starts_BK = np.take_along_axis(self.starts_BK, drawn_BK, axis=1)
        lengths_BK = np.take_along_axis(self.lengths_BK, drawn_BK, axis=1)
        return make(starts_BK, lengths_BK, window)


def make(starts_BK: Int64, lengths_BK: Int64, window: int) -> Order:
    """The order of these shards, read in windows of `window` bytes."""
    windows_BK = -(-lengths_BK // window)
    ends_BK = np.cumsum(windows_BK, axis=1)
    windows = int(ends_BK[:, -1].max())
    rows_B1 = np.arange(len(windows_BK))[:, None]
    ascending_BK = ends_BK - windows_BK + rows_B1 * (windows + 1)
    return Order(starts_BK, lengths_BK, windows, ascending_BK)


def regular(bounds: Int64, batch: int, window: int) -> Order:
    """The order of whole shards, cut at `bounds`: shard k·B + j is the k-th of row j."""
    starts_BK = bounds[:-1].astype(np.int64).reshape(-1, batch).T.copy()
    lengths_BK = np.diff(bounds).reshape(-1, batch).T.copy()
    return make(starts_BK, lengths_BK, window)
