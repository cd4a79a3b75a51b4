"""Shards: nearly equal parts of a split, cut at document boundaries where possible."""

import numpy as np
from numpy.typing import NDArray

# Shorter shards have more of their steps just after a reset, and more padding.
LEAST_WINDOWS = 64
# In training, rows whose shards end early wait for the others, so lengths may differ by 2% only.
TRAINING_SLACK = 0.01


def count(size: int, *, shards: int, batch: int, window: int) -> tuple[int, int]:
    """Return the wanted and the possible number of shards for a split of `size` bytes.

    Both are multiples of `batch`; the first is at least `shards`. With the second, a shard has at
    least LEAST_WINDOWS windows of `window` bytes, unless `batch` rows need more shards.
    """
    wanted = -(-max(shards, batch) // batch) * batch
    affordable = size // (LEAST_WINDOWS * window + 1) // batch * batch
    return wanted, max(batch, min(wanted, affordable))


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
