"""Kills of this package's other commands; clusters whose processes are killed, stopped or unlike.

`python ours_more.py FOLDER [CASE ...]` prints a line of JSON for each case: prepare, beam,
transfer, classify, export, plain (before the next ones), cluster, stopped, clock2, clock-2,
version, numbers. LD_PRELOAD must name the built kill_write.c. A command is killed with SIGKILL
after a random part of its usual time; then the same command is started again. Nothing may be seen
of a killed command but a whole result.
"""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ours import COMMON, RECURRENT, describe, make_corpus, newest_step, result, start, wait

from mlstm_jax import shipped
from mlstm_jax.record import steps_in

KILLS = 4
WORDS = ["good", "bad", "film", "cast", "slow", "fine", "plot", "dull", "warm", "loud"]
BEAM = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"
TIMES = re.compile(rb'"(seconds|date|minutes)": [^,\n}]*')


def write_texts(folder: Path) -> None:
    """Files for `prepare`, about 24 MB, and tables with labels."""
    draw = random.Random(2)
    for number in range(4):
        with (folder / f"{number}.jsonl").open("w") as file:
            for _ in range(20_000):
                text = " ".join(draw.choices(WORDS, k=50)) + f" {draw.random()}"
                file.write(json.dumps({"text": text, "rating": draw.randint(1, 5)}) + "\n")
    for name, rows in (("train", 60), ("test", 40)):
        with (folder / f"{name}.csv").open("w") as file:
            file.write("text,label\n")
            for number in range(rows):
                word = ("good", "bad")[number % 2]
                file.write(f"{name} {number} {word} {' '.join(draw.choices(WORDS, k=8))},{word}\n")


def contents(out: Path) -> dict[str, bytes]:
    """All files of a result by name, without times; none if it does not exist."""
    files = [out] if out.is_file() else sorted(path for path in out.rglob("*") if path.is_file())
    return {path.relative_to(out).as_posix(): TIMES.sub(b"", path.read_bytes()) for path in files}


def kill_command(folder: Path, case: str, words: Sequence[str], out: str, show: Any) -> None:
    """Kill a command at random moments, in a folder of its own each time, and start it again.

    The features of `transfer` may be there before it ends, if they are whole.
    """
    plain = folder / case / "plain"
    begun = time.monotonic()
    how = wait(start(plain, [*words, "--out", str(plain / out)]))
    usual = time.monotonic() - begun
    expected = contents(plain / out)
    if how != "ended" or not expected:
        show(case, ends=how, message=(plain / "log").read_text()[-300:])
        return
    draw = random.Random(case)
    counts = {"killed": 0, "half_written": 0, "other_result": 0, "failed": 0, "left_over": 0}
    moments = []
    for number in range(KILLS):
        where = folder / case / str(number)
        command = [*words, "--out", str(where / out)]
        child = start(where, command)
        moments.append(round(draw.uniform(0.2, 1) * usual, 2))
        time.sleep(moments[-1])
        os.kill(child, signal.SIGKILL)
        is_killed = wait(child) == "killed"
        counts["killed"] += is_killed
        seen = contents(where / out)
        is_whole = {name: seen[name] == expected.get(name) for name in seen}
        is_all = not seen or len(seen) == len(expected) or case == "transfer"
        counts["half_written"] += not (all(is_whole.values()) and is_all)
        if is_killed:  # a command that has ended does not replace its result
            counts["failed"] += wait(start(where, command)) != "ended"
        counts["other_result"] += contents(where / out) != expected
        names = {path.name for path in where.iterdir()}
        counts["left_over"] += names != {path.name for path in plain.iterdir()}
    show(case, usual_seconds=round(usual, 2), seconds=moments, kills=KILLS, **counts)


def commands(folder: Path, cases: Sequence[str], show: Any) -> None:
    """Kills of the commands that make a corpus, a classifier, a table of labels, a file."""
    sources = [str(folder / f"{number}.jsonl") for number in range(4)]
    train = str(folder / "train.csv")
    test = str(folder / "test.csv")
    beam = ["--engine", "beam", f"--beam-options={BEAM}"]
    for case, words, out in (
        ("prepare", ["prepare", *sources, "--workers", "2"], "out"),
        ("beam", ["prepare", sources[0], *beam], "out"),
        ("transfer", ["transfer", "sentiment", "--train", train, "--test", test], "out"),
        ("classify", ["classify", "sentiment", test], "out.csv"),
        ("export", ["export", "sentiment"], "out.pyz"),
    ):
        if case in cases:
            kill_command(folder, case, words, out, show)


