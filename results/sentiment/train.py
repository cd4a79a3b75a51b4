"""Train `reviews-1024` further: three classes of sentiment, beside the next byte.

    python results/sentiment/train.py DATA OUT SEED
    python results/sentiment/train.py DATA OUT2 SEED 2 OUT/model.npz
    python results/sentiment/train.py DATA OUT3 SEED 3 AVERAGE/model.npz

The second command is the second part: it begins with the mean parameters of the first, and half of
its texts have a negation. The third begins with the average of both (merge.py).

Unlike `mlstm-jax finetune`, it reads each text by itself, in batches of similar lengths, with a
gradient of the whole text. The head reads the last h, the mean and the maximum of h over the text
(../finetune/README.md compares heads). The loss is the cross-entropy of the labels, and LM_WEIGHT
times the mean cross-entropy of the bytes. OUT gets model.npz (the parameters and their mean over
the last updates), log.jsonl, and state.npz, from which the same command resumes.
"""

import dataclasses
import json
import math
import random
import sys
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import texts
from texts import CLASSES, Text

from mlstm_jax import environment
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.run import load_run
from mlstm_jax.training.objective import cross_entropy

Array = jax.Array
RATES = (1e-3, 7e-4, 5e-4)  # of the parts
MEANS_OF = (400, 300, 400)  # updates, of the exponential mean of parameters
TEXTS = (texts.training, texts.second_training, texts.third_training)
WARM_UP = 0.1  # of the steps
DROPOUT = 0.15
LM_WEIGHT = 0.15
LONGEST = 1_000  # bytes of a text
LENGTHS = (16, 24, 32, 48, 64, 96, 128, 160, 224, 384, 640, 1024)
# Of a source's texts of a class, against the others of the source: balanced to the power of a half.
BALANCE = 0.5
SECONDS = 300  # between two saved states

RUN = load_run(Path("reviews-1024"))
# The label head of the package's model gives h of each byte.
MODEL = dataclasses.replace(RUN.config.model, classes=RUN.config.model.hidden, rating_head=False)
PRECISION = dataclasses.replace(RUN.config.precision, compute="bf16")
LANGUAGE_MODEL = LanguageModel(MODEL, PRECISION.types)
IDENTITY = {"label_kernel": jnp.eye(MODEL.hidden), "label_bias": jnp.zeros(MODEL.hidden)}


