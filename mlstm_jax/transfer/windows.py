"""Which bytes of which texts each window reads.

Each row of a window reads one text. A row whose text ends is given the next text at once, the
longest first; when fewer texts are left than rows, the rest is read in fewer rows.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MOST_PADDING = 1 / 8  # of a window's bytes; else the window is a short one


class TextWindow(NamedTuple):
    """The next bytes of some texts, one in each row."""

    bytes_BT: NDArray[np.uint8]  # T + 1 of them; zero after the end of a text
    # How many of the first T bytes belong to the text, how many of the bytes after each of these
    # do, and whether the text begins here.
    counts_B3: NDArray[np.int32]


class ReadStep(NamedTuple):
    """A window, and which texts it reads."""

    window: TextWindow
    kept_B: NDArray[np.intp] | None  # the rows of the step before that go on, if fewer do
    text_B: NDArray[np.int64]  # which text each row reads; -1: none
    place_B: NDArray[np.int64]  # where in it the window begins
    ended: NDArray[np.intp]  # rows whose text ends here

    @property
    def bytes(self) -> int:
        """How many bytes are read."""
        return int(self.window.counts_B3[:, 0].sum())


def _least(sizes: Sequence[int], count: int) -> int:
    """The smallest size that has room for `count` rows, or else the largest."""
    return next((size for size in sizes if size >= count), sizes[-1])


class _Turn(NamedTuple):
    """Which bytes of which texts a window reads; [B] where not said."""

    width: int  # T
    kept_B: NDArray[np.intp] | None  # see `ReadStep`
    text_B: NDArray[np.int64]
    place_B: NDArray[np.int64]
    starts_B: NDArray[np.bool_]  # whether the text begins here
    rest_B: NDArray[np.int64]  # how many bytes of the text are not read yet; 0 without a text


def _schedule(
    length_N: NDArray[np.int64], sizes: Sequence[int], widths: Sequence[int]
) -> Iterator[_Turn]:
    """Yield what each window of `read_steps` reads, of texts of these lengths."""
    order = np.argsort(-length_N, kind="stable")
    waiting = deque(order[length_N[order] > 0].tolist())
    text_B = np.full(_least(sizes, len(waiting)), -1)
    place_B = np.zeros(len(text_B), np.int64)
    while waiting or (text_B >= 0).any():
        starts_B = np.zeros(len(text_B), bool)
        for row in np.flatnonzero(text_B < 0)[: len(waiting)]:
            text_B[row] = waiting.popleft()
            place_B[row] = 0
            starts_B[row] = True
        kept_B = None
        count = int(np.count_nonzero(text_B >= 0))
        size = _least(sizes, count)
        if size < len(text_B):
            kept_B = np.argsort(text_B < 0, kind="stable")[:size]  # rows with a text first
            text_B = text_B[kept_B]
            place_B = place_B[kept_B]
            starts_B = starts_B[kept_B]
        rest_B = np.where(text_B >= 0, length_N[text_B] - place_B, 0)
        width = widths[0]
        for wider in widths[1:]:
            padding_B = np.maximum(wider - rest_B[text_B >= 0], 0)
            if padding_B.mean() <= _MOST_PADDING * wider:
                width = wider
        yield _Turn(width, kept_B, text_B.copy(), place_B, starts_B, rest_B)
        text_B[rest_B <= width] = -1
        place_B = place_B + width


def _lengths(texts: Sequence[bytes]) -> NDArray[np.int64]:
    return np.array([len(text) for text in texts], np.int64)


def read_steps(
    texts: Sequence[bytes], sizes: Sequence[int], widths: Sequence[int]
) -> Iterator[ReadStep]:
    """Yield the windows that read all texts, the longest first; empty texts are left out.

    `sizes` are numbers of rows, and `widths` numbers of bytes T to choose from, both rising.
    """
    for width, kept_B, text_B, place_B, starts_B, rest_B in _schedule(
        _lengths(texts), sizes, widths
    ):
        bytes_BT = np.zeros((len(text_B), width + 1), np.uint8)
        for row in np.flatnonzero(text_B >= 0):
            piece = texts[text_B[row]][place_B[row] : place_B[row] + width + 1]
            bytes_BT[row, : len(piece)] = np.frombuffer(piece, np.uint8)
        read_B = np.clip(rest_B, 0, width)
        scored_B = np.clip(rest_B - 1, 0, width)
        counts_B3 = np.stack([read_B, scored_B, starts_B], axis=1).astype(np.int32)
        ended = np.flatnonzero((text_B >= 0) & (rest_B <= width))
        yield ReadStep(TextWindow(bytes_BT, counts_B3), kept_B, text_B, place_B, ended)


def cheapest_rows(
    texts: Sequence[bytes],
    sizes: Sequence[int],
    widths: Sequence[int],
    weights_cost: float,
    *,
    margin: float = 0.0,
) -> Sequence[int]:
    """Return the sizes up to the number of rows with which reading the texts costs least.

    Many rows multiply faster, but wait for the longest texts. Only sizes of at least a sixteenth of
    the texts are tried: of more texts the schedule itself would take time. Sizes are left out, so
    that fewer programs are compiled, as long as all of that adds at most `margin` of the cost.
    """
    length_N = _lengths(texts)

    def places(tried: Sequence[int]) -> Counter[int]:
        """How many bytes of each row are read with each number of rows."""
        read = Counter[int]()
        for turn in _schedule(length_N, tried, widths):
            read[len(turn.text_B)] += turn.width
        return read

    def cost(read: Counter[int]) -> float:
        return sum((rows + weights_cost) * width for rows, width in read.items())

    most = sizes.index(_least(sizes, len(texts))) + 1
    tried = [sizes[:n] for n in range(1, most + 1) if sizes[n - 1] * 16 >= len(texts)]
    best = sizes[:most]
    if len(tried) > 1:
        best = min(tried, key=lambda one: cost(places(one)))
    if not margin:
        return best
    read = places(best)
    left = margin * cost(read)
    while len(read) > 1:
        # Rows that wait in a larger size; the windows stay the same.
        added, size, larger = min((read[a] * (b - a), a, b) for a, b in pairwise(sorted(read)))
        if added > left:
            break
        left -= added
        read[larger] += read.pop(size)
    return sorted(read) or best
