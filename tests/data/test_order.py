"""Orders of shards: shuffled, each row keeps its own."""

from itertools import pairwise

import numpy as np

from mlstm_jax.data import shards as orders
from mlstm_jax.data.shards import Order

WINDOW = 8


def make_order(random: np.random.Generator, *, batch: int = 4, shards: int = 13) -> Order:
    """Rows of shards of very different lengths, some of them empty."""
    lengths = random.integers(0, 12, batch * shards) * random.integers(1, 12, batch * shards)
    return orders.regular(np.concatenate([[0], np.cumsum(lengths)]), batch, WINDOW)


def shards_of(order: Order, row: int) -> list[tuple[int, int]]:
    """A row's shards that are not empty, in reading order: where they start and end."""
    pairs = zip(order.starts_BK[row].tolist(), order.lengths_BK[row].tolist(), strict=True)
    return [(start, start + length) for start, length in pairs if length]


def test_shuffled_rows_keep_their_own_shards(random: np.random.Generator) -> None:
    order = make_order(random)
    first, second = (orders.shuffled(order, WINDOW, [3, epoch]) for epoch in (0, 1))
    assert first.windows == order.windows
    for row in range(4):
        assert sorted(shards_of(first, row)) == shards_of(order, row)
        assert shards_of(first, row) != shards_of(second, row)
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(shards_of(first, row))))
