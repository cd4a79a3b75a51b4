"""Check training on the GPUs of one machine, in at most ten minutes, and write one JSON file.

    make gpu-many              # or: python benchmarks/gpu_many.py --out gpu_many
    python benchmarks/gpu_many.py --small --devices 4      # to test this script, on a CPU

Nobody has run this version on several GPUs: docs/clusters.md says where to send the file. Each part
runs in a process of its own; what fails is in the file, too:

- sums: the sum of large arrays over 2, 4, 8 devices, against float64 on the host;
- rates: seconds of a step on 1, 2, 4, 8 devices, and their efficiency, with and without the XLA
  flags `overlap`;
- resume: a run that is killed and resumed ends with the parameters of one that was not;
- processes: the same run by two processes, each with half of the devices.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
STEPS = 40  # of a run
KILLED_AT = 15  # a line of metrics; a checkpoint is written every ten steps
# Of bits per character, between one process and two: they add the same gradients in another order.
LARGEST_DIFFERENCE = 1e-3


class Failed(Exception):
    """A part has failed; the message goes into the file."""


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu_many"), help="results and logs")
    parser.add_argument("--minutes", type=float, default=10, help="limit of the call")
    parser.add_argument("--small", action="store_true", help="tiny sizes, on virtual CPU devices")
    parser.add_argument("--devices", type=int, default=4, help="virtual devices, with --small")
    parser.add_argument("--json", type=Path, metavar="PATH", help="unset: gpu_many.json in --out")
    parser.add_argument("--part", choices=("sums",), help=argparse.SUPPRESS)
    return parser.parse_args()


class Check:
    """The parts, which share a folder, a deadline and a corpus."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.small = given.small
        self.devices = given.devices
        self.out = given.out.resolve()
        self.deadline = time.monotonic() + 60 * given.minutes

    def start(self, name: str, words: list[Any], **variables: str) -> subprocess.Popen[bytes]:
        """Start a process of Python, whose output goes to a log."""
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
        command = [sys.executable, *(str(word) for word in words)]
        with (self.out / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def wait(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Raise Failed unless a process ends well and in time."""
        try:
            code = process.wait(max(1.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failed(f"{name} was not done in time; see {self.out / name}.log") from None
        if code:
            end = (self.out / f"{name}.log").read_text(errors="replace")[-2000:]
            raise Failed(f"{name} ended with exit code {code}: {end}")

    def sums(self) -> dict[str, Any]:
        """Machine, devices, and the errors of sums."""
        words = [__file__, "--part", "sums", "--out", self.out]
        if self.small:
            words += ["--small", "--devices", self.devices]
        self.wait("sums", self.start("sums", words))
        found: dict[str, Any] = json.loads((self.out / "sums.json").read_text())
        self.devices = found["devices"]
        if found["problems"]:
            raise Failed("; ".join(found["problems"]))
        return found

    def rates(self) -> dict[str, Any]:
        """The rows of benchmarks/scaling.py, without and with the flags `overlap`."""
        counts = [count for count in (1, 2, 4, 8) if count <= self.devices]
        size = ["--hidden", 4096, "--rows", 256, "--window", 256, "--dtype", "bf16"]
        if self.small:
            size = ["--virtual-cpu", "--hidden", 16, "--rows", 2, "--window", 8]
        given = os.environ.get("XLA_FLAGS", "")
        flags = {"plain": given}
        if not self.small:  # They are flags of GPUs.
            text = (ROOT / "configs/xla_flags/overlap.txt").read_text().strip()
            flags["overlap"] = f"{given} {text}".strip()
        found = {}
        for name, value in flags.items():
            file = self.out / f"rates_{name}.json"
            words = [FOLDER / "scaling.py", "--devices", *counts, *size, "--json", file]
            words += ["--steps", 2, "--rounds", 3]
            self.wait(f"rates_{name}", self.start(f"rates_{name}", words, XLA_FLAGS=value))
            found[name] = json.loads(file.read_text())["rows"]
        return found

    def resume(self) -> dict[str, Any]:
        """Compare a run that is killed with SIGKILL, and resumed, with one that is not."""
        straight = self.run("straight", [])
        self.wait("straight", straight)
        killed = self.run("killed", [])
        while killed.poll() is None and last_step(self.out / "killed") < KILLED_AT:
            if time.monotonic() > self.deadline:
                killed.kill()
                raise Failed("the run to be killed made no progress; see killed.log")
            time.sleep(0.02)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        at = last_step(self.out / "killed")
        self.wait("killed", self.run("killed", []))
        if losses(self.out / "straight") != losses(self.out / "killed"):
            raise Failed("the losses of the run that was killed differ: see its metrics.jsonl")
        return {"killed_at": at, "losses_equal": True}

    def processes(self) -> dict[str, Any]:
        """Compare the run by two processes with the same by one."""
        half = self.devices // 2
        if not half:
            return {"left out": "there is one device"}
        with socket.create_server(("127.0.0.1", 0)) as free:
            coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        started = []
        for index in range(2):
            own = range(index * half, (index + 1) * half)
            variables = {"JAX_LOCAL_DEVICE_IDS": ",".join(map(str, own))}
            options = ["--distributed.processes", 2, "--distributed.index", index]
            options += ["--distributed.coordinator", coordinator]
            if self.small:
                variables = {}
                options += ["--devices.virtual-cpu", half]
            name = f"process_{index}"
            started.append((name, self.run("processes", options, name, **variables)))
        for name, process in started:
            self.wait(name, process)
        pairs = zip(losses(self.out / "straight"), losses(self.out / "processes"), strict=True)
        largest = max(abs(one - other) for one, other in pairs)
        if largest > LARGEST_DIFFERENCE:
            raise Failed(f"the losses of two processes differ by {largest}")
        return {"largest_difference_bpc": largest}

    def run(
        self, run: str, options: list[Any], log: str | None = None, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start `mlstm-jax train` on all devices, or as the options say."""
        units = 64 if self.small else 1024
        words = [
            "-m",
            "mlstm_jax",
            "train",
            "--data.corpus",
            self.corpus(),
            "--out",
            self.out / run,
        ]
        words += ["--model.hidden", units, "--data.batch", 8 * self.devices, "--data.window", 32]
        words += ["--train.steps", STEPS, "--train.epochs", "None", "--train.log-every", 5]
        words += ["--train.eval-every", STEPS, "--train.checkpoint-every", 10]
        words += ["--precision.compute", "fp32", "--train.deterministic"]
        if self.small and not options:
            words += ["--devices.virtual-cpu", self.devices]
        return self.start(log or run, [*words, *options], **variables)

    def corpus(self) -> Path:
        """A corpus of made-up words, the same on every machine."""
        folder = self.out / "corpus"
        if not folder.exists():
            words = random.Random(0)
            known = ["".join(words.choices("etaoinshrdlu", k=4)) for _ in range(500)]
            lines = [" ".join(words.choices(known, k=20)) for _ in range(20_000)]
            (self.out / "text.txt").write_text("\n".join(lines))
            command = ["-m", "mlstm_jax", "prepare", self.out / "text.txt", "--out", folder]
            self.wait("prepare", self.start("prepare", [*command, "--split", "20,1,1"]))
        return folder


def last_step(folder: Path) -> int:
    """The step of the last line of metrics; 0 before the first."""
    lines = trained(folder)
    return lines[-1]["step"] if lines else 0


def trained(folder: Path) -> list[dict[str, Any]]:
    """The lines of training in metrics.jsonl that are complete."""
    file = folder / "metrics.jsonl"
    text = file.read_text() if file.is_file() else ""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in lines if line["kind"] == "train"]


def losses(folder: Path) -> list[float]:
    """The losses of a run, in bits per character."""
    return [line["bpc"] for line in trained(folder)]


def measure_sums(given: argparse.Namespace) -> None:
    """Sum arrays over 2, 4, 8 devices, and write sums.json."""
    sys.path[:0] = [str(ROOT), str(FOLDER)]
    from mlstm_jax import environment
    from mlstm_jax.config import Devices

    environment.prepare(Devices(virtual_cpu=given.devices if given.small else None))
    import jax
    import numpy as np
    from measure import machine

    from mlstm_jax.parallel import AXIS, Parallel

    found = jax.local_devices()
    size = 1000 if given.small else 4096 * 4096
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for count in (2, 4, 8):
        if count > len(found):
            continue
        parallel = Parallel(found[:count])
        values = np.random.default_rng(0).standard_normal((count, size), np.float32)
        summed = parallel.map(lambda x: jax.lax.psum(x, AXIS))(parallel.split_rows(values))
        copies = [np.asarray(shard.data)[0, 0] for shard in summed.addressable_shards]
        exact = values.sum(axis=0, dtype=np.float64)
        # Whatever the order, each of count - 1 additions rounds once.
        bound = (count - 1) * 2.0**-24 * np.abs(values).sum(axis=0, dtype=np.float64)
        error = float(np.max(np.abs(copies[0] - exact) / bound))
        equal = all(np.array_equal(copies[0], copy) for copy in copies)
        rows.append({"devices": count, "error_over_bound": error, "all_equal": equal})
        if error > 1.01 or not equal:
            problems.append(f"the sum over {count} devices is wrong: {rows[-1]}")
    results = {**machine(), "devices": len(found), "rows": rows, "problems": problems}
    (given.out / "sums.json").write_text(json.dumps(results))


def main() -> None:
    """Run all parts, print and write what each has found."""
    given = parse_arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.part:
        measure_sums(given)
        return
    for run in ("straight", "killed", "processes"):
        shutil.rmtree(given.out / run, ignore_errors=True)
    check = Check(given)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "sums": check.sums,
        "resume": check.resume,
        "processes": check.processes,
        "rates": check.rates,
    }
    results: dict[str, Any] = {"benchmark": "gpu_many", "small": given.small}
    failed = []
    for name, part in parts.items():
        print(f"=== {name}", flush=True)
        began = time.monotonic()
        try:
            results[name] = part()
        except (Failed, OSError, ValueError) as error:
            results[name] = {"failed": str(error)}
            failed.append(name)
        results[name]["seconds"] = round(time.monotonic() - began, 1)
        print(json.dumps(results[name], indent=1), flush=True)
    file = given.json or given.out / "gpu_many.json"
    file.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {file}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
