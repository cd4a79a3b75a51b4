"""What one process decides alone, and what many tell each other, as threads, to be alike."""

import json
import math
import os
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from mlstm_jax.config import Config, Distributed, flatten, vary
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import UserError
from mlstm_jax.launcher import choose_gpu, process_info, require_free_port
from mlstm_jax.record import FOLDER
from mlstm_jax.training import run_folder

COUNT = 100
# Bytes of a message that the processes' configs would exceed by far.
LONGEST = 1 << 14


class Simulated(Cluster):
    """One of many processes; what they gather goes over no connection, but is as long."""

    def __init__(self, index: int, meeting: threading.Barrier, values: list[Any]) -> None:
        super().__init__(Distributed(), Path())
        self.index = index
        self.processes = len(values)
        self.names = [f"process {other} (node{other})" for other in range(len(values))]
        self.longest = 0
        self._meeting = meeting
        self._values = values

    def gather(self, value: Any) -> list[Any]:
        self._values[self.index] = json.loads(json.dumps(value))
        self._meeting.wait()
        values = list(self._values)
        # All have to have taken theirs before the next.
        self._meeting.wait()
        if self.is_first:
            self.longest = max(self.longest, len(json.dumps(values)))
        return values


def test_error_without_heartbeats(tmp_path, monkeypatch, capsys) -> None:
    """No process is ever lost, so the error is told at once."""
    options = Distributed(heartbeat_timeout_seconds=math.inf)
    cluster = Cluster(options, tmp_path)
    cluster.processes = 2
    monkeypatch.setattr(os, "_exit", sys.exit)
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    with pytest.raises(SystemExit, match="1"):
        cluster.__exit__(type(error), error, None)
    assert "out of memory" in capsys.readouterr().err


def test_launcher_without_an_address(tmp_path) -> None:
    with pytest.raises(UserError, match="does not give the address of process 0"):
        Cluster(Distributed(processes=2, index=0), tmp_path).__enter__()


def test_least_heartbeat(tmp_path, monkeypatch) -> None:
    def initialize(*_: object, heartbeat_timeout_seconds: int, **__: object) -> None:
        raise ConnectionError(heartbeat_timeout_seconds)

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    options = Distributed(coordinator="a:1", processes=2, index=1, heartbeat_timeout_seconds=0.4)
    with pytest.raises(ConnectionError, match="1"):  # JAX aborts all processes with 0.
        Cluster(options, tmp_path).__enter__()


def together(count: int, act: Callable[[Simulated], None]) -> tuple[list[str], int]:
    """Return what each process says, "" for nothing, and the length of the longest message."""
    meeting = threading.Barrier(count, timeout=300)
    values = [None] * count
    processes = [Simulated(index, meeting, values) for index in range(count)]

    def run(process: Simulated) -> str:
        try:
            act(process)
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(count) as threads:
        said = list(threads.map(run, processes))
    return said, processes[0].longest


@pytest.mark.parametrize(
    ("changes", "letter", "message"),
    [
        ({"optimizer__learning_rate": 0.25}, "a", "optimizer.learning_rate is 0.25 on {}0.0005 on"),
        ({}, "b", "the corpus's identity is bbbbbbbbbbbb on {}aaaaaaaaaaaa on"),
        ({"data__corpus": "elsewhere"}, "a", ""),
    ],
)
def test_other_config_or_corpus(changes, letter, message) -> None:
    """Another place of the corpus is not."""
    configs = [Config(), vary(Config(), **changes)]
    corpora: list[Any] = [SimpleNamespace(identity="a" * 32), SimpleNamespace(identity=letter * 32)]

    def act(process: Simulated) -> None:
        number = process.index
        run_folder.require_one_run(process, configs[number], corpora[number])

    for said in together(2, act)[0]:
        assert message.format("process 1 (node1), but ") in said
        assert bool(said) == bool(message)


FIELDS = flatten(Config())
ALL_DIFFER = "on process 1 (node1) and others (99 processes), but 1 on process 0"


def test_other_checkpoints_on_one(tmp_path) -> None:
    """As where a file system shows one process an old state of the run folder."""
    configs = []
    for step in ("10", "20"):
        configs.append(Config(out=str(tmp_path / step)))
        (tmp_path / step / FOLDER / step).mkdir(parents=True)
        run_folder.write_folder(configs[-1], "id")

    def act(process: Simulated) -> None:
        with ExitStack() as stack:
            config = configs[process.index]
            before = run_folder.config_of(Path(config.out))
            run_folder.lock_together(stack, process, config, before, resume=False)

    for said in together(2, act)[0]:
        assert "the steps of the checkpoints is [20] on process 1 (node1), but [10] on" in said


@pytest.mark.parametrize(
    ("configs", "told"),
    [
        ([{"a": 1, "b": (2,)}, {"a": 1, "b": [2]}, {"b": (2,), "a": 1}], ""),
        ([FIELDS] * COUNT, ""),
        ([FIELDS | {"train.seed": 1}] + [FIELDS] * (COUNT - 1), ALL_DIFFER),
        ([FIELDS | {"train.seed": n} for n in range(COUNT)], "and others (99 processes), but 0 on"),
    ],
    ids=["order", "equal", "one", "all"],
)
def test_length_of_messages(configs, told) -> None:
    def act(process: Simulated) -> None:
        process.require_equal(configs[process.index], "Make them equal.")

    assert len(json.dumps([FIELDS] * COUNT)) > 10 * LONGEST
    texts, longest = together(len(configs), act)
    for text in texts:
        assert told in text
        assert bool(text) == bool(told)
    assert longest < LONGEST


