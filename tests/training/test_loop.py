"""Whole runs: killed and resumed, interrupted, diverged, refused."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlstm_jax import environment, guard, run
from mlstm_jax.checkpoint import Checkpoints
from mlstm_jax.config import Devices, Train, vary
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.data.stream import TrainStream
from mlstm_jax.errors import Note, UserError
from mlstm_jax.record import read_record, steps_in
from mlstm_jax.training import rows, run_folder
from mlstm_jax.training.resume import load_start
from mlstm_jax.training.state import TrainState
from mlstm_jax.training.tally import METRICS
from mlstm_jax.training.train import Session
from mlstm_jax.training.train import train as run_train
from tests.tables import attributes, column
from tests.training import runs
from tests.training.runs import assert_same_run, config_of, copy_until, lines_of


def test_killed(corpus, tmp_path, launcher) -> None:
    folder = tmp_path / "run"
    config = config_of(corpus, folder, 300, train__eval_every=100, train__checkpoint_every=50)
    random = np.random.default_rng()
    step = int(random.integers(1, 90))
    print("killed after step", step)
    file = runs.write_config(config, tmp_path / "config.py")
    process = launcher.call(runs.COMMAND, "train", file)
    runs.wait_for_step(process, folder, step)
    time.sleep(random.uniform(0, 0.05))
    process.kill()
    launcher.ended(-signal.SIGKILL)
    run_train(config)
    assert_same_run(folder, run_train(vary(config, out=str(tmp_path / "undisturbed"))))


def states_of_the_host() -> list[TrainState]:
    gc.collect()
    states = [found for found in gc.get_objects() if isinstance(found, TrainState)]
    return [state for state in states if isinstance(state.step, np.ndarray)]


def test_first_state_is_not_kept(corpus, tmp_path) -> None:
    """It takes 12 bytes and more for each parameter in the memory of the host."""
    before = len(states_of_the_host())
    kept: list[int] = []

    def collect(line: dict[str, Any]) -> None:
        if line["kind"] == "train":
            kept.append(len(states_of_the_host()))

    run_train(config_of(corpus, tmp_path / "run", 10), Session(callbacks=[collect]))
    assert kept
    assert max(kept) <= before


@pytest.fixture
def terminal_hangs_up() -> Iterator[None]:
    """SIGHUP counts, also where `nohup` has started the tests, which ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("number", "kind", "steps", "code", "last_step"),
    [
        (signal.SIGTERM, "eval", 50, 0, 22),
        (signal.SIGHUP, "train", 50, 0, 8),  # at the line of step 5, when step 6 has begun
        (signal.SIGINT, "eval", 50, 130, 22),
        # At and after the last step, where a sweep would begin its next run.
        (signal.SIGHUP, "train", 8, 0, 8),
        (signal.SIGTERM, "eval", 20, 0, 20),
    ],
)
@pytest.mark.usefixtures("terminal_hangs_up")
def test_signals(number, kind, steps, code, last_step, corpus, tmp_path, capfd) -> None:
    def stop(line: dict[str, Any]) -> None:
        if line["kind"] == kind:
            signal.raise_signal(number)

    config = config_of(corpus, tmp_path, steps)
    with pytest.raises(guard.Interrupted, match=f"{number.name}: .*step|finished") as stopped:
        run_train(config, Session(callbacks=[stop], owns_process=True))
    assert stopped.value.exit_code == code
    said = capfd.readouterr().err
    assert f"{number.name}: stopping with a checkpoint, within three steps" in said
    last = lines_of(tmp_path)["event"][-1]
    is_finished = "is finished" in str(stopped.value)
    assert is_finished == (steps == last_step) == (last["event"] == "finished")
    if not is_finished:
        assert f"{number.name}: stopped at step {last['step']}" in str(stopped.value)
        assert (last["event"], last["signal"]) == ("interrupted", number.name)
    assert steps_in(tmp_path)[-1] == last["step"] == last_step


def test_run_folder(straight: Path) -> None:
    lines = lines_of(straight)
    train = lines["train"]
    evals = lines["eval"]
    assert column(train, "step") == list(range(5, 41, 5))
    assert column(evals, "step") == [20, 40]
    others = {"kind", "step", "epoch", "bytes_seen", "bpc", "noise_scale"}
    others |= {"bytes_per_second", "data_wait_fraction", "seconds"}
    assert set(train[0]) == others | METRICS.keys() - {"label_loss"}
    assert train[-1]["bytes_seen"] == 40 * 8 * 16
    assert train[-1]["bpc"] == pytest.approx(train[-1]["loss"] / np.log(2))
    assert evals[-1]["bpc"] < evals[0]["bpc"] < 8
    environment = json.loads((straight / "environment.json").read_text())
    assert environment["platform"] == "cpu"
    assert environment["versions"]["jax"] == jax.__version__
    assert run.read_config(straight).precision.compute == "fp32"
    assert list((straight / "tensorboard").glob("events.*"))


