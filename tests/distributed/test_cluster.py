"""Several real processes: what they compute together, and what they say when one is missing."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlstm_jax import openai
from mlstm_jax.checkpoint import Checkpoints
from mlstm_jax.config import Config, Devices, Model, Train, vary
from mlstm_jax.run import write_imported
from mlstm_jax.training import metrics
from mlstm_jax.training.train import Session
from mlstm_jax.training.train import train as run_train
from tests.tolerance import assert_close
from tests.training import runs
from tests.weights.test_weights import write_openai

# --- what they compute


# The checkpoint that a session resumes from, its processes, and the devices of each.
SESSIONS = ((0, 1, 4), (20, 2, 2), (30, 1, 1), (40, 4, 1))


@pytest.mark.slow
def test_change_of_devices_and_processes(corpus, tmp_path, launcher) -> None:
    """Its metrics equal the metrics of a run that stayed."""
    config = runs.make_config(corpus, tmp_path / "run")
    often = {"train__checkpoint_every": 10, "train__keep_checkpoints": 9}
    config = vary(config, train__steps=60, **often)
    stayed = vary(config, out=str(tmp_path / "stayed"), devices=Devices(count=1))
    expected = runs.lines_without_time(run_train(stayed, Session(show_progress=False)))
    for step, processes, devices in SESSIONS:
        runs.go_back(tmp_path / "run", step)
        launcher.train([config] * processes, count=devices)
        first, *_ = launcher.ended(0)
        assert (f"resuming at step {step} of" in first) == (step > 0)
        lines = runs.lines_without_time(tmp_path / "run")
        for line, other in zip(lines, expected, strict=True):
            assert (line["step"], line["bytes_seen"]) == (other["step"], other["bytes_seen"])
            # 8 rows of 16 steps, and the products of 48 units and 16 inputs, there and back.
            terms = line["step"] * (8 * 16 + 2 * (2 * 48 + 16))
            assert_close(line["bpc"], other["bpc"], terms)


# As a JAX that has removed pmap.
WITHOUT_PMAP = """
import runpy, sys, jax
del jax.pmap
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_shard_map_and_pmap(corpus, tmp_path, launcher) -> None:
    """In two processes of two devices: the same bits, also after a resume."""
    without = (sys.executable, "-c", WITHOUT_PMAP)
    sessions = (("pmap", 12, ()), ("shard_map", 6, without), ("shard_map", 12, without))
    for name, steps, prefix in sessions:
        config = runs.make_config(corpus, tmp_path / name)
        config = vary(config, train__steps=steps, train__eval_every=6)
        launcher.train([config] * 2, count=2, prefixes=[prefix] * 2)
        launcher.ended(0)
    runs.assert_same_run(tmp_path / "pmap", tmp_path / "shard_map")


# --- what ends them

PROCESS = """
import sys, time
from pathlib import Path
import jax
from mlstm_jax.config import Distributed
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import UserError

address, index, processes, folder, wrong = sys.argv[1:]
which = {"processes": int(processes), "index": int(index)}
options = Distributed(coordinator=address, timeout_seconds=60, **which)
with Cluster(options, Path(folder)) as cluster:
    if cluster.index == 1 and wrong:
        raise UserError(wrong)
    if wrong:
        cluster.gather("a value")
    shutdown = jax.distributed.shutdown
    jax.distributed.shutdown = lambda: (time.sleep(int(index)), shutdown())
"""


@pytest.mark.parametrize(
    ("place", "wrong", "code", "said"),
    [
        # Process 0 ends last: JAX aborts a process that has a connection to it when it ends.
        ("link", "", 0, ""),
        ("run", "there is no such folder", 2, "there is no such folder"),
        ("copy", "", 2, r"process 1 \(.*\) does not see what process 0 writes"),
    ],
)
def test_end_of_processes(place, wrong, code, said, launcher, tmp_path):
    """At the end, after an error of one, if one has a copy of the run folder; a link is no copy."""
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    address = runs.free_address()
    for index, own in enumerate(["run", place]):
        launcher.call(sys.executable, "-c", PROCESS, address, index, 2, tmp_path / own, wrong)
    for text in launcher.ended(code):
        assert re.search(said, text)
        assert "Traceback" not in text


def test_other_number_of_processes(launcher, tmp_path) -> None:
    address = runs.free_address()
    for index, processes in enumerate((2, 3)):
        launcher.call(sys.executable, "-c", PROCESS, address, index, processes, tmp_path, "")
    for text in launcher.ended(2):
        assert re.search(
            r"process \d \(.*\) was started with .* \d, but process \d .* with \d; ", text
        )


