"""This package's command line, killed from outside and resumed with the same command.

`python ours.py FOLDER [CASE ...]` prints a line of JSON for each case: `steps`, `writes` (after
them) and names of VARIANTS. LD_PRELOAD must name the built kill_write.c. The package is imported
once; each command is a forked process.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlstm_jax
from mlstm_jax import cli
from mlstm_jax.record import read_record, steps_in
from mlstm_jax.training.metrics import read_metrics

TIMES = ("seconds", "bytes_per_second", "data_wait_fraction", "evaluation_seconds")
SMALL = (
    "--model.embedding",
    "16",
    "--data.batch",
    "8",
    "--data.window",
    "16",
    "--data.shards",
    "8",
)
LENGTH = ("--train.steps", "64", "--train.epochs", "None", "--train.checkpoint-every", "8")
OFTEN = ("--train.eval-every", "1000", "--train.log-every", "1", "--train.keep-checkpoints", "20")
COMMON = (*SMALL, *LENGTH, *OFTEN, "--train.dropout", "0.2", "--optimizer.learning-rate", "1e-2")
RECURRENT = ("model:mlstm", "--model.hidden", "32")
TRANSFORMER = (
    "model:transformer",
    "--model.hidden",
    "32",
    "--model.layers",
    "2",
    "--model.heads",
    "2",
)
# What is added to a command, by the name of the variant.
VARIANTS = {
    "mlstm": (),
    "transformer": (),
    "fp16": ("--precision.compute", "fp16"),
    "micro-batches": ("--train.micro-batches", "2"),
    "recompute": ("--train.recompute-every", "4"),
    "virtual-cpu": ("--devices.virtual-cpu", "2"),
}

# Files of a checkpoint while it is written; the names of arrays' files are random.
ARRAYS = "orbax-checkpoint-tmp/ocdbt.process_0/d/"
PARTS = (
    f"params.{ARRAYS}",
    f"carry.{ARRAYS}",
    "meta.orbax-checkpoint-tmp/metadata",
    "commit_success",
)


def start(folder: Path, words: Sequence[str], **environment: str) -> int:
    """Start a command in a forked process that writes to the folder's log; return its id."""
    folder.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child:
        return child
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(environment, KILL_FOLDER=str(folder))
    code: Any = 0
    try:
        cli.main(list(words))
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        os._exit(int(code))


def wait(child: int) -> str:
    """Wait for a process; return how it ended."""
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {0: "ended", -9: "killed"}.get(code, f"failed ({code})")


def newest_step(folder: Path) -> int:
    """The newest step in metrics.jsonl."""
    file = folder / "out" / "metrics.jsonl"
    if not file.exists():
        return 0
    steps = [line["step"] for line in read_metrics(file) if line["kind"] == "train"]
    return max(steps, default=0)


def kill_at(child: int, folder: Path, step: int) -> str:
    """Kill a process as soon as its metrics reach a step; return how it ended.

    After the last step of the epoch it waits for the checkpoint, which is written in a thread.
    """
    checkpoint = 32 if step == 33 else None
    while newest_step(folder) < step or checkpoint not in (None, *steps_in(folder / "out")):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return f"ended too early ({os.waitstatus_to_exitcode(status)})"
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    how = wait(child)
    return f"{how} after step {newest_step(folder)} with checkpoint {steps_in(folder / 'out')[-1]}"


def train_words(folder: Path, corpus: Path, variant: str) -> list[str]:
    """The command of a variant."""
    kind = TRANSFORMER if variant == "transformer" else RECURRENT
    words = ["train", *kind, "--data.corpus", str(corpus), "--out", str(folder / "out"), *COMMON]
    return words + list(VARIANTS[variant])


def result(folder: Path) -> dict[str, Any]:
    """What a finished run is compared by: SHA-256 of its parameters, checksums, metrics."""
    file = folder / "result.json"
    child = os.fork()  # so that JAX does not start here
    if not child:
        try:
            file.write_text(json.dumps(contents(folder / "out")))
        finally:
            os._exit(0)
    wait(child)
    values: dict[str, Any] = json.loads(file.read_text())
    return values


def contents(out: Path) -> dict[str, Any]:
    """The parameters, the lines of metrics and the checksums of the newest checkpoint of a run."""
    parameters = mlstm_jax.load(out).parameters
    sha = hashlib.sha256(b"".join(parameters[name].tobytes() for name in sorted(parameters)))
    lines = [line for line in read_metrics(out / "metrics.jsonl") if line["kind"] == "train"]
    for line in lines:
        for name in TIMES:
            line.pop(name, None)
    sums = read_record(out, steps_in(out)[-1]).sums
    return {"sha": sha.hexdigest(), "lines": lines, "sums": sums}


