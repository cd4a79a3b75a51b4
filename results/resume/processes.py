"""Kill the programs of this folder on one or two processes, and resume them on as many or others.

`python processes.py PEER FOLDER` prints a line of JSON for each case; README.md explains them.
PEER: nanogpt_loop, trainer, lightning_fit, accelerate_loop, keras_devices (devices of one process).
DROPOUT, SEEDABLE: see the programs. Each process is a forked one with the variables that torchrun
sets; one run is started by torchrun itself. A step has 8 examples on one process, and 4 on each of
two. The first process that reaches the step kills itself by SIGKILL; then the others are killed at
once.
"""

import importlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import shared
from study import EPOCH, count_reads

DEVICES = "keras_devices"  # the peer that has devices of one process in place of processes
NUMBER = re.compile(r"[0-9.]+")


def work(program: Any, folder: Path, session: int, rank: int, variables: dict[str, str]) -> None:
    """Run the program in this forked process, and end it."""
    log = os.open(folder / f"log_{session}_{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(variables, PART=f"_{session}_{rank}")
    shared.run_to_exit(program, folder)


def launch(program: Any, folder: Path, session: int, processes: int, kill_step: int = 0) -> str:
    """Run the program on some processes; how they ended. If one does not, the others are killed."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    is_of_devices = program.__name__ == DEVICES
    for rank in range(1 if is_of_devices else processes):
        variables = {"KILL_STEP": str(kill_step)}
        if is_of_devices:
            variables["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={processes}"
        elif processes > 1:
            variables |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            variables |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        child = os.fork()
        if not child:
            work(program, folder, session, rank, variables)
        children.append(child)
    how = "ended"
    while children:
        child, status = os.wait()
        children.remove(child)
        code = os.waitstatus_to_exitcode(status)
        if code and how == "ended":
            how = {-9: "killed"}.get(code, "failed")
            for other in children:
                os.kill(other, signal.SIGKILL)
    return how


def read_by_step(folder: Path) -> dict[int, Any]:
    """The examples of each update of the final parameters; a new session takes steps back."""
    read: dict[int, Any] = {}
    for session in range(2):
        own: dict[int, Any] = {}
        for file in sorted(folder.glob(f"reads_{session}_*.jsonl")):
            entries = [json.loads(line) for line in file.read_text().splitlines()]
            for step, numbers in entries[1:]:
                own.setdefault(step, []).extend(numbers)
        if own:
            read = {step: numbers for step, numbers in read.items() if step < min(own)} | own
    return {step: sorted(numbers) for step, numbers in read.items()}


def largest_difference(folder: Path, other: Path) -> float:
    """Between the final parameters of two runs."""
    own = np.load(folder / "parameters.npz")
    others = np.load(other / "parameters.npz")
    return max(float(np.abs(own[name] - others[name]).max()) for name in own.files)


def log_of(folder: Path, session: int) -> list[str]:
    """The lines that the first process of a session wrote."""
    text = (folder / f"log_{session}_0").read_text(errors="replace").replace(f"{folder}/", "")
    text = re.sub(r"/\S*/site-packages/", "", text)
    return [line.strip()[:300] for line in text.splitlines() if line.strip()]


def describe(folder: Path, plain: dict[int, Path], session: int, processes: int) -> dict[str, Any]:
    """Compare a run with the uninterrupted ones, by their numbers of processes."""
    usual = {NUMBER.sub("0", line) for line in log_of(plain[processes], 0)}
    says = [line for line in log_of(folder, session) if NUMBER.sub("0", line) not in usual]
    described: dict[str, Any] = {"says": says}
    if not (folder / "parameters.npz").exists():
        return described
    read = read_by_step(folder)
    for number, path in plain.items():
        described[f"same_reads_as_{number}"] = read == read_by_step(path)
        described[f"largest_difference_to_{number}"] = largest_difference(folder, path)
    is_of_rows = max(max(numbers) for numbers in read.values()) < EPOCH * 8
    return described | count_reads(read, 2 if is_of_rows else 0)


def main(peer: str, folder: Path) -> None:
    """Run all cases of a peer below a new folder."""
    program = importlib.import_module(peer)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    common = {"dropout": float(os.environ.get("DROPOUT", "0.2"))}
    if "SEEDABLE" in os.environ:
        common["seedable"] = True

    def show(case: str, **values: Any) -> None:
        print(json.dumps({"peer": peer, "case": case, **common, **values}), flush=True)

    plain = {number: folder / f"plain_{number}" for number in (1, 2)}
    how = {number: launch(program, where, 0, number) for number, where in plain.items()}
    for number in (1, 2):
        if how[number] != "ended":
            log = (plain[number] / "log_0_0").read_text().strip()
            show(f"uninterrupted on {number}", ends=how[number], message=log[-300:])
            return
    for number in (1, 2):
        again = folder / f"again_{number}"
        ends = launch(program, again, 0, number)
        show(f"uninterrupted on {number}, again", ends=ends, **describe(again, plain, 0, number))
    if peer != DEVICES:
        where = folder / "torchrun"
        where.mkdir()
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        words += ["2", __file__, peer, str(where)]
        with (where / "log_0_0").open("w") as log:
            ends = f"code {subprocess.run(words, stdout=log, stderr=log).returncode}"
        show("uninterrupted on 2, by torchrun", ends=ends, **describe(where, plain, 0, 2))
    early = random.Random(peer).choice([step for step in range(10, 32) if step % 8 > 1])
    for step in (early, EPOCH + 1):
        for before, after in ((2, 2), (2, 1), (1, 2), (1, 1)):
            where = folder / f"from_{before}_to_{after}_at_{step}"
            ends = launch(program, where, 0, before, step)
            ends += " " + launch(program, where, 1, after)
            values = {"killed_at_step": step, "ends": ends, **describe(where, plain, 1, after)}
            show(f"killed on {before}, resumed on {after}", **values)


if __name__ == "__main__":
    if "RANK" in os.environ:
        os.environ["PART"] = f"_0_{os.environ['RANK']}"
        importlib.import_module(sys.argv[1]).run(Path(sys.argv[2]))
    else:
        main(sys.argv[1], Path(sys.argv[2]).resolve())