# --- clusters


def launch(
    folder: Path,
    corpus: Path,
    processes: int,
    devices: int,
    environments: Sequence[dict[str, str]] = (),
    more: Sequence[str] = (),
) -> list[subprocess.Popen[bytes]]:
    """Start the processes of a run, each with an environment of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = ["train", *RECURRENT, "--data.corpus", str(corpus), "--out", str(folder / "out")]
    common = list(COMMON)
    for option in ("--data.batch", "--data.shards"):
        common[common.index(option) + 1] = "12"
    words += [*common, *more]
    words += ["--devices.virtual-cpu", str(devices), "--distributed.coordinator", address]
    words += ["--distributed.processes", str(processes), "--distributed.timeout-seconds", "120"]
    started = []
    for index in range(processes):
        own = dict(environments[index]) if index < len(environments) else {}
        own["PYTHONPATH"] = os.pathsep.join([own.get("PYTHONPATH", ""), *sys.path])
        with (folder / f"log{index}").open("ab") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "mlstm_jax", *words, "--distributed.index", str(index)],
                    env={**os.environ, "KILL_FOLDER": str(folder), **own},
                    cwd=folder,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    return started


def ended(processes: Sequence[subprocess.Popen[bytes]]) -> str:
    """Wait for the processes of a run; how they ended."""
    codes = [process.wait() for process in processes]
    return "ended" if not any(codes) else f"codes {codes}"


def kill_all(processes: Sequence[subprocess.Popen[bytes]], folder: Path, step: int) -> str:
    """Kill the processes when the metrics have a step."""
    while newest_step(folder) < step and all(process.poll() is None for process in processes):
        time.sleep(0.01)
    for process in processes:
        process.kill()
    ended(processes)
    return f"killed after step {newest_step(folder)}"


def clusters(folder: Path, cases: Sequence[str], show: Any) -> None:
    """Clusters of two processes, compared with an uninterrupted one."""
    corpus = folder / "corpus"
    plain = folder / "cluster_plain"
    evaluates = ("--train.eval-every", "16")
    if "plain" in cases:
        show("cluster, uninterrupted", ends=ended(launch(plain, corpus, 2, 1, more=evaluates)))
        (plain / "done").touch()

    def compare(case: str, where: Path, how: list[str]) -> None:
        if how[-1] == "ended":
            while not (plain / "done").exists():  # the cases may run at the same time
                time.sleep(1)
            show(case, **describe(where, result(plain), how))
            return
        logs = [where / f"log{index}" for index in range(2)]
        show(case, ends=how, messages=[log.read_text().strip()[-300:] for log in logs])

    def again(case: str, where: Path, how: str) -> None:
        compare(case, where, [how, ended(launch(where, corpus, 2, 1, more=evaluates))])

    if "cluster" in cases:
        where = folder / "cluster_checkpoint"
        part = {"KILL_FILE": "/16.orbax-checkpoint-tmp/"}
        how = ended(launch(where, corpus, 2, 1, [part], evaluates))
        again("process 0 of 2 killed in a checkpoint", where, how)
        where = folder / "cluster_evaluation"
        started = launch(where, corpus, 2, 1, more=evaluates)
        # The line of step 16 comes before its evaluation.
        again("2 of 2 processes killed at an evaluation", where, kill_all(started, where, 16))
    if "stopped" in cases:
        where = folder / "cluster_stopped"
        started = launch(where, corpus, 2, 1, more=evaluates)
        while newest_step(where) < 20 and started[0].poll() is None:
            time.sleep(0.01)
        started[0].send_signal(signal.SIGSTOP)
        time.sleep(10)
        started[0].send_signal(signal.SIGCONT)
        compare("process 0 of 2 stopped for 10 s", where, ["stopped", ended(started)])
    for hours in (2, -2):
        if f"clock{hours}" in cases:
            where = folder / f"cluster_clock_{hours}"
            shifted = where / "shifted"
            shifted.mkdir(parents=True)
            (shifted / "sitecustomize.py").write_text(
                f"import time\nreal = time.time\ntime.time = lambda: real() + {3600 * hours}\n"
            )
            other = {"PYTHONPATH": str(shifted)}
            how = kill_all(launch(where, corpus, 2, 1, [{}, other], evaluates), where, 20)
            how2 = ended(launch(where, corpus, 2, 1, [{}, other], evaluates))
            compare(f"the clock of process 1 is {hours} hours ahead", where, [how, how2])
    if "version" in cases:
        where = folder / "cluster_version"
        started = launch(where, corpus, 2, 1, more=evaluates)
        how = kill_all(started, where, 20)
        tree = where / "tree"
        package = Path(sys.modules["mlstm_jax"].__file__ or "").parent
        shutil.copytree(package, tree / "mlstm_jax")
        shutil.copytree(shipped.folder(), tree / "configs")
        file = tree / "mlstm_jax/__init__.py"
        text = re.sub(r'__version__ = "[^"]*"', '__version__ = "9.9.9"', file.read_text())
        file.write_text(text)
        other = {"PYTHONPATH": str(tree)}
        begun = time.monotonic()
        how2 = ended(launch(where, corpus, 2, 1, [{}, other], evaluates))
        how2 += f" after {time.monotonic() - begun:.0f} s"
        compare("process 1 has another version", where, [how, how2])
        again("the same, both with their own version again", where, how2)


# Processes of the sessions of a run, and the checkpoint at which each ends.
SESSIONS = ((4, 16), (2, 32), (1, 48), (3, 64))


def run_sessions(folder: Path, corpus: Path, later: int, virtual: bool) -> list[str]:
    """Run SESSIONS, each killed when the checkpoint `later` steps behind its last is complete.

    Newer checkpoints are removed, so that the next session resumes from the last of this one.
    """
    out = folder / "out"
    how = []
    for number, last in SESSIONS:
        processes, devices = (1, number) if virtual else (number, 1)
        started = launch(folder, corpus, processes, devices, more=("--train.eval-every", "16"))
        if last == SESSIONS[-1][1]:
            how.append(ended(started))
            break
        while last + later not in steps_in(out) and started[0].poll() is None:
            time.sleep(0.01)
        for process in started:
            process.kill()
        ended(started)
        how.append(f"{number} killed with checkpoint {steps_in(out)[-1]}")
        for step in steps_in(out):
            if step > last:
                shutil.rmtree(out / "checkpoints" / str(step))
    return how


def other_numbers(folder: Path, corpus: Path, show: Any) -> None:
    """A run on 4, 2, 1 and 3 processes, against other kills, virtual devices, and 2 all along."""
    plain = result(folder / "cluster_plain")
    first = folder / "numbers"
    how = run_sessions(first, corpus, 0, virtual=False)
    name = "4, 2, 1, 3 processes"
    if how[-1] != "ended":
        log = (first / "log0").read_text()
        show(name, ends=how, message=log.strip()[-300:])
        return
    own = result(first)
    values = describe(first, plain, how)
    losses = []
    for line, other in zip(own["lines"], plain["lines"], strict=True):
        losses.append(abs(line["bpc"] - other["bpc"]))
    show(f"{name}; against 2 all along", largest_difference_of_bpc=max(losses), **values)
    for case, later, virtual in (("killed later", 8, False), ("virtual devices of one", 0, True)):
        where = folder / f"numbers_{later}_{virtual}"
        how = run_sessions(where, corpus, later, virtual)
        show(f"{name}; against the same, {case}", **describe(where, own, how))


def main(folder: Path, cases: Sequence[str]) -> None:
    """Run cases below a folder, which is made, with its inputs, if there is none."""

    def show(case: str, **values: Any) -> None:
        print(json.dumps({"peer": "ours", "case": case, **values}), flush=True)

    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "train.csv").exists():
        write_texts(folder)
    if "beam" in cases:
        import apache_beam  # noqa: F401  # once, in place of once a command
    commands(folder, cases, show)
    if "plain" in cases:
        make_corpus(folder, folder / "corpus")
    clusters(folder, cases, show)
    if "numbers" in cases:
        other_numbers(folder, folder / "corpus", show)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