def test_second_start(launcher, tmp_path) -> None:
    """It would end the first, which another run's process of this index may be."""
    address = runs.free_address()
    command = [sys.executable, "-c", PROCESS, address, 1, 2]
    first = launcher.call(*command, tmp_path / "one", "")
    assert b"waiting" in first.stdout.readline()
    second = launcher.call(*command, tmp_path / "other", "")
    text = second.communicate(timeout=60)[0].decode()
    assert f"a process 1 of the run at {address} is there already. Wait" in text
    assert second.returncode != 0
    assert first.poll() is None


def test_missing_processes(corpus, tmp_path, launcher) -> None:
    """A file of an earlier start is no process; options are as on the command line."""
    config = runs.make_config(corpus, tmp_path / "run")
    earlier = tmp_path / "run/process-2.partial"
    earlier.parent.mkdir()
    earlier.write_text("process 2 (node) of 3")
    os.utime(earlier, (0, 0))
    options = ["--distributed.processes", "3", "--distributed.timeout-seconds", "1"]
    launcher.train([config], *options, "--distributed.index", "1")
    [text] = launcher.ended(1)
    assert "1 of 3 processes wait after 1 s. Missing: 0, 2;" in text
    assert "Start all with the same --distributed.processes and run folder" in text
    assert "Traceback" not in text


HEARTBEAT = ("--distributed.heartbeat-timeout-seconds", "5")

