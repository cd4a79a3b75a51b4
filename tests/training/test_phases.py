"""Phases: old rows go on with their carry where they can, and the run is exact on resume."""

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mlstm_jax import cli, digest
from mlstm_jax.checkpoint import FILE, FOLDER, ITEM, steps_in
from mlstm_jax.config import Config, Data, Devices, Optimizer, Phase, vary
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.errors import UserError
from mlstm_jax.training import loop, optimizer, schedule
from mlstm_jax.training.phases import ResolvedPhase, checkpoint_meta, resolve_phases
from mlstm_jax.training.schedule import Segment
from tests.tolerance import assert_close
from tests.training.runs import (
    assert_same_run,
    copy_until,
    finish,
    lines_of,
    make_config,
    short,
    start,
    wait_for_step,
)

# 4 rows of which 8 come, then 12, which begin anew, with a learning rate of their own.
GROWING = (Phase(steps=20, batch=4, window=16), Phase(steps=20, batch=8, window=32))
PHASES = (*GROWING, Phase(steps=20, batch=12, window=8, learning_rate=2e-3, warmup_steps=5))
# Of an update: 8 rows of 32 steps, and the products of 48 units and 16 inputs, there and back.
TERMS = 8 * 32 + 2 * (2 * 48 + 16)


def phased(corpus: Path, out: Path, phases: tuple[Phase, ...] = PHASES, **changes: Any) -> Config:
    config = make_config(
        corpus,
        out,
        data=Data(corpus=str(corpus), shards=32, shuffle_shards=True, batch=8, window=32),
        optimizer=Optimizer(learning_rate=5e-3, decay_steps=1000, scaling="sqrt", base_batch=4),
        train=short(eval_every=60, checkpoint_every=10, keep_checkpoints=9),
        devices=Devices(count=1),
        phases=phases,
    )
    return vary(config, **changes)


def resolved(corpus: Path, *phases: Phase) -> list[ResolvedPhase]:
    return resolve_phases(phased(corpus, Path("unused"), phases), open_corpus(corpus))


