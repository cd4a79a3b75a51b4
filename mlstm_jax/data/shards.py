"""Shards: nearly equal parts of a split, and the order in which each row reads them in an epoch.

All positions are of bytes; the bytes are the stream's. Here B is the global batch and K the number
of shards per row.
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
    """Return the number of shards for a split of `size` bytes.

    It is a multiple of `batch`, and at least `shards` unless the split is small: a shard has at
    least LEAST_WINDOWS windows of `window` bytes, unless `batch` rows need more shards.
    """
    wanted = -(-max(shards, batch) // batch) * batch
    affordable = size // (LEAST_WINDOWS * window + 1) // batch * batch
    return max(batch, min(wanted, affordable))


def cut(offsets: NDArray[np.uint64], shards: int, *, slack: float = 0.5) -> NDArray[np.int64]:
    """Cut a split into `shards` nearly equal parts.

    Args:
        offsets: where each document starts, and the end; uint64 [documents + 1], from 0.
        slack: how far a cut may be from its equal share, in shares. If it is infinite, no cut is
            inside a document, and a long document leaves some parts empty.

    Returns:
        int64 [shards + 1] byte positions: the document boundary nearest to each equal share, or
        the share itself if that boundary is more than `slack` shares away.
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
    before_BK: Int64  # windows that the row reads before the shard
    windows: int  # of the row with the most

    def at(self, step: int, window: int) -> tuple[Int64, Int64, Int64]:
        """Return the start and length of each row's shard at `step`, and the bytes read of it.

        A row that has finished stays at the end of its last shard.
        """
        shard_B1 = self._shards_at(step)[:, None]
        start_B = np.take_along_axis(self.starts_BK, shard_B1, axis=1)[:, 0]
        length_B = np.take_along_axis(self.lengths_BK, shard_B1, axis=1)[:, 0]
        before_B = np.take_along_axis(self.before_BK, shard_B1, axis=1)[:, 0]
        return start_B, length_B, np.minimum((step - before_B) * window, length_B)

    def _shards_at(self, step: int) -> Int64:
        """Return each row's last shard that starts by `step`; empty ones start with the next.

        Bisects all rows at once: if each document is a shard, there may be millions.
        """
        rows = np.arange(len(self.before_BK))
        shards = self.before_BK.shape[1]
        low_B = np.zeros_like(rows)
        high_B = np.full_like(rows, shards)
        for _ in range(shards.bit_length()):
            middle_B = (low_B + high_B) // 2
            has_begun_B = self.before_BK[rows, middle_B] <= step
            low_B = np.where(has_begun_B, middle_B, low_B)
            high_B = np.where(has_begun_B, high_B, middle_B)
        return low_B


def make(starts_BK: Int64, lengths_BK: Int64, window: int) -> Order:
    """The order of these shards, read in windows of `window` bytes."""
    windows_BK = -(-lengths_BK // window)
    ends_BK = np.cumsum(windows_BK, axis=1)
    return Order(starts_BK, lengths_BK, ends_BK - windows_BK, int(ends_BK[:, -1].max()))


def regular(bounds: Int64, batch: int, window: int) -> Order:
    """The order of whole shards, cut at `bounds`: shard k·B + j is the k-th of row j."""
    starts_BK = bounds[:-1].astype(np.int64).reshape(-1, batch).T
    lengths_BK = np.diff(bounds).reshape(-1, batch).T
    return make(starts_BK, lengths_BK, window)


def shuffled(order: Order, window: int, seed: Sequence[int]) -> Order:
    """Draw an order of each row's own shards from `seed`.

    Shuffling within a row keeps its number of windows, and so the epoch's, constant.
    """
    batch, shards = order.starts_BK.shape
    drawn_BK = np.random.default_rng(seed).permuted(np.tile(np.arange(shards), (batch, 1)), axis=1)
    starts_BK = np.take_along_axis(order.starts_BK, drawn_BK, axis=1)
    lengths_BK = np.take_along_axis(order.lengths_BK, drawn_BK, axis=1)
    return make(starts_BK, lengths_BK, window)
