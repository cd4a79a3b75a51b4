"""Phases: rows of their own, one run, the same however often it is stopped."""

import dataclasses
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlstm_jax import cli
from mlstm_jax.config import Config, Optimizer, Phase, Train
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.errors import UserError
from mlstm_jax.training import loop, metrics, optimizer, schedule
from mlstm_jax.training.phases import resolve_phases
from mlstm_jax.training.schedule import Segment
from tests.tolerance import assert_close
from tests.training.runs import (
    assert_same_run,
    lines_without_time,
    make_config,
    start,
    wait_for_step,
)

PHASES = (Phase(steps=30, batch=16, window=8), Phase(steps=30, batch=8, window=32))


def phased(corpus: Path, out: Path, phases: tuple[Phase, ...] = PHASES) -> Config:
    config = make_config(
        corpus,
        out,
        optimizer=Optimizer(learning_rate=5e-3, decay_steps=1000, scaling="linear", base_batch=16),
        train=Train(log_every=5, eval_every=20, checkpoint_every=10, micro_batches=2),
    )
    return dataclasses.replace(config, phases=phases)


@pytest.fixture(scope="module")
def straight(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight") / "run"
    loop.train(phased(corpus, folder))
    return folder


def test_a_phase_takes_the_text_up_where_the_last_has_left_it(corpus: Path, tmp_path: Path) -> None:
    first, second = resolve_phases(phased(corpus, tmp_path), open_corpus(corpus))
    assert (first.first, first.last, second.first, second.last) == (0, 30, 30, 60)
    assert second.stream.epoch(30) == pytest.approx(first.stream.epoch(30), rel=0.05)
    assert second.stream.bytes_seen(60) == 30 * 16 * 8 + 30 * 8 * 32
    batch = second.stream.batch(30)
    assert batch.inputs_BT.shape == (8, 32)


def test_phases_are_one_run(straight: Path) -> None:
    lines = metrics.read_metrics(straight / "metrics.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(5, 61, 5))
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [20, 30, 40, 60]
    assert [line["event"] for line in lines if line["kind"] == "event"] == ["phase", "finished"]
    seen = [line["bytes_seen"] for line in lines if line["kind"] == "train"]
    assert set(np.diff(seen)[:5]) == {5 * 16 * 8}
    assert set(np.diff(seen)[5:]) == {5 * 8 * 32}
    rates = [line["learning_rate"] for line in lines if line["kind"] == "train"]
    # One line that falls to zero at step 1000, of half the height where there are half the rows.
    heights = [5e-3] * 6 + [2.5e-3] * 6
    steps = zip(heights, range(4, 60, 5), strict=True)
    expected = [height * (1 - step / 1000) for height, step in steps]
    # Eight operations in float32, one after the other.
    assert_close(np.array(rates), np.array(expected), terms=8)


def test_each_phase_has_the_rate_of_its_own_batch() -> None:
    """Where data.batch, which phases replace, is neither."""
    chosen = Optimizer(
        learning_rate=1e-3, scaling="linear", base_batch=8, schedule="constant", warmup_steps=10
    )
    segments = [Segment(0, 100, 8, 50.0), Segment(100, 200, 64, 6.0)]
    first, second = schedule.rates(chosen, segments)
    assert [float(first(n)) for n in (0, 9, 99)] == pytest.approx([1e-4, 1e-3, 1e-3])
    assert float(second(150)) == pytest.approx(8e-3)
    # A phase that begins within the warm-up goes on with it.
    assert float(second(4)) == pytest.approx(4e-3)
    capped = dataclasses.replace(chosen, learning_rate_cap=3e-3)
    assert float(schedule.rates(capped, segments)[1](150)) == pytest.approx(3e-3)


def test_a_schedule_and_a_plan_are_of_the_phases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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

    machine = Path(__file__).parents[2] / "configs/machines/h200.json"
    bf16 = ["--precision.compute", "bf16"]
    options = ["--machine", str(machine), "--gpus", "1", "2", "--json", str(tmp_path / "plan.json")]
    cli.main(["plan", str(tmp_path / "phases.py"), *options, "--price", "2", *bf16])
    said = capsys.readouterr().out
    rows = json.loads((tmp_path / "plan.json").read_text())["rows"]
    assert [(row["devices"], row["phase"], row["batch"]) for row in rows] == [
        (1, 1, 8),
        (1, 2, 64),
        (2, 1, 8),
        (2, 2, 64),
    ]
    for row, steps in zip(rows, (900, 100, 900, 100), strict=True):
        assert row["hours"] == pytest.approx(row["seconds_per_iteration"] * steps / 3600)
    total = sum(row["hours"] for row in rows[:2])
    assert f"1 all phases: {total:.2f} hours" in said
    # So small a model takes less than a millisecond a step, and that is said in digits.
    assert rows[0]["seconds_per_iteration"] < 5e-4
    assert f"{rows[0]['seconds_per_iteration']:.2g}" in said
    assert " 0.000 " not in said.splitlines()[4]


@pytest.mark.parametrize("stop", [pytest.param(20, marks=pytest.mark.slow), 30])
def test_phases_go_on_in_their_middle_and_at_their_border(
    stop: int, corpus: Path, straight: Path, tmp_path: Path
) -> None:
    first = (Phase(steps=stop, batch=16, window=8),)
    loop.train(phased(corpus, tmp_path / "run", first))
    loop.train(phased(corpus, tmp_path / "run"))
    assert lines_without_time(tmp_path / "run") == lines_without_time(straight)
    assert_same_run(tmp_path / "run", straight)


def test_a_past_phase_cannot_change(corpus: Path, straight: Path, tmp_path: Path) -> None:
    other = (Phase(steps=30, batch=16, window=8), Phase(steps=60, batch=16, window=32))
    before = (straight / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="rows are batch 8, window 32"):
        loop.train(phased(corpus, straight, other))
    assert (straight / "metrics.jsonl").read_bytes() == before


def test_a_phase_that_has_ended_cannot_change_its_length(
    corpus: Path, straight: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The rows would be the same, and the state of one place go on with the text of another."""
    shutil.copytree(straight, tmp_path / "run")
    other = (Phase(steps=20, batch=16, window=8), Phase(steps=60, batch=8, window=32))
    config = phased(corpus, tmp_path / "run", other)
    message = r"phases before the checkpoint have changed.*`reset_carry`"
    with pytest.raises(UserError, match=message):
        loop.train(config)
    loop.train(config, reset_carry=True)
    said = capfd.readouterr().err
    epochs = resolve_phases(config, open_corpus(corpus))[1].stream.epoch(60)
    assert f"they begin {epochs:.2f} epochs into the text" in said
    # One that is not over yet can.
    longer = (PHASES[0], dataclasses.replace(PHASES[1], steps=40))
    shutil.copytree(straight, tmp_path / "longer")
    loop.train(phased(corpus, tmp_path / "longer", longer))


@pytest.mark.slow
def test_muon_goes_on_through_a_phase_with_another_batch(corpus: Path, tmp_path: Path) -> None:
    """β2 follows the phase's own batch, and the state is the same one."""

    def muon(out: str, *phases: Phase) -> Config:
        config = phased(corpus, tmp_path / out, *([phases] if phases else []))
        chosen = dataclasses.replace(config.optimizer, name="muon", b2_half_life=20e3)
        return dataclasses.replace(config, optimizer=chosen)

    loop.train(muon("whole"))
    loop.train(muon("parts", PHASES[0]))
    loop.train(muon("parts"))
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
def test_phases_and_all_options_killed_and_resumed(
    rated_corpus: Path, tmp_path: Path, command_environment: dict[str, str]
) -> None:
    """From 8 rows to 16, so that the carry goes through, too."""
    long = tuple(dataclasses.replace(phase, steps=200) for phase in reversed(PHASES))

    def make(out: Path) -> Config:
        config = phased(rated_corpus, out, long)
        return dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, layers=2, rating_head=True),
            data=dataclasses.replace(config.data, shuffle_shards=True),
            optimizer=dataclasses.replace(config.optimizer, name="muon", b2_half_life=20e3),
            train=dataclasses.replace(config.train, dropout=0.2),
        )

    process = start(make(tmp_path / "calm"), tmp_path / "c", command_environment)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text.decode()
    config = make(tmp_path / "run")
    for step in (100, 195, 210):
        process = start(config, tmp_path, command_environment)
        wait_for_step(process, tmp_path / "run", step)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=300)
    process = start(config, tmp_path, command_environment)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text.decode()
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


