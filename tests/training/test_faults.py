"""What can go wrong in one process: damaged checkpoints, full disks, divergence, other rows."""

import dataclasses
import errno
import io
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mlstm_jax import environment, run
from mlstm_jax.checkpoints import meta
from mlstm_jax.config import Config, Data, Model, Optimizer, Phase, Precision, Train, vary
from mlstm_jax.errors import KnownError, UserError
from mlstm_jax.guard import Watchdog
from mlstm_jax.interop.weights import fingerprint
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.training import loop, metrics, run_folder
from mlstm_jax.training.begin import require_new
from mlstm_jax.training.reporter import Diverged
from tests.training.runs import (
    assert_same_run,
    final_state,
    lines_without_time,
    make_config,
    short,
    start,
)

# TensorStore's other reads of a checkpoint that failed report to an event loop that is gone, some
# of them in the test that follows.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("collected"),
]


def config_of(corpus: Path, out: Path, steps: int, **sections: Any) -> Config:
    """A run whose learning rate does not depend on its length, and that keeps few checkpoints."""
    values = {
        "optimizer": Optimizer(learning_rate=5e-3, decay_steps=1000),
        "precision": Precision(max_consecutive_skips=5),
        "train": Train(
            steps=steps, log_every=5, eval_every=20, checkpoint_every=10, divergence_steps=5
        ),
    }
    return make_config(corpus, out, **(values | sections))


def events(folder: Path) -> list[dict[str, Any]]:
    return [
        line for line in metrics.read_metrics(folder / "metrics.jsonl") if line["kind"] == "event"
    ]