# --- which process this is, and which GPU is its own

NONE = Distributed()
HEAD = Distributed(coordinator="node1:8476")
SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
JOB = {"JOB_COMPLETION_INDEX": "5"}


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        (NONE, {}, (0, 1)),
        (NONE, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, (0, 1)),
        (NONE, JOB, (0, 1)),
        # JAX finds process 0 itself.
        (NONE, SRUN, (3, 4)),
        (HEAD, SRUN, (3, 4)),
        (HEAD, MPIRUN, (1, 2)),
        # mpirun starts its daemons by srun, one a machine.
        (HEAD, SRUN | MPIRUN, (1, 2)),
        (Distributed(coordinator="node1:8476", processes=8), JOB, (5, 8)),
        (Distributed(coordinator="node1:8476", processes=4, index=2), SRUN, (2, 4)),
        (Distributed(processes=1), SRUN, (0, 1)),
        (Distributed(processes=1), SRUN | {"SLURM_PROCID": "x"}, (0, 1)),
    ],
)
def test_index_and_count(options, environment, expected) -> None:
    assert process_info(options, environment) == expected


@pytest.mark.parametrize(
    ("options", "environment", "field"),
    [
        (Distributed(processes=2), {}, "distributed.index"),
        (Distributed(processes=2, index=2), {}, "distributed.index is 2, .* 0 to 1"),
        (Distributed(processes=1, index=1), {}, "distributed.index is 1, .* 0 to 0"),
        (HEAD, {}, "distributed.processes"),
        (Distributed(index=1), {}, "distributed.processes"),
        (HEAD, JOB, "distributed.processes"),
        (Distributed(coordinator="a:1", processes=2), JOB, "distributed.index is 5"),
        (HEAD, SRUN | {"SLURM_PROCID": "-1"}, "distributed.index is -1"),
        (HEAD, SRUN | {"SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
    ],
)
def test_missing_or_wrong_numbers(options, environment, field) -> None:
    with pytest.raises(UserError, match=field):
        process_info(options, environment)


SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_NTASKS": "2"}
ORTE = {"OMPI_MCA_orte_hnp_uri": "4096.0;tcp://10.0.0.1:9", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
FIRST = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "OMPI_COMM_WORLD_RANK": "0"}


@pytest.mark.parametrize(
    ("coordinator", "environment"),
    [
        ("127.0.0.1:PORT", {}),
        ("node1:PORT", {}),
        ("node1:1", {"JAX_COORDINATOR_BIND_ADDRESS": "127.0.0.1:PORT"}),
        (None, {"JAX_COORDINATOR_ADDRESS": "node1:PORT"}),
        (None, SLURM | {"JAX_COORDINATOR_PORT": "PORT"}),
        (None, ORTE | {"JAX_COORDINATOR_PORT": "PORT"}),
    ],
)
def test_taken_port(coordinator, environment, tmp_path, monkeypatch) -> None:
    """Whoever gives the address of process 0; JAX would die of SIGSEGV."""
    monkeypatch.setattr(jax.distributed, "initialize", None)  # It would wait.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for name, value in (environment | FIRST).items():
            monkeypatch.setenv(name, value.replace("PORT", port))
        address = coordinator and coordinator.replace("PORT", port)
        options = Distributed(coordinator=address, processes=2, index=0)
        with pytest.raises(UserError, match=rf"cannot listen at .*:{port} \(Address already"):
            Cluster(options, tmp_path / "run").__enter__()
    assert not (tmp_path / "run").exists()
    require_free_port(f"127.0.0.1:{port}")
    require_free_port(f"[::]:{port}")


@pytest.mark.parametrize(
    ("hosts", "visible", "expected"),
    [
        # One process a machine has all that it sees.
        ("ab", [None, None], [None, None]),
        ("ab", ["0,1", "0,1"], [None, None]),
        # Several share what they see.
        ("aa", [None, None], [0, 1]),
        ("aabb", ["0,1"] * 4, [0, 1, 0, 1]),
        ("aba", ["0,1", "0,1", "0,1"], [0, None, 1]),
        # The launcher has shared the GPUs out already.
        ("aa", ["0", "1"], [None, None]),
        ("aa", ["0", "0"], [None, None]),
        ("aa", ["0,1", "2,3"], [None, None]),
        # No GPU.
        ("aa", ["", ""], [None, None]),
    ],
)
def test_gpu_of_a_process(hosts, visible, expected) -> None:
    chosen = [choose_gpu(index, list(hosts), visible) for index in range(len(hosts))]
    assert chosen == expected


def test_too_few_gpus() -> None:
    with pytest.raises(UserError, match=r"CUDA_VISIBLE_DEVICES is '0,1'.* 3 .* on a"):
        choose_gpu(0, ["a"] * 3, ["0,1"] * 3)
