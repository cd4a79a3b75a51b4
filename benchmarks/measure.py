"""Shared measurement code of the benchmarks: in turn, in one process, with spread.

The implementations of a point run one after another in each round, and every round has another
order, so a temporary slowdown of the machine affects all of them. A ratio is the median of the
ratios of the rounds. The same rounds also measure the rate of one large matrix product of the same
type, an upper limit for the rest of the program.
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mlstm_jax

DTYPES = {"fp32": jnp.float32, "tf32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}


@dataclass(frozen=True)
class Point:
    """One size: hidden units, rows, bytes of the window, type of the products."""

    hidden: int
    batch: int
    window: int
    dtype: str

    @property
    def layer_flops(self) -> int:
        """Flops of the recurrent products in the forward pass, 2·5H² per byte."""
        return 2 * 5 * self.hidden**2 * self.batch * self.window

    @property
    def step_flops(self) -> int:
        """Flops of a training step: forward, and twice that backward, with the decoder's 256·H."""
        return 3 * (self.layer_flops + 2 * 256 * self.hidden * self.batch * self.window)


@dataclass(frozen=True)
class Case:
    """One thing to time: `call` runs it to completion."""

    implementation: str
    what: str
    flops: int
    call: Callable[[], Any]
    temp_bytes: int | None
    recompute_every: int | None = None


GRIDS = {
    # Takes five minutes on two cores.
    "small": [
        Point(128, 64, 64, "fp32"),
        Point(256, 16, 64, "fp32"),
        Point(256, 32, 128, "fp32"),
        Point(512, 8, 128, "fp32"),
        Point(512, 32, 128, "fp32"),
        Point(512, 128, 32, "fp32"),
        Point(1024, 32, 32, "fp32"),
        Point(512, 32, 128, "bf16"),
        Point(256, 32, 64, "fp16"),
    ],
    # Takes half an hour on two cores, and 4 GB of memory.
    "large": [
        Point(512, 32, 256, "fp32"),
        Point(512, 128, 256, "fp32"),
        Point(1024, 32, 256, "fp32"),
        Point(1024, 32, 256, "bf16"),
        Point(2048, 32, 64, "fp32"),
        Point(4096, 16, 16, "fp32"),
    ],
    # Puri et al. 2018, table II, and similar sizes: for a GPU with 80 GB or more.
    "paper": [
        Point(1024, 256, 256, "bf16"),
        Point(4096, 256, 256, "bf16"),
        Point(4096, 128, 256, "bf16"),
        Point(4096, 256, 256, "fp16"),
        Point(4096, 128, 256, "fp32"),
        Point(4096, 128, 256, "tf32"),
        Point(8192, 96, 256, "bf16"),
    ],
}


