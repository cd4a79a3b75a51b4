"""Run GPU measurements for at most 12 minutes, and name what is left for the next call.

    python benchmarks/gpu.py --out gpu_results --text reviews.txt
    python benchmarks/gpu_report.py gpu_results

Each finished measurement is a JSON file in --out, and all but the trainings have a log there. The
same command then runs only the rest; --minutes sets the limit of a call. It needs jax[cuda], flax
and optax, and also times PyTorch if it is installed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
TRAININGS = ("bf16", "fp8")  # with the same text, batches and seed
SMALL = ["--point", "64", "8", "16", "fp32"]  # to test this script on a CPU


class Step(NamedTuple):
    """One benchmark: its name, approximate minutes and command."""

    name: str
    minutes: float
    command: list[str]  # after python and before --json FILE


def steps(small: bool, torch: bool) -> list[Step]:
    """Return the benchmarks in order, the most informative first."""
    grid = SMALL if small else ["--grid", "paper"]
    quick = ["--rounds", "1" if small else "5", "--seconds", "6"]
    trial = ["--small"] if small else []
    others = ["autodiff", *(["torch"] if torch else [])]

    def script(name: str) -> str:
        return str(FOLDER / f"{name}.py")

    recompute = ["--recompute-every", "8" if small else "32"]
    large = ["--point", "4096", "256", "256", "bf16", "--point", "4096", "512", "256", "bf16"]
    if small:
        large = ["--point", "64", "8", "16", "bf16"]
    mixed = []  # for the gain of mixed precision, beside bf16 above
    for dtype in ("fp32",) if small else ("fp32", "tf32", "fp16"):
        mixed += ["--point", *(("64", "8", "16") if small else ("4096", "256", "256")), dtype]
    return [
        Step("check", 1.5, [script("gpu_check"), *trial]),
        Step("fp8", 2.5, [script("train_step"), *large, *quick,
                          "--implementations", "fp8", "pallas", "ours"]),
        Step("mixed", 2, [script("train_step"), *mixed, *quick,
                          "--implementations", "ours", "pallas"]),
        Step("train_step", 7 if torch else 4, [script("train_step"), *grid, *quick, *recompute,
                               "--implementations", "ours", "pallas", *others]),
        Step("products", 3, [script("products"), *grid, *quick]),
        Step("features", 2, [script("features"), "--hidden", "64" if small else "4096",
                             "--count", "8" if small else "2000",
                             "--compared", "2" if small else "16",
                             *(["--rounds", "1"] if small else [])]),
        Step("recurrence", 4, [script("recurrence"), *grid, *quick,
                               "--implementations", "ours", *others]),
    ]  # fmt: skip


def run(step: Step, out: Path, seconds: float) -> int | None:
    """Run a step and also write its output to a log.

    Return its exit code, or None if it was stopped after so many seconds.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *step.command, "--json", str(out / f"{step.name}.json")]
    with (
        (out / f"{step.name}.log").open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process,
    ):
        stopper = Timer(max(1.0, seconds), process.send_signal, (signal.SIGTERM,))
        stopper.daemon = True
        stopper.start()
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            log.write(line)
        stopped = stopper.finished.is_set()
        stopper.cancel()
        return None if process.wait() and stopped else process.returncode


def train(out: Path, seconds: float, small: bool, name: str) -> None:
    """Train 2048 units on the corpus in `out` for some seconds in total, and write the results.

    The training "fp8" has fp8 in the recurrent products, which a CPU emulates. A training that is
    stopped before its time writes no results, and the next call resumes it.
    """
    from mlstm_jax import environment
    from mlstm_jax.config import Config, Data, Devices, Model, Optimizer, Precision, Train

    environment.prepare(Devices())
    import measure
    import train_step

    from mlstm_jax.guard import Interrupted
    from mlstm_jax.training import metrics
    from mlstm_jax.training.train import Session
    from mlstm_jax.training.train import train as run_train

    problem = train_step.lacking(2048, fp8=True) if name == "fp8" else None
    if problem:
        print(f"training_{name} is left out: it needs {problem}")
        return
    folder = out / f"run_{name}"
    precision = Precision(compute="bf16")
    if name == "fp8":
        precision = Precision(compute="bf16", recurrent="fp8_emulated" if small else "fp8")
    config = Config(
        out=str(folder),
        model=Model(hidden=64 if small else 2048),
        data=Data(
            corpus=str(out / "corpus"), batch=8 if small else 256, window=32 if small else 256
        ),
        optimizer=Optimizer(learning_rate=5e-4 * (10 if small else 1), schedule="constant"),
        precision=precision,
        train=Train(steps=20, epochs=None, log_every=5, eval_every=10)
        if small
        else Train(epochs=100, log_every=50, eval_every=500, checkpoint_every=500),
    )

    is_over = False

    def stop(line: dict[str, Any]) -> None:
        nonlocal is_over
        if line["kind"] == "train" and line["seconds"] >= seconds:
            is_over = True
            signal.raise_signal(signal.SIGTERM)

    try:
        run_train(config, Session(callbacks=[stop], owns_process=True))
    except Interrupted:
        if not is_over:
            sys.exit(f"training_{name} was stopped; the same command resumes it")
    lines = metrics.read_metrics(folder / "metrics.jsonl")
    made = {
        "benchmark": "training",
        **measure.machine(),
        "hidden": config.model.hidden,
        "batch": config.data.batch,
        "window": config.data.window,
        "dtype": name,
        "seconds": max(line.get("seconds", 0.0) for line in lines),
        "train": [[x["step"], x["bytes_seen"], x["bpc"]] for x in lines if x["kind"] == "train"],
        "eval": [[x["step"], x["bpc"]] for x in lines if x["kind"] == "eval"],
    }
    (out / f"training_{name}.json").write_text(json.dumps(made) + "\n")


