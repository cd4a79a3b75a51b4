"""Measure how long commands take to start, with and without cached compiled programs.

    python benchmarks/start.py --json results.json

Each command runs as a user would run it, in its own process: first with an empty cache of compiled
programs, then with the programs that the first call has cached. For `train` the time ends with the
first step (the first line of metrics.jsonl); for the others it ends with the command.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import write_results

SIZES = {"128 units": (128, 32, 16, 64), "512 units": (512, 64, 32, 128)}
COMMANDS = ("train", "evaluate", "generate", "features")


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="cold and warm pairs per command")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results here")
    return parser.parse_args()


def write_corpus(folder: Path) -> None:
    """Prepare a small corpus of random words, and a file of ten texts."""
    words = random.Random(0)
    known = ["".join(words.choices("etaoinshrdlu", k=words.randint(2, 8))) for _ in range(500)]
    lines = [" ".join(words.choices(known, k=20)) for _ in range(5000)]
    (folder / "texts.txt").write_text("\n".join(lines) + "\n")
    (folder / "ten.txt").write_text("\n".join(lines[:10]) + "\n")
    command = ["prepare", "texts.txt", "--out", "corpus", "--split", "20,1,1"]
    subprocess.run([*program(), *command], cwd=folder, check=True, capture_output=True)


def program() -> list[str]:
    """Return the command of `mlstm-jax`."""
    return [str(Path(sys.executable).parent / "mlstm-jax")]


def words_of(command: str, size: str, out: str) -> list[str]:
    """Return the words of a command line, to run in the folder of the corpus."""
    hidden, embedding, batch, window = SIZES[size]
    if command == "train":
        options = {
            "model.hidden": hidden,
            "model.embedding": embedding,
            "data.corpus": "corpus",
            "data.batch": batch,
            "data.window": window,
            "train.steps": 2,
            "train.log-every": 1,
            "out": out,
        }
        flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return ["train", *flags]
    return {
        "evaluate": ["evaluate", "run"],
        "generate": ["generate", "run", "--bytes", "20"],
        "features": ["features", "run", "ten.txt", "--out", f"{out}.npz"],
    }[command]


def seconds(command: str, size: str, folder: Path, cache: Path) -> float:
    """Run a command and return its seconds; for `train`, those up to the first step."""
    out = tempfile.mktemp(prefix="out_", dir=folder)
    environment = os.environ | {"MLSTM_JAX_CACHE": str(cache)}
    started = time.perf_counter()
    process = subprocess.Popen(
        [*program(), *words_of(command, size, Path(out).name)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    took = None
    metrics = Path(out) / "metrics.jsonl"
    while command == "train" and took is None and process.poll() is None:
        if metrics.is_file() and b"\n" in metrics.read_bytes():
            took = time.perf_counter() - started
        time.sleep(0.005)
    text, _ = process.communicate()
    took = took or time.perf_counter() - started
    if process.returncode:
        sys.exit(f"{command} failed with exit code {process.returncode}:\n{text.decode()}")
    return took


def summary(values: list[float]) -> dict[str, float]:
    """Return median and spread, in seconds."""
    return {"median_s": statistics.median(values), "min_s": min(values), "max_s": max(values)}


def main() -> None:
    """Measure, print a table, and write the results file."""
    arguments = parse_arguments()
    rows: list[dict[str, Any]] = []
    print(f"{'':10} {'':9} {'cold s':>7} {'min':>6} {'max':>6} {'warm s':>7} {'min':>6} {'max':>6}")
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory(prefix="mlstm_jax_start_") as name:
            folder = Path(name)
            write_corpus(folder)
            trained = [*program(), *words_of("train", size, "run")]
            subprocess.run(trained, cwd=folder, check=True, capture_output=True)
            for command in COMMANDS:
                pairs = []
                for _ in range(arguments.rounds):
                    cache = folder / "cache"
                    pairs.append([seconds(command, size, folder, cache) for _ in range(2)])
                    shutil.rmtree(cache)
                cold, warm = (summary(list(times)) for times in zip(*pairs, strict=True))
                rows.append({"command": command, "size": size, "cold": cold, "warm": warm})
                print(
                    f"{size:10} {command:9}"
                    + "".join(
                        f" {one['median_s']:7.2f} {one['min_s']:6.2f} {one['max_s']:6.2f}"
                        for one in (cold, warm)
                    ),
                    flush=True,
                )
    if arguments.json:
        write_results(arguments.json, "start", rounds=arguments.rounds, rows=rows)


if __name__ == "__main__":
    main()
