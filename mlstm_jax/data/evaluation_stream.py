"""Windows that score every byte of a split once, in a few long streams or by document."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.data.corpus import Split
from mlstm_jax.data.shards import LEAST_WINDOWS, cut
from mlstm_jax.errors import UserError

EVALUATION_ROWS = 16


class EvaluationBatch(NamedTuple):
    """One window of every shard of a split to score."""

    inputs_BT: NDArray[np.uint8]
    targets_BT: NDArray[np.uint8]
    mask_BT: NDArray[np.bool_]  # False past a shard's end
    reset_B: NDArray[np.bool_]  # whether the row's state must be zero before it
    window_B: NDArray[np.uint32]  # a number of its own for each window of the split


class EvaluationStream:
    """Every byte of a split once, except the first of each shard, in at most 16 shards.

    Attributes:
        rows: number of shards.
        steps: number of windows of the longest shard.
        scored: number of bytes scored, over all shards.
    """

    def __init__(self, split: Split, *, window: int, rows: int = EVALUATION_ROWS) -> None:
        size = int(split.offsets[-1])
        # Starting from a zero state costs some bits, negligible in a long shard.
        is_long = size >= rows * LEAST_WINDOWS * window
        shards = rows if is_long else min(rows, len(split.offsets) - 1) or 1
        bounds = np.unique(cut(split.offsets, shards, slack=0.5 if is_long else math.inf))
        self._bytes, self._window = split.bytes, window
        self._starts_B, self._ends_B = bounds[:-1], bounds[1:]
        self.rows = len(self._starts_B)
        self.scored = size - self.rows
        if self.scored <= 0:
            raise UserError(
                f"the {split.name} split has {size} bytes, too few to score; prepare the corpus "
                "with a larger share for it (`split`, or more files after `valid` and `test`)."
            )
        self.steps = int(-(-(self._ends_B - self._starts_B - 1).max() // window))

    def batch(self, step: int, rows: int) -> EvaluationBatch:
        """Return the windows at `step`, padded after the shards with empty rows to `rows` rows."""
        shards = self.rows
        start_B = self._starts_B + step * self._window
        position_BT = start_B[:, None] + np.arange(self._window + 1)
        inside_BT = position_BT < self._ends_B[:, None]
        bytes_BT = np.zeros((rows, self._window + 1), np.uint8)
        mask_BT = np.zeros((rows, self._window), np.bool_)
        bytes_BT[:shards] = self._bytes.windows(start_B, self._window + 1) * inside_BT
        mask_BT[:shards] = inside_BT[:, 1:]
        reset_B = np.full(rows, step == 0)
        return EvaluationBatch(
            bytes_BT[:, :-1], bytes_BT[:, 1:], mask_BT, reset_B, _numbers(step, rows)
        )


class DocumentStream:
    """Every document of a split separately, from a zero state, and the byte that ends it.

    A document's first byte is only an input. Its other bytes are scored, then `stop`, which is not
    in the corpus. UniRep reads proteins this way, from start token to stop token.

    Attributes:
        rows: number of rows among which the documents are divided.
        steps: number of windows of the longest row.
        scored: number of bytes scored, over all rows; equal to the size of the split.
    """

    def __init__(
        self, split: Split, *, window: int, stop: int, rows: int = EVALUATION_ROWS
    ) -> None:
        offsets = np.asarray(split.offsets, np.int64)
        self.rows, self.scored = rows, int(offsets[-1])
        if not self.scored:
            raise UserError(
                f"the {split.name} split is empty, so there is nothing to score; prepare the "
                "corpus with a share for it (`split`)."
            )
        self._bytes, self._window, self._stop = split.bytes, window, stop
        windows_D = -(-np.diff(offsets) // window)
        first_D = np.concatenate([[0], np.cumsum(windows_D)])  # first window of each document
        document_W = np.repeat(np.arange(len(windows_D)), windows_D)
        place_W = np.arange(first_D[-1]) - first_D[document_W]
        self._starts_W = offsets[document_W] + place_W * window
        self._ends_W = offsets[document_W + 1]
        self._resets_W = place_W == 0
        self._bounds = cut(first_D.astype(np.uint64), rows, slack=math.inf)
        self.steps = int(np.diff(self._bounds).max())

    def batch(self, step: int, rows: int) -> EvaluationBatch:
        """Return the windows at `step`, padded with empty rows to `rows` rows."""
        at_B = self._bounds[:-1] + step
        is_read_B = at_B < self._bounds[1:]
        at_B = np.minimum(at_B, len(self._starts_W) - 1)
        start_B = self._starts_W[at_B]
        position_BT = start_B[:, None] + np.arange(self._window + 1)
        end_B1 = self._ends_W[at_B][:, None]
        found_BT = self._bytes.windows(start_B, self._window + 1) * (position_BT < end_B1)
        found_BT = np.where(position_BT == end_B1, self._stop, found_BT)
        bytes_BT = np.zeros((rows, self._window + 1), np.uint8)
        mask_BT = np.zeros((rows, self._window), np.bool_)
        reset_B = np.zeros(rows, np.bool_)
        bytes_BT[: len(at_B)] = found_BT
        mask_BT[: len(at_B)] = is_read_B[:, None] & (position_BT[:, 1:] <= end_B1)
        reset_B[: len(at_B)] = self._resets_W[at_B]
        return EvaluationBatch(
            bytes_BT[:, :-1], bytes_BT[:, 1:], mask_BT, reset_B, _numbers(step, rows)
        )


def _numbers(step: int, rows: int) -> NDArray[np.uint32]:
    """Return numbers that only the step and the row determine, not the number of empty rows."""
    return (np.arange(rows) + step * 2**12).astype(np.uint32)
