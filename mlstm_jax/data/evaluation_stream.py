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
    """One window of every row of a split to score."""

    inputs_BT: NDArray[np.uint8]
    targets_BT: NDArray[np.uint8]
    mask_BT: NDArray[np.bool_]  # False past a piece's end
    reset_B: NDArray[np.bool_]  # whether the row's state must be zero before it
    window_B: NDArray[np.uint32]  # a number of its own for each window of the split


class EvaluationStream:
    """Every byte of a split once, except those that nothing predicts; each piece from a zero state.

    The pieces are at most 16 shards, a row each, and their first bytes are not scored. With `stop`
    the pieces are the documents, divided among the rows; instead of a document's first byte, which
    is only an input, `stop` is scored, which ends each and is not in the corpus. UniRep reads
    proteins this way, from start token to stop token.

    Attributes:
        rows: number of rows.
        steps: number of windows of the longest row.
        scored: number of bytes scored, over all rows.
    """

    def __init__(
        self, split: Split, *, window: int, stop: int | None = None, rows: int = EVALUATION_ROWS
    ) -> None:
        size = int(split.offsets[-1])
        offsets = np.asarray(split.offsets, np.int64)
        if stop is None:
            # Starting from a zero state costs some bits, negligible in a long shard.
            if size >= rows * LEAST_WINDOWS * window:
                bounds = cut(split.offsets, rows)
            else:
                shards = min(rows, len(offsets) - 1) or 1
                bounds = cut(split.offsets, shards, slack=math.inf)
            offsets = np.unique(bounds)
        unscored = 1 if stop is None else 0  # bytes of a piece
        self.scored = size - unscored * (len(offsets) - 1)
        if self.scored <= 0:
            raise UserError(
                f"the {split.name} split has {size} bytes, too few to score; prepare the corpus "
                "with a larger share for it (`split`, or more files after `valid` and `test`)."
            )
        self._bytes = split.bytes
        self._window = window
        self._stop = stop
        windows_D = -(-(np.diff(offsets) - unscored) // window)
        first_D = np.concatenate([[0], np.cumsum(windows_D)])  # first window of each piece
        piece_W = np.repeat(np.arange(len(windows_D)), windows_D)
        place_W = np.arange(first_D[-1]) - first_D[piece_W]
        self._starts_W = offsets[piece_W] + place_W * window
        self._ends_W = offsets[piece_W + 1]
        self._resets_W = place_W == 0
        self._bounds: NDArray[np.int64] = first_D
        if stop is not None:
            self._bounds = cut(first_D.astype(np.uint64), rows, slack=math.inf)
        self.rows = len(self._bounds) - 1
        self.steps = int(np.diff(self._bounds).max())

    def batch(self, step: int, rows: int) -> EvaluationBatch:
        """Return the windows at `step`, padded with empty rows to `rows` rows."""
        at_B = self._bounds[:-1] + step
        is_read_B = at_B < self._bounds[1:]
        at_B = np.minimum(at_B, len(self._starts_W) - 1)
        start_B = self._starts_W[at_B]
        end_B1 = self._ends_W[at_B][:, None]
        position_BT = start_B[:, None] + np.arange(self._window + 1)
        read_BT = self._bytes.windows(start_B, self._window + 1)
        inside_BT = position_BT < end_B1
        read_BT *= inside_BT
        if self._stop is not None:
            read_BT[position_BT == end_B1] = self._stop
            inside_BT = position_BT <= end_B1
        empty = (0, rows - self.rows)
        bytes_BT = np.pad(read_BT * is_read_B[:, None], (empty, (0, 0)))
        mask_BT = np.pad(inside_BT[:, 1:] & is_read_B[:, None], (empty, (0, 0)))
        reset_B = np.pad(self._resets_W[at_B], empty)
        # Only the step and the row determine a window's number, not the number of empty rows.
        window_B = (np.arange(rows) + step * 2**12).astype(np.uint32)
        return EvaluationBatch(bytes_BT[:, :-1], bytes_BT[:, 1:], mask_BT, reset_B, window_B)
