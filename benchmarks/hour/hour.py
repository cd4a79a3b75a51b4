"""One core, one hour, six megabytes: who predicts a text best? README.md has the rules.

    python hour.py text Django-5.2.tar.gz --text text
    python hour.py compress --text text
    python hour.py enter NAME --seeds 0 1 2 --text text
        --train "python ours.py train mlstm {text} {out} {seed}"
        --predict "python ours.py predict {out} {file} {result}"
    python hour.py table

It needs NumPy, and for PPMd the package pyppmd. An entry may use anything.
"""

import argparse
import bz2
import datetime
import gzip
import hashlib
import importlib
import json
import lzma
import os
import platform
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent
ENTRIES = FOLDER / "entries"
SOURCE = "1a47f7a7a3d43ce64570d350e008d2949abe8c7e21737b351b6a1611277c6d89"  # Django-5.2.tar.gz
SPLITS = {
    "train": "47c909ad86af8a62341e98f2fd49ae6afc2ec0d282922cd1903407a4b265d8d0",
    "valid": "ae15e8e3fa1022e50c43e23ac1f47778452b00acc07ae0679abb378431850acb",
    "test": "c31227950ec30b5a971ed1ffb1f780280e2380f366314baba18db155d66a9dd4",
}
HOUR = 3600  # CPU seconds, of user and system, of all processes and threads of the training command
REPEATED = 64  # bytes: so long a passage of the test text that is in the training text, too
# Probabilities are normalised before they count. Those of a row must add up to 1 within this, as a
# softmax in float32 does; and a probability may change by this factor when only the bytes after it
# change, since sums of other lengths are rounded otherwise.
TOLERANCE = 1e-3


def require(condition: bool, message: str) -> None:
    """End with a message unless a condition holds."""
    if not condition:
        sys.exit(f"hour.py: {message}")


def make_text(archive: Path, text: Path) -> None:
    """Write train.txt, valid.txt and test.txt: whole documents, in the order of their SHA-256.

    The first byte of its SHA-256 chooses the split of a document: below 13 test, below 26
    validation. Equal documents count once.
    """
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    require(digest == SOURCE, f"{archive} has the SHA-256 {digest}, not that of Django-5.2.tar.gz")
    documents = {}
    with tarfile.open(archive) as files:
        for file in files:
            if file.isfile() and "/docs/" in file.name and file.name.endswith(".txt"):
                content = files.extractfile(file).read()  # type: ignore[union-attr]
                documents[hashlib.sha256(content).digest()] = content
    splits: dict[str, list[bytes]] = {"train": [], "valid": [], "test": []}
    for key in sorted(documents):
        split = "test" if key[0] < 13 else "valid" if key[0] < 26 else "train"
        splits[split].append(documents[key])
    text.mkdir(parents=True, exist_ok=True)
    for split, parts in splits.items():
        (text / f"{split}.txt").write_bytes(b"".join(parts))
    read_text(text)


def read_text(text: Path) -> dict[str, bytes]:
    """Return the splits; end if a file is not what make_text writes."""
    splits = {}
    for split, expected in SPLITS.items():
        path = text / f"{split}.txt"
        require(path.is_file(), f"{path} does not exist; run `hour.py text` first")
        splits[split] = path.read_bytes()
        digest = hashlib.sha256(splits[split]).hexdigest()
        require(digest == expected, f"{path} has another SHA-256; run `hour.py text` again")
    return splits


