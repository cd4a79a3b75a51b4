"""What is in a corpus: lengths, bytes, ratings, samples, steps an epoch."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from mlstm_jax.data.corpus import Split, open_corpus
from mlstm_jax.data.stream import TrainStream
from mlstm_jax.errors import UserError
from mlstm_jax.fields import Count, public
from mlstm_jax.options import SPLITS

_CHUNK = 1 << 26  # bytes counted at a time
_SHOWN = 200  # bytes of a document
_MOST_RATINGS = 20
_COUNTS = ("records", "without_text", "blank", "duplicates", "dedupe", "rejected")


@public
def inspect(
    corpus: str | Path,
    *,
    verify: bool = False,
    batch: Count = 128,
    window: Count = 256,
    samples: int = 3,
) -> dict[str, Any]:
    """Describe a corpus: counts, lengths, bytes, ratings, samples, steps per epoch.

    Args:
        corpus: corpus folder, created by `prepare`.
        verify: recompute the checksums, and fail if one differs.
        batch: rows per training step, to count the steps of an epoch.
        window: bytes per row and step, for the same count.
        samples: documents to show, spread over the training split, or the first that has text.

    Returns:
        What `mlstm-jax inspect --json` prints: identity, counts of records, `splits`, lengths in
            bytes, `byte_counts` (256 numbers), `ratings`, `epoch` (steps and padding), `samples`.

    Raises:
        ValueError: `corpus` is not a corpus, or is damaged.

    Examples:
        >>> sorted(mlstm.inspect("corpora/mine")["splits"])
        ['test', 'train', 'valid']
    """
    opened = open_corpus(Path(corpus), verify=verify)
    manifest = opened.manifest
    train = opened.split("train")
    # Without a training split, describe the first split that has documents.
    with_text = [name for name in SPLITS if manifest.splits[name].bytes]
    shown = opened.split(with_text[0]) if with_text else train
    sizes = {}
    for name, split in manifest.splits.items():
        sizes[name] = {"documents": split.documents, "bytes": split.bytes}
    counts_of_records = {name: getattr(manifest, name) for name in _COUNTS}
    documents = len(shown.offsets) - 1
    lengths = np.diff(np.asarray(shown.offsets)).astype(np.int64)
    byte_counts = np.zeros(256, np.int64)
    for start in range(0, len(shown.bytes), _CHUNK):
        byte_counts += np.bincount(shown.bytes[start : start + _CHUNK], minlength=256)
    chosen = np.linspace(0, documents - 1, min(max(0, samples), documents)).astype(int)
    summary = {
        "identity": opened.identity,
        "cleaning": manifest.cleaning,
        "seed": manifest.seed,
        **counts_of_records,
        "sources": list(map(vars, manifest.sources)),
        "splits": sizes,
        "document_bytes": {
            "shortest": int(lengths.min()),
            "median": float(np.median(lengths)),
            "mean": float(lengths.mean()),
            "longest": int(lengths.max()),
        },
        "byte_counts": byte_counts.tolist(),
        "ratings": _ratings(shown),
        "epoch": _epoch(train, batch, window),
        "samples": [_text(shown, index) for index in chosen],
    }
    if verify:
        summary["checksums"] = "all agree"
    return summary


def _text(split: Split, index: int) -> str:
    start, end = split.offsets[index : index + 2].tolist()
    return split.bytes[start : min(end, start + _SHOWN)].tobytes().decode("utf-8", "replace")


def _ratings(split: Split) -> dict[str, Any] | None:
    """Count the documents with each of the most common ratings, another, or none."""
    if split.ratings is None:
        return None
    known = split.ratings[~np.isnan(split.ratings)]
    values, counts = np.unique(known, return_counts=True)
    kept = np.sort(np.argsort(-counts, kind="stable")[:_MOST_RATINGS])
    by_value = {}
    for n in kept:
        # As many digits as tell it from other float32 numbers: 4.1 and 1234567.
        by_value[f"{float(str(values[n])):.9g}"] = int(counts[n])
    return {
        "counts": by_value,
        "other": int(counts.sum() - counts[kept].sum()),
        "without": len(split.ratings) - len(known),
    }


def _epoch(split: Split, batch: int, window: int) -> dict[str, Any]:
    rows = {"batch": batch, "window": window}
    try:
        stream = TrainStream(split, batch=batch, window=window)
    except UserError as error:
        return rows | {"error": str(error)}
    return rows | {
        "steps": stream.steps_per_epoch,
        "shards": stream.shards,
        "idle": stream.padding_fraction,
    }


def format_summary(summary: dict[str, Any]) -> str:
    """A summary as text for people, without what a printed `Corpus` shows."""
    lengths = summary["document_bytes"]
    epoch = summary["epoch"]
    lines = [
        f"documents: {lengths['shortest']:,} to {lengths['longest']:,} bytes, median "
        f"{lengths['median']:,.0f}, mean {lengths['mean']:,.0f}",
        f"bytes: {np.count_nonzero(summary['byte_counts'])} values",
    ]
    if summary["ratings"]:
        ratings = summary["ratings"]
        most = max(ratings["counts"].values(), default=1)
        others = f", {ratings['other']:,} with rarer ones" if ratings["other"] else ""
        lines.append(f"ratings: {ratings['without']:,} documents without{others}")
        for value, count in ratings["counts"].items():
            lines.append(f"  {value:>6} {count:>12,} {'#' * math.ceil(40 * count / most)}")
    if "error" in epoch:
        lines.append(f"epoch: {epoch['error']}")
    else:
        lines.append(
            f"epoch: {epoch['steps']:,} steps of {epoch['batch']:,} rows x {epoch['window']:,} "
            f"bytes, from {epoch['shards']:,} shards; {100 * epoch['idle']:.1f}% of these are "
            "padding or idle rows"
        )
    for text in summary["samples"]:
        words = " ".join(text.split())
        if len(words) > 100:
            words = f"{words[:100]} …"
        lines.append(f"sample: {words}")
    return "\n".join(lines)
