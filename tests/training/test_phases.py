"""Phases: rows continue or begin anew near the same place; the run is exact on resume."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlstm_jax.config import Config, Data, Devices, Optimizer, Phase, vary
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.errors import UserError
from mlstm_jax.record import read_record, steps_in
from mlstm_jax.training import optimizer, schedule
from mlstm_jax.training.phases import expected_segments, resolve_phases
from mlstm_jax.training.schedule import Segment
from mlstm_jax.training.train import train as run_train
from tests.corpora.written import jsonl
from tests.tolerance import assert_close
from tests.training.runs import assert_same_run, copy_until, lines_of, make_config, short

# 4 rows, then 8; these continue with a learning rate of their own.
GROWING = (Phase(steps=20, batch=4, window=16), Phase(steps=20, batch=8, window=32))
PHASES = (*GROWING, Phase(steps=20, batch=8, window=32, learning_rate=2e-3, warmup_steps=5))


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


@pytest.fixture(scope="module")
def straight(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_train(phased(corpus, tmp_path_factory.mktemp("straight") / "run"))


@pytest.mark.parametrize("wrong", [5, -1, 2.5])
def test_ratings_that_are_no_class_numbers_are_refused(wrong: float, tmp_path: Path) -> None:
    """Stars from 1 to 5, for example: class 5 of five would be learned as no class at all."""
    records = [{"text": f"review {n}", "rating": wrong if n % 9 == 0 else 1} for n in range(180)]
    made = tmp_path / "corpus"
    prepare([jsonl(tmp_path / "a.jsonl", records)], made, split=(1, 0, 0))
    config = phased(made, Path("unused"), (Phase(steps=2, batch=1, window=16),), model__classes=5)
    with pytest.raises(UserError, match=rf"the train split has the rating {wrong}; .* 0 to 4\."):
        resolve_phases(config, open_corpus(made))


def test_phases_are_one_run(corpus: Path, straight: Path) -> None:
    lines = lines_of(straight)
    assert [line["step"] for line in lines["train"]] == list(range(5, 61, 5))
    assert [line["step"] for line in lines["eval"]] == [20, 40, 60]
    assert [line["event"] for line in lines["event"]] == ["phase", "phase", "finished"]
    anew, same = (line["notes"][0] for line in lines["event"][:2])
    assert "new rows begin 0.02 epochs" in anew
    assert re.fullmatch("step 40: the next phase, 8 rows .*; the rows continue", same)
    seen = np.array([line["bytes_seen"] for line in lines["train"]])
    # The last window of a shard is not full.
    np.testing.assert_allclose(np.diff(seen, prepend=0), [320] * 4 + [1280] * 8, atol=4 * 32)
    # A phase begins in the text where the last has ended, but for a step.
    size = open_corpus(corpus).manifest.splits["train"].bytes
    epochs = [line["epoch"] for line in lines["train"]]
    np.testing.assert_allclose(epochs, seen / size, atol=8 * 32 / size, rtol=0.01)
    # One line that falls to zero at step 1000, √2 times as high where there are twice the rows.
    # Then √2 times as high a peak, at the last of five updates; fifteen more would be zero.
    expected = [5e-3 * (1 - n / 1000) for n in (4, 9, 14, 19)]
    expected += [2**0.5 * 5e-3 * (1 - n / 1000) for n in (24, 29, 34, 39)]
    expected += [2**0.5 * 2e-3 * (1 - n / 15) for n in (0, 4, 9, 14)]
    # Eight operations in float32, one after the other.
    assert_close(
        np.array([line["learning_rate"] for line in lines["train"]]), np.array(expected), terms=8
    )


@pytest.mark.parametrize("step", [10, 20, 40])
def test_it_resumes_before_at_and_after_a_border_as_if_never_stopped(
    step, corpus, straight, tmp_path, monkeypatch
) -> None:
    changes, real = [], optimizer.rescale_second_moment

    def seen(chosen: Optimizer, state: Any, before: int | None, now: int) -> Any:
        changes.append((before, now))
        return real(chosen, state, before, now)

    monkeypatch.setattr(optimizer, "rescale_second_moment", seen)
    folder = copy_until(straight, step, tmp_path / "run")
    run_train(phased(corpus, folder))
    assert_same_run(folder, straight, batch=8)
    # The optimizer is told of the bytes of its updates, also where a session begins at a border.
    updates = {10: (64, 64), 20: (64, 256), 40: (256, 256)}
    assert changes[0] == updates[step]
    assert changes[-1] == (256, 256)


def test_phases_that_are_past_cannot_change(corpus, straight, tmp_path, capfd) -> None:
    folder = copy_until(straight, 30, tmp_path / "run")
    before = (folder / "metrics.jsonl").read_bytes()
    first, second = GROWING
    longer = Phase(steps=60, batch=8, window=32)
    # The rows would be the same, and the state of one place go on with the text of another.
    shorter = (Phase(steps=10, batch=4, window=16), longer)
    other_rows = (first, Phase(steps=60, batch=16, window=32))
    for phases, message in (
        (shorter, r"phases before the checkpoint have changed.*`reset_carry`"),
        (other_rows, r"data\.batch: 8 → 16.*`reset_carry`"),
    ):
        with pytest.raises(UserError, match=message):
            run_train(phased(corpus, folder, phases, train__steps=60))
    assert (folder / "metrics.jsonl").read_bytes() == before
    assert "slack" in read_record(folder, 30).meta.rows
    # One that is not over can be made longer, and another can follow.
    following = Phase(steps=5, batch=16, window=32)
    run_train(phased(corpus, folder, (first, dataclasses.replace(second, steps=22), following)))
    assert steps_in(folder)[-1] == 47
    config = phased(corpus, folder, (shorter[0], dataclasses.replace(longer, steps=39)))
    run_train(config, reset_carry=True)
    epochs = resolve_phases(config, open_corpus(corpus))[1].stream.epoch(47)
    assert f"they begin {epochs:.2f} epochs into the text" in capfd.readouterr().err


def test_a_phase_can_begin_a_schedule_of_its_own() -> None:
    """As in BERT's recipe: warm-up and decay in each of two phases."""
    sizes = {"warmup_steps": 10, "scaling": "sqrt", "base_batch": 8}
    chosen = Optimizer(name="muon", muon_learning_rate=0.12, learning_rate=1e-3, **sizes)
    own = dataclasses.replace(chosen, learning_rate=4e-3, warmup_steps=20)
    segments = [Segment(0, 100, 8, 50.0), Segment(100, 200, 32, 6.0, own)]
    segments.append(Segment(200, 300, 8, 6.0))
    first, second, third = schedule.rates(chosen, segments)
    assert [float(first(n)) for n in (0, 9, 55, 100)] == pytest.approx([1e-4, 1e-3, 5e-4, 0])
    # Four times the rows, so twice the rate; 200 updates, of which 20 are warm-up.
    assert [float(second(n)) for n in (100, 119, 120)] == pytest.approx([4e-4, 8e-3, 8e-3])
    assert [float(third(n)) for n in (210, 300)] == pytest.approx([2e-3, 0])
    # Updates that were skipped in the first phase.
    assert float(second(97)) == float(second(100))
    cosine = dataclasses.replace(own, schedule="cosine", warmup_steps=0)
    _, later = schedule.rates(
        chosen, [segments[0], dataclasses.replace(segments[1], begins=cosine)]
    )
    assert float(later(97)) == float(later(100)) > float(later(103))
    text = schedule.draw(chosen, segments)
    assert "       100     2.00  4.000e-04" in text
    assert "300 updates, 35.33 epochs" in text  # 2 and twice 100/6
    assert "updates 100 to 200: batch 32, 6 updates per epoch, peak 0.008" in text
    assert "from update 100: scaling sqrt from 0.004 at 8; warm-up 20 updates" in text
    assert "linear until 300" in text
    assert "Muon's are 120 times as high" in text
    assert text.splitlines()[-1].split() == ["300", "35.33", "0.000e+00"]


def test_the_phases_of_a_plan() -> None:
    phases = (Phase(steps=900, batch=8, window=64), Phase(steps=100, batch=64, window=128))
    found = expected_segments(Config(phases=phases), 512_000)
    assert found == [Segment(0, 900, 8, 1000.0), Segment(900, 1000, 64, 62.5)]