def cut_short(folder: Path, step: int) -> None:
    """Cut the largest file of a checkpoint in half, as a crash of a file system may."""
    files = [path for path in (folder / f"checkpoints/{step}").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


def set_of_steps(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.glob("[0-9]*")}


@pytest.fixture(scope="module")
def forty_steps(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 40 steps, with checkpoints at 30 and 40."""
    folder = tmp_path_factory.mktemp("forty") / "run"
    loop.train(config_of(corpus, folder, 40))
    return folder


@pytest.fixture(scope="module")
def sixty_steps(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happens to."""
    folder = tmp_path_factory.mktemp("sixty") / "run"
    loop.train(config_of(corpus, folder, 60))
    return folder


def test_a_checkpoint_cut_short_is_passed_over(
    corpus: Path,
    forty_steps: Path,
    sixty_steps: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(forty_steps, tmp_path / "run")
    cut_short(tmp_path / "run", 40)
    loop.train(config_of(corpus, tmp_path / "run", 40))
    said = capfd.readouterr().err
    assert "the checkpoint of step 40 cannot be read" in said
    assert "resuming from step 30, the newest complete checkpoint" in said
    # The damaged one is kept, and has made room for a whole one of the same step.
    assert set_of_steps(tmp_path / "run/set-aside") == {40}
    loop.train(config_of(corpus, tmp_path / "run", 60))
    said = capfd.readouterr().err
    assert "resuming at step 40" in said
    assert "cannot be read" not in said
    assert lines_without_time(tmp_path / "run") == lines_without_time(sixty_steps)


def test_when_no_checkpoint_is_whole_nothing_is_begun_or_deleted(
    corpus: Path, forty_steps: Path, tmp_path: Path
) -> None:
    shutil.copytree(forty_steps, tmp_path / "run")
    for step in (30, 40):
        cut_short(tmp_path / "run", step)
    with pytest.raises(UserError, match=r"step 40 cannot be read .* step 30 cannot be read"):
        loop.train(config_of(corpus, tmp_path / "run", 60))
    assert set_of_steps(tmp_path / "run/checkpoints") == {30, 40}


@pytest.mark.parametrize("item", ["carry", "params", "meta"])
def test_whatever_is_damaged_the_checkpoint_before_it_is_tried(
    item: str, corpus: Path, forty_steps: Path, sixty_steps: Path, tmp_path: Path
) -> None:
    """Files that are empty: other errors are raised of these than of one cut short."""
    shutil.copytree(forty_steps, tmp_path / "run")
    for path in (tmp_path / f"run/checkpoints/40/{item}").rglob("d/*" if item != "meta" else "*"):
        path.write_bytes(b"")
    loop.train(config_of(corpus, tmp_path / "run", 60))
    assert lines_without_time(tmp_path / "run") == lines_without_time(sixty_steps)
    assert set_of_steps(tmp_path / "run/set-aside") == {40}


def test_a_run_that_has_lost_its_checkpoints_does_not_start_over(
    corpus: Path, forty_steps: Path, tmp_path: Path
) -> None:
    shutil.copytree(forty_steps, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints")
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    for resume in (True, False):
        with pytest.raises(UserError, match=r"no checkpoint .* records 40 steps\. Restore"):
            loop.train(config_of(corpus, tmp_path / "run", 60), resume=resume)
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before
    # Killed before its first checkpoint was whole, it starts over, but not with --resume.
    lines = before.splitlines(keepends=True)
    (tmp_path / "run/metrics.jsonl").write_bytes(b"".join(lines[:2]))
    with pytest.raises(UserError, match=r"no checkpoint .* 10 steps\. .* without `resume`"):
        loop.train(config_of(corpus, tmp_path / "run", 60), resume=True)
    loop.train(config_of(corpus, tmp_path / "run", 40))
    assert lines_without_time(tmp_path / "run") == lines_without_time(forty_steps)


def test_a_run_killed_before_its_first_checkpoint_may_save_more_often(tmp_path: Path) -> None:
    """Its config, not the new one, tells when there must have been a checkpoint."""
    rare = Config(out=str(tmp_path), train=Train(eval_every=1000, checkpoint_every=1000))
    run_folder.write_folder(rare)
    (tmp_path / "metrics.jsonl").write_text('{"kind": "eval", "step": 50, "bpc": 2}\n')
    require_new(tmp_path, resume=False)
    run_folder.write_folder(vary(rare, train__checkpoint_every=20))
    with pytest.raises(UserError, match="no checkpoint to resume from, although"):
        require_new(tmp_path, resume=False)


def test_a_full_disk_is_named_and_costs_only_steps(
    corpus: Path,
    forty_steps: Path,
    sixty_steps: Path,
    tmp_path: Path,
    command_environment: dict[str, str],
) -> None:
    shutil.copytree(forty_steps, tmp_path / "run")
    config = config_of(corpus, tmp_path / "run", 60)
    # No file can grow beyond 30 kB: the metrics fit, the parameters do not.
    limited = ("bash", "-c", 'ulimit -f 30; exec "$@"', "bash")
    without_cache = command_environment | {environment.CACHE: ""}
    process = start(config, tmp_path, without_cache, limited)
    text = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 1, text
    assert "could not be written to" in text
    assert "Complete checkpoints: 30, 40" in text
    assert "Traceback" not in text
    loop.train(config)
    assert lines_without_time(tmp_path / "run") == lines_without_time(sixty_steps)


def diverging(corpus: Path, out: Path, steps: int = 80, **train: Any) -> Config:
    """At this rate the loss is above 50 bits per character for as long as one looks."""
    values = {"log_every": 5, "eval_every": 80, "checkpoint_every": 3, "divergence_steps": 4}
    return config_of(
        corpus,
        out,
        steps,
        optimizer=Optimizer(learning_rate=3.0, decay_steps=10**6),
        train=Train(steps=steps, **(values | train)),
    )


def test_a_run_that_diverges_can_roll_itself_back(corpus: Path, tmp_path: Path) -> None:
    config = diverging(corpus, tmp_path / "run", on_divergence="rollback", rollback_factor=0.04)
    loop.train(config)
    found = [event for event in events(tmp_path / "run") if event["event"] == "rolled_back"]
    assert len(found) == 1
    assert found[0]["rate_scale"] == pytest.approx(0.04)
    assert found[0]["step"] < found[0]["diverged_at"]
    lines = metrics.read_metrics(tmp_path / "run/metrics.jsonl")
    assert lines[-1]["event"] == "finished"
    assert lines[-2]["step"] == 80
    assert lines[-2]["bpc"] < 5
    train = [line for line in lines if "grad_norm" in line]
    assert train[-1]["learning_rate"] == pytest.approx(3.0 * 0.04, rel=1e-3)
    # The rate stays low in a later session.
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=90))
    loop.train(longer)
    lines = metrics.read_metrics(tmp_path / "run/metrics.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "train"][-1] == 90
    assert lines[-3]["learning_rate"] == pytest.approx(3.0 * 0.04, rel=1e-3)


def test_a_rollback_to_the_beginning_leaves_nothing_that_diverged(
    corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It diverged at once, so every checkpoint is of after that."""
    diverged = diverging(corpus, tmp_path / "run", 40, checkpoint_every=8)
    rolling = dataclasses.replace(
        diverged,
        train=dataclasses.replace(diverged.train, on_divergence="rollback", rollback_factor=0.04),
    )
    with pytest.raises(Diverged, match=r"no checkpoint from before that, so the same .* over\. "):
        loop.train(diverged)
    assert set_of_steps(tmp_path / "run/checkpoints") == set()
    loop.train(rolling)
    said = capfd.readouterr().err
    assert "returns to step 0 with the learning rate times 0.04" in said
    steps = set_of_steps(tmp_path / "run/checkpoints")
    assert max(steps) == 40
    assert len(steps) >= 2
    # What a restart takes is what was saved.
    assert final_state(tmp_path / "run", 8)[0].rate_scale == np.float32(0.04)


def test_a_run_that_diverges_names_the_checkpoint_that_a_restart_takes(
    corpus: Path, forty_steps: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(forty_steps, tmp_path / "run")
    config = diverging(corpus, tmp_path / "run")
    with pytest.raises(Diverged, match=r"was above 10 bits .* for 4 steps in a row") as stopped:
        loop.train(config)
    last = events(tmp_path / "run")[-1]
    assert last["event"] == "diverged"
    assert "train.divergence_bpc" in last["reason"]
    step = int(re.search(r"resumes from that of step (\d+)", str(stopped.value))[1])
    assert 40 <= step <= stopped.value.since
    assert max(set_of_steps(tmp_path / "run/checkpoints")) == step
    calm = config_of(corpus, tmp_path / "run", 60)
    loop.train(calm)
    assert f"resuming at step {step} of" in capfd.readouterr().err


def test_how_long_the_loss_was_too_high_survives_a_restart(corpus: Path, tmp_path: Path) -> None:
    """Stopped in the middle, it diverges at the step at which it would have."""
    with pytest.raises(Diverged) as whole:
        loop.train(diverging(corpus, tmp_path / "whole", divergence_steps=9))
    half = diverging(corpus, tmp_path / "run", whole.value.step - 3, divergence_steps=9)
    loop.train(half)
    with pytest.raises(Diverged) as resumed:
        loop.train(diverging(corpus, tmp_path / "run", divergence_steps=9))
    assert resumed.value.step == whole.value.step


def test_what_a_run_started_from_may_be_missing_until_it_is_needed(
    corpus: Path, forty_steps: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, folder = tmp_path / "first", tmp_path / "run"
    shutil.copytree(forty_steps, first)
    # Every loss is too high, so the ninth step tells that the run has diverged from the first on.
    values = {"divergence_bpc": 0.01, "divergence_steps": 9, "start_from": str(first)}
    config = diverging(corpus, folder, 4, on_divergence="rollback", **values)

    def train(config: Config) -> None:
        loop.train(config, initial=run.initial_parameters(config))

    train(config)
    start = meta.read_meta(folder, 4)[0].start
    assert start == fingerprint(run.load_run(first).params)
    shutil.rmtree(first / "checkpoints/40/params")
    train(dataclasses.replace(config, train=dataclasses.replace(config.train, steps=6)))
    assert "the parameters of train.start_from cannot be compared" in capfd.readouterr().err
    assert meta.read_meta(folder, 6)[0].start == start
    assert run_folder.inputs_of(folder)["start_from"] == start
    longer = vary(config, train__steps=20)
    others = jax.tree.map(lambda x: x + 1, run.load_run(folder).params)
    with pytest.raises(UserError, match=r"must return to its first step.*start a new run"):
        loop.train(longer, initial=lambda: others)
    shutil.rmtree(first)
    with pytest.raises(UserError, match=r"first is not a run folder"):
        train(longer)


def test_a_run_that_started_from_no_other_cannot_be_given_one_later(
    corpus: Path, forty_steps: Path, tmp_path: Path
) -> None:
    shutil.copytree(forty_steps, tmp_path / "run")
    before = (tmp_path / "run/config.json").read_text()
    train = Train(steps=60, start_from=str(forty_steps))
    config = config_of(corpus, tmp_path / "run", 60, train=train)
    with pytest.raises(UserError, match=r"did not start from other .* Leave `train\.start_from`"):
        loop.train(config, initial=run.initial_parameters(config))
    assert (tmp_path / "run/config.json").read_text() == before


def test_what_a_run_started_from_may_train_further(
    corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    model = LanguageModel(config_of(corpus, folder, 2).model, Precision())
    first = jax.device_get(model.init_parameters(jax.random.key(0)))
    later = jax.tree.map(lambda x: x + 1, first)

    def train(steps: int, start_from: str | None, params: Any) -> None:
        config = vary(config_of(corpus, folder, steps), train__start_from=start_from)
        loop.train(config, initial=lambda: params)

    train(2, "other", first)
    train(4, "other", later)
    assert "other has changed since the run started from it" in capfd.readouterr().err
    with pytest.raises(UserError, match=r"other parameters .* Leave `train\.start_from` out"):
        train(6, "another", later)
    train(6, None, later)
    assert meta.read_meta(folder, 6)[0].start == fingerprint(first)
    assert run_folder.inputs_of(folder)["start_from"] == fingerprint(first)


def test_it_returns_to_before_the_update_that_spoiled_it(corpus: Path, tmp_path: Path) -> None:
    """The seventh update does; the loss that tells is that of the eighth step."""
    config = config_of(
        corpus,
        tmp_path / "run",
        47,
        optimizer=Optimizer(learning_rate=5e-3, schedule="constant", clip_norm=None),
        phases=(
            Phase(steps=6, batch=8, window=16),
            Phase(steps=1, batch=8, window=16, learning_rate=1e4),
            Phase(steps=40, batch=8, window=16, learning_rate=1e-3),
        ),
        train=Train(steps=47, eval_every=100, checkpoint_every=100, divergence_steps=5),
    )
    with pytest.raises(Diverged, match="resumes from that of step 6") as stopped:
        loop.train(config)
    assert (stopped.value.step, stopped.value.since) == (12, 6)
    assert set_of_steps(tmp_path / "run/checkpoints") == {6}


def test_a_high_loss_counts_through_phases(corpus: Path, tmp_path: Path) -> None:
    train = short(steps=20, divergence_bpc=0.1, divergence_steps=8)
    phases = tuple(Phase(steps=5, batch=8, window=16) for _ in range(4))
    config = config_of(corpus, tmp_path / "run", 20, phases=phases, train=train)
    with pytest.raises(Diverged) as stopped:
        loop.train(config)
    assert stopped.value.step == 8


def test_a_rollback_to_before_other_rows_reads_on_from_there(corpus: Path, tmp_path: Path) -> None:
    def train(batch: int, steps: int, **more: Any) -> None:
        values = {"log_every": 1, "eval_every": 100, "checkpoint_every": 2, "keep_checkpoints": 9}
        data = Data(corpus=str(corpus), batch=batch, window=16, shards=32, shuffle_shards=True)
        told = Train(steps=steps, **values, **more)
        config = config_of(corpus, tmp_path / "run", steps, data=data, train=told)
        loop.train(config, reset_carry=batch == 32)

    train(4, 8)
    train(4, 14, divergence_bpc=0.01, divergence_steps=50)  # each of these six is too high
    more = {"on_divergence": "rollback", "rollback_factor": 0.04}
    with pytest.raises(Diverged):
        train(32, 40, divergence_bpc=0.01, divergence_steps=9, **more)
    # The third step of the 32 rows tells, and the last good state is that of step 7.
    lines = metrics.read_metrics(tmp_path / "run/metrics.jsonl")
    back = next(line for line in lines if line.get("event") == "rolled_back")
    assert (back["diverged_at"], back["step"]) == (17, 6)
    after = lines[lines.index(back) + 1]
    assert after["step"] == 7
    assert after["bytes_seen"] == 6 * 4 * 16 + 32 * 16
    assert 0 < after["epoch"] < 0.1
    # The first step of a session includes compilation, so it has no rate.
    assert lines[0]["bytes_per_second"] is None
    assert lines[1]["bytes_per_second"] > 0


def test_a_finished_run_has_its_last_checkpoint(corpus: Path, tmp_path: Path) -> None:
    found = []

    def look(line: dict[str, Any]) -> None:
        if line.get("event") == "finished":
            found.append(max(set_of_steps(tmp_path / "run/checkpoints")))

    loop.train(config_of(corpus, tmp_path / "run", 10), callbacks=[look])
    assert found == [10]


@pytest.mark.slow
def test_a_run_that_always_diverges_stops_in_the_end(corpus: Path, tmp_path: Path) -> None:
    config = config_of(
        corpus,
        tmp_path / "run",
        80,
        # An embedding this large overflows fp16 whatever the rate.
        model=Model(hidden=16, embedding=8, embedding_std=1e6),
        precision=Precision(compute="fp16", max_consecutive_skips=3),
        train=Train(steps=80, on_divergence="rollback", rollback_factor=0.2),
    )
    with pytest.raises(Diverged, match="the last 3 updates were skipped"):
        loop.train(config)
    assert events(tmp_path / "run")[0]["rate_scale"] == pytest.approx(0.04)


def test_other_rows_go_on_from_the_same_place_with_a_fresh_carry(
    corpus: Path, forty_steps: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(forty_steps, tmp_path / "run")
    before = lines_without_time(tmp_path / "run")
    config = config_of(corpus, tmp_path / "run", 60, data=Data(corpus=str(corpus), batch=4))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, window=16))
    with pytest.raises(UserError, match=r"data\.batch: 8 → 4.*`reset_carry`"):
        loop.train(config)
    loop.train(config, reset_carry=True)
    assert "the carry is reset at step 40: the rows were batch 8" in capfd.readouterr().err
    lines = lines_without_time(tmp_path / "run")
    assert lines[: len(before)] == before
    assert lines[-1]["step"] == 60
    assert lines[-1]["bytes_seen"] == 40 * 8 * 16 + 20 * 4 * 16
    # Half the rows read half as much of the text in as many steps.
    epochs = [line["epoch"] for line in lines if line["kind"] == "train"]
    assert 0 < epochs[8] - epochs[7] < epochs[0]
    np.testing.assert_allclose(np.diff(epochs)[:7].mean(), epochs[0], rtol=0.02)
    np.testing.assert_allclose(np.diff(epochs)[8:].mean(), epochs[0] / 2, rtol=0.1)
    # Given again, it changes nothing: these rows are the run's own now.
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=80))
    loop.train(longer, reset_carry=True)
    assert "reset" not in capfd.readouterr().err
    straight = config_of(corpus, tmp_path / "straight", 80, data=config.data)
    shutil.copytree(forty_steps, tmp_path / "straight")
    loop.train(straight, reset_carry=True)
    assert_same_run(tmp_path / "run", tmp_path / "straight", batch=4)


def test_a_reset_that_was_killed_before_its_first_checkpoint_is_asked_for_again(
    corpus: Path, forty_steps: Path, tmp_path: Path
) -> None:
    shutil.copytree(forty_steps, tmp_path / "run")
    data = Data(corpus=str(corpus), batch=4, window=16)
    config = config_of(corpus, tmp_path / "run", 60, data=data)
    # The config is written when the session begins, the first checkpoint only later.
    run_folder.write_folder(config)
    with pytest.raises(UserError, match=r"rows are batch 8.*not batch 4.*`reset_carry`"):
        loop.train(config)
    loop.train(config, reset_carry=True)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Free some space there; the same command resumes from the checkpoint of"),
        (errno.EROFS, "The file system is read-only: make it writable; the same command"),
        (errno.EACCES, "Allow this user to write there; the same command"),
    ],
)
def test_a_file_that_cannot_be_written_gets_advice_that_fits(
    number: int, advice: str, tmp_path: Path
) -> None:
    path, said = tmp_path / "run/metrics.jsonl", os.strerror(number)
    (tmp_path / "run/checkpoints/40").mkdir(parents=True)
    with (
        pytest.raises(KnownError, match=re.escape(f"{path}: {said}. {advice}")),
        run_folder.disk_errors(tmp_path / "run"),
    ):
        raise OSError(number, said, str(path))
    # Nothing is said of checkpoints where there are none.
    with (
        pytest.raises(KnownError, match="or name another folder with `out`"),
        run_folder.disk_errors(tmp_path / "none"),
    ):
        raise OSError(number, said, str(path))


def test_a_folder_that_cannot_be_made_is_named(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        KnownError, match=r"file/run: cannot be created: .*file is a file; choose another"
    ):
        loop.train(config_of(corpus, tmp_path / "file/run", 20))


def test_the_watchdog_says_what_a_restart_will_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for steps, expected in (
        ([], "There is no checkpoint yet: the same command starts over"),
        ([20, 100], "The same command resumes from the checkpoint of step 100"),
    ):
        for step in steps:
            (tmp_path / f"checkpoints/{step}").mkdir(parents=True)
        stopped: list[BaseException] = []
        bitten = threading.Event()

        def stop(error: BaseException, stopped=stopped, bitten=bitten) -> None:
            stopped.append(error)
            bitten.set()

        def stuck(bitten=bitten) -> None:
            assert bitten.wait(60)

        with Watchdog(0.1, stop, 3, meta.resume_advice) as watchdog:
            watchdog.folder = tmp_path
            watchdog.beat("nothing happens")
            # The newest of the threads: of more than 100, faulthandler leaves out the oldest.
            thread = threading.Thread(target=stuck)
            thread.start()
            thread.join()
        assert "while nothing happens" in str(stopped[0])
        assert expected in str(stopped[0])
        assert "in stuck" in (tmp_path / "stacks-3.txt").read_text()
    assert "most recent call first" in capfd.readouterr().err


def test_the_watchdog_ends_a_run_though_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())  # has no file
    bitten = threading.Event()
    with Watchdog(0.1, lambda error: bitten.set()) as watchdog:
        watchdog.folder = tmp_path / "is gone"
        assert bitten.wait(60)


def test_the_watchdog_does_not_count_the_time_in_which_a_process_is_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-Z and `fg`: the run goes on; one that is stuck is ended nevertheless."""
    now = 100.0
    monkeypatch.setattr("mlstm_jax.guard.time.monotonic", lambda: now)
    ended: list[float] = []
    watchdog = Watchdog(4.0, lambda error: ended.append(now))
    # It looks every second; after the second look the process is suspended for an hour.
    waits = iter([1.0, 1.0, 3600.0, 1.0, 1.0])

    def wait(pause: float) -> bool:
        nonlocal now
        seconds = next(waits, None)
        now += seconds or 0
        return seconds is None

    monkeypatch.setattr(watchdog._done, "wait", wait)
    watchdog._watch()
    assert ended == [3704.0]