def run_on_one_core(command: str, **values: object) -> float:
    """Run a command on one core; return its CPU seconds. It ends when it exceeds the hour."""
    words = [word.format(**values) for word in shlex.split(command)]

    def limits() -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        resource.setrlimit(resource.RLIMIT_CPU, (HOUR, HOUR))

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, preexec_fn=limits, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    why = f" after its {HOUR:,} CPU seconds" if done.returncode == -signal.SIGKILL else ""
    require(done.returncode == 0, f"{shlex.join(words)} ended with {done.returncode}{why}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def log_probabilities(predict: str, out: Path, text: bytes) -> NDArray[np.float32]:
    """Return what an entry writes of a text: of each byte, ln of 256 probabilities, [N, 256]."""
    with tempfile.TemporaryDirectory() as scratch:
        file, result = Path(scratch, "text"), Path(scratch, "result.npy")
        file.write_bytes(text)
        run_on_one_core(predict, out=out, file=file, result=result)
        rows: NDArray[np.float32] = np.load(result, allow_pickle=False)
    shape = (len(text), 256)
    right = rows.shape == shape and rows.dtype == np.float32
    require(right, f"--predict wrote {rows.dtype} {rows.shape}, not float32 {shape}")
    sums = np.logaddexp.reduce(rows, axis=1, dtype=np.float64)
    worst = int(np.abs(sums).argmax())
    proper = bool(np.abs(sums).max() <= TOLERANCE)
    require(proper, f"the probabilities of byte {worst} add up to {np.exp(sums[worst]):g}, not 1")
    return (rows - sums[:, None]).astype(np.float32)


def require_causal(predict: str, out: Path, text: bytes, rows: NDArray[np.float32]) -> None:
    """End if a prediction depends on its own byte or on what follows it."""
    random = np.random.default_rng()
    for place in random.integers(len(text) // 10, len(text) // 2, 2):
        start = len(text) // 10
        other = text[:place] + bytes(random.integers(0, 256, start, dtype=np.uint8))
        again = log_probabilities(predict, out, other)[: place + 1]
        change = np.abs(again - rows[: place + 1]).max()
        message = f"the prediction of a byte before {place} depends on bytes from there on"
        require(bool(change <= TOLERANCE), message)


def bits(rows: NDArray[np.float32], text: bytes) -> NDArray[np.float64]:
    """Return the bits of each byte of a text."""
    taken = rows[np.arange(len(text)), np.frombuffer(text, np.uint8)]
    return -taken.astype(np.float64) / np.log(2)


def repeated(train: bytes, test: bytes) -> NDArray[np.bool_]:
    """Return which bytes of `test` are in passages of 64 bytes or more that `train` has, too."""

    def passages(text: bytes) -> Iterator[bytes]:
        return (text[at : at + REPEATED] for at in range(len(text) - REPEATED + 1))

    own = set(passages(test))
    known = {passage for passage in passages(train) if passage in own}
    inside = np.zeros(len(test), bool)
    for at, passage in enumerate(passages(test)):
        if passage in known:
            inside[at : at + REPEATED] = True
    return inside


def enter(given: argparse.Namespace) -> None:
    """Train and score an entry, and write its JSON; seeds that it has already are skipped."""
    text = read_text(given.text)
    inside = repeated(text["train"], text["test"])
    commands = {"train": given.train, "predict": given.predict}
    path = entry_path(given.name)
    before = json.loads(path.read_text()) if path.exists() else commands | {"runs": []}
    same = {field: before.get(field) for field in commands} == commands
    require(same, f"{path} has other commands; choose another name, or delete it")
    runs = before["runs"]
    for seed in given.seeds:
        if seed in [run["seed"] for run in runs]:
            continue
        with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
            out = Path(scratch, "out")
            seconds = run_on_one_core(given.train, text=given.text, out=out, seed=seed)
            require(out.is_dir(), f"--train did not write the folder {out}")
            require(seconds <= HOUR, f"--train took {seconds:.0f} CPU seconds of {HOUR}")
            size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
            rows = log_probabilities(given.predict, out, text["test"])
            require_causal(given.predict, out, text["test"], rows)
            cost = bits(rows, text["test"])
        run = {
            "seed": seed,
            "bits_per_byte": float(cost.mean()),
            "bits_per_byte_not_repeated": float(cost[~inside].mean()),
            "cpu_seconds": seconds,
            "artefact_bytes": size,
        }
        runs.append(run)
        write(given.name, commands | {"runs": runs})


def compress(given: argparse.Namespace) -> None:
    """Enter the compressors: the bytes that the test text adds to the compressed training text."""
    text = read_text(given.text)
    known: dict[str, Callable[[bytes], bytes]] = {
        "gzip -9": lambda data: gzip.compress(data, 9),
        "bzip2 -9": lambda data: bz2.compress(data, 9),
        "xz -9e": lambda data: lzma.compress(data, preset=9 | lzma.PRESET_EXTREME),
    }
    try:
        ppmd = importlib.import_module("pyppmd")
        known["PPMd, order 5"] = lambda data: ppmd.compress(
            data, max_order=5, mem_size=1 << 30, variant="H"
        )
        known["PPMd, order 64"] = lambda data: ppmd.compress(
            data, max_order=64, mem_size=1 << 30, variant="H"
        )
    except ImportError:
        print("PPMd is left out: it needs pip install pyppmd")
    for name, compressed in known.items():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        base = len(compressed(text["train"]))
        whole = len(compressed(text["train"] + text["test"]))
        seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
        cost = 8 * (whole - base) / len(text["test"])
        run = {"seed": 0, "bits_per_byte": cost, "cpu_seconds": seconds, "artefact_bytes": base}
        write(name, {"train": "python hour.py compress", "runs": [run]})


def write(name: str, document: dict[str, Any]) -> None:
    """Write the JSON of an entry."""
    machine = {"processor": _processor(), "python": platform.python_version()}
    document = {"name": name, "date": str(datetime.date.today())} | document | machine
    ENTRIES.mkdir(exist_ok=True)
    entry_path(name).write_text(json.dumps(document, indent=1) + "\n")
    print(f"{name}: {document['runs'][-1]}", flush=True)


def entry_path(name: str) -> Path:
    """Return the JSON of an entry."""
    return ENTRIES / f"{name.replace(', ', '_').replace(' ', '_')}.json"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def table() -> str:
    """Return the entries as a Markdown table, the best first."""
    entries = [json.loads(path.read_text()) for path in ENTRIES.glob("*.json")]
    seeds = sorted({run["seed"] for entry in entries for run in entry["runs"]})
    columns = ["bits per byte", *(f"seed {seed}" for seed in seeds)]
    columns += ["without repeats", "CPU s", "artefact, MB"]
    lines = [f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]

    def mean(entry: dict[str, Any], field: str) -> float:
        values = [run.get(field) for run in entry["runs"]]
        return float("nan") if None in values else statistics.mean(values)

    for entry in sorted(entries, key=lambda entry: mean(entry, "bits_per_byte")):
        by_seed = {run["seed"]: f"{run['bits_per_byte']:.4f}" for run in entry["runs"]}
        each = " | ".join(by_seed.get(seed, "") for seed in seeds)
        fresh = mean(entry, "bits_per_byte_not_repeated")
        shown = f"{fresh:.4f}" if fresh == fresh else ""
        lines.append(
            f"| {entry['name']} | **{mean(entry, 'bits_per_byte'):.4f}** | {each} | {shown} | "
            f"{mean(entry, 'cpu_seconds'):.0f} | {mean(entry, 'artefact_bytes') / 1e6:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Make the text, enter, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("text", help="make the text of the archive")
    one.add_argument("archive", type=Path)
    two = commands.add_parser("compress", help="enter gzip, bzip2, xz and PPMd")
    three = commands.add_parser("enter", help="train, score and check an entry")
    three.add_argument("name")
    three.add_argument("--train", required=True, help="with {text}, {out} and {seed}")
    three.add_argument("--predict", required=True, help="with {out}, {file} and {result}")
    three.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    three.add_argument("--scratch", type=Path, help="an existing folder for what is trained")
    for each in (one, two, three):
        each.add_argument("--text", type=Path, default=Path("text"))
    commands.add_parser("table", help="print the table of the entries")
    given = parser.parse_args()
    match given.command:
        case "text":
            make_text(given.archive, given.text)
        case "compress":
            compress(given)
        case "enter":
            enter(given)
        case _:
            print(table())


if __name__ == "__main__":
    main()