def parse_arguments(description: str, implementations: list[str]) -> argparse.Namespace:
    """Return the parsed command line, with the points of a grid or those that the user gives."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--grid", choices=GRIDS, default="small", help="sizes to measure")
    parser.add_argument(
        "--point",
        nargs=4,
        action="append",
        metavar=("H", "B", "T", "DTYPE"),
        help="your own size instead of a grid, such as 512 32 128 fp32; can be repeated",
    )
    parser.add_argument(
        "--implementations", nargs="+", choices=implementations, default=implementations
    )
    if "ours" in implementations:
        parser.add_argument(
            "--recompute-every",
            type=int,
            nargs="+",
            default=[],
            metavar="K",
            help="also measure ours with these values",
        )
    parser.add_argument("--rounds", type=int, default=9, help="rounds, after one warm-up")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        help="start no further round of a size after this time; at least three rounds run",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results here")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds is {arguments.rounds}, but it must be at least 1")
    if any(k < 1 for k in getattr(arguments, "recompute_every", [])):
        parser.error("--recompute-every must be at least 1")
    if "torch" in arguments.implementations:
        try:
            import torch  # noqa: F401
        except ImportError:
            print("torch is not installed (pip install torch): it is not measured")
            arguments.implementations.remove("torch")
        else:
            # JAX, which has not started yet, would take 0.75 of a GPU's memory.
            if "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ:
                os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", "0.5")
    arguments.points = GRIDS[arguments.grid]
    if arguments.point:
        try:
            arguments.points = [Point(int(h), int(b), int(t), d) for h, b, t, d in arguments.point]
        except ValueError as error:
            parser.error(f"--point takes three whole numbers and a type: {error}")
        for point in arguments.points:
            if point.dtype not in DTYPES:
                parser.error(f"--point: {point.dtype} is not one of {', '.join(DTYPES)}")
    return arguments


def precision_of(dtype: str) -> AbstractContextManager[Any]:
    """Return the context in which the model traces products of a type."""
    return jax.default_matmul_precision("highest") if dtype == "fp32" else nullcontext()


def large_product(dtype: str) -> tuple[Callable[[], Any], int]:
    """Return a function that runs one large square product of a type, and its flops."""
    size = 2048 if jax.default_backend() == "cpu" else 8192
    # Normal random numbers: on zeros a GPU draws less power and runs faster.
    x, y = (jax.random.normal(jax.random.key(n), (size, size), DTYPES[dtype]) for n in range(2))
    product = jax.jit(lambda x, y: jnp.dot(x, y, preferred_element_type=jnp.float32))
    return lambda: jax.block_until_ready(product(x, y)), 2 * size**3


def _fits(case: Case) -> bool:
    """Call a case once to warm up; return whether it fits into memory."""
    try:
        case.call()
    except RuntimeError as error:  # JAX's, or torch.OutOfMemoryError
        if not re.search("RESOURCE_EXHAUSTED|out of memory", str(error)):
            raise
        print(f"{case.implementation}, {case.what}: does not fit into memory")
        return False
    return True


def _timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(
    point: Point, cases: list[Case], rounds: int, seconds: float
) -> tuple[list[dict[str, Any]], float]:
    """Time all cases of a point in turn; cases that do not fit into memory are skipped.

    Returns:
        A row for each case, and the rate of the large product in flops per second.
    """
    product, product_flops = large_product(point.dtype)
    product()
    cases = [case for case in cases if _fits(case)]
    calls = [product] + [case.call for case in cases]
    order = np.random.default_rng(0)
    started = time.perf_counter()
    times: list[list[float]] = []
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - started > seconds:
            break
        measured = [0.0] * len(calls)
        for n in order.permutation(len(calls)):
            # As in training, each call follows another of the same case. Otherwise it would suffer
            # from the last case: spinning PyTorch threads, released memory, cold caches.
            calls[n]()
            measured[n] = _timed(calls[n])
        times.append(measured)
    columns = np.array(times).T
    rate = product_flops / statistics.median(columns[0])
    baseline = {case.what: n for n, case in enumerate(cases) if case.implementation == "autodiff"}
    rows = []
    for n, (case, own) in enumerate(zip(cases, columns[1:], strict=True)):
        median = statistics.median(own)
        row = {
            "hidden": point.hidden,
            "batch": point.batch,
            "window": point.window,
            "dtype": point.dtype,
            "implementation": case.implementation,
            "recompute_every": case.recompute_every,
            "what": case.what,
            "median_s": median,
            "min_s": own.min(),
            "max_s": own.max(),
            "rounds": len(own),
            "flops": case.flops,
            "bytes_per_s": point.batch * point.window / median,
            "fraction_of_large_product": case.flops / median / rate,
            "temp_bytes": case.temp_bytes,
        }
        if case.what in baseline and baseline[case.what] != n:
            other = columns[1 + baseline[case.what]]
            row["speedup_over_autodiff"] = statistics.median(other / own)
        rows.append(row)
    return rows, rate


def run(name: str, arguments: argparse.Namespace, cases: Callable[[Point], Iterator[Case]]) -> None:
    """Measure every point of the command line, print a table, and write the results file."""
    print(f"{name} on {machine()['device']}, jax {jax.__version__}")
    print(
        f"{'H':>5} {'B':>4} {'T':>4} {'type':5}{'what':17}{'implementation':18}"
        f"{'ms':>9} {'min':>9} {'max':>9} {'kB/s':>9} {'of product':>10} {'temp MB':>8}"
        f" {'autodiff/':>9}"
    )
    rows, rates = [], {}
    # It has the rows of all points that are done, should a later one end the process.
    part = arguments.json and arguments.json.with_suffix(".part")
    for point in arguments.points:
        with precision_of(point.dtype):
            here = list(cases(point))
            measured, rate = measure(point, here, arguments.rounds, arguments.seconds)
        rates.setdefault(point.dtype, []).append(rate)
        rows += measured
        for row in measured:
            print(_line(row), flush=True)
        medians = {dtype: statistics.median(found) for dtype, found in rates.items()}
        if arguments.json:
            write_results(
                part,
                name,
                # For the first type measured; the next entry has all types.
                large_product_flops_per_s=next(iter(medians.values())),
                large_product_flops_per_s_by_dtype=medians,
                rows=rows,
            )
        del here
        jax.clear_caches()
    for dtype, rate in medians.items():
        print(f"one large {dtype} product: {rate / 1e12:.3f} Tflop/s")
    if arguments.json:
        part.replace(arguments.json)
        print(f"written to {arguments.json}")


def _line(row: dict[str, Any]) -> str:
    name = row["implementation"]
    if row["recompute_every"]:
        name += f", every {row['recompute_every']}"
    temp = "" if row["temp_bytes"] is None else f"{row['temp_bytes'] / 1e6:.1f}"
    speedup = f"{row['speedup_over_autodiff']:.2f}" if "speedup_over_autodiff" in row else ""
    return (
        f"{row['hidden']:5} {row['batch']:4} {row['window']:4} {row['dtype']:5}{row['what']:17}"
        f"{name:18}{row['median_s'] * 1e3:9.2f} {row['min_s'] * 1e3:9.2f}"
        f" {row['max_s'] * 1e3:9.2f} {row['bytes_per_s'] / 1e3:9.1f}"
        f" {row['fraction_of_large_product']:10.3f} {temp:>8} {speedup:>9}"
    )


def write_results(path: Path, benchmark: str, **results: Any) -> None:
    """Write the results of a benchmark, with its command, the machine, and the date."""
    about = {
        "benchmark": benchmark,
        "command": " ".join(["python", *sys.argv]),
        **machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    path.write_text(json.dumps(about | results, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Return device and versions."""
    device = jax.devices()[0]
    kind = device.device_kind
    if device.platform == "cpu":
        kind = f"CPU, {len(os.sched_getaffinity(0))} cores, {processor()}"
    names = ("jax", "jaxlib", "flax", "optax", "numpy", "torch")
    versions = {"mlstm-jax": mlstm_jax.__version__, "python": platform.python_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {"device": kind, "xla_flags": os.environ.get("XLA_FLAGS", ""), "versions": versions}


def processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
