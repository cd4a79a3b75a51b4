"""Whole runs as the tests start them, in processes of their own, and what is compared of them."""

import functools
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mlstm_jax import run
from mlstm_jax.checkpoint import Checkpoints
from mlstm_jax.config import Config, Data, Devices, Model, Optimizer, Train, vary
from mlstm_jax.parallel import Parallel
from mlstm_jax.record import FOLDER, steps_in
from mlstm_jax.training import metrics
from mlstm_jax.training.state import state_shapes

Process = subprocess.Popen[bytes]
COMMAND = Path(sys.executable).parent / "mlstm-jax"

# Fields that tell the time, and so differ from run to run.
TIMES = ("seconds", "bytes_per_second", "data_wait_fraction", "evaluation_seconds")


# Runs with lines of one length are one program, compiled once for all tests.
short = functools.partial(Train, log_every=5)


def train_line(step: int, **values: object) -> dict[str, Any]:
    """A line of metrics as a run writes it, with other values."""
    line = {"kind": "train", "step": step, "epoch": step / 1000, "bpc": 2.5, "learning_rate": 1e-3}
    rates = {"loss_scale": 1.0, "bytes_per_second": 12_345.0, "seconds": float(step)}
    return line | rates | values


def write_lines(folder: Path, *lines: dict[str, Any]) -> Path:
    """Add lines to the metrics of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")
    return folder


def make_config(corpus: Path, out: Path, **sections: Any) -> Config:
    values = {
        "model": Model(hidden=48, embedding=16),
        "data": Data(corpus=str(corpus), batch=8, window=16),
        "optimizer": Optimizer(learning_rate=5e-3, decay_steps=1000),
        "train": short(steps=300, epochs=None, eval_every=100, checkpoint_every=50),
    }
    return Config(out=str(out), **(values | sections))


def config_of(corpus: Path, out: Path, steps: int, **changes: Any) -> Config:
    """A run on one device, whose learning rate does not depend on its length."""
    train = short(
        steps=steps, eval_every=20, checkpoint_every=10, keep_checkpoints=9, divergence_steps=5
    )
    return vary(make_config(corpus, out, train=train, devices=Devices(count=1)), **changes)


def lines_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of metrics of each kind: train, eval and event."""
    return metrics.by_kind(metrics.read_metrics(folder / "metrics.jsonl"))


def lines_without_time(folder: Path) -> list[dict[str, Any]]:
    """The lines of training and evaluation, without the fields that tell the time."""
    kept = []
    for line in metrics.read_metrics(folder / "metrics.jsonl"):
        if line["kind"] != "event":
            for name in TIMES:
                line.pop(name, None)
            kept.append(line)
    return kept


def final_state(folder: Path, batch: int) -> Any:
    config = run.read_config(folder)
    model = run.LanguageModel(config.model, config.precision.types)
    with closing(Checkpoints(folder, run.id_of(folder), read_only=True)) as checkpoints:
        step = checkpoints.steps()[-1]
        devices = Parallel(jax.local_devices()[:1])
        carry = devices.abstract_rows(model.init_carry(batch))
        state, rows = checkpoints.restore(step, state_shapes(config), carry)
    return state, devices.own_rows(rows)


def assert_same_run(folder: Path, other: Path, batch: int = 8) -> None:
    assert lines_without_time(folder) == lines_without_time(other)
    state = final_state(folder, batch)
    jax.tree.map(np.testing.assert_array_equal, state, final_state(other, batch))


def copy_until(source: Path, step: int, folder: Path) -> Path:
    """Copy a run as it was when it was killed after the checkpoint of `step`."""
    shutil.copytree(source, folder)
    go_back(folder, step)
    return folder


def go_back(folder: Path, step: int) -> None:
    """Leave a run as it was when it was killed after the checkpoint of `step`."""
    for later in steps_in(folder):
        if later > step:
            shutil.rmtree(folder / FOLDER / str(later))


def write_config(config: Config, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"from mlstm_jax.config import *\nconfig = {config!r}\n")
    return file


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


class Launcher:
    """Starts the processes of runs, as a user would."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.started: list[Process] = []

    def call(self, *words: object, **environment: str) -> Process:
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        command = list(map(str, words))
        surroundings = self.environment | environment
        self.started.append(subprocess.Popen(command, env=surroundings, **pipe))
        return self.started[-1]

    def train(
        self,
        configs: Sequence[Config],
        *options: str,
        count: int = 1,
        prefixes: Sequence[Sequence[str]] = ((), (), (), ()),
        environments: Sequence[dict[str, str]] = ({}, {}, {}, {}),
        coordinator: str | None = None,
    ) -> list[Process]:
        """Start one run, of a process for each config, of so many devices each."""
        self.started = []
        address = coordinator or free_address()
        for index, config in enumerate(configs):
            file = write_config(config, self.folder / f"config{index}.py")
            words = ["--distributed.coordinator", address, "--distributed.index", index]
            words += ["--distributed.processes", len(configs), "--devices.virtual-cpu", count]
            command = [*prefixes[index], COMMAND, "train", file, *words, *options]
            self.call(*command, **environments[index])
        return self.started

    def ended(self, *codes: int) -> list[str]:
        """Wait for all to end, with one of these exit codes; return what each has written."""
        texts = []
        for process in self.started:
            texts.append(process.communicate(timeout=300)[0].decode())
            assert process.returncode in codes, texts[-1]
        return texts


def wait_for_step(process: Process, folder: Path, step: int) -> None:
    """Wait until a line of metrics tells of `step`, or the process has ended."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        lines = metrics.read_metrics(folder / "metrics.jsonl")
        if lines and lines[-1]["step"] >= step:
            return
        time.sleep(0.01)
