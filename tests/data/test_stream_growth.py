"""Streams that go on from others: more rows, another window, and still every byte once."""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

from mlstm_jax.data.corpus import Split
from mlstm_jax.data.shards import TRAINING_SLACK, cut
from mlstm_jax.data.stream import Batch, Origin, TrainStream
from tests.data.test_stream import follow, make_split


class Rows(NamedTuple):
    """Of a part of a run."""

    steps: int
    batch: int
    window: int


# 2 rows become 6, these 24; in between only the window changes.
GROWING = (Rows(30, 2, 16), Rows(20, 6, 24), Rows(9, 6, 8), Rows(10**6, 24, 16))


@pytest.fixture
def split(random: np.random.Generator) -> Split:
    return make_split(random.integers(20, 200, 400))


def make_streams(split: Split, parts: Sequence[Rows], **options: Any) -> list[TrainStream]:
    """The streams of the parts of a run, each of which goes on from the one before."""
    shard_layout = (parts[-1].batch, max(part.window for part in parts))
    made: list[TrainStream] = []
    step = 0
    for part in parts:
        stream = TrainStream(
            split, batch=part.batch, window=part.window, shard_layout=shard_layout, **options
        )
        if made:
            stream.continue_from(made[-1], step)
        made.append(stream)
        step += part.steps
    return made


