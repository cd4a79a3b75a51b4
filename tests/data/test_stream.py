"""Streams: contiguous, disjoint, complete, a pure function of the step."""

import dataclasses
import math
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlstm_jax import digest
from mlstm_jax.data.checked_bytes import CheckedBytes
from mlstm_jax.data.corpus import Split
from mlstm_jax.data.shards import TRAINING_SLACK, cut
from mlstm_jax.data.stream import EvaluationStream, Place, TrainStream, prefetch
from mlstm_jax.errors import UserError
from tests.tolerance import assert_close


def make_split(lengths: Sequence[int]) -> Split:
    """A split whose bytes tell where they are: no window of a few bytes occurs twice."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
    content = np.random.default_rng(0).bytes(int(offsets[-1]))
    ratings = np.random.default_rng(1).choice([1, 2, 5, np.nan], len(lengths)).astype(np.float32)
    with tempfile.NamedTemporaryFile() as file:  # stays open after it is unlinked
        file.write(content)
        file.flush()
        kept = CheckedBytes(Path(file.name), digest.of_blocks(content))
        return Split("train", kept, offsets, ratings)


@pytest.fixture
def split(random: np.random.Generator) -> Split:
    return make_split(random.integers(20, 200, 400))


def follow(rows: list[list[bytes]], batch: Any, targets_B: np.ndarray) -> None:
    """Add what each row reads to its texts: from reset to reset, without a gap between windows."""
    for row, (texts, count) in enumerate(zip(rows, targets_B, strict=True)):
        if not count:  # The row waits.
            continue
        inputs_T = batch.inputs_BT[row]
        targets_T = batch.targets_BT[row]
        if batch.reset_B[row]:
            texts.append(inputs_T[:1].tobytes())
        assert texts[-1][-1] == inputs_T[0]
        np.testing.assert_array_equal(inputs_T[1:count], targets_T[: count - 1])
        texts[-1] += targets_T[:count].tobytes()


def texts_of(stream: TrainStream, steps: range, rows: slice) -> list[list[bytes]]:
    """What each of these rows reads in these steps."""
    found: list[list[bytes]] = [[] for _ in range(rows.start, rows.stop)]
    for step in steps:
        batch = stream.batch(step, rows)
        follow(found, batch, batch.targets_B)
    return found


def shards_of(split: Split, count: int) -> list[bytes]:
    bounds = cut(split.offsets, count, slack=TRAINING_SLACK)
    return [split.bytes[a:b].tobytes() for a, b in pairwise(bounds)]


@pytest.mark.parametrize("batch", [36, 100])
def test_short_shards(split: Split, batch: int) -> None:
    stream = TrainStream(split, batch=batch, window=16, shards=1)
    bounds = cut(split.offsets, stream.shards, slack=TRAINING_SLACK)
    share = len(split.bytes) / stream.shards
    assert np.abs(np.diff(bounds) - share).max() <= 2 * TRAINING_SLACK * share + 1
    # A shard's last window is padded, and its first byte is no target.
    windows = (1 + 2 * TRAINING_SLACK) * share / 16 + 1
    assert stream.steps_per_epoch <= stream.shards // batch * windows
    at_most = 1 - (share - 1) / (windows * 16)
    assert 0 < stream.padding_fraction <= at_most
    # Cut at the nearest documents, the rows would wait far more.
    nearest = np.diff(cut(split.offsets, stream.shards)).reshape(-1, batch).sum(axis=0)
    assert nearest.max() > nearest.mean() * (1 + 2 * TRAINING_SLACK)


@pytest.mark.parametrize(
    "lengths",
    [[9001], [30, 9001, 40, 50], [3000, 200, 3000, 100, 90, 2000], [*range(20, 200)]],
)
def test_cuts(lengths: list[int]) -> None:
    split = make_split(lengths)
    ends = np.asarray(split.offsets, np.int64)
    bounds = cut(split.offsets, 12)
    share = len(split.bytes) / 12
    assert (bounds[0], bounds[-1]) == (0, len(split.bytes))
    assert (np.diff(bounds) >= 0).all()
    assert np.diff(bounds).max() <= 2 * share + 1
    for place, target in zip(bounds, np.arange(13) * len(split.bytes) // 12, strict=True):
        distance = np.abs(ends - target).min()
        if distance > share / 2:
            assert place == target
        else:
            assert place in ends
            assert abs(place - target) == distance
    assert np.isin(cut(split.offsets, 12, slack=math.inf), ends).all()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("lengths", "batch", "shards"), [([40_000], 8, 16), ([90, 140] * 110, 3, 12)]
)
def test_rows(lengths, batch, shards, shuffle) -> None:
    """Also where a single document is an epoch of every row; shuffled, a row keeps its own."""
    split = make_split(lengths)
    stream = TrainStream(split, batch=batch, window=32, shards=shards, shuffle=shuffle)
    assert stream.shards == shards
    assert stream.padding_fraction < 0.05
    parts = shards_of(split, shards)
    rows = texts_of(stream, range(stream.steps_per_epoch), slice(0, batch))
    own = [parts[row::batch] for row in range(batch)]
    assert (rows == own) != shuffle
    assert [*map(sorted, rows)] == [*map(sorted, own)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_epochs(split: Split, shuffle: bool) -> None:
    """However many processes read it; and shuffled, each epoch has another order."""
    how = {"batch": 8, "window": 32, "shards": 16}
    stream = TrainStream(split, **how, shuffle=shuffle)
    size = stream.steps_per_epoch
    orders = []
    for epoch, processes in ((0, 1), (1, 2), (2, 4)):
        steps = range(epoch * size, (epoch + 1) * size)
        share = 8 // processes
        found = []
        for start in range(0, 8, share):
            for row in texts_of(stream, steps, slice(start, start + share)):
                found += row
        assert sorted(found) == sorted(shards_of(split, 16))
        orders.append(found)
    assert (orders[0] != orders[1] != orders[2] != orders[0]) == shuffle
    targets = len(split.bytes) - 16
    assert stream.bytes_seen(3 * size) == 3 * targets
    own = TrainStream(split, **how, targets_are_inputs=True)
    assert own.bytes_seen(own.steps_per_epoch) == len(split.bytes)  # a shard's first byte, too
    assert stream.bytes_seen(size + 1) - targets == 8 * 32


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch", [1, 7, 60])
def test_documents_apart(batch: int, shuffle: bool) -> None:
    lengths = [8, 16, 7, 9, 2, 40] * 10
    split = make_split(lengths)
    stream = TrainStream(split, batch=batch, window=8, shuffle=shuffle, per_document=True)
    text = split.bytes[:].tobytes()
    whole = sorted(text[a:b] for a, b in pairwise(split.offsets.tolist()))
    for epoch in range(2):
        steps = range(epoch * stream.steps_per_epoch, (epoch + 1) * stream.steps_per_epoch)
        rows = texts_of(stream, steps, slice(0, batch))
        assert sorted(text for row in rows for text in row) == whole


def test_start(split: Split) -> None:
    """At step 40 it reads what one from the start reads after 1.3 epochs."""
    options = {"batch": 4, "window": 16, "shards": 24, "shuffle": True}
    whole = TrainStream(split, **options)
    read = round(1.3 * whole.steps_per_epoch)
    later = TrainStream(split, **options, start=Place(40, 1.3, 1000))
    assert later.epoch(40) == whole.epoch(read) == pytest.approx(1.3, abs=0.01)
    for step in range(0, whole.steps_per_epoch, 7):
        assert later.bytes_seen(40 + step) - 1000 == (
            whole.bytes_seen(read + step) - whole.bytes_seen(read)
        )
        for found, expected in zip(later.batch(40 + step), whole.batch(read + step), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_weights() -> None:
    """And each batch tells which part of its rows still read."""
    # The first row's shards are twice as long as the others', of 30 documents each.
    split = make_split([100 if n % 4 == 0 else 50 for n in range(120)])
    stream = TrainStream(split, batch=4, window=16, per_document=True)
    found = set()
    for step in range(stream.steps_per_epoch):
        got = stream.batch(step)
        (weight,) = set(got.weight_B)
        (fraction,) = set(got.active_fraction_B)
        assert weight * got.targets_B.sum() / (4 * 16) == pytest.approx(1)
        assert fraction == np.count_nonzero(got.targets_B) / 4
        found.add(float(fraction))
    assert found == {0.25, 1.0}


def test_ratings(split: Split) -> None:
    window = 48  # longer than many documents: several end in one
    stream = TrainStream(split, batch=4, window=window, shards=8, labels="ratings")
    at_end = np.full(len(split.bytes), np.nan)
    at_end[split.offsets[1:].astype(int) - 1] = split.ratings
    known = split.ratings[~np.isnan(split.ratings)].astype(np.float64)
    text = split.bytes[:].tobytes() + bytes(window + 1)
    found = []
    several = False
    for step in range(stream.steps_per_epoch):
        batch = stream.batch(step)
        for inputs_T, labels_T in zip(batch.inputs_BT, batch.labels_BT, strict=True):
            (places,) = np.nonzero(~np.isnan(labels_T))
            several |= len(places) > 1
            if len(places):  # else the row may wait
                start = text.index(inputs_T.tobytes())
                found += [(start + place, labels_T[place]) for place in places]
    assert several
    # Each once: none past the end of a shard, and none while a row waits.
    places, labels = zip(*sorted(found), strict=True)
    np.testing.assert_array_equal(places, np.flatnonzero(~np.isnan(at_end)))
    # A difference and a quotient in float32.
    assert_close(np.array(labels), (known - known.mean()) / known.std(), terms=4)


def test_labels_of_documents_apart(split: Split) -> None:
    stream = TrainStream(split, batch=4, window=48, labels="classes", per_document=True)
    offsets = split.offsets.astype(int)
    text = split.bytes[:].tobytes() + bytes(49)
    read = np.zeros(len(split.bytes), int)
    for step in range(stream.steps_per_epoch):
        batch = stream.batch(step)
        for row in np.flatnonzero(~np.isnan(batch.labels_BT).all(axis=1)):
            start = text.index(batch.inputs_BT[row].tobytes())
            document = int(np.searchsorted(offsets, start, "right")) - 1
            assert (start - offsets[document]) % 48 == 0
            assert batch.reset_B[row] == (start == offsets[document])
            end = min(start + 48, offsets[document + 1])
            read[start:end] += 1
            assert batch.targets_B[row] == min(48, offsets[document + 1] - 1 - start)
            labels_T = batch.labels_BT[row]
            (place,) = np.flatnonzero(~np.isnan(labels_T))
            assert start + place == end - 1
            assert labels_T[place] == split.ratings[document]
    rated = np.repeat(~np.isnan(split.ratings), np.diff(offsets))
    np.testing.assert_array_equal(read, rated)


def test_too_little(split) -> None:
    # A small corpus gets fewer shards.
    shards = TrainStream(split, batch=4, window=16, shards=1000).shards
    assert shards < 1000
    assert shards % 4 == 0
    TrainStream(make_split([17]), batch=1, window=16, targets_are_inputs=True).batch(0)
    # Documents one by one need no whole window.
    few = TrainStream(make_split([3, 4]), batch=2, window=32, per_document=True).batch(0)
    np.testing.assert_array_equal(few.targets_B, [2, 3])
    for lengths, batch, window, how, message in (
        ([50] * 4, 8, 8, {"per_document": True}, "4 documents, too"),
        ([100] * 10, 64, 512, {}, "too few for 64 rows of 512 bytes"),
        ([16], 1, 16, {"targets_are_inputs": True}, "16 bytes in 1 documents, too few"),
    ):
        with pytest.raises(UserError, match=message):
            TrainStream(make_split(lengths), batch=batch, window=window, **how)
    with pytest.raises(UserError, match="too few to score"):
        EvaluationStream(make_split([]), window=8)


@pytest.mark.parametrize("ratings", [None, np.full(2, 3, np.float32)])
def test_too_few_ratings(ratings: Any) -> None:
    split = dataclasses.replace(make_split([2000, 3000]), ratings=ratings)
    with pytest.raises(UserError, match="two different ones, in the train"):
        TrainStream(split, batch=1, window=16, labels="ratings")


@pytest.mark.parametrize(
    ("lengths", "pieces"),
    # A long document is cut, a short one never.
    [([*range(20, 200)], 16), ([8192], 16), ([8191], 1), ([2], 1), ([5, 1], 2), ([1000, 1, 1], 2)],
)
def test_evaluation(lengths, pieces) -> None:
    split = make_split(lengths)
    stream = EvaluationStream(split, window=8)
    rows: list[list[bytes]] = [[] for _ in range(20)]
    scored = 0
    for step in range(stream.steps):
        batch = stream.batch(step, rows=20)
        targets_B = batch.mask_BT.sum(axis=1)
        scored += targets_B.sum()
        follow(rows, batch, targets_B)
    data = split.bytes[:].tobytes()
    read = b""
    for row in rows[:pieces]:
        assert len(row) <= 1
        read += b"".join(row) or data[len(read) :][:1]  # of one byte nothing is scored
    assert read == data
    assert rows[pieces:] == [[]] * (20 - pieces)
    assert scored == stream.scored == len(data) - pieces


def test_prefetch() -> None:
    made = []

    def make(step: int) -> str:
        made.append(step)
        if step == 9:
            raise ValueError("no more")
        return str(step)

    assert list(prefetch(make, range(3, 9))) == ["3", "4", "5", "6", "7", "8"]
    assert list(prefetch(make, range(5, 5))) == []
    assert made == [3, 4, 5, 6, 7, 8]
    steps = prefetch(make, range(8, 99))
    assert next(steps) == "8"
    with pytest.raises(ValueError, match="no more"):
        next(steps)
