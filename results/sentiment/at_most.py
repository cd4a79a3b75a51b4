"""Measure the accuracy of `sentiment` on long reviews of which only so many bytes are read.

    python results/sentiment/at_most.py DATA

It reads 500 of the IMDB reviews of the test, drawn as for "IMDB, 500 of these" in others.csv, in
int8 (extra int8), writes at_most.csv and prints the table of README.md. "both" is `classify
--at-most`; the head and the tail alone are cut here.
"""

import csv
import random
import sys
import time
from pathlib import Path

import texts
from others import Name, proportion

import mlstm_jax

POLAR = ("negative", "positive")
NAME = Name("sentiment", mlstm_jax.__version__, "IMDB, 500 of these")
LIMITS = (2000, 1000, 500)


def cut(text: str, limit: int, part: str) -> str:
    """Return the head or the tail of the bytes that are read."""
    data = text.strip().encode()
    data = data[:limit] if part == "head" else data[-limit:]
    return data.decode(errors="ignore")


def main(data: Path) -> None:
    """Read, write and print."""
    model = mlstm_jax.load("sentiment", compute="int8")
    reviews = random.Random(0).sample(texts.read_imdb(data / "imdb/train.jsonl.gz")["test"], 500)
    plain = [review.text.replace("<br />", " ") for review in reviews]
    kinds = [(None, "all")]
    for limit in LIMITS:
        kinds += [(limit, part) for part in ("head", "tail", "both")]
    with Path(__file__).with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("bytes", "part", "accuracy", "low", "high", "kB read", "CPU s"))
        for limit, part in kinds:
            given = plain
            if part in ("head", "tail"):
                given = [cut(text, limit, part) for text in plain]
            started = time.process_time()
            at_most = limit if part == "both" else None
            answers = model.classify(given, classes=POLAR, at_most=at_most)
            seconds = time.process_time() - started
            hits = []
            for shares, review in zip(answers, reviews, strict=True):
                hits.append(1.0 * (shares[review.label] > 0.5))
            found = proportion(NAME, "accuracy", hits)
            sizes = [len(cleaned) for cleaned in model.loaded.cleaned(given)]
            read = sum(min(size, at_most or size) for size in sizes) / 1000
            shown = [f"{x:.4f}" for x in (found.value, found.low, found.high)]
            row = [limit, part, *shown, f"{read:.0f}", f"{seconds:.1f}"]
            table.writerow(row)
            file.flush()
            print(*row)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
