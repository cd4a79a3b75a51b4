"""Measure how much of a model's training text its samples repeat word for word.

    python benchmarks/verbatim.py reviews-1024 --corpus corpora/reviews_1024 --json verbatim.json

Draws samples, and finds the passages of them that are also in the train split: the longest one,
and how many bytes are in passages of some lengths. The same is measured of the test split, if it
has text: how much of it people repeat without a model.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from measure import write_results
from numpy.typing import NDArray

from mlstm_jax.arrays import fingerprint
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.options import SamplingOptions
from mlstm_jax.run import Run, load_run
from mlstm_jax.transfer.trace import Tracer, generate

BYTES = 1000  # of a sample
LENGTHS = (20, 30, 40, 50, 75, 100, 150, 200, 300, 400, 600, 800)
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_BLOCK = 1 << 22

Bytes = NDArray[np.uint8]


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("run", type=Path, help="run folder, or a pretrained model")
    parser.add_argument("--corpus", type=Path, required=True, help="the corpus it was trained on")
    parser.add_argument("--samples", type=int, default=1000, help="of a temperature")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.7])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results here")
    return parser.parse_args()


def hashes(text: Bytes, length: int) -> NDArray[np.uint64]:
    """Return Σ byte · base^place, modulo 2^64, of each passage of `length` bytes."""
    powers = np.full(len(text) + 1, _BASE, np.uint64)
    inverses = np.full(len(text) + 1, pow(_BASE, -1, 2**64), np.uint64)
    for array in (powers, inverses):
        array[0] = 1
        np.multiply.accumulate(array, out=array)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum((text + np.uint64(1)) * powers[:-1])])
    passages = max(0, len(text) - length + 1)
    return (sums[length : length + passages] - sums[:passages]) * inverses[:passages]


def repeated(samples: Bytes, train: Bytes, length: int) -> NDArray[np.bool_]:
    """Return which passages of `samples`, by their first byte, are in `train`.

    They are compared by 64-bit hashes: of 1e14 pairs, 1e-5 are expected to be equal by chance.
    """
    mine, which = np.unique(hashes(samples, length), return_inverse=True)
    found = np.zeros(len(mine), bool)
    # By its first 24 bits a hash is ruled out quickly.
    begins = np.zeros(1 << 24, bool)
    begins[mine >> np.uint64(40)] = True
    for start in range(0, len(train) - length + 1, _BLOCK):
        theirs = hashes(train[start : start + _BLOCK + length - 1], length)
        theirs = theirs[begins[theirs >> np.uint64(40)]]
        at = np.minimum(np.searchsorted(mine, theirs), len(mine) - 1)
        found[at[mine[at] == theirs]] = True
    return found[which]


def longest(samples: Bytes, train: Bytes, known: int) -> tuple[int, int]:
    """Return the length of the longest passage of `samples` in `train`, and where it begins.

    One of `known` bytes is there.
    """
    low, high = known, 2 * known
    where = repeated(samples, train, low)
    while (longer := repeated(samples, train, high)).any():
        low, high, where = high, 2 * high, longer
    while high - low > 1:
        middle = (low + high) // 2
        if (found := repeated(samples, train, middle)).any():
            low, where = middle, found
        else:
            high = middle
    return low, int(np.flatnonzero(where)[0])


def measured(samples: Bytes, train: Bytes) -> dict[str, object]:
    """Return the share of bytes in repeated passages of each length, and the longest passage."""
    shares, last = {}, 0
    for length in LENGTHS:
        begins = np.flatnonzero(repeated(samples, train, length))
        inside = np.zeros(len(samples) + 1, int)
        np.add.at(inside, begins, 1)
        np.add.at(inside, begins + length, -1)
        shares[str(length)] = round(float((np.cumsum(inside)[:-1] > 0).mean()), 6)
        if not len(begins):
            break
        last = length
    length, place = longest(samples, train, last) if last else (0, 0)
    passage = samples[place : place + length].tobytes()
    assert passage in train.tobytes()
    return {
        "bytes": len(samples),
        "share in passages of": shares,
        "longest": length,
        # Not the passage itself, which is somebody's text.
        "different bytes in the longest": len(set(passage)),
    }


def draw(run: Run, samples: int, temperature: float, seed: int) -> Bytes:
    """Return texts of BYTES bytes, joined by zeros, which no text has."""
    how = SamplingOptions(bytes=BYTES, samples=samples, temperature=temperature, seed=seed)
    pieces = zip(*generate(Tracer(run), "", how), strict=True)
    return np.frombuffer(b"\0".join(b"".join(whole) for whole in pieces), np.uint8)


def main() -> None:
    """Print a table, and write the results if asked."""
    options = parse_arguments()
    run, corpus = load_run(options.run), open_corpus(options.corpus)
    train = corpus.split("train").bytes[:]
    texts = {
        f"samples, temperature {temperature:g}": draw(
            run, options.samples, temperature, options.seed
        )
        for temperature in options.temperatures
    }
    test = corpus.split("test").bytes[:]
    if len(test):
        texts["test split"] = test
    results = {}
    for name, text in texts.items():
        results[name] = measured(text, train)
        print(f"{name}: {json.dumps(results[name])}", flush=True)
    if options.json:
        write_results(options.json, "verbatim", model=fingerprint(run.params), texts=results)


if __name__ == "__main__":
    main()
