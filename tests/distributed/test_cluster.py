"""Several real processes: what they compute together, and what they say when one is missing."""

import itertools
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlstm_jax.checkpoint import Checkpoints
from mlstm_jax.config import Config, Devices, Model, Phase, vary
from mlstm_jax.interop import published
from mlstm_jax.record import FOLDER
from mlstm_jax.run import write_imported
from mlstm_jax.training import metrics
from tests.interop.test_weights import write_openai
from tests.tolerance import assert_close
from tests.training import runs

Process = subprocess.Popen[bytes]


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


class Launcher:
    """Starts the processes of runs, as a user would."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.started: list[Process] = []

    def call(self, *words: object, **environment: str) -> Process:
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        command, surroundings = [str(word) for word in words], self.environment | environment
        self.started.append(subprocess.Popen(command, env=surroundings, **pipe))
        return self.started[-1]

    def train(
        self,
        configs: Sequence[Config],
        *options: str,
        count: int = 1,
        environments: Sequence[dict[str, str]] = ({}, {}, {}, {}),
    ) -> list[Process]:
        """Start one run, of a process for each config, of so many devices each."""
        self.started, address = [], free_address()
        for index, config in enumerate(configs):
            file = runs.write_config(config, self.folder / f"config{index}.py")
            words = ["--distributed.coordinator", address, "--distributed.index", index]
            words += ["--distributed.processes", len(configs), "--devices.virtual-cpu", count]
            command = Path(sys.executable).parent / "mlstm-jax"
            self.call(command, "train", file, *words, *options, **environments[index])
        return self.started

    def ended(self, *codes: int) -> list[str]:
        """Wait for all to end, with one of these exit codes; return what each has written."""
        texts = [process.communicate(timeout=300)[0].decode() for process in self.started]
        assert {process.returncode for process in self.started} <= {*codes}, "\n".join(texts)
        return texts


@pytest.fixture
def launcher(tmp_path: Path, command_environment: dict[str, str]) -> Iterator[Launcher]:
    """None of what it has started outlives the test."""
    launcher = Launcher(tmp_path, command_environment)
    yield launcher
    for process in launcher.started:
        process.kill()
        if process.stdout and not process.stdout.closed:
            process.communicate()


# --- what they compute


@pytest.mark.slow
def test_a_run_moves_to_other_devices_and_processes(corpus, undisturbed, tmp_path, launcher):
    """4 devices → 2 processes of 2 → 1 → 4 of 1: the metrics are those of a run that stayed."""
    config = runs.make_config(corpus, tmp_path / "run")
    for step, processes, devices in ((60, 1, 4), (120, 2, 2), (180, 1, 1), (300, 4, 1)):
        (first, *_) = launcher.train([config] * processes, count=devices)
        if step < 300:
            runs.wait_for_step(first, tmp_path / "run", step)
            first.send_signal(signal.SIGTERM)
        launcher.ended(0)
    lines, expected = map(runs.lines_without_time, (tmp_path / "run", undisturbed))
    assert len(lines) == len(expected)
    for line, other in zip(lines, expected, strict=True):
        assert line["step"] == other["step"]
        # 8 rows of 16 steps, and the products of 48 units and 16 inputs, there and back.
        terms = line["step"] * (8 * 16 + 2 * (2 * 48 + 16))
        assert_close(line["bpc"], other["bpc"], terms)


@pytest.mark.slow
def test_phases_of_several_processes_are_those_of_one(corpus, tmp_path, launcher) -> None:
    """New rows, then the same; also from a checkpoint at the border of another number."""
    rows = {"batch": 8, "window": 16}
    phases = (Phase(steps=20, batch=4, window=16), Phase(steps=10, **rows), Phase(steps=30, **rows))
    base = vary(runs.make_config(corpus, tmp_path, phases=phases), train__checkpoint_every=10)
    base = vary(base, train__keep_checkpoints=9)
    for name, processes in (("one", 1), ("two", 2), ("two", 1), ("one", 2)):
        folder = tmp_path / name / "run"
        began = folder.exists()
        for step in (40, 50, 60) if began else ():  # as if it had been stopped at the border
            shutil.rmtree(folder / FOLDER / str(step))
        launcher.train([vary(base, out=str(folder))] * processes)
        texts = launcher.ended(0)
        assert ("resuming at step 30" in texts[0]) == began
        if name == "one" and not began:
            expected = runs.lines_without_time(folder)
        lines = runs.lines_without_time(folder)
        for line, other in zip(lines, expected, strict=True):
            assert (line["step"], line["bytes_seen"]) == (other["step"], other["bytes_seen"])
            terms = line["step"] * (8 * 16 + 2 * (2 * 48 + 16))
            assert_close(line["bpc"], other["bpc"], terms)


# --- what ends them

PROCESS = """
import sys, time
from pathlib import Path
import jax
from mlstm_jax.config import Distributed
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import UserError

