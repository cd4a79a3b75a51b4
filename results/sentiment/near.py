"""Measure `sentiment` on the negations that resemble a training text, and on the others.

    python results/sentiment/near.py DATA

Two texts resemble each other if the Jaccard index of their sets of words is 0.6 or more. The
training texts are of all three parts, with seed 1, as the package's model has read them.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

import texts

import mlstm_jax as mlstm

SEED = 1
LEAST = 0.6
CLASSES = ("negative", "positive")


def words(text: str) -> frozenset[str]:
    """Return the set of the words of a text."""
    return frozenset(re.findall(r"[a-z0-9']+", text.lower()))


def nearest(test: frozenset[str], training: dict[str, list[frozenset[str]]]) -> float:
    """Return the largest Jaccard index with a training text; `training` lists them by word."""
    largest = 0.0
    for word in test:
        for other in training[word]:
            largest = max(largest, len(test & other) / len(test | other))
    return largest


def main(data: Path) -> None:
    """Print the counts and accuracies."""
    read = texts.training(data, SEED)
    read += texts.second_training(data, SEED) + texts.third_training(data, SEED)
    training = defaultdict[str, list[frozenset[str]]](list)
    for known in {words(text.text) for text in read}:
        for word in known:
            training[word].append(known)
    tested = texts.tests(data)["negations"]
    found = mlstm.load("sentiment", compute="fp32").classify(
        [text.text for text in tested], classes=CLASSES
    )
    right: dict[bool, list[bool]] = {True: [], False: []}
    for text, shares in zip(tested, found, strict=True):
        is_near = nearest(words(text.text), training) >= LEAST
        right[is_near].append(max(CLASSES, key=shares.__getitem__) == text.label)
    for is_near, answers in right.items():
        name = "near" if is_near else "others"
        print(f"{name}: {len(answers)} texts, {100 * sum(answers) / len(answers):.1f}% right")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