def test_a_run_follows_the_schedules_of_its_phases(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, real = [], optimizer.with_updates_of

    def seen(chosen: Optimizer, state: Any, before: int | None, now: int) -> Any:
        changes.append((before, now))
        return real(chosen, state, before, now)

    monkeypatch.setattr(optimizer, "with_updates_of", seen)
    own = Phase(steps=10, batch=8, window=8, learning_rate=2e-3, warmup_steps=5)
    config = phased(corpus, tmp_path / "run", (Phase(steps=10, batch=16, window=8), own))
    loop.train(dataclasses.replace(config, train=dataclasses.replace(config.train, log_every=1)))
    lines = metrics.read_metrics(tmp_path / "run/metrics.jsonl")
    rates = [line["learning_rate"] for line in lines if line["kind"] == "train"]
    assert rates[9] == pytest.approx(5e-3 * (1 - 9 / 1000))
    # Half the rows of base_batch; update 14 is the last of the warm-up, and 20 would be zero.
    assert rates[10] == pytest.approx(1e-3 / 5)
    assert rates[14] == pytest.approx(1e-3)
    assert rates[19] == pytest.approx(1e-3 / 5)
    # Adam is told of the bytes of its updates, also where a session begins with the second phase.
    shutil.rmtree(tmp_path / "run/checkpoints/20")
    loop.train(dataclasses.replace(config, train=dataclasses.replace(config.train, log_every=1)))
    assert changes == [(None, 128), (128, 64), (128, 64)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": 0.0}, "phases.learning_rate is 0.0"),
        ({"warmup_steps": 5}, "phases.warmup_steps is 5"),
        ({"learning_rate": 1e-3, "warmup_steps": 30}, "phases.warmup_steps is 30"),
    ],
)
def test_a_phase_without_sense_is_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Phase(steps=30, batch=8, window=8, **fields)
