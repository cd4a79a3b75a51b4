"""Fine-tune `reviews-1024` on SST with a head that reads several statistics of h.

    python results/finetune/head.py sst/ last 0
    python results/finetune/head.py sst/ last,mean,max 0

Unlike `mlstm-jax finetune`, it reads each sentence by itself, in batches of similar lengths, with a
gradient of the whole sentence. After each epoch a line has the calibrated loss and the accuracy of
the validation and test sentences; the smallest loss of the former chooses.
"""

import csv
import dataclasses
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.run import load_run
from mlstm_jax.training.objective import cross_entropy
from mlstm_jax.transfer.classifier import Classifier, Examples
from mlstm_jax.transfer.finetune import calibrated

Array = jax.Array
ROWS, EPOCHS, RATE = 40, 3, 1e-3
DROPOUT, LABEL_WEIGHT = 0.2, 1000.0  # as the defaults of `finetune`

RUN = load_run(Path("reviews-1024"))
# The label head of the package's model gives h of each byte.
MODEL = dataclasses.replace(RUN.config.model, classes=RUN.config.model.hidden, rating_head=False)
PRECISION = dataclasses.replace(RUN.config.precision, compute="bf16")
LANGUAGE_MODEL = LanguageModel(MODEL, PRECISION.types)
IDENTITY = {"label_kernel": jnp.eye(MODEL.hidden), "label_bias": jnp.zeros(MODEL.hidden)}


def read(folder: Path, part: str) -> tuple[list[bytes], Any]:
    """Return cleaned sentences and their labels."""
    with (folder / f"{part}_binary_sent.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    labels = np.array([int(row["label"]) for row in rows])
    return RUN.cleaned([row["sentence"] for row in rows]), labels


def batches(texts: list[bytes], labels: Any, random: Any = None) -> Iterator[tuple[Any, ...]]:
    """Yield bytes [B, T], their number and the label of each row; rows at the end may be empty."""
    sizes = np.array([len(text) for text in texts])
    order = np.argsort(sizes if random is None else sizes + random.uniform(0, 8, len(sizes)))
    groups = [order[at : at + ROWS] for at in range(0, len(order), ROWS)]
    for group in groups if random is None else random.permutation(np.arange(len(groups))):
        rows = group if random is None else groups[group]
        bytes_BT = np.zeros((ROWS, -(-sizes[rows].max() // 64) * 64), np.uint8)
        for row, number in enumerate(rows):
            bytes_BT[row, : sizes[number]] = np.frombuffer(texts[number], np.uint8)
        more = (0, ROWS - len(rows))
        yield bytes_BT, np.pad(sizes[rows], more), np.pad(labels[rows], more)


def logits(
    head: str, params: Any, bytes_BT: Array, size_B: Array, dropout_B: Array | None
) -> tuple[Array, Array, Array]:
    """Return logits of bytes and of classes, and which bytes are of a text."""
    carry = LANGUAGE_MODEL.reading_carry(ROWS)
    model = {"params": params["model"] | jax.lax.stop_gradient(IDENTITY)}
    output = LANGUAGE_MODEL.apply(model, bytes_BT, carry, dropout_B=dropout_B)
    h_BTH, last_B = output.labels_BTK, jnp.maximum(size_B - 1, 0)
    read_BT = jnp.arange(bytes_BT.shape[1])[None] < size_B[:, None]
    mask_BT1 = read_BT[..., None]
    statistics = {
        "last": lambda: h_BTH[jnp.arange(ROWS), last_B],
        "mean": lambda: jnp.where(mask_BT1, h_BTH, 0).sum(1) / jnp.maximum(size_B, 1)[:, None],
        "max": lambda: jnp.where(mask_BT1, h_BTH, -1e9).max(1),
    }
    x_BD = jnp.concatenate([statistics[name]() for name in head.split(",")], axis=1)
    return output.logits_BTV, x_BD @ params["kernel"] + params["bias"], read_BT


def loss(head: str, params: Any, key: Array, bytes_BT: Array, size_B: Array, y_B: Array) -> Array:
    """Return the loss of `finetune`: per byte, a label counting as many of them."""
    shape = ROWS, *MODEL.dropout_shape(bytes_BT.shape[1])
    kept_B = jax.random.bernoulli(key, 1 - DROPOUT, shape) / (1 - DROPOUT)
    logits_BTV, logits_B2, read_BT = logits(head, params, bytes_BT, size_B, kept_B)
    nats_BT = cross_entropy(logits_BTV[:, :-1], bytes_BT[:, 1:])
    labels_B = jnp.where(size_B > 0, cross_entropy(logits_B2, y_B), 0)
    bytes_nats = jnp.where(read_BT[:, 1:], nats_BT, 0).sum()
    return (bytes_nats + LABEL_WEIGHT * labels_B.sum()) / size_B.sum()


def main(folder: Path, head: str, seed: int) -> None:
    """Train, and print a line after each epoch."""
    train, valid, test = (read(folder, part) for part in ("train", "dev", "test"))
    width = MODEL.hidden * len(head.split(","))
    model = {name: x for name, x in RUN.params.items() if not name.startswith("label")}
    params = {"model": model, "kernel": jnp.zeros((width, 2)), "bias": jnp.zeros(2)}
    steps = EPOCHS * -(-len(train[0]) // ROWS)
    rising = optax.linear_schedule(10 * RATE / steps, RATE, steps // 10 - 1)
    falling = optax.linear_schedule(RATE, RATE / 32, steps - steps // 10)
    rate = optax.join_schedules([rising, falling], [steps // 10])
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
    state, random, key = optimizer.init(params), np.random.default_rng(seed), jax.random.key(seed)

    @jax.jit
    def step(params: Any, state: Any, key: Array, *batch: Array) -> tuple[Any, Any]:
        gradient = jax.grad(partial(loss, head))(params, key, *batch)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    classes = jax.jit(lambda *batch: logits(head, *batch, None)[1])

    def answers(texts: list[bytes], labels: Any) -> Examples:
        """The scores as one feature: those of a classifier with the weight 1."""
        some = [(np.asarray(classes(params, *one[:2])), *one[1:]) for one in batches(texts, labels)]
        scores_B2, size_B, y_B = (np.concatenate(parts) for parts in zip(*some, strict=True))
        return Examples((scores_B2[:, 1:] - scores_B2[:, :1])[size_B > 0], y_B[size_B > 0])

    for epoch in range(1, EPOCHS + 1):
        for batch in batches(*train, random):
            key, now = jax.random.split(key)
            params, state = step(params, state, now, *batch)
        held_out, tests = answers(*valid), answers(*test)
        fitted = calibrated(Classifier(np.ones((1, 1)), np.zeros(1), ["0", "1"], 1.0), held_out)
        shown = (
            f"{x.loss(y):.3f} {x.score(y):.3f}" for x, y in ((fitted, held_out), (fitted, tests))
        )
        print(epoch, *shown, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
