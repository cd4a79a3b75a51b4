"""Kill the programs of this folder, resume each with the same command, and compare.

`python study.py PEER FOLDER` prints a line of JSON for each case; README.md explains them. PEER:
nanogpt_loop, trainer, lightning_fit, keras_fit. LD_PRELOAD must name the built kill_write.c.
The program is imported once; each case is a forked process, which ends by SIGKILL.
"""

import collections
import importlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import shared

EPOCH = 32  # steps
SAVES = int(os.environ.get("SAVES", "8"))  # in an uninterrupted run


def launch(program: Any, folder: Path, **environment: str) -> str:
    """Run the program in a folder in a forked process; return how it ended."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "out" / "tmp"
    child = os.fork()
    if not child:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        temporary.mkdir(parents=True, exist_ok=True)
        tempfile.tempdir = str(temporary)
        os.environ.update(environment, TMPDIR=str(temporary), KILL_FOLDER=str(folder / "out"))
        shared.run_to_exit(program, folder)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {0: "ended", -9: "killed"}.get(code, "failed")


def read_by_step(folder: Path) -> dict[int, Any]:
    """What the updates of the final parameters read, by step; a new process takes steps back."""
    read: dict[int, Any] = {}
    is_first = True
    for line in (folder / "reads.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry == "start":
            is_first = True
            continue
        step, numbers = entry
        if is_first:
            read = {before: value for before, value in read.items() if before < step}
            is_first = False
        read.setdefault(step, []).extend(numbers)
    return read


def count_reads(read: dict[int, Any], epochs: int) -> dict[str, Any]:
    """The number of updates, and how many examples each epoch read, and more than once."""
    counted: dict[str, Any] = {"updates": len(read)}
    for epoch in range(epochs):
        steps = range(epoch * EPOCH + 1, (epoch + 1) * EPOCH + 1)
        counts = collections.Counter(number for step in steps for number in read.get(step, []))
        twice = sum(count > 1 for count in counts.values())
        counted[f"epoch_{epoch + 1}"] = {"read": len(counts), "more_than_once": twice}
    return counted


def describe(folder: Path, plain: Path, how: list[str]) -> dict[str, Any]:
    """Compare a run with an uninterrupted one."""
    described: dict[str, Any] = {"ends": " ".join(how)}
    if how[-1] != "ended":
        lines = (folder / "log").read_text(errors="replace").strip().splitlines()
        return described | {"message": lines[-1][-300:] if lines else ""}
    read = read_by_step(folder)
    expected = read_by_step(plain)
    described["same_parameters"] = (folder / "digest").read_text() == (plain / "digest").read_text()
    described["same_reads"] = read == expected
    return described | count_reads(read, max(expected) // EPOCH)


def writes_of_a_save(folder: Path, log: Path) -> list[tuple[str, int]]:
    """Each file of the second save, and the number of a write in the middle of it.

    Files in folders of their step are written once; a file that each save writes again has equally
    many writes in each. The names of temporary files are random: they are cut after "tmp".
    """
    names = [
        Path(line).relative_to(folder / "out").as_posix() for line in log.read_text().splitlines()
    ]
    names = [re.split(r"(?<=tmp)", name)[0] if "tmp" in name else name for name in names]
    total = collections.Counter(names)
    of_step = [name for name in total if "16" in name.split("/")[0]]
    if of_step:
        return [(name, total[name] // 2 + 1) for name in of_step]
    chosen = []
    for name, writes in total.items():
        a_save = writes // SAVES
        if a_save:
            chosen.append((name, a_save + a_save // 2 + 1))
    return chosen


def main(peer: str, folder: Path, only: Sequence[str]) -> None:
    """Run all cases of a peer, or only the kills of `writes`, below a new folder."""
    program = importlib.import_module(peer)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    def show(case: str, **values: Any) -> None:
        print(json.dumps({"peer": peer, "case": case, **values}), flush=True)

    plain = folder / "plain"
    log = folder / "writes"
    how = [launch(program, plain, KILL_LOG=str(log))]
    if "writes" not in only:
        kill_at_steps(program, folder, show, how)
    kill_writes(program, folder, show)


def kill_at_steps(program: Any, folder: Path, show: Any, how: list[str]) -> None:
    """Kill at a random step, at an epoch's end, twice in a row."""
    plain = folder / "plain"
    again = folder / "again"
    show("uninterrupted, again", **describe(again, plain, [*how, launch(program, again)]))
    draw = random.Random(program.__name__)
    early = draw.choice([step for step in range(10, 32) if step % 8 > 1])
    late = draw.choice([step for step in range(42, 60) if step % 8 > 1])
    cases = [("random step", [early]), ("epoch's end", [33]), ("twice in a row", [early, late])]
    for number, (case, steps) in enumerate(cases):
        where = folder / f"step_{number}"
        how = [launch(program, where, KILL_STEP=str(step)) for step in steps]
        how.append(launch(program, where))
        show(case, killed_at_step=steps, **describe(where, plain, how))


def kill_writes(program: Any, folder: Path, show: Any) -> None:
    """Kill in the middle of the second save, in the middle of each of its files."""
    plain = folder / "plain"
    log = folder / "writes"
    for number, (file, count) in enumerate(writes_of_a_save(plain, log)):
        where = folder / f"write_{number}"
        how = [launch(program, where, KILL_FILE=f"/out/{file}", KILL_COUNT=str(count))]
        how.append(launch(program, where))
        show("during a checkpoint", file=file, write=count, **describe(where, plain, how))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