@pytest.fixture(scope="module")
def straight(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return loop.train(phased(corpus, tmp_path_factory.mktemp("straight") / "run"))


def test_phases_are_one_run(corpus: Path, straight: Path) -> None:
    lines = lines_of(straight)
    assert [line["step"] for line in lines["train"]] == list(range(5, 61, 5))
    assert [line["step"] for line in lines["eval"]] == [20, 40, 60]
    assert [line["event"] for line in lines["event"]] == ["phase", "phase", "finished"]
    growth, reset = (line["notes"][0] for line in lines["event"][:2])
    assert growth == "step 20: the next phase, 4 rows continue, 4 begin at shard starts"
    assert reset.endswith("the carry starts from zero, because 12 rows are not a multiple of 8")
    seen = np.diff([0, *(line["bytes_seen"] for line in lines["train"])])
    np.testing.assert_array_equal(seen, np.repeat([5 * 4 * 16, 5 * 8 * 32, 5 * 12 * 8], 4))
    assert np.diff([line["epoch"] for line in lines["train"]]).min() > 0
    # One line that falls to zero at step 1000, √2 times as high where there are twice the rows.
    # Then √3 times as high a peak, at the last of five updates; fifteen more would be zero.
    expected = [5e-3 * (1 - n / 1000) for n in (4, 9, 14, 19)]
    expected += [2**0.5 * 5e-3 * (1 - n / 1000) for n in (24, 29, 34, 39)]
    expected += [3**0.5 * 2e-3 * (1 - n / 15) for n in (0, 4, 9, 14)]
    # Eight operations in float32, one after the other.
    assert_close(
        np.array([line["learning_rate"] for line in lines["train"]]), np.array(expected), terms=8
    )
    whole = open_corpus(corpus)
    one, two = (checkpoint_meta(part, whole, 20) for part in resolved(corpus, *GROWING))
    assert one.epoch == two.epoch
    assert one.bytes_seen == two.bytes_seen == 20 * 4 * 16


@pytest.mark.parametrize("step", [10, 20, 30, 40])
def test_it_resumes_before_at_and_after_a_border_as_if_never_stopped(
    step, corpus, straight, tmp_path, monkeypatch
) -> None:
    changes, real = [], optimizer.rescale_second_moment

    def seen(chosen: Optimizer, state: Any, before: int | None, now: int) -> Any:
        changes.append((before, now))
        return real(chosen, state, before, now)

    monkeypatch.setattr(optimizer, "rescale_second_moment", seen)
    folder = copy_until(straight, step, tmp_path / "run")
    loop.train(phased(corpus, folder))
    assert_same_run(folder, straight, batch=12)
    # The optimizer is told of the bytes of its updates, also where a session begins at a border.
    updates = {10: (64, 64), 20: (64, 256), 30: (256, 256), 40: (256, 96)}
    assert changes[0] == updates[step]
    assert changes[-1] == (256, 96)


def test_a_phase_goes_on_in_the_text_where_the_last_has_ended(corpus: Path) -> None:
    """If its rows are not those of the last phase and some more, near there, at shard starts."""
    parts = resolved(corpus, *PHASES, Phase(steps=10, batch=6, window=16))
    assert [(part.first, part.last) for part in parts] == [(0, 20), (20, 40), (40, 60), (60, 70)]
    assert [part.growth for part in parts] == [None, 2, None, None]
    assert parts[2].begin(np.ones((8, 1, 2))) is None
    assert [part.stream.shards for part in parts] == [32, 32, 36, 36]
    for before, after in ((parts[1], parts[2]), (parts[2], parts[3])):
        epoch = before.stream.epoch(before.last)
        assert after.stream.epoch(after.first) == pytest.approx(epoch, rel=0.05)
    assert parts[1].stream.bytes_seen(40) == 20 * 4 * 16 + 20 * 8 * 32
    assert parts[1].stream.batch(20).inputs_BT.shape == (8, 32)


def test_a_window_that_grows_keeps_the_carry(corpus: Path) -> None:
    """Two parts of one row number are one stream of bytes, whatever their windows."""
    first, second = resolved(
        corpus, Phase(steps=30, batch=4, window=16), Phase(steps=30, batch=4, window=64)
    )
    assert second.growth == 1
    assert second.describe_carry() == "all 4 rows continue"
    long, parts = second.stream.batch(30), [first.stream.batch(step) for step in range(30, 34)]
    np.testing.assert_array_equal(
        long.inputs_BT, np.concatenate([one.inputs_BT for one in parts], axis=1)
    )
    assert not long.reset_B.any()
    carry = np.arange(8.0).reshape(4, 2)
    np.testing.assert_array_equal(second.begin(carry), carry)


def test_each_process_grows_its_own_rows(corpus: Path) -> None:
    part = resolved(corpus, *GROWING)[1]
    carry = {"h": np.arange(8, dtype=np.float32).reshape(4, 1, 2), "c": np.ones((4, 1, 2))}
    whole = part.begin(carry)
    assert whole["h"].shape == (8, 1, 2)
    assert whole["h"].dtype == np.float32
    np.testing.assert_array_equal(whole["h"][::2], carry["h"])
    np.testing.assert_array_equal(whole["h"][1::2], 0)
    halves = [part.begin(jax.tree.map(lambda x, n=n: x[n : n + 2], carry)) for n in (0, 2)]
    jax.tree.map(
        np.testing.assert_array_equal, jax.tree.map(lambda *x: np.concatenate(x), *halves), whole
    )


def test_phases_that_are_past_cannot_change(corpus, straight, tmp_path, capfd) -> None:
    folder = copy_until(straight, 30, tmp_path / "run")
    before = (folder / "metrics.jsonl").read_bytes()
    first, second = GROWING
    longer = Phase(steps=60, batch=8, window=32)
    changed = r"phases before the checkpoint have changed.*`reset_carry`"
    # The rows would be the same, and the state of one place go on with the text of another.
    shorter = (Phase(steps=10, batch=4, window=16), longer)
    for phases, message in (
        (shorter, changed),
        # Rows that went on from others have no place of their own in a run without phases.
        ((), changed),
        ((first, Phase(steps=60, batch=16, window=32)), "rows are batch 8, window 32"),
        # One to come would cut the text into other shards.
        ((first, second, Phase(steps=10, batch=24, window=32)), "not batch 8, .*, cut_into 24; "),
    ):
        config = phased(corpus, folder, phases, train__steps=60)
        with pytest.raises(UserError, match=message):
            loop.train(config)
    assert (folder / "metrics.jsonl").read_bytes() == before
    whole = open_corpus(corpus)
    more = resolved(corpus, first, second, Phase(steps=10, batch=16, window=32))
    metas = [checkpoint_meta(parts[1], whole, 30) for parts in (more, resolved(corpus, *PHASES))]
    assert metas[0] == metas[1]
    assert "slack" in metas[0].rows
    # One that is not over can be made longer.
    loop.train(phased(corpus, folder, (first, dataclasses.replace(second, steps=22))))
    assert steps_in(folder)[-1] == 42
    config = phased(corpus, folder, (shorter[0], dataclasses.replace(longer, steps=34)))
    loop.train(config, reset_carry=True)
    epochs = resolve_phases(config, whole)[1].stream.epoch(42)
    assert f"they begin {epochs:.2f} epochs into the text" in capfd.readouterr().err


def test_what_an_earlier_version_began_in_another_way_is_refused(
    corpus, straight, tmp_path
) -> None:
    """It began the second phase at shard starts, and its origin says nothing of places."""
    folder = copy_until(straight, 30, tmp_path / "run")
    origin = resolved(corpus, *PHASES)[1].stream.origin
    assert origin.places
    file = folder / FOLDER / "30" / ITEM / FILE
    content = json.loads(file.read_bytes())
    content["meta"]["origin"] = list(origin[:3])
    digest.write_json(file, content)
    with pytest.raises(UserError, match=r"an earlier version began this phase differently"):
        loop.train(phased(corpus, folder))


@pytest.mark.slow
def test_phases_and_all_options_killed_and_resumed(rated_corpus, tmp_path, command_environment):
    """From 8 rows to 16, so that the carry goes through; β2 follows each phase's own batch."""
    long = (Phase(steps=200, batch=8, window=32), Phase(steps=200, batch=16, window=8))

    def make(out: Path) -> Config:
        options = {"model__layers": 2, "model__rating_head": True, "train__dropout": 0.2}
        muon = {"optimizer__name": "muon", "optimizer__b2_half_life": 20e3}
        config = phased(rated_corpus, out, long, **options, **muon, train__micro_batches=2)
        return vary(config, train__keep_checkpoints=2, train__eval_every=20)

    finish(start(make(tmp_path / "calm"), tmp_path / "c", command_environment))
    config = make(tmp_path / "run")
    for step in (100, 195, 210):
        process = start(config, tmp_path, command_environment)
        wait_for_step(process, tmp_path / "run", step)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=300)
    finish(start(config, tmp_path, command_environment))
    assert_same_run(tmp_path / "run", tmp_path / "calm", long[-1].batch)


