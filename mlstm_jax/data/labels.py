"""The labels of a split's documents, in the windows of a stream."""

import math

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.data.corpus import Split
from mlstm_jax.data.shards import Int64
from mlstm_jax.errors import UserError


class DocumentLabels:
    """The ratings of a split's documents, each at its last byte; or several labels of each."""

    def __init__(self, split: Split, *, scaled: bool, several: int, each: bool) -> None:
        """Take the labels of a split.

        Args:
            split: with ratings [documents], or [documents, several].
            scaled: to mean 0 and variance 1.
            several: labels of each document; 0: one rating.
            each: a label is also at the last byte of each other window of its document. No window
                has two documents.

        Raises:
            UserError: the split has another number of labels, or not two different ones.
        """
        self._offsets, self._ratings, self._each = split.offsets, split.ratings, each
        ratings = np.zeros(0, np.float32) if split.ratings is None else split.ratings
        known = ratings[~np.isnan(ratings)]
        if ratings.shape[1:] != ((several,) if several else ()):
            raise UserError(
                f"the {split.name} split has {math.prod(ratings.shape[1:])} ratings for each "
                f"document, but the label head needs {several or 1}; use another corpus, or "
                "another head."
            )
        # Summed in float64: there may be a hundred million.
        self._mean = float(np.mean(known, dtype=np.float64)) if len(known) else 0.0
        self._deviation = float(np.std(known, dtype=np.float64)) if len(known) else 0.0
        if not scaled:
            self._mean, self._deviation = 0.0, 1.0
        if not len(known) or not self._deviation:
            raise UserError(
                f"a label head needs ratings, but the {split.name} split has "
                + ("only one distinct rating" if len(known) else "none")
                + "; prepare the corpus with `rating_column`, or leave the head out."
            )

    def of(self, start_B: Int64, inputs_B: Int64, window: int) -> NDArray[np.float32]:
        """Return the labels in the window of each row, float32 [B, T] or [B, T, several]; or NaN.

        Args:
            start_B: first byte of each row's window, from the start of the split.
            inputs_B: how many of the window's bytes are inputs.
            window: T.
        """
        assert self._ratings is not None
        if self._each:
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
        labels_BT = np.full((len(start_B), window, *self._ratings.shape[1:]), np.nan, np.float32)
        labels_BT[row_D, place_D] = (self._ratings[document_D] - self._mean) / self._deviation
        return labels_BT
