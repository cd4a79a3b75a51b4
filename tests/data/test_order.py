"""Orders of shards: what is left of an epoch is shared out whole, and about evenly."""

from itertools import pairwise

import numpy as np
import pytest

from mlstm_jax.data import shards as orders
from mlstm_jax.data.shards import Order

WINDOW = 8


def make_order(random: np.random.Generator, *, batch: int = 4, pieces: int = 13) -> Order:
    """Rows of pieces of very different lengths, some of them empty."""
    lengths = random.integers(0, 12, batch * pieces) * random.integers(1, 12, batch * pieces)
    return orders.regular(np.concatenate([[0], np.cumsum(lengths)]), batch, WINDOW)


def pieces_of(order: Order, row: int) -> list[tuple[int, int]]:
    """A row's pieces that are not empty, in reading order: where they start and end."""
    pairs = zip(order.starts_BK[row].tolist(), order.lengths_BK[row].tolist(), strict=True)
    return [(start, start + length) for start, length in pairs if length]


def left_of(order: Order, row: int, step: int) -> list[tuple[int, int]]:
    """The same after `step` windows, counted out one by one."""
    left = []
    for start, end in pieces_of(order, row):
        windows = min(step, -(-(end - start) // WINDOW))
        step -= windows
        if start + windows * WINDOW < end:
            left.append((start + windows * WINDOW, end))
    return left


@pytest.mark.parametrize("growth", [1, 2, 3, 8])
@pytest.mark.parametrize("new_window", [WINDOW, 3, 20])
def test_what_is_left_is_shared_out_in_reading_order(growth, new_window, random):
    for step in (1, 7, 20, 35, 50):
        order = make_order(random)
        if step >= order.windows:
            continue
        shared, continues_B = orders.redistribute(
            order, step, WINDOW, growth=growth, new_window=new_window
        )
        starts = {start for row in range(4) for start, _ in pieces_of(order, row)}
        for row in range(4):
            left = left_of(order, row, step)
            family = [pieces_of(shared, row * growth + n) for n in range(growth)]
            assert sorted(piece for one in family for piece in one) == sorted(left)
            assert all(one == sorted(one) for one in family)
            is_inside = bool(left) and left[0][0] not in starts
            assert continues_B[row * growth] == is_inside
            if is_inside:
                assert family[0][0] == left[0]
            assert not continues_B[row * growth + 1 : (row + 1) * growth].any()
            windows = [sum(-(-(b - a) // new_window) for a, b in one) for one in family]
            longest = max((-(-(b - a) // new_window) for a, b in left), default=0)
            assert max(windows) - min(windows) <= longest
        assert shared.windows == max(
            sum(-(-(b - a) // new_window) for a, b in pieces_of(shared, row))
            for row in range(4 * growth)
        )


def test_shuffled_rows_keep_their_own_pieces(random: np.random.Generator) -> None:
    order = make_order(random)
    first, second = (orders.shuffled(order, WINDOW, [3, epoch]) for epoch in (0, 1))
    assert first.windows == order.windows
    for row in range(4):
        assert sorted(pieces_of(first, row)) == pieces_of(order, row)
        assert pieces_of(first, row) != pieces_of(second, row)
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(pieces_of(first, row))))