def test_kept_checkpoints(corpus, tmp_path) -> None:
    folder = tmp_path / "run"
    every = {"train__eval_every": 10, "train__checkpoint_every": 5, "train__keep_checkpoints": 2}
    config = config_of(corpus, folder, 15, **every, train__divergence_steps=100)
    scores = iter([(3.0, 0.5), (2.0, 0.5), (2.5, 0.5), (4.0, 0.5)])
    complete = []

    def look(line: dict[str, Any]) -> None:
        if line.get("event") == "finished":
            complete.append(steps_in(folder)[-1])

    session = Session(score_labels=lambda params: next(scores), callbacks=[look])
    run_train(config, session)
    # Another session knows the best, too.
    run_train(vary(config, train__steps=30), session)
    assert complete == [15, 30]  # A run is finished when its last checkpoint is complete.
    assert column(lines_of(folder)["eval"], "step") == [10, 15, 20, 30]
    # A divergence that is found now may have begun at any step, so the oldest stays, too.
    assert steps_in(folder) == [5, 15, 25, 30]
    assert run.load_run(folder).step == 15
    assert run.load_run(folder, "latest").step == 30
    with pytest.raises(UserError, match="has no checkpoint 7, only"):
        run.load_run(folder, "7")


def test_busy_folder_and_finished_run(corpus, straight, tmp_path) -> None:
    folder = copy_until(straight, 40, tmp_path / "run")
    config = config_of(corpus, folder, 40)
    before = runs.lines_without_time(folder)
    busy = pytest.raises(UserError, match="another process is training in")
    with run_folder.lock(folder), busy:
        run_train(config)
    run_train(config)
    with pytest.warns(Note, match=r"this change had no effect: optimizer.learning_rate"):
        run_train(
            vary(config, optimizer__learning_rate=1e-4), Session(resume=True, show_progress=False)
        )
    assert runs.lines_without_time(folder) == before


