"""Phases of growing batches: old rows go on with their carry, and the run is exact on resume."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mlstm_jax import digest
from mlstm_jax.checkpoints.meta import FILE, FOLDER, ITEM, steps_in
from mlstm_jax.config import Config, Data, Devices, Optimizer, Phase, Train
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.errors import UserError
from mlstm_jax.training import loop, metrics
from mlstm_jax.training.phases import checkpoint_meta, resolve_phases
from tests.tolerance import assert_close
from tests.training.runs import assert_same_run, final_state, lines_without_time, make_config

PHASES = (Phase(steps=30, batch=4, window=16), Phase(steps=30, batch=8, window=32))


# Of an update: 8 rows of 32 steps, and the products of 48 units and 16 inputs, there and back.
TERMS = 8 * 32 + 2 * (2 * 48 + 16)


def growing(corpus: Path, out: Path, phases: tuple[Phase, ...] = PHASES, **sections: Any) -> Config:
    values: dict[str, Any] = {
        "data": Data(corpus=str(corpus), shards=32, shuffle_shards=True, batch=8, window=32),
        "optimizer": Optimizer(learning_rate=5e-3, decay_steps=1000, scaling="sqrt", base_batch=4),
        "train": Train(log_every=5, eval_every=60, checkpoint_every=10, keep_checkpoints=9),
        "devices": Devices(count=1),
    }
    config = make_config(corpus, out, **(values | sections))
    return dataclasses.replace(config, phases=phases)


@pytest.fixture(scope="module")
def straight(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight") / "run"
    loop.train(growing(corpus, folder))
    return folder


def keep_to(source: Path, step: int, folder: Path) -> Path:
    """Copy a run as it was when it had come to `step`."""
    shutil.copytree(source, folder)
    for later in steps_in(folder):
        if later > step:
            shutil.rmtree(folder / FOLDER / str(later))
    return folder


def test_a_run_of_growing_batches_is_one_run(corpus: Path, straight: Path) -> None:
    lines = metrics.read_metrics(straight / "metrics.jsonl")
    events = [line for line in lines if line["kind"] == "event"]
    assert [line["event"] for line in events] == ["phase", "finished"]
    note = "step 30: the next phase, 4 rows continue, 4 begin at shard starts"
    assert events[0]["notes"] == [note]
    train = [line for line in lines if line["kind"] == "train"]
    assert train[-1]["bytes_seen"] == 30 * 4 * 16 + 30 * 8 * 32
    assert np.diff([line["epoch"] for line in train]).min() > 0
    rates = {line["step"]: line["learning_rate"] for line in train}
    assert rates[30] == pytest.approx(5e-3 * (1 - 29 / 1000))
    assert rates[35] == pytest.approx(5e-3 * 2**0.5 * (1 - 34 / 1000))
    steps = [
        checkpoint_meta(part, open_corpus(corpus), 30)
        for part in resolve_phases(growing(corpus, straight), open_corpus(corpus))
    ]
    assert steps[0].epoch == steps[1].epoch
    assert steps[0].bytes_seen == steps[1].bytes_seen == 30 * 4 * 16


@pytest.mark.parametrize("step", [20, 30, 40])
def test_it_goes_on_before_at_and_after_the_border_as_if_never_stopped(
    step: int, corpus: Path, straight: Path, tmp_path: Path
) -> None:
    folder = keep_to(straight, step, tmp_path / "run")
    loop.train(growing(corpus, folder))
    assert_same_run(folder, straight)


@pytest.mark.slow
def test_old_rows_keep_their_state_where_nothing_is_learned(corpus: Path, tmp_path: Path) -> None:
    """At a rate that changes no parameter, they end as in a run whose rows never changed.

    One byte after the border: a model that has learned nothing forgets within a few.
    """
    still = Optimizer(learning_rate=1e-30, decay_steps=1000)

    def end(*phases: Phase) -> Any:
        folder = tmp_path / str(len(phases))
        loop.train(growing(corpus, folder, phases, optimizer=still))
        return final_state(folder, phases[-1].batch)

    before, alone = end(Phase(steps=21, batch=4, window=1))
    after, more = end(Phase(steps=20, batch=4, window=1), Phase(steps=1, batch=8, window=1))
    changes = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), before.params, after.params)
    assert max(jax.tree.leaves(changes)) < 1e-28
    for old, new in zip(alone, more, strict=True):
        # A product of four rows may add up in another order than one of eight.
        assert_close(new[::2], old, terms=2 * 48 + 16)
        assert np.abs(new[1::2] - old).max() > 0.1 * np.abs(old).max()


def test_a_window_that_grows_keeps_the_carry(corpus: Path, tmp_path: Path) -> None:
    """Two parts of one row number are one stream of bytes, whatever their windows."""
    phases = (Phase(steps=30, batch=4, window=16), Phase(steps=30, batch=4, window=64))
    first, second = resolve_phases(growing(corpus, tmp_path, phases), open_corpus(corpus))
    assert second.growth == 1
    assert second.describe_carry() == "all 4 rows continue"
    long, short = second.stream.batch(30), [first.stream.batch(step) for step in range(30, 34)]
    np.testing.assert_array_equal(
        long.inputs_BT, np.concatenate([one.inputs_BT for one in short], axis=1)
    )
    assert not long.reset_B.any()
    carry = np.arange(8.0).reshape(4, 2)
    np.testing.assert_array_equal(second.begin(carry), carry)


def test_each_process_grows_its_own_rows(corpus: Path, tmp_path: Path) -> None:
    _, part = resolve_phases(growing(corpus, tmp_path), open_corpus(corpus))
    carry = {"h": np.arange(8, dtype=np.float32).reshape(4, 1, 2), "c": np.ones((4, 1, 2))}
    whole = part.begin(carry)
    assert whole["h"].shape == (8, 1, 2)
    assert whole["h"].dtype == np.float32
    np.testing.assert_array_equal(whole["h"][::2], carry["h"])
    np.testing.assert_array_equal(whole["h"][1::2], 0)
    halves = [
        part.begin({name: x[rows] for name, x in carry.items()})
        for rows in (slice(0, 2), slice(2, 4))
    ]
    for name in carry:
        np.testing.assert_array_equal(np.concatenate([half[name] for half in halves]), whole[name])


def test_rows_that_cannot_go_on_begin_anew_and_that_is_said(corpus: Path, tmp_path: Path) -> None:
    phases = (*PHASES, Phase(steps=10, batch=12, window=16), Phase(steps=10, batch=6, window=16))
    parts = resolve_phases(growing(corpus, tmp_path, phases), open_corpus(corpus))
    assert [part.growth for part in parts] == [None, 2, None, None]
    assert parts[2].describe_carry() == (
        "the carry starts from zero, because 12 rows are not a multiple of 8"
    )
    assert parts[2].begin(np.ones((8, 1, 2))) is None
    assert [part.stream.shards for part in parts] == [32, 32, 36, 36]
    assert parts[2].stream.epoch(60) == pytest.approx(parts[1].stream.epoch(60), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("begin", [0, 30])
def test_on_two_devices_it_learns_the_same(
    begin: int, corpus: Path, straight: Path, tmp_path: Path
) -> None:
    """From the first step, or from a checkpoint at the border that one device has written."""
    folder = tmp_path / "run"
    if begin:
        keep_to(straight, begin, folder)
    loop.train(growing(corpus, folder, devices=Devices(count=2)))
    lines, expected = lines_without_time(folder), lines_without_time(straight)
    for line, other in zip(lines, expected, strict=True):
        assert (line["step"], line["bytes_seen"]) == (other["step"], other["bytes_seen"])
        assert_close(line["bpc"], other["bpc"], line["step"] * TERMS)
    (_, carry), (_, alone) = final_state(folder, 8), final_state(straight, 8)
    for found, wanted in zip(carry, alone, strict=True):
        assert_close(found, wanted, 60 * TERMS)


def rewrite_meta(folder: Path, step: int, **fields: Any) -> None:
    """Change what a checkpoint says of itself."""
    file = folder / FOLDER / str(step) / ITEM / FILE
    content = json.loads(file.read_bytes())
    content["meta"] |= fields
    digest.write_json(file, content)


def test_what_an_earlier_version_began_in_another_way_is_not_gone_on_with(
    corpus: Path, straight: Path, tmp_path: Path
) -> None:
    """It began the second phase at shard starts, and its origin says nothing of places."""
    folder = keep_to(straight, 40, tmp_path / "run")
    part = resolve_phases(growing(corpus, folder), open_corpus(corpus))[1]
    assert part.stream.origin.places
    rewrite_meta(folder, 40, origin=list(part.stream.origin[:3]))
    with pytest.raises(UserError, match=r"an earlier version began this phase differently"):
        loop.train(growing(corpus, folder))


def test_another_past_or_another_cut_is_not_gone_on_with(
    corpus: Path, straight: Path, tmp_path: Path
) -> None:
    folder = keep_to(straight, 40, tmp_path / "run")
    shorter = (Phase(steps=20, batch=4, window=16), Phase(steps=60, batch=8, window=32))
    with pytest.raises(UserError, match=r"phases before the checkpoint have changed"):
        loop.train(growing(corpus, folder, shorter))
    more = (*PHASES, Phase(steps=10, batch=24, window=32))
    with pytest.raises(UserError, match=r"not batch 8, .*, cut_into 24; use the same"):
        loop.train(growing(corpus, folder, more))
    # Rows that went on from others have no place of their own in a run without phases.
    train = Train(log_every=5, eval_every=60, checkpoint_every=10, keep_checkpoints=9, steps=60)
    with pytest.raises(UserError, match=r"phases before the checkpoint have changed"):
        loop.train(growing(corpus, folder, (), train=train))
    # A phase to come that leaves the cut as it is can be added.
    loop.train(growing(corpus, folder, (*PHASES, Phase(steps=2, batch=16, window=32))))
    assert steps_in(folder)[-1] == 62