def prepare(out: Path, text: Path) -> None:
    """Create a corpus from a text, its last 2 % for validation; only NumPy is needed."""
    from mlstm_jax.corpora.prepare import prepare as run_prepare

    data = text.read_bytes()
    cut = len(data) * 98 // 100
    parts = {"train": data[:cut], "valid": data[cut:]}
    for name, part in parts.items():
        (out / f"{name}.txt").write_bytes(part)
    run_prepare(
        {"train": [str(out / "train.txt")], "valid": [str(out / "valid.txt")]},
        out / "corpus",
        clean="none",
    )
    for name in parts:
        (out / f"{name}.txt").unlink()


def main() -> None:
    """Run the remaining steps in order until the minutes are used up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu_results"), help="results and logs")
    parser.add_argument("--text", type=Path, help="text to train on; unset: no training")
    parser.add_argument("--minutes", type=float, default=12, help="limit of this call")
    parser.add_argument("--training-minutes", type=float, default=5, help="of each type")
    names = [step.name for step in steps(False, False)]
    parser.add_argument("--steps", nargs="+", choices=names, default=names, help="run only these")
    parser.add_argument(
        "--small", action="store_true", help="tiny sizes, two at a time, to test this on a CPU"
    )
    parser.add_argument("--only-train", choices=TRAININGS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    sys.path[:0] = [str(ROOT)]
    given.out.mkdir(parents=True, exist_ok=True)
    if given.only_train:
        train(given.out, 60 * given.training_minutes, given.small, given.only_train)
        return
    if given.text and not given.text.is_file():
        parser.error(f"--text {given.text}: the file does not exist")
    if given.small:  # The time is for compiling, and the steps have many programs in common.
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(given.out.resolve() / "programs"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    end = time.monotonic() + 60 * given.minutes
    failed, left = [], []

    def attempt(step: Step) -> None:
        if (given.out / f"{step.name}.json").exists():
            print(f"{step.name}: already done")
        elif end - time.monotonic() < 60 * step.minutes * (0.1 if given.small else 1):
            left.append(step.name)
        else:
            print(f"=== {step.name}, about {step.minutes:g} minutes", flush=True)
            code = run(step, given.out, end - time.monotonic())
            if code is None:
                left.append(step.name)
            elif code:
                failed.append(step.name)

    # In small nothing that is timed counts, so two steps may run at a time.
    with ThreadPoolExecutor(2 if given.small else 1) as pool:
        chosen = [step for step in steps(given.small, _has_torch()) if step.name in given.steps]
        list(pool.map(attempt, chosen))
    for name in TRAININGS:
        result = given.out / f"training_{name}.json"
        if given.text is None or result.exists():
            continue
        if not (given.out / "corpus").exists():
            prepare(given.out, given.text)
        command = [str(Path(__file__)), "--only-train", name, "--out", str(given.out)]
        command += ["--training-minutes", str(given.training_minutes)]
        command += ["--small"] * given.small
        code = None if end - time.monotonic() < 90 else _train_until(command, end)
        if code is None:
            left.append(f"training_{name}")
        elif code:
            failed.append(f"training_{name}")
    if left:
        print(f"remaining for the next call: {', '.join(left)}")
    if failed:
        print(
            f"failed: {', '.join(failed)}; see above, or the logs in {given.out}", file=sys.stderr
        )
    sys.exit(bool(failed))


def _train_until(command: list[str], end: float) -> int | None:
    """Train in another process; return its exit code.

    It is None if this call ended before the run had its minutes; the next call resumes it.
    """
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{FOLDER}"}
    process = subprocess.Popen([sys.executable, *command], env=environment, text=True)
    try:
        process.wait(end - time.monotonic() - 20)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        if process.wait():
            return None
    return process.returncode


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


if __name__ == "__main__":
    main()
