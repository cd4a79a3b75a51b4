"""What tests of texts share."""

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np

COLUMNS = ["--text-column", "review", "--label-column", "verdict"]


def whole(pieces: Iterable[list[bytes]]) -> list[bytes]:
    """The text of each sample."""
    return [*map(b"".join, zip(*pieces, strict=True))]


def write_reviews(path: Path, random: np.random.Generator, count: int) -> Path:
    """Write reviews of three classes as a CSV with COLUMNS."""
    words = {"fine": ["good", "great", "very well"], "poor": ["bad"], "fair": ["as expected"]}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["verdict", "review"])
        for _ in range(count):
            verdict = str(random.choice(list(words)))
            noun = random.choice(["guitar", "cable", "piano"])
            end = random.choice(words[verdict])
            writer.writerow([verdict, f"my {noun} is {end} {random.integers(3000)}."])
    return path


def shares_of(answers: Iterable[dict[str, float]]) -> np.ndarray:
    """The probabilities of answers of `classify`, [N, K]."""
    return np.array([list(one.values()) for one in answers])


def likeliest(answers: Iterable[dict[str, float]]) -> list[str]:
    """The class of each answer."""
    return [max(one, key=one.__getitem__) for one in answers]


def answers_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
