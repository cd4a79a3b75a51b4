"""Texts of any length, read one window at a time in batches of one shape.

Every reader of texts uses it, so that one compiled program serves all texts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.progress import ProgressLine


class Window(NamedTuple):
    """The next bytes of a batch of texts."""

    bytes_BT: NDArray[np.uint8]  # zero after the end of a text
    left_B: NDArray[np.int32]  # how many of the T bytes belong to the text
    next_BT: NDArray[np.uint8]  # the byte after each
    scored_B: NDArray[np.int32]  # how many of these belong to the text


def reading_line(name: str | None, size: int) -> ProgressLine:
    """Return a progress line of the bytes to read, with a name; without one it shows nothing."""
    return ProgressLine(name or "", size, of_bytes=True, quiet=name is None)


def batches(texts: Sequence[bytes], rows: int) -> Iterator[NDArray[np.intp]]:
    """Yield indices of texts of similar length, at most `rows` at a time, the shortest first."""
    order = np.argsort([len(text) for text in texts], kind="stable")
    for start in range(0, len(order), rows):
        yield order[start : start + rows]


def windows(texts: Sequence[bytes], rows: int, width: int) -> Iterator[Window]:
    """Yield the windows of at most `rows` texts, `width` bytes each, until all are read.

    Rows without a text are empty; a batch of only empty texts has no window.
    """
    length_B = np.zeros(rows, np.int32)
    length_B[: len(texts)] = [len(text) for text in texts]
    for at in range(0, int(length_B.max(initial=0)), width):
        bytes_BT = np.zeros((rows, width + 1), np.uint8)
        for row, text in enumerate(texts):
            piece = text[at : at + width + 1]
            bytes_BT[row, : len(piece)] = np.frombuffer(piece, np.uint8)
        left_B, scored_B = np.clip(length_B - at, 0, width), np.clip(length_B - at - 1, 0, width)
        yield Window(bytes_BT[:, :width], left_B, bytes_BT[:, 1:], scored_B)
