"""Measure how fast a corpus is prepared and read.

    python benchmarks/data.py --bytes 1e9 --json results.json

Generates JSON lines of the given total size from a seed: variations of real reviews if available
(in MLSTM_JAX_SHARED_DATA, or ../shared/data next to the project), otherwise random words; every
20th is a duplicate. Then it runs `mlstm-jax prepare` as a user would, each time beside a bare loop
over the same lines (`bare_loop`), and reads the stream for one epoch or at most 300 steps.

With `--engine dask --workers 2` it starts a Dask scheduler and two workers on this machine for each
`prepare`, which then runs on Beam's DaskRunner; `pip install 'apache-beam[dask]'`.
"""

import argparse
import contextlib
import datetime
import gzip
import hashlib
import html
import json
import os
import platform
import random
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measure import processor

from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.data.stream import TrainStream

REPOSITORY = Path(__file__).parents[1]
MOST_STEPS = 300


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--bytes", type=float, default=1e9, help="total size of the JSON lines")
    parser.add_argument("--files", type=int, default=4, help="number of files")
    parser.add_argument("--gzip", action="store_true", help="compress the files")
    parser.add_argument("--rounds", type=int, default=3, help="number of times to prepare")
    parser.add_argument("--workers", type=int, help="of prepare, or of Dask; all cores if unset")
    parser.add_argument("--engine", choices=["local", "beam", "dask"], default="local")
    parser.add_argument("--rows", type=int, default=32_768, help="global batch of the stream")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument(
        "--processes", type=int, default=8, help="also read the share of one of so many processes"
    )
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder if unset")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results here")
    return parser.parse_args()


def real_texts() -> list[str]:
    """Return tens of thousands of reviews, or an empty list if they are not available."""
    shared = Path(os.environ.get("MLSTM_JAX_SHARED_DATA") or REPOSITORY.parent / "shared/data")
    file = shared / "imdb/unsup.jsonl.gz"
    if not file.exists():
        return []
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def made_up_texts() -> list[str]:
    """Return texts of random words."""
    generator = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(generator.choices(letters, k=generator.randint(2, 9))) for _ in range(5000)]
    return [" ".join(generator.choices(words, k=generator.randint(20, 400))) for _ in range(20_000)]