def rows_of(length: int) -> int:
    """Return the rows of a batch: about 4,096 bytes."""
    return max(16, min(128, 4096 // length // 8 * 8))


def varied(text: Text, random_: random.Random) -> str:
    """Return a phrase as people may write it: with a capital, a mark at the end, or without."""
    written = text.text
    if text.source not in ("phrase", "negation", "sst", "title"):
        return written
    if random_.random() < 0.5:
        written = written[:1].upper() + written[1:]
    elif random_.random() < 0.2:
        written = written.lower()
    if text.source in ("phrase", "negation"):
        if written[-1].isalnum() and random_.random() < 0.5:
            written += random_.choice([".", ".", ".", "!", "..."])
    elif random_.random() < 0.2:
        written = written.rstrip(" .")
    return written


def shortened(text: bytes, random_: random.Random) -> bytes:
    """Return the beginning, the end, or both of a long text."""
    if len(text) <= LONGEST:
        return text
    kind = random_.choice(["begin", "end", "both"])
    if kind == "begin":
        return text[:LONGEST]
    if kind == "end":
        return b"\n " + text[-LONGEST + 2 :]
    return text[: LONGEST // 2] + text[-LONGEST // 2 :]


def example_weights(some: list[Text]) -> np.ndarray:
    """Return the weight of each text: classes of a source are partly balanced, 1 on average."""
    counts = Counter((text.source, text.label) for text in some)
    totals = Counter(text.source for text in some)
    weights = []
    for text in some:
        share = counts[text.source, text.label] / totals[text.source]
        weights.append(share**-BALANCE)
    weights_N = np.array(weights, np.float32)
    sources = np.array([text.source for text in some])
    for source in totals:
        weights_N[sources == source] /= weights_N[sources == source].mean()
    return weights_N


Batch = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def batch_of(cleaned: list[bytes], labels: list[int], weights: list[float], length: int) -> Batch:
    """Return bytes [B, T], sizes, labels and weights [B]; rows without a text have the size 0."""
    rows = rows_of(length)
    bytes_BT = np.zeros((rows, length), np.uint8)
    sizes_B = np.zeros(rows, np.int32)
    for row, text in enumerate(cleaned):
        bytes_BT[row, : len(text)] = np.frombuffer(text, np.uint8)
        sizes_B[row] = len(text)
    more = (0, rows - len(cleaned))
    labels_B = np.pad(np.array(labels, np.int32), more)
    return bytes_BT, sizes_B, labels_B, np.pad(np.array(weights, np.float32), more)


def epoch(some: list[Text], seed: int) -> list[Batch]:
    """Return the batches of texts, in a random order."""
    random_ = random.Random(seed)
    weights_N = example_weights(some)
    order = list(range(len(some)))
    random_.shuffle(order)
    waiting: dict[int, list[tuple[bytes, int, float]]] = defaultdict(list)
    batches = []

    def flush(length: int) -> None:
        cleaned, labels, weights = zip(*waiting.pop(length), strict=True)
        batches.append(batch_of(list(cleaned), list(labels), list(weights), length))

    for number in order:
        text = some[number]
        cleaned = RUN.cleaned([varied(text, random_)])[0]
        cleaned = shortened(cleaned, random_)
        length = next(length for length in LENGTHS if length >= len(cleaned))
        label = CLASSES.index(text.label)
        waiting[length].append((cleaned, label, float(weights_N[number])))
        if len(waiting[length]) == rows_of(length):
            flush(length)
    for length in list(waiting):
        flush(length)
    random_.shuffle(batches)
    return batches


def rounded(params: Any) -> Any:
    """Return the parameters as the package stores them, V in int8, with the gradient of V itself.

    (Jacob et al. 2018, section 3; each column has its own scale.)
    """
    layer = params["layer_0"]
    stored = {}
    for name, v_IO in layer.items():
        stored[name] = v_IO
        if name.endswith("_v"):
            scale_O = jnp.maximum(jnp.abs(v_IO).max(axis=0), 1e-30) / 127
            int8_IO = jnp.round(v_IO / scale_O) * scale_O
            stored[name] = v_IO + jax.lax.stop_gradient(int8_IO - v_IO)
    return params | {"layer_0": stored}


def read(params: Any, bytes_BT: Array, sizes_B: Array, dropout_B: Array | None) -> Any:
    """Return logits of bytes [B, T, V] and of classes [B, 3], and which bytes are of a text."""
    rows = bytes_BT.shape[0]
    carry = LANGUAGE_MODEL.reading_carry(rows)
    model = {"params": params["model"] | jax.lax.stop_gradient(IDENTITY)}
    output = LANGUAGE_MODEL.apply(model, bytes_BT, carry, dropout_B=dropout_B)
    h_BTH = output.labels_BTK
    is_read_BT = jnp.arange(bytes_BT.shape[1])[None] < sizes_B[:, None]
    mask_BT1 = is_read_BT[..., None]
    last_BH = h_BTH[jnp.arange(rows), jnp.maximum(sizes_B - 1, 0)]
    mean_BH = jnp.where(mask_BT1, h_BTH, 0).sum(1) / jnp.maximum(sizes_B, 1)[:, None]
    max_BH = jnp.where(mask_BT1, h_BTH, -1e9).max(1)
    x_BD = jnp.concatenate([last_BH, mean_BH, max_BH], axis=1)
    return output.logits_BTV, x_BD @ params["kernel"] + params["bias"], is_read_BT


def loss(params: Any, key: Array, bytes_BT: Array, sizes_B: Array, y_B: Array, w_B: Array) -> Any:
    """Return the loss, and the nats of labels and of bytes."""
    shape = bytes_BT.shape[0], *MODEL.dropout_shape(bytes_BT.shape[1])
    kept_B = jax.random.bernoulli(key, 1 - DROPOUT, shape) / (1 - DROPOUT)
    params = params | {"model": rounded(params["model"])}
    logits_BTV, logits_BK, is_read_BT = read(params, bytes_BT, sizes_B, kept_B)
    nats_BT = cross_entropy(logits_BTV[:, :-1], bytes_BT[:, 1:])
    label_nats = (w_B * cross_entropy(logits_BK, y_B)).sum() / jnp.maximum(w_B.sum(), 1)
    byte_nats = jnp.where(is_read_BT[:, 1:], nats_BT, 0).sum() / is_read_BT[:, 1:].sum()
    return label_nats + LM_WEIGHT * byte_nats, (label_nats, byte_nats)


def schedule(rate: float, steps: int) -> optax.Schedule:
    """Return the rate: it rises, then falls to a hundredth."""
    rising = optax.linear_schedule(rate / 50, rate, round(WARM_UP * steps))
    falling = optax.linear_schedule(rate, rate / 100, steps - round(WARM_UP * steps))
    return optax.join_schedules([rising, falling], [round(WARM_UP * steps)])


def save(path: Path, tree: Any) -> None:
    """Write the leaves of a tree, in place of an earlier file at once."""
    leaves = jax.tree.leaves(tree)
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, *[np.asarray(leaf) for leaf in leaves])
    temporary.replace(path)


def load(path: Path, like: Any) -> Any:
    """Read what `save` wrote."""
    with np.load(path) as saved:
        leaves = [jnp.asarray(saved[name]) for name in saved.files]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def start() -> Any:
    """Return the parameters before the first update."""
    model = {name: x for name, x in RUN.params.items() if not name.startswith("label")}
    width = 3 * MODEL.hidden
    return jax.tree.map(
        jnp.asarray,
        {
            "model": model,
            "kernel": np.zeros((width, 3), np.float32),
            "bias": np.zeros(3, np.float32),
        },
    )


def main(data: Path, out: Path, seed: int, part: int, before: Path | None) -> None:
    """Train, and write a line of the log every hundred updates."""
    out.mkdir(parents=True, exist_ok=True)
    params = start()
    some = TEXTS[part](data, 1_000 * seed)
    if before is not None:
        params = load(before, {"last": params, "mean": params})["mean"]
    batches = epoch(some, 1_000 * seed)
    steps = len(batches)
    rate = schedule(RATES[part], steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
    mean = jax.tree.map(jnp.copy, params)
    state = (jnp.int32(0), params, optimizer.init(params), mean)
    if (out / "state.npz").is_file():
        state = load(out / "state.npz", state)
    key = jax.random.key(seed)

    @partial(jax.jit, donate_argnums=0)
    def update(state: Any, batch: Any) -> Any:
        step, params, moments, mean = state
        grad = jax.value_and_grad(loss, has_aux=True)
        (_, nats), gradient = grad(params, jax.random.fold_in(key, step), *batch)
        updates, moments = optimizer.update(gradient, moments, params)
        params = optax.apply_updates(params, updates)
        share = jnp.maximum(1 / MEANS_OF[part], 1 / (step + 1))
        mean = jax.tree.map(lambda mean, now: mean + share * (now - mean), mean, params)
        return (step + 1, params, moments, mean), nats

    saved = time.monotonic()
    sums = np.zeros(2)
    seen = 0
    for step in range(int(state[0]), steps):
        state, nats = update(state, batches[step])
        sums += [float(value) for value in nats]
        seen += 1
        if (step + 1) % 100 == 0:
            label_nats, byte_nats = sums / seen
            line = {
                "step": step + 1,
                "steps": steps,
                "label_nats": round(float(label_nats), 4),
                "bpc": round(float(byte_nats) / math.log(2), 4),
                "cpu_seconds": round(time.process_time()),
            }
            with (out / "log.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(line, flush=True)
            sums[:] = 0
            seen = 0
        if time.monotonic() - saved > SECONDS:
            save(out / "state.npz", state)
            saved = time.monotonic()
    save(out / "model.npz", {"last": state[1], "mean": state[3]})
    (out / "state.npz").unlink(missing_ok=True)


if __name__ == "__main__":
    environment.cache_programs()
    part = int(sys.argv[4]) - 1 if len(sys.argv) > 4 else 0
    before = Path(sys.argv[5]) if len(sys.argv) > 5 else None
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), part, before)
