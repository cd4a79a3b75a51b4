"""Compare statistics of the states of a text as features of a linear classifier.

    python results/few_labels/state_statistics.py sst/ texts/{spam,topics,tweets,authors}.jsonl

Every text is read whole, by `reviews-1024` in bf16; of the states after each byte it takes c and h
after the last byte, and over all bytes their mean, maximum and minimum; the mean of h over the last
20 bytes, over the last bytes of words, and weighted by −log p of the byte. The classifier is
logistic regression on scaled features; of SST C is chosen on validation sentences, otherwise 0.01.
Prints a row of test accuracies in % for each set of features.
"""

import sys
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import few_labels
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mlstm_jax as mlstm
from mlstm_jax.run import with_compute
from mlstm_jax.transfer.classifier import Examples, subset

ROWS, LONGEST = 64, 1024
COUNTS = (50, 200, 2000)
FEATURES = """c; h; mean h; mean c; max h; max c; late h; words h; surprise h; c, mean h;
mean c, mean h; c, max h; c, words h; c, surprise h; c, mean h, max h; c, mean h, max h, min h;
c, mean h, max c; c, mean h, surprise h; c, mean c, mean h; c, words c, words h"""
RUN = mlstm.load("reviews-1024").run
MODEL = with_compute(RUN, "bf16").model
Array = Any


@jax.jit
def measure(bytes_BT: Array, length_B: Array) -> dict[str, Array]:
    """Return each statistic [B, H]."""
    place_1T = jnp.arange(bytes_BT.shape[1])[None]
    read_BT, last_B1 = place_1T < length_B[:, None], length_B[:, None] - 1
    start = MODEL.reading_carry(len(bytes_BT))
    read = MODEL.apply({"params": RUN.params}, bytes_BT, start, ~read_BT, return_states="each")
    named = MODEL.architecture.named_states(read.states)
    c_BTH, h_BTH = (named[name][:, :, 0].astype(jnp.float32) for name in "ch")
    next_BT = jnp.roll(bytes_BT, -1, axis=1).astype(jnp.int32)
    shares_BTV = jax.nn.log_softmax(read.logits_BTV)
    nats_BT = -jnp.take_along_axis(shares_BTV, next_BT[..., None], -1)[..., 0]
    # The first byte is not predicted; a byte's surprise weights the state after it.
    nats_BT = jnp.roll(jnp.where(place_1T < last_B1, nats_BT, 0), 1, axis=1)

    def mean(weight_BT: Array, x_BTH: Array) -> Array:
        weight_BT = weight_BT.astype(jnp.float32)
        total_B1 = jnp.maximum(weight_BT.sum(axis=1, keepdims=True), 1e-9)
        return jnp.einsum("bt,bth->bh", weight_BT / total_B1, x_BTH)

    last_BT, word_BT = place_1T == last_B1, read_BT & (next_BT == ord(" "))
    found = {"surprise h": mean(nats_BT, h_BTH)}
    found["late h"] = mean(read_BT & (place_1T > last_B1 - 20), h_BTH)
    for name, x_BTH in (("c", c_BTH), ("h", h_BTH)):
        found[name] = mean(last_BT, x_BTH)
        found[f"mean {name}"] = mean(read_BT, x_BTH)
        found[f"words {name}"] = mean(word_BT | last_BT, x_BTH)
        found[f"max {name}"] = jnp.where(read_BT[..., None], x_BTH, -jnp.inf).max(axis=1)
        found[f"min {name}"] = jnp.where(read_BT[..., None], x_BTH, jnp.inf).min(axis=1)
    return found


def encode(texts: list[str]) -> dict[str, Array]:
    """Return each statistic [N, H]; of a long text, of its end."""
    cleaned = [np.frombuffer(text, np.uint8)[-LONGEST:] for text in RUN.cleaned(texts)]
    order = np.argsort([len(one) for one in cleaned], kind="stable")
    found: dict[str, Array] = defaultdict(lambda: np.zeros((len(texts), 1024), np.float32))
    for first in range(0, len(order), ROWS):
        numbers = order[first : first + ROWS]
        width = -(-len(cleaned[numbers[-1]]) // 64) * 64
        bytes_BT, length_B = np.zeros((ROWS, width), np.uint8), np.ones(ROWS, np.int32)
        for row, number in enumerate(numbers):
            length_B[row] = len(cleaned[number])
            bytes_BT[row, : length_B[row]] = cleaned[number]
        for name, values in jax.device_get(measure(bytes_BT, length_B)).items():
            found[name][numbers] = values[: len(numbers)]
    return found


def fit(C: float, examples: Examples) -> Any:
    """Return the fitted classifier; more than two classes are classified one against the rest."""
    logistic: Any = LogisticRegression(C=C, max_iter=300)
    if examples.labels.max() > 1:
        logistic = OneVsRestClassifier(logistic)
    return make_pipeline(StandardScaler(), logistic).fit(*examples)


def main(sst: Path, *files: Path) -> None:
    """Read all texts, then fit."""
    warnings.filterwarnings("ignore")
    sets = {"SST": {part: few_labels.of_sst(sst, part) for part in ("train", "dev", "test")}}
    sets |= {path.stem: few_labels.of_lines(path) for path in files}
    read: dict[str, dict[str, tuple[dict[str, Array], Array]]] = {}
    for name, parts in sets.items():
        names = sorted(set(parts["train"][1]))
        read[name] = {
            part: (encode(texts), np.array([names.index(label) for label in labels]))
            for part, (texts, labels) in parts.items()
        }
    for features in FEATURES.replace("\n", " ").split("; "):

        def examples(part: tuple[dict[str, Array], Array]) -> Examples:
            values = [part[0][one] for one in features.split(", ")]  # noqa: B023
            return Examples(np.concatenate(values, axis=1), part[1])

        cells = []
        for parts in read.values():
            train, test = examples(parts["train"]), examples(parts["test"])
            if "dev" in parts:
                valid = examples(parts["dev"])
                fits = [fit(C, train) for C in (3e-4, 1e-3, 3e-3, 1e-2)]
                best = max(fits, key=lambda one: one.score(*valid))
                cells += [f"{100 * best.score(*test):.1f}", f"{100 * best.score(*valid):.1f}"]
            for count in [n for n in COUNTS if n <= len(train.labels)]:
                draws = [subset(train, count, s) for s in range(10 if count < 500 else 1)]
                cells.append(f"{100 * np.mean([fit(0.01, d).score(*test) for d in draws]):.1f}")
        print("|", " | ".join([features, *cells]), "|", flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