def test_a_phase_can_begin_a_schedule_of_its_own() -> None:
    """As in BERT's recipe: warm-up and decay in each of two phases."""
    chosen = Optimizer(learning_rate=1e-3, warmup_steps=10, scaling="sqrt", base_batch=8)
    own = dataclasses.replace(chosen, learning_rate=4e-3, warmup_steps=20)
    segments = [
        Segment(0, 100, 8, 50.0),
        Segment(100, 200, 32, 6.0, own),
        Segment(200, 300, 8, 6.0),
    ]
    first, second, third = schedule.rates(chosen, segments)
    assert [float(first(n)) for n in (0, 9, 55, 100)] == pytest.approx([1e-4, 1e-3, 5e-4, 0])
    # Four times the rows, so twice the rate; 200 updates, of which 20 are warm-up.
    assert [float(second(n)) for n in (100, 119, 120)] == pytest.approx([4e-4, 8e-3, 8e-3])
    assert [float(third(n)) for n in (210, 300)] == pytest.approx([2e-3, 0])
    # Updates that were skipped in the first phase.
    assert float(second(97)) == float(second(100))
    cosine = dataclasses.replace(own, schedule="cosine", warmup_steps=0)
    _, later = schedule.rates(chosen, [segments[0], segments[1]._replace(begins=cosine)])
    assert float(later(97)) == float(later(100)) > float(later(103))
    text = schedule.draw(chosen, segments).text
    assert "updates 100 to 200: batch 32, 6 updates per epoch, peak 0.008" in text
    assert "from update 100: scaling sqrt from 0.004 at 8; warm-up 20 updates" in text
    assert "linear until 300" in text


def test_a_schedule_is_of_the_phases(tmp_path, capsys) -> None:
    (tmp_path / "phases.py").write_text(
        "from mlstm_jax.config import *\n"
        "config = Config(model=Model(hidden=64), phases=(Phase(steps=900, batch=8, window=64), "
        "Phase(steps=100, batch=64, window=128)), optimizer=Optimizer(learning_rate=1e-3, "
        "scaling='linear', base_batch=8, schedule='constant'))\n"
    )
    cli.main(["schedule", str(tmp_path / "phases.py"), "--corpus-bytes", "512000"])
    said = capsys.readouterr().out
    assert "1,000 updates, 2.50 epochs" in said  # 0.9 and 1.6 of 512,000 bytes
    assert "updates 0 to 900: batch 8, 1,000 updates per epoch, peak 0.001" in said
    assert "updates 900 to 1,000: batch 64, 62 updates per epoch, peak 0.008" in said
    rates = {line.split()[0]: line.split()[-1] for line in said.splitlines() if "e-03" in line}
    assert (rates["800"], rates["900"], rates["1,000"]) == ("1.000e-03", "8.000e-03", "8.000e-03")