def test_longer_run(corpus, straight, tmp_path, monkeypatch) -> None:
    """A device holds one copy of the state; a save may move it: on GPUs through pinned memory."""
    held: list[float] = []
    whole = Checkpoints.save

    def save(self: Checkpoints, step: int, state: Any, *more: Any) -> None:
        jnp.add(jnp.ones(3), np.ones(3))  # an implicit transfer, which the loop forbids elsewhere
        held.append((buffers() - before) / sum(attributes(jax.tree.leaves(state), "nbytes")))
        whole(self, step, state, *more)

    def buffers() -> int:
        """The bytes of all buffers of one device."""
        gc.collect()
        sizes = {}
        for array in jax.live_arrays():
            for shard in array.addressable_shards:
                if shard.device == jax.local_devices()[0]:
                    sizes[shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
        return sum(sizes.values())

    monkeypatch.setattr(Checkpoints, "save", save)
    folder = copy_until(straight, 40, tmp_path / "run")
    lines = runs.lines_without_time(folder)
    before = buffers()
    run_train(config_of(corpus, folder, 45), Session(resume=True))
    run_train(config_of(corpus, tmp_path / "fresh", 2))
    assert len(held) == 2
    assert max(held) < 1.25, held  # the state once, carry and batches
    assert runs.lines_without_time(folder)[: len(lines)] == lines
    assert runs.lines_without_time(folder)[-1]["step"] == 45
    resumed = lines_of(folder)["event"][-2]
    assert resumed["event"] == "resumed"
    assert resumed["changed"] == ["train.steps: 40 → 45"]
    assert resumed["notes"] == []  # its decay ends where it did


def test_steps_lowered_again(corpus, straight, tmp_path) -> None:
    """The log ends as the command says: finished, after more steps than now asked for."""
    folder = copy_until(straight, 40, tmp_path / "run")
    run_train(config_of(corpus, folder, 60))
    runs.go_back(folder, 50)
    for _ in range(2):
        run_train(config_of(corpus, folder, 40))
        events = [(line["event"], line["step"]) for line in lines_of(folder)["event"]]
        assert events == [("finished", 40), ("resumed", 40), ("finished", 50)]


@pytest.mark.parametrize(("before", "after"), [(5, 4), (4, 5)])
def test_lines_of_another_length(before, after, corpus, tmp_path) -> None:
    """Each step is in one line, whether one was written at the checkpoint, 10, or steps ago."""
    config = config_of(corpus, tmp_path / "each", 20, train__log_every=1)
    losses = column(lines_of(run_train(config))["train"], "loss")
    config = vary(config, out=str(tmp_path / "run"))
    run_train(vary(config, train__steps=10, train__log_every=before))
    lines = lines_of(run_train(vary(config, train__log_every=after)))["train"]
    first = 0
    for line in lines:
        expected = np.mean(losses[first : line["step"]])
        np.testing.assert_allclose(line["loss"], expected, rtol=1e-6)
        first = line["step"]


LARGER = {"data__batch": 4, "data__window": 64, "optimizer__learning_rate": 2e-3}


def test_start_with_the_optimizer(corpus, straight, tmp_path):
    """A run of 20 steps with other rows goes on where another ended."""
    start = {"train__start_from": str(straight), "train__start_optimizer": True}
    config = config_of(corpus, tmp_path / "run", 20, **LARGER, **start)
    run_train(config)
    start = load_start(config)
    theirs, _ = runs.final_state(straight, 8)
    jax.tree.map(np.testing.assert_array_equal, start.opt_state, theirs.opt_state)
    # Adam's own count goes on; the learning rate's and the steps begin anew.
    ours, _ = runs.final_state(tmp_path / "run", 4)
    counts = [int(leaf) for leaf in jax.tree.leaves(ours.opt_state) if np.shape(leaf) == ()]
    assert sorted(counts) == [20, 60]
    lines = lines_of(tmp_path / "run")["train"]
    np.testing.assert_allclose(lines[0]["learning_rate"], 2e-3 * (1 - 4 / 1000), rtol=1e-5)
    # It reads on near the same place in the text.
    before = read_record(straight, 40).meta
    assert lines[0]["bytes_seen"] == before.bytes_seen + 5 * 4 * 64
    size = open_corpus(corpus).manifest.splits["train"].bytes
    expected = before.epoch + 5 * 4 * 64 / size
    assert lines[0]["epoch"] == pytest.approx(expected, abs=2 * 4 * 64 / size)
    again = copy_until(tmp_path / "run", 10, tmp_path / "again")
    run_train(vary(config, out=str(again)))
    assert_same_run(again, tmp_path / "run", batch=4)


RISES = "with these changes the learning rate rises from 0.0005 to 0.0043"


@pytest.mark.parametrize(
    ("decay_steps", "changes", "expected"),
    [
        (None, {"train__steps": 60}, [RISES]),  # It has decayed; its new length decides.
        (1000, {"train__steps": 20, "optimizer__learning_rate": 6e-3}, []),  # hardly
    ],
)
def test_rate_that_rises(decay_steps, changes, expected, corpus, tmp_path) -> None:
    config = config_of(corpus, tmp_path, 10, optimizer__decay_steps=decay_steps)
    run_train(config)
    run_train(vary(config, **changes))
    resumed = lines_of(tmp_path)["event"][-2]
    assert (resumed["event"], resumed["notes"]) == ("resumed", expected)


@pytest.mark.parametrize("name", ["linear", "triangular"])
def test_rate_that_ends_early(name, corpus, tmp_path, capsys) -> None:
    """The rest of the run would change nothing; the triangular rate keeps a 32nd of the peak."""
    changes = {"optimizer__decay_steps": 5, "optimizer__schedule": name}
    run_train(config_of(corpus, tmp_path / "run", 10, **changes))
    note = "the learning rate is 0 after 5 of 10 updates; raise or unset optimizer.decay_steps"
    assert (note in capsys.readouterr().err) == (name == "linear")


def test_rate_and_waiting_time(corpus, tmp_path, monkeypatch) -> None:
    """The disk reads the last batch a second after step 2: not while the step compiles."""
    plain = TrainStream.batch
    has_stepped = threading.Event()

    def slow(self: TrainStream, step: int, *arguments: Any) -> Any:
        if step == 3:
            has_stepped.wait(60)
            time.sleep(1)
        return plain(self, step, *arguments)

    def look(line: dict[str, Any]) -> None:
        if line["kind"] == "train" and line["step"] == 2:
            has_stepped.set()

    monkeypatch.setattr(TrainStream, "batch", slow)
    run_train(config_of(corpus, tmp_path, 4, train__log_every=1), Session(callbacks=[look]))
    assert has_stepped.is_set()
    first, *others = lines_of(tmp_path)["train"]
    # The first step of a session includes compilation, so it has no rate.
    assert first["bytes_per_second"] is None
    assert min(column(others, "bytes_per_second")) > 0
    assert 0 <= first["data_wait_fraction"] <= 1
    assert 0.1 < max(column(others, "data_wait_fraction")) <= 1


PREPARED = """
import os
from mlstm_jax import environment
from mlstm_jax.config import Devices
environment.prepare(Devices(), deterministic=True)
print(os.environ["XLA_FLAGS"])
"""


def test_deterministic_kernels(monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=")
    said = subprocess.run([sys.executable, "-c", PREPARED], stdout=subprocess.PIPE, check=True)
    assert said.stdout.split() == [b"--xla_dump_to=", b"--xla_gpu_deterministic_ops=true"]


def test_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX refuses to start where both names are set."""
    new = "XLA_CLIENT_MEM_FRACTION"
    old = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    for given, expected in (({}, {new: "0.92"}), ({new: "0.5"}, {new: "0.5"}), ({old: ".5"},) * 2):
        for name in (new, old):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        environment.prepare(Devices())
        for name in (new, old):
            assert os.environ.get(name) == expected.get(name)


def test_length_of_a_run() -> None:
    for steps, epochs, steps_per_epoch, expected in (
        (100_000, 3, 5000, 15_000),
        (100, 3, 5000, 100),
        (100, None, 7, 100),
        (None, 0.5, 7, 4),
        (5, 1e300, 10**9, 5),
    ):
        train = Train(steps=steps, epochs=epochs)
        assert rows.total_steps(train, steps_per_epoch) == expected
    with pytest.raises(UserError, match=r"train\.epochs is 1e\+300, .* most 2,147,483,647 steps"):
        rows.total_steps(Train(epochs=1e300), 10**9)
