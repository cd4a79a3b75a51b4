"""Measure models of train.py on validation and test texts, before they are packed.

    python results/sentiment/evaluate.py DATA RUN/model.npz [last|mean] [FILE.csv ...]

Prints a line of JSON: accuracy of positive against negative (the other class left out), the recall
of three classes, the calibrated loss, and the score that chooses a model. It was written down
before the runs: the mean of SST's validation accuracy, the accuracy and the macro recall of the
held-out tweets, the accuracy of the 500 held-out reviews, and of the 240 texts of
negation_valid.csv. The parameters are read as the package stores them.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import texts
from texts import CLASSES, Text

import train
from mlstm_jax import environment

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)


def logits_of(params: Any, some: list[Text]) -> np.ndarray:
    """Return the logits of texts [N, 3]; of more than 2,048 bytes the beginning and the end."""
    params = params | {"model": train.rounded(params["model"])}
    classes = jax.jit(lambda *batch: train.read(*batch, None)[1])
    cleaned = train.RUN.cleaned([text.text for text in some])
    most = LENGTHS[-1]
    cut = [
        text if len(text) <= most else text[: most // 2] + text[-most // 2 :] for text in cleaned
    ]
    sizes = np.array([len(text) for text in cut])
    logits_NK = np.zeros((len(cut), 3), np.float32)
    for shorter, length in zip((0, *LENGTHS), LENGTHS, strict=False):
        chosen = np.flatnonzero((sizes > shorter) & (sizes <= length))
        for first in range(0, len(chosen), 64):
            group = chosen[first : first + 64]
            bytes_BT = np.zeros((64, length), np.uint8)
            for row, number in enumerate(group):
                bytes_BT[row, : sizes[number]] = np.frombuffer(cut[number], np.uint8)
            sizes_B = np.pad(sizes[group], (0, 64 - len(group)))
            logits_NK[group] = np.asarray(classes(params, bytes_BT, sizes_B))[: len(group)]
    return logits_NK


def figures(logits_NK: np.ndarray, some: list[Text], temperature: float) -> dict[str, float]:
    """Return accuracy, recalls and loss of labelled texts."""
    labels_N = np.array([CLASSES.index(text.label) for text in some])
    is_polar_N = labels_N != 1
    is_right_N = (logits_NK[:, 2] > logits_NK[:, 0]) == (labels_N == 2)
    scaled_NK = logits_NK / temperature
    nats_NK = np.logaddexp.reduce(scaled_NK, axis=1, keepdims=True) - scaled_NK
    found = {"loss": nats_NK[np.arange(len(labels_N)), labels_N].mean()}
    if is_polar_N.any():
        found["accuracy"] = is_right_N[is_polar_N].mean()
        says_positive_N = logits_NK[is_polar_N, 2] > logits_NK[is_polar_N, 0]
        found["says_positive"] = says_positive_N.mean()
    is_found_N = logits_NK.argmax(1) == labels_N
    found["recall"] = np.mean([is_found_N[labels_N == n].mean() for n in np.unique(labels_N)])
    return {name: round(float(value), 4) for name, value in found.items()}


def best_temperature(logits_NK: np.ndarray, some: list[Text]) -> float:
    """Return the temperature of the smallest loss."""
    tried = 2.0 ** np.arange(-1, 3.1, 0.125)
    return float(min(tried, key=lambda t: figures(logits_NK, some, t)["loss"]))


def main(data: Path, path: Path, which: str, files: list[Path], quick: bool) -> None:
    """Print the figures."""
    like = train.start()
    params = train.load(path, {"last": like, "mean": like})[which]
    held_out = texts.validation(data)
    found: dict[str, Any] = {"model": str(path), "which": which}
    read = {name: logits_of(params, some) for name, some in held_out.items()}
    every_NK = np.concatenate(list(read.values()))
    every = [text for some in held_out.values() for text in some]
    temperature = best_temperature(every_NK, every)
    found["temperature"] = temperature
    for name, some in held_out.items():
        found[f"valid {name}"] = figures(read[name], some, temperature)
    scores = [found[f"valid {name}"]["accuracy"] for name in held_out]
    found["score"] = round(float(np.mean([*scores, found["valid tweets"]["recall"]])), 4)
    for name, some in texts.tests(data).items():
        if name == "imdb" and quick:
            continue
        found[f"test {name}"] = figures(logits_of(params, some), some, temperature)
    for file in files:
        with file.open(encoding="utf-8", newline="") as lines:
            some = [Text(row["text"], row["label"], "") for row in csv.DictReader(lines)]
        found[file.stem] = figures(logits_of(params, some), some, temperature)
    print(json.dumps(found))


if __name__ == "__main__":
    environment.cache_programs()
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        sys.argv[3],
        [Path(name) for name in sys.argv[4:] if name != "quick"],
        "quick" in sys.argv,
    )
