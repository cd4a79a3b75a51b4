"""Shards: nearly equal parts of a split, and the order in which each row reads them in an epoch.

A piece is a shard, or the rest of one when another set of rows continues an epoch. All positions
are of bytes; the bytes are the stream's. Here B is the global batch and K the number of pieces per
row; a row with fewer is padded with empty ones.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

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


class Order(NamedTuple):
    """The pieces of each row in reading order."""

    starts_BK: Int64  # in bytes, from the start of the split
    lengths_BK: Int64  # in bytes
    before_BK: Int64  # windows that the row reads before the piece
    windows: int  # of the row with the most

    def at(self, step: int, window: int) -> tuple[Int64, Int64, Int64]:
        """Return the start and length of each row's piece at `step`, and the bytes read of it.

        A row that has finished waits at the end of its last piece.
        """
        piece_B1 = self.pieces_at(step)[:, None]
        start_B, length_B, before_B = (
            np.take_along_axis(x_BK, piece_B1, axis=1)[:, 0] for x_BK in self[:3]
        )
        return start_B, length_B, np.minimum((step - before_B) * window, length_B)

    def pieces_at(self, step: int) -> Int64:
        """Return each row's last piece that starts by `step`; empty ones start with the next.

        Bisects all rows at once: each protein is a shard, so there are millions.
        """
        rows = np.arange(len(self.before_BK))
        pieces = self.before_BK.shape[1]
        low_B, high_B = np.zeros_like(rows), np.full_like(rows, pieces)
        for _ in range(pieces.bit_length()):
            middle_B = (low_B + high_B) // 2
            has_begun_B = self.before_BK[rows, middle_B] <= step
            low_B = np.where(has_begun_B, middle_B, low_B)
            high_B = np.where(has_begun_B, high_B, middle_B)
        return low_B


def make(starts_BK: Int64, lengths_BK: Int64, window: int) -> Order:
    """Return the order of these pieces, read in windows of `window` bytes."""
    windows_BK = -(-lengths_BK // window)
    ends_BK = np.cumsum(windows_BK, axis=1)
    return Order(starts_BK, lengths_BK, ends_BK - windows_BK, int(ends_BK[:, -1].max()))


def regular(bounds: Int64, batch: int, window: int) -> Order:
    """Return the order of whole shards, cut at `bounds`: shard k·B + j is the k-th of row j."""
    starts_BK, lengths_BK = (
        x.reshape(-1, batch).T for x in (bounds[:-1].astype(np.int64), np.diff(bounds))
    )
    return make(starts_BK, lengths_BK, window)


def shuffled(order: Order, window: int, seed: Sequence[int]) -> Order:
    """Return each row's own pieces in an order drawn from `seed`.

    Shuffling within a row keeps its number of windows, and so the epoch's, constant.
    """
    batch, pieces = order.starts_BK.shape
    drawn_BK = np.random.default_rng(seed).permuted(np.tile(np.arange(pieces), (batch, 1)), axis=1)
    starts_BK, lengths_BK = (np.take_along_axis(x_BK, drawn_BK, axis=1) for x_BK in order[:2])
    return make(starts_BK, lengths_BK, window)


def redistribute(
    order: Order, step: int, window: int, *, growth: int, new_window: int
) -> tuple[Order, NDArray[np.bool_]]:
    """Distribute the rest of an epoch at `step` over more rows.

    The rest of row j goes to rows k·j to k·j + k − 1 of the k·B new rows. The first of them
    continues the piece that row j is in. The whole shards are distributed so that the window counts
    of these k rows differ by at most that of the longest piece. With k = 1, every row keeps its
    pieces.

    Args:
        order: the order of the B rows, read in windows of `window` bytes.
        step: number of windows of this epoch that each row has read.
        growth: k, at least 1.
        new_window: window of the new rows, in bytes.

    Returns:
        The order of the new rows, and which of them start in the middle of a shard; bool [k·B].
    """
    batch, pieces = order.starts_BK.shape
    piece_B = order.pieces_at(step)
    start_B, length_B, read_B = order.at(step, window)
    rows = np.arange(batch)
    starts_BK = order.starts_BK.copy()
    lengths_BK = np.where(np.arange(pieces)[None] < piece_B[:, None], 0, order.lengths_BK)
    starts_BK[rows, piece_B] = start_B + read_B
    lengths_BK[rows, piece_B] = length_B - read_B
    more = ((0, 0), (0, -pieces % growth))
    starts_BK, lengths_BK = np.pad(starts_BK, more, mode="edge"), np.pad(lengths_BK, more)

    # Deal the pieces to the k rows in turn, longest first.
    falling_BK = np.argsort(-lengths_BK // new_window, axis=1, kind="stable")
    dealt = falling_BK.reshape(batch, -1, growth).swapaxes(1, 2)
    # The row that received the current piece becomes the first of its k.
    has_present = (dealt == piece_B[:, None, None]).any(axis=2)
    dealt = np.take_along_axis(
        dealt, np.argsort(~has_present, axis=1, kind="stable")[:, :, None], axis=1
    )
    pieces_BK = np.sort(dealt, axis=2).reshape(batch * growth, -1)
    old_B1 = np.repeat(rows, growth)[:, None]
    continues_B = np.zeros(batch * growth, np.bool_)
    continues_B[::growth] = (read_B > 0) & (read_B < length_B)
    shared = make(starts_BK[old_B1, pieces_BK], lengths_BK[old_B1, pieces_BK], new_window)
    return shared, continues_B