address, index, processes, seconds, folder, wrong = sys.argv[1:]
options = Distributed(
    coordinator=address, processes=int(processes), index=int(index), timeout_seconds=float(seconds)
)
with Cluster(options, Path(folder)) as cluster:
    if cluster.index == 1 and wrong:
        raise UserError(wrong)
    if wrong:
        cluster.gather("a value")
    shutdown = jax.distributed.shutdown
    jax.distributed.shutdown = lambda: (time.sleep(int(index)), shutdown())
"""


def test_process_0_ends_after_the_others(launcher, tmp_path) -> None:
    """JAX aborts a process that has a connection to process 0 when that ends."""
    address = free_address()
    for index in (0, 1):
        launcher.call(sys.executable, "-c", PROCESS, address, index, 2, 60, tmp_path / "run", "")
    launcher.ended(0)


def test_an_error_of_one_process_ends_all(launcher, tmp_path) -> None:
    address = free_address()
    for index in (0, 1):
        words = (address, index, 2, 60, tmp_path / "run", "there is no such folder")
        launcher.call(sys.executable, "-c", PROCESS, *words)
    for text in launcher.ended(2):
        assert "there is no such folder" in text


def test_processes_that_do_not_start_are_named(launcher, tmp_path) -> None:
    words = (free_address(), 1, 3, 3, tmp_path / "run", "")
    launcher.call(sys.executable, "-c", PROCESS, *words)
    (text,) = launcher.ended(1)
    assert "Missing: 0, 2;" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "number"), [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)]
)
def test_when_one_is_lost_the_other_ends_and_says_so(victim, number, corpus, tmp_path, launcher):
    config = runs.make_config(corpus, tmp_path / "run")
    options = ("--distributed.heartbeat-timeout-seconds", "5", "--train.steps", "100000")
    running = launcher.train([config] * 2, *options)
    runs.wait_for_step(running[0], tmp_path / "run", 25)
    running[victim].send_signal(number)
    text = running[1 - victim].communicate(timeout=120)[0].decode()
    assert running[1 - victim].returncode in (1, -signal.SIGABRT)
    if victim == 1:
        assert re.search(r"process 1 \(.*\) is gone: it sent no heartbeat for 5 s", text), text
        assert "start all processes again with the same command" in text


def test_a_process_that_waits_for_the_others_receives_a_signal(corpus, tmp_path, launcher) -> None:
    config = runs.make_config(corpus, tmp_path / "run")
    options = ["--distributed.timeout-seconds", "60", "--distributed.processes", "2"]
    (waiting,) = launcher.train([config], *options, "--distributed.index", "1")
    assert b"waiting for all 2 processes" in waiting.stdout.readline()
    time.sleep(2)  # It is in JAX's code by then.
    waiting.send_signal(signal.SIGTERM)
    (text,) = launcher.ended(128 + signal.SIGTERM)
    assert "interrupted by SIGTERM" in text
    assert not [*tmp_path.glob("run/process-*")]


@pytest.mark.slow
def test_a_signal_to_one_stops_all_at_one_step(corpus, tmp_path, launcher) -> None:
    config = runs.make_config(corpus, tmp_path / "run")
    running = launcher.train([config] * 2)
    runs.wait_for_step(running[0], tmp_path / "run", 25)
    running[1].send_signal(signal.SIGTERM)
    texts = launcher.ended(0)
    last = metrics.read_metrics(tmp_path / "run/metrics.jsonl")[-1]
    assert (last["event"], last["signal"]) == ("interrupted", "SIGTERM")
    for text in texts:
        assert f"SIGTERM: stopped at step {last['step']} of 300 with a checkpoint" in text
    checkpoints = Checkpoints(tmp_path / "run", None, read_only=True)
    assert checkpoints.latest() == last["step"]
    checkpoints.close()


@pytest.mark.slow
def test_a_stuck_process_is_ended_by_its_watchdog(corpus, tmp_path, launcher) -> None:
    config = runs.make_config(corpus, tmp_path / "run")
    options = ["--train.watchdog-seconds", "20", "--train.steps", "100000"]
    options += ["--distributed.heartbeat-timeout-seconds", "300"]
    running = launcher.train([config] * 2, *options)
    runs.wait_for_step(running[0], tmp_path / "run", 25)
    # Process 0 waits for it, in an all-reduce or in the barrier of a checkpoint.
    running[1].send_signal(signal.SIGSTOP)
    text = running[0].communicate(timeout=300)[0].decode()
    assert running[0].returncode == 1
    expected = r"no progress for 20 s while the (devices compute|checkpoint of) step"
    assert re.search(expected, text), text
    stacks = (tmp_path / "run/stacks-0.txt").read_text()
    assert "_train_phase" in stacks


# --- what keeps them from starting


def refused(launcher: Launcher, *configs: Config, **options: Any) -> list[str]:
    launcher.train(configs, **options)
    texts = launcher.ended(2)
    assert not (launcher.folder / "run/metrics.jsonl").exists()
    return texts


@pytest.mark.slow
def test_another_start_on_one_process_is_named(corpus, tmp_path, random, launcher) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        write_openai(place, random)
        write_imported(place / "run", published.read_openai(place))
    config = runs.make_config(corpus, tmp_path / "run", model=Model(hidden=7, embedding=5))
    starts = [vary(config, train__start_from=str(place / "run")) for place in places]
    for text in refused(launcher, *starts):
        assert "the fingerprint of train.start_from's parameters is" in text
        assert "on process 1" in text
        assert "Give every process the same parameters to start from." in text


@pytest.mark.slow
def test_no_corpus_on_one_process_ends_all(corpus, tmp_path, launcher) -> None:
    configs = [runs.make_config(path, tmp_path / "run") for path in (corpus, tmp_path / "none")]
    for text in refused(launcher, *configs):
        assert "none: is not a corpus" in text


@pytest.mark.slow
def test_another_number_of_devices_on_one_process_is_named(corpus, tmp_path, launcher) -> None:
    config = runs.make_config(corpus, tmp_path / "run", devices=Devices(virtual_cpu=2))
    # All have to agree on --devices.virtual-cpu; this is as if one GPU were gone.
    environments = [{"JAX_NUM_CPU_DEVICES": str(number)} for number in (2, 1)]
    for text in refused(launcher, config, config, count="None", environments=environments):
        assert "number of devices is 1 on process 1" in text


@pytest.mark.slow
def test_killed_five_times_it_ends_as_if_never_killed(corpus, tmp_path, launcher) -> None:
    launcher.train([runs.make_config(corpus, tmp_path / "calm")] * 2)
    launcher.ended(0)
    config = runs.make_config(corpus, tmp_path / "run")
    random = np.random.default_rng()
    # One that is killed before the others have met it is missed for so long.
    patience = ("--distributed.timeout-seconds", "10")
    for kill in itertools.count():
        running = launcher.train([config] * 2, *patience)
        if kill < 5:
            # From the start of the processes to the last step.
            time.sleep(random.uniform(0, 4 + 1.3 * kill))
        else:
            launcher.ended(0)
        victim, other = random.permutation(running)
        if victim.poll() is not None:
            break
        victim.kill()
        text = other.communicate(timeout=300)[0].decode()
        victim.communicate()
        assert other.returncode != 0, text
    assert kill >= 5
    runs.assert_same_run(tmp_path / "run", tmp_path / "calm")