def describe(folder: Path, plain: dict[str, Any], how: Sequence[str]) -> dict[str, Any]:
    """Compare a run with an uninterrupted one."""
    described: dict[str, Any] = {"ends": ", ".join(how)}
    if how[-1] != "ended":
        lines = (folder / "log").read_text(errors="replace").strip().splitlines()
        return described | {"message": lines[-1][-300:] if lines else ""}
    own = result(folder)
    described["same_parameters"] = own["sha"] == plain["sha"]
    described["same_state_checksums"] = own["sums"] == plain["sums"]
    described["same_reads"] = [(line["step"], line["bytes_seen"]) for line in own["lines"]] == [
        (line["step"], line["bytes_seen"]) for line in plain["lines"]
    ]
    described["same_metrics"] = own["lines"] == plain["lines"]
    return described


def make_corpus(folder: Path, corpus: Path) -> None:
    """A corpus whose training part has about 32 steps."""
    draw = random.Random(1)
    words = ["cat", "door", "every", "fox", "green", "house", "jump", "kite", "lemon", "moon"]
    texts = folder / "texts.jsonl"
    with texts.open("w") as file:
        for number in range(80):
            text = f"{number} " + " ".join(draw.choice(words) for _ in range(12))
            file.write(json.dumps({"text": text}) + "\n")
    how = wait(
        start(
            folder / "prepare", ["prepare", str(texts), "--out", str(corpus), "--split", "10,1,1"]
        )
    )
    if how != "ended":
        raise SystemExit((folder / "prepare" / "log").read_text())


def kill_at_steps(folder: Path, corpus: Path, show: Any) -> None:
    """Kill at a random step, after an epoch's last checkpoint, twice in a row."""
    plain = folder / "plain"
    how = [wait(start(plain, train_words(plain, corpus, "mlstm")))]
    expected = result(plain)
    again = folder / "again"
    how.append(wait(start(again, train_words(again, corpus, "mlstm"))))
    show("uninterrupted, again", killed_at_step=[], **describe(again, expected, how))
    draw = random.Random("ours")
    early = draw.choice([step for step in range(10, 32) if step % 8 > 1])
    late = draw.choice([step for step in range(42, 60) if step % 8 > 1])
    cases = [("random step", [early]), ("epoch's end", [33]), ("twice in a row", [early, late])]
    for number, (case, steps) in enumerate(cases):
        where = folder / f"step_{number}"
        words = train_words(where, corpus, "mlstm")
        how = [kill_at(start(where, words), where, step) for step in steps]
        how.append(wait(start(where, words)))
        show(case, killed_at_step=steps, **describe(where, expected, how))


def kill_writes(folder: Path, corpus: Path, show: Any) -> None:
    """Kill in the middle of the second save; after `kill_at_steps`."""
    expected = result(folder / "plain")
    for number, part in enumerate(PARTS):
        where = folder / f"write_{number}"
        words = train_words(where, corpus, "mlstm")
        how = [wait(start(where, words, KILL_FILE=f"/16.orbax-checkpoint-tmp/{part}"))]
        how.append(wait(start(where, words)))
        show("during a checkpoint", file=part, **describe(where, expected, how))


def other_cases(folder: Path, corpus: Path, show: Any, variants: Sequence[str]) -> None:
    """A kill at a random step of other kinds of runs."""
    draw = random.Random("variants")
    for variant in variants:
        plain = folder / f"{variant}_plain"
        how = [wait(start(plain, train_words(plain, corpus, variant)))]
        if how != ["ended"]:
            show(variant, ends=how, message=(plain / "log").read_text()[-300:])
            continue
        where = folder / variant
        words = train_words(where, corpus, variant)
        step = draw.choice([step for step in range(10, 60) if step % 8 > 1])
        how = [kill_at(start(where, words), where, step), wait(start(where, words))]
        show(variant, killed_at_step=[step], **describe(where, result(plain), how))


def main(folder: Path, cases: Sequence[str]) -> None:
    """Run cases below a folder, which is made, with a corpus, if there is none."""

    def show(case: str, **values: Any) -> None:
        print(json.dumps({"peer": "ours", "case": case, **values}), flush=True)

    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "corpus"
    if not corpus.exists():
        make_corpus(folder, corpus)
    if "steps" in cases:
        kill_at_steps(folder, corpus, show)
    if "writes" in cases:
        kill_writes(folder, corpus, show)
    other_cases(folder, corpus, show, [case for case in cases if case in VARIANTS])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