def read(streams: Sequence[TrainStream], parts: Sequence[Rows], epochs: int) -> list[list[bytes]]:
    """Return the texts of each whole epoch, from the first, as the carries meet them.

    A text goes from a reset to the next one; where rows change, row j's goes on in row k·j.
    """
    found: list[list[bytes]] = []
    rows: list[list[bytes]] = [[] for _ in range(parts[0].batch)]
    step = last = targets = 0
    for stream, part in zip(streams, parts, strict=True):
        growth = part.batch // len(rows)
        rows = [rows[row // growth] if row % growth == 0 else [] for row in range(part.batch)]
        last += part.steps
        while step < last and stream.epoch(step) < epochs:
            assert stream.bytes_seen(step) == targets
            follow(rows, stream.batch(step))
            targets += int(stream.batch(step).targets_B.sum())
            step += 1
            if stream.epoch(step) == len(found) + 1:
                found.append(sorted(chain(*rows)))
                rows = [[] for _ in rows]
        assert stream.bytes_seen(step) == targets
    return found


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("first", [1, 30, 67, 400], ids="first={}".format)
def test_every_byte_is_read_once_an_epoch_whoever_reads_it(split, first, shuffle):
    """Whether rows change in the first epoch or, after 400 steps, in a later one."""
    window = 128 if first == 400 else 16
    parts = (Rows(first, 2, window), *GROWING[1:])
    streams = make_streams(split, parts, shards=72, shuffle=shuffle, seed=7)
    assert {stream.shards for stream in streams} <= {24, 48, 72}
    bounds = cut(split.offsets, streams[0].shards, slack=TRAINING_SLACK)
    shards = sorted(split.bytes[a:b].tobytes() for a, b in pairwise(bounds))
    epochs = 3 if first == 400 else 2
    assert streams[1].epoch(first) > epochs - 2
    assert read(streams, parts, epochs) == [shards] * epochs


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "parts",
    [
        (Rows(37, 2, 8), Rows(11, 6, 24), Rows(5, 6, 8), Rows(10**6, 24, 16)),
        *((Rows(10**6, batch, 8),) for batch in (1, 7, 180)),  # without a change of rows
    ],
)
def test_with_a_stop_every_document_is_read_once_to_it(parts, shuffle) -> None:
    lengths = [8, 16, 7, 9, 1, 40] * 30
    split = make_split(lengths)
    streams = make_streams(split, parts, shuffle=shuffle, stop=3)
    text, ends = split.bytes[:].tobytes(), np.cumsum(lengths)
    whole = sorted(text[e - n : e] + b"\x03" for e, n in zip(ends, lengths, strict=True))
    assert read(streams, parts, 2) == [whole] * 2


COMPARED = ("inputs_BT", "targets_BT", "reset_B", "targets_B")


def same(found: Batch, expected: Batch) -> None:
    """Assert that two batches are the same, the weight apart."""
    for name in COMPARED:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("step", [1, 50, 93, 180])
def test_an_old_row_reads_on_as_if_nothing_had_changed(split: Split, step: int) -> None:
    before, after = make_streams(split, (Rows(step, 4, 16), Rows(9, 12, 16)), shards=24)
    goes_on = np.full(4, True)
    for later in range(step, before.steps_per_epoch):
        alone, more = before.batch(later), after.batch(later)
        goes_on &= ~alone.reset_B
        goes_on &= alone.targets_B > 0
        for name in COMPARED:
            found, expected = getattr(more, name)[::3], getattr(alone, name)
            np.testing.assert_array_equal(found[goes_on], expected[goes_on])
        if later == step:
            assert goes_on.any()
            np.testing.assert_array_equal(more.reset_B[::3], alone.reset_B)
            assert more.reset_B.reshape(4, 3)[:, 1:].all()


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_same_rows_in_two_parts_are_one_stream(split: Split, shuffle: bool) -> None:
    for step in (1, 77):
        parts = (Rows(step, 4, 32), Rows(9, 4, 32))
        before, after = make_streams(split, parts, shards=24, shuffle=shuffle)
        for later in range(step, 2 * before.steps_per_epoch + 3):
            same(after.batch(later), before.batch(later))
            assert after.bytes_seen(later) == before.bytes_seen(later)
            assert after.epoch(later) == pytest.approx(before.epoch(later))


def test_the_next_epoch_has_the_order_of_the_new_batch(split: Split) -> None:
    before, after = make_streams(split, (Rows(50, 4, 16), Rows(9, 12, 16)), shards=24, shuffle=True)
    alone = TrainStream(split, batch=12, window=16, shards=24, shuffle=True)
    step = next(step for step in range(50, 1000) if after.epoch(step) == 1)
    assert after.epoch(50) == before.epoch(50)
    for number in range(alone.steps_per_epoch + 1):
        same(after.batch(step + number), alone.batch(alone.steps_per_epoch + number))
    assert after.bytes_seen(step) == before.bytes_seen(before.steps_per_epoch)
    # At the border of two epochs nothing is begun that could go on.
    end = before.steps_per_epoch
    _, after = make_streams(split, (Rows(end, 4, 16), Rows(9, 12, 16)), shards=24, shuffle=True)
    assert after.epoch(end) == 1
    same(after.batch(end), alone.batch(alone.steps_per_epoch))


def test_a_step_can_be_asked_for_at_once_and_by_rows(split: Split) -> None:
    parts = (*GROWING[:3], Rows(1000, 24, 16))
    streams = make_streams(split, parts, shards=72, labels="ratings")
    walked = {step: streams[-1].batch(step) for step in range(59, 120)}
    asked = make_streams(split, parts, shards=72, labels="ratings")[-1]
    for step in (119, 59, 60, 88):
        pieces = [asked.batch(step, slice(start, start + 6)) for start in range(0, 24, 6)]
        for name in Batch._fields:
            joined = np.concatenate([getattr(piece, name) for piece in pieces])
            np.testing.assert_array_equal(joined, getattr(walked[step], name))


def test_where_rows_went_on_is_known_by_a_checksum(split: Split) -> None:
    def origin(*parts: Rows) -> Origin:
        return make_streams(split, (*parts, Rows(9, 12, 16)), shards=24)[-1].origin

    # As many steps and bytes: only the places differ.
    one = origin(Rows(9, 2, 16), Rows(9, 4, 16))
    other = origin(Rows(9, 1, 32), Rows(9, 4, 16))
    assert one == origin(Rows(9, 2, 16), Rows(9, 4, 16))
    assert one[:1] + one[2:3] == other[:1] + other[2:3]
    assert one.places != other.places


def test_other_shards_or_fewer_rows_cannot_go_on(split: Split) -> None:
    four = TrainStream(split, batch=4, window=16, shards=24)
    for batch, shards in ((12, 36), (2, 24), (6, 24)):
        other = TrainStream(split, batch=batch, window=16, shards=shards)
        with pytest.raises(ValueError, match=f"{batch} rows of {shards} shards cannot continue"):
            other.continue_from(four, 5)