# It connects as process 1 of two and does no more, as one that is lost or hangs at that moment.
HALF_STARTED = """
import sys, time
import jax
jax.config.update("jax_enable_recoverability", True)
jax.distributed.initialize(sys.argv[1], 2, 1, heartbeat_timeout_seconds=5)
print("connected", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("victim", "number", "code", "said"),
    [
        (1, signal.SIGKILL, 1, r"process 1 is gone: it sent no heartbeat for 5 s"),
        (0, signal.SIGTERM, 128 + signal.SIGTERM, "interrupted by SIGTERM"),
    ],
)
def test_process_that_only_connects(victim, number, code, said, corpus, tmp_path, launcher):
    """The others notice when it is lost, and receive signals while they wait for it."""
    address = runs.free_address()
    config = runs.make_config(corpus, tmp_path / "run")
    words = ("--distributed.processes", "2", *HEARTBEAT)
    launcher.train([config], *words, coordinator=address)
    half = launcher.call(sys.executable, "-c", HALF_STARTED, address)
    assert b"connected" in half.stdout.readline()
    launcher.started[victim].send_signal(number)
    text = launcher.started[0].communicate(timeout=120)[0].decode()
    assert launcher.started[0].returncode == code, text
    assert re.search(said, text), text
    assert "Traceback" not in text


GONE = r"process 1 \(.*\) is gone: it sent no heartbeat for 5 s.*start all processes again"
# Process 0 waits for the other one, in an all-reduce or in the barrier of a checkpoint.
WATCHDOG = ("--train.watchdog-seconds", "20", "--distributed.heartbeat-timeout-seconds", "300")
STUCK = r"Timeout \(0:00:20\)!"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "number", "options", "expected"),
    [
        (1, signal.SIGKILL, HEARTBEAT, GONE),
        (0, signal.SIGKILL, HEARTBEAT, "process 0 .* stopped: it was killed or has crashed"),
        (1, signal.SIGSTOP, HEARTBEAT, GONE),
        (1, signal.SIGSTOP, WATCHDOG, STUCK),
    ],
)
def test_lost_process(victim, number, options, expected, corpus, tmp_path, launcher) -> None:
    config = runs.make_config(corpus, tmp_path / "run")
    running = launcher.train([config] * 2, *options, "--train.steps", "100000")
    runs.wait_for_step(running[0], tmp_path / "run", 25)
    running[victim].send_signal(number)
    text = running[1 - victim].communicate(timeout=300)[0].decode()
    assert running[1 - victim].returncode == 1, text
    assert re.search(expected, text), text
    assert "Check failure stack trace" not in text


def test_signal_while_waiting(corpus, tmp_path, launcher) -> None:
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
def test_signal_to_one(corpus, tmp_path, launcher) -> None:
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
    assert checkpoints.steps()[-1] == last["step"]
    checkpoints.close()


# --- what keeps them from starting


def refused(launcher: runs.Launcher, *configs: Config, **options: Any) -> list[str]:
    launcher.train(configs, **options)
    texts = launcher.ended(2)
    assert not (launcher.folder / "run/metrics.jsonl").exists()
    return texts


@pytest.mark.slow
def test_other_parameters_on_one(corpus, tmp_path, random, launcher) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        write_openai(place, random)
        write_imported(place / "run", openai.read_openai(place))
    config = runs.make_config(corpus, tmp_path / "run", model=Model(hidden=7, embedding=5))
    one = vary(config, train__start_from=str(places[0] / "run"))
    two = vary(config, train__start_from=str(places[1] / "run"))
    for text in refused(launcher, one, two):
        assert "the fingerprint of train.start_from's parameters is" in text
        assert "on process 1" in text
        assert "Give every process the same parameters to start from." in text


@pytest.mark.slow
def test_no_corpus_on_one(corpus, tmp_path, launcher) -> None:
    config = runs.make_config(corpus, tmp_path / "run")
    other = runs.make_config(tmp_path / "none", tmp_path / "run")
    for text in refused(launcher, config, other):
        assert "there is no corpus" in text


@pytest.mark.slow
def test_other_devices_on_one(corpus, tmp_path, launcher) -> None:
    config = runs.make_config(corpus, tmp_path / "run", devices=Devices(virtual_cpu=2))
    # All have to agree on --devices.virtual-cpu; this is as if one GPU were gone.
    environments = [{"JAX_NUM_CPU_DEVICES": "2"}, {"JAX_NUM_CPU_DEVICES": "1"}]
    for text in refused(launcher, config, config, count="None", environments=environments):
        assert "number of devices is 1 on process 1" in text


@pytest.mark.slow
def test_killed_five_times(corpus, tmp_path, launcher) -> None:
    launcher.train([runs.make_config(corpus, tmp_path / "calm")] * 2)
    launcher.ended(0)
    config = runs.make_config(corpus, tmp_path / "run")
    random = np.random.default_rng()
    # One that is killed before the others have met it is missed for so long.
    patience = ("--distributed.timeout-seconds", "10")
    for kill in range(5):
        running = launcher.train([config] * 2, *patience)
        # From the start of the processes to the last step.
        time.sleep(random.uniform(0, 4 + 1.3 * kill))
        random.choice(running).kill()
        launcher.ended(1, -signal.SIGKILL)
    launcher.train([config] * 2, *patience)
    launcher.ended(0)
    runs.assert_same_run(tmp_path / "run", tmp_path / "calm")


# --- on two machines, each a network namespace of this one with an /etc/hosts of its own

ADDRESSES = ("10.77.0.1", "10.77.0.2")


def ip(words: str) -> None:
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"`ip {words}`: {done.stderr.strip()}")


def prefix(machine: str, hosts: Path) -> list[str]:
    """Of a command that runs on a machine; the bind mount is seen by this command alone."""
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return ["ip", "netns", "exec", machine, "sh", "-c", script, str(hosts)]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[str]]:
    """Two machines on one link, which is also their default route."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("mount"):
        pytest.skip("network namespaces need root and iproute2")
    names = [f"mlstm-{letter}-{os.getpid()}" for letter in "ab"]
    try:
        try:
            for name in names:
                ip(f"netns add {name}")
            ip(f"link add eth0 netns {names[0]} type veth peer name eth0 netns {names[1]}")
            for name, own, other in zip(names, ADDRESSES, ADDRESSES[::-1], strict=True):
                ip(f"-n {name} link set lo up")
                ip(f"-n {name} addr add {own}/24 dev eth0")
                ip(f"-n {name} link set eth0 up")
                ip(f"-n {name} route add default via {other}")
            (tmp_path / "hosts").touch()
            command = [*prefix(names[0], tmp_path / "hosts"), "true"]
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.mark.slow
def test_two_machines(machines, corpus, tmp_path, launcher) -> None:
    """As a user would start it; both machines have one name, and a proxy knows neither."""
    few = Train(steps=20, log_every=5, eval_every=20)
    config = runs.make_config(corpus, tmp_path / "run", train=few)
    prefixes = []
    for machine, address in zip(machines, ADDRESSES, strict=True):
        hosts = tmp_path / machine
        names = {"localhost": "127.0.0.1", "node1": ADDRESSES[0], os.uname().nodename: address}
        hosts.write_text("".join(f"{address} {name}\n" for name, address in names.items()))
        prefixes.append(prefix(machine, hosts))
    proxies = [{"http_proxy": "http://127.0.0.1:9"}] * 2
    launcher.train([config] * 2, prefixes=prefixes, environments=proxies, coordinator="node1:8476")
    launcher.ended(0)