def reviews(texts: list[str]) -> Iterator[bytes]:
    """Yield an endless stream of records in McAuley's layout of 2014, about 700 bytes each."""
    generator = random.Random(1)
    line = b""
    for number in range(1 << 62):
        if number % 20 or not line:
            text = generator.choice(texts)
            start = generator.randrange(max(1, len(text) // 2))
            text = text[start : start + int(generator.lognormvariate(6.1, 0.8))]
            record = {
                "reviewerID": f"A{number}",
                "asin": f"B{generator.randrange(10**6):07}",
                "helpful": [0, 0],
                "reviewText": f"{text} {number}",
                "overall": float(generator.randint(1, 5)),
                "summary": text[:30],
                "unixReviewTime": 1_400_000_000,
            }
            line = json.dumps(record).encode() + b"\n"
        yield line


def make_sources(arguments: argparse.Namespace, folder: Path) -> list[Path]:
    """Write the files."""
    suffix = ".jsonl.gz" if arguments.gzip else ".jsonl"
    share = int(arguments.bytes) // arguments.files
    files = [folder / f"{share}-{n}{suffix}" for n in range(arguments.files)]
    lines = reviews(real_texts() or made_up_texts())
    for file in files:
        size = 0
        with gzip.open(file, "wb", 1) if arguments.gzip else file.open("wb") as out:
            for line in lines:
                size += out.write(line)
                if size >= share:
                    break
    return files


def text_size(file: Path) -> int:
    """Return the bytes of a file's lines, before compression."""
    if file.suffix != ".gz":
        return file.stat().st_size
    with gzip.open(file) as lines:
        return sum(map(len, lines))


def bare_loop(files: list[Path]) -> dict[str, float]:
    """Parse, clean and hash every line in plain Python, in this process; return its seconds."""
    started = time.perf_counter()
    before = time.process_time()
    for file in files:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            for line in lines:
                text = html.unescape(json.loads(line)["reviewText"])
                text = text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ").strip()
                words = " ".join(text.split()).casefold()
                f"\n {text} ".encode("utf-8", errors="replace")
                hashlib.md5(f"0:{words}".encode("utf-8", errors="replace")).hexdigest()
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - before,
    }


def prepare(arguments: argparse.Namespace, files: list[Path], out: Path) -> dict[str, Any]:
    """Run `mlstm-jax prepare` once; return what `run_prepare` does, and Dask's CPU seconds."""
    if arguments.engine != "dask":
        words = ["--engine", arguments.engine]
        if arguments.workers:
            words += ["--workers", str(arguments.workers)]
        return run_prepare(files, out, words)
    with dask_cluster(arguments.workers or 1, out.parent) as (address, running):
        before = list(map(cpu_seconds, running))
        result: dict[str, Any] = run_prepare(files, out, dask_words(address, len(files)))
        after = list(map(cpu_seconds, running))
    scheduler, *workers = [end - start for start, end in zip(before, after, strict=True)]
    return result | {"scheduler_cpu_seconds": scheduler, "worker_cpu_seconds": workers}


@contextlib.contextmanager
def dask_cluster(workers: int, folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Yield the address of a Dask scheduler, and its processes: first its own, then the workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    worker = ["distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"]
    commands = [["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]]
    commands += [[*worker, "--local-directory", str(folder)]] * workers
    running = []
    try:
        for words in commands:
            command = [sys.executable, "-m", *words, "--no-dashboard"]
            running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        yield address, running
    finally:
        for process in reversed(running):
            process.kill()
            process.wait()


def dask_words(address: str, partitions: int) -> list[str]:
    """The options of `prepare` for a Dask cluster."""
    runner = "apache_beam.runners.dask.dask_runner.DaskRunner"
    options = f"--dask_client_address={address} --dask_npartitions={partitions}"
    return ["--engine", "beam", f"--beam-options=--runner={runner} {options}"]


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """The CPU seconds of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_prepare(files: list[Path], out: Path, words: list[str]) -> dict[str, float]:
    """Run `mlstm-jax prepare` once; return its seconds, peak memory and page faults."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "mlstm_jax", "prepare", *map(str, files), "--out", str(out)]
    command += words
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    scratch = 0
    memory = 0
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        scratch = max(scratch, _size(out.parent, f".{out.name}.partial-*"))
        memory = max(memory, _peak_memory(process.pid))
        time.sleep(0.1)
    if status:
        sys.exit(f"prepare failed: {' '.join(command)}")
    process.returncode = 0
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_rss_mb": memory / 1e6,
        "major_page_faults": used.ru_majflt,
        "minor_page_faults": used.ru_minflt,
        "temporary_mb": scratch / 1e6,
    }


def _peak_memory(pid: int) -> int:
    """The largest resident memory so far of a process and of its present children, in bytes."""
    size = 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        size = 1024 * int(found[1]) if found else 0
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            size += _peak_memory(int(child))
    return size


def _size(folder: Path, pattern: str) -> int:
    size = 0
    with contextlib.suppress(FileNotFoundError):  # It may be renamed or removed by now.
        for top in folder.glob(pattern):
            for path in top.rglob("*"):
                size += path.stat().st_size
    return size


def read_stream(corpus: Path, rows: int, window: int, part: slice) -> dict[str, float]:
    """Read one epoch of the training split, or at most MOST_STEPS steps; return the rates."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    split = open_corpus(corpus).split("train")
    stream = TrainStream(split, batch=rows, window=window)
    ready = time.perf_counter()
    steps, size = min(stream.steps_per_epoch, MOST_STEPS), 0
    for step in range(steps):
        size += stream.batch(step, part).inputs_BT.size
    seconds = time.perf_counter() - ready
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "mb_per_s": size / seconds / 1e6,
        "batches_per_s": steps / seconds,
        "steps": steps,
        "start_ms": 1e3 * (ready - started),
        "major_page_faults": after.ru_majflt - before.ru_majflt,
        "minor_page_faults": after.ru_minflt - before.ru_minflt,
    }


def describe_machine() -> dict[str, Any]:
    """Return the hardware and versions that the figures depend on."""
    return {
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def main() -> None:
    """Measure, print and write."""
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="mlstm_jax-") as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        files = make_sources(arguments, folder)
        size = sum(map(text_size, files))
        corpus = folder / "corpus"
        rounds = []
        loops = []
        for _ in range(arguments.rounds):
            loops.append(bare_loop(files))
            rounds.append(prepare(arguments, files, corpus))
            print(f"prepare: {size / rounds[-1]['seconds'] / 1e6:.1f} MB/s, {rounds[-1]}")
        opened = open_corpus(corpus)
        streams = {}
        share = arguments.rows // arguments.processes
        parts = {"all": slice(None), f"a process of {arguments.processes}": slice(0, share)}
        for name, part in parts.items():
            read_stream(corpus, arguments.rows, arguments.window, part)  # into the page cache
            streams[name] = read_stream(corpus, arguments.rows, arguments.window, part)
            print(f"stream, {name}: {streams[name]}")
    rates = [size / one["seconds"] / 1e6 for one in rounds]
    ratios = {}
    for name in ("seconds", "cpu_seconds"):
        pairs = zip(loops, rounds, strict=True)
        ratios[name] = statistics.median(loop[name] / whole[name] for loop, whole in pairs)
    results = {
        "benchmark": "data",
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": describe_machine(),
        "bytes": size,
        "compressed": arguments.gzip,
        "engine": arguments.engine,
        "records": opened.manifest.records,
        "duplicates": opened.manifest.duplicates,
        "identity": opened.identity,
        "prepare_mb_per_s": statistics.median(rates),
        "prepare_mb_per_s_of_rounds": rates,
        "prepare_peak_rss_mb": max(one["peak_rss_mb"] for one in rounds),
        "prepare_rounds": rounds,
        "workers": arguments.workers,
        "bare_loop_rounds": loops,
        "rate_in_bare_loops": ratios,
        "rows": arguments.rows,
        "window": arguments.window,
        "stream_mb_per_s": streams["all"]["mb_per_s"],
        "streams": streams,
    }
    print(
        f"{size / 1e9:.2f} GB: prepared at {results['prepare_mb_per_s']:.1f} MB/s "
        f"({min(rates):.1f} to {max(rates):.1f}), "
        f"{statistics.median(one['cpu_seconds'] for one in rounds) / size * 1e8:.2f} CPU s per 100 "
        f"MB, peak {results['prepare_peak_rss_mb']:.0f} MB; {ratios['seconds']:.2f} of the rate of "
        f"the bare loop ({ratios['cpu_seconds']:.2f} by CPU seconds); "
        f"read at {results['stream_mb_per_s']:.0f} MB/s"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
        print(f"written to {arguments.json}")


if __name__ == "__main__":
    main()
