"""Phases: rows of their own, one run, the same however often it is stopped."""

import dataclasses
import signal
from pathlib import Path

import numpy as np
import pytest

from mlstm_jax.config import Config, Optimizer, Phase, Train
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.errors import UserError
from mlstm_jax.training import loop, metrics
from mlstm_jax.training.parts import make_parts
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
        optimizer=Optimizer(learning_rate=5e-3, decay_steps=1000),
        train=Train(log_every=5, eval_every=20, checkpoint_every=10, micro_batches=2),
    )
    return dataclasses.replace(config, phases=phases)


@pytest.fixture(scope="module")
def straight(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight") / "run"
    loop.train(phased(corpus, folder))
    return folder


def test_a_phase_takes_the_text_up_where_the_last_has_left_it(corpus: Path, tmp_path: Path) -> None:
    first, second = make_parts(phased(corpus, tmp_path), open_corpus(corpus))
    assert (first.first, first.last, second.first, second.last) == (0, 30, 30, 60)
    assert second.stream.epoch(30) == pytest.approx(first.stream.epoch(30), rel=0.05)
    assert second.stream.bytes_seen(60) == 30 * 16 * 8 + 30 * 8 * 32
    batch = second.stream.batch(30)
    assert batch.inputs_BT.shape == (8, 32)


def test_phases_are_one_run(straight: Path) -> None:
    lines = metrics.read(straight / "metrics.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(5, 61, 5))
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [20, 30, 40, 60]
    assert [line["event"] for line in lines if line["kind"] == "event"] == ["phase", "finished"]
    seen = [line["bytes_seen"] for line in lines if line["kind"] == "train"]
    assert set(np.diff(seen)[:5]) == {5 * 16 * 8}
    assert set(np.diff(seen)[5:]) == {5 * 8 * 32}
    rates = [line["learning_rate"] for line in lines if line["kind"] == "train"]
    np.testing.assert_allclose(np.diff(rates), -5e-3 * 5 / 1000, rtol=1e-3)


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


@pytest.mark.slow
def test_phases_and_all_options_killed_and_resumed(
    rated_corpus: Path, tmp_path: Path, command_environment: dict[str, str]
) -> None:
    long = tuple(dataclasses.replace(phase, steps=300) for phase in PHASES)

    def make(out: Path) -> Config:
        config = phased(rated_corpus, out, long)
        return dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, layers=2, rating_head=True),
            data=dataclasses.replace(config.data, shuffle_shards=True),
            train=dataclasses.replace(config.train, dropout=0.2),
        )

    process = start(make(tmp_path / "calm"), tmp_path / "c", command_environment)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text.decode()
    config = make(tmp_path / "run")
    for step in (150, 295, 310, 450):
        process = start(config, tmp_path, command_environment)
        wait_for_step(process, tmp_path / "run", step)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    process = start(config, tmp_path, command_environment)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text.decode()
    assert_same_run(tmp_path / "run", tmp_path / "calm")
