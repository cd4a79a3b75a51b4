"""What is in a corpus: lengths, bytes, ratings, samples, steps an epoch; advice on a new one."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.corpora.documents import Unit
from mlstm_jax.corpora.sources import skipped_files
from mlstm_jax.data.corpus import SPLITS, Corpus, Manifest, Split
from mlstm_jax.data.stream import TrainStream
from mlstm_jax.digest import CheckedBytes
from mlstm_jax.errors import UserError

_CHUNK = 1 << 26  # bytes counted at a time
_SHOWN = 200  # bytes of a document
_MOST_RATINGS = 20
# To detect lines wrapped by an editor: their length in bytes, and the ends of sentences.
_LEAST_WRAPPED, _MOST_WRAPPED = 40, 130
_ENDS = (".", "!", "?", '"', "”", ")", "。")
_LINES = 2000  # documents examined
# With fewer bytes, bits per character depend too much on the choice of documents.
_LEAST_SCORED = 50_000
# Amazon reviews have 0.0008.
_MUCH_MARKUP = 0.1
_MOST_NAMED = 5
_TEXT_FILES = (".txt", ".txt.gz")
# Smallest weight of the train split, each other being 1: most of the text is for training.
_LEAST_TRAINED = 8
_SAMPLE = 1 << 20  # bytes, from documents in random order
# Without newlines, to stay within a document: in a corpus of reviews each begins with one.
_TAG = re.compile(rb"<[A-Za-z/!?][^<>\n]{0,1000}>")


def summarise(corpus: Corpus, *, batch: int, window: int, samples: int = 3) -> dict[str, Any]:
    """Return a JSON-ready description of a corpus.

    Args:
        corpus: an open corpus.
        batch, window: rows, and bytes per row, of the training step, to count an epoch's steps.
        samples: documents to show, spread over the training split, or the first non-empty split.

    Raises:
        UserError: a split's files do not match the manifest.
    """
    manifest, train = corpus.manifest, corpus.split("train")
    # Without a training split, describe the first split that has documents.
    shown = next((one for one in map(corpus.split, SPLITS) if len(one.bytes)), train)
    lengths = np.diff(np.asarray(shown.offsets)).astype(np.int64)
    counts = _byte_counts(shown.bytes)
    chosen = np.linspace(0, len(lengths) - 1, min(samples, len(lengths))).astype(int)
    return {
        "identity": corpus.identity,
        "cleaning": manifest.cleaning,
        "seed": manifest.seed,
        "records": manifest.records,
        "without_text": manifest.without_text,
        "blank": manifest.blank,
        "duplicates": manifest.duplicates,
        "dedupe": manifest.dedupe,
        "rejected": manifest.rejected,
        "sources": [vars(source) for source in manifest.sources],
        "splits": {
            name: {"documents": split.documents, "bytes": split.bytes}
            for name, split in manifest.splits.items()
        },
        "document_bytes": {
            "shortest": int(lengths.min()),
            "median": float(np.median(lengths)),
            "mean": float(lengths.mean()),
            "longest": int(lengths.max()),
        },
        "shortest": _text(shown, int(lengths.argmin())),
        "longest": _text(shown, int(lengths.argmax())),
        "byte_counts": counts.tolist(),
        "bits_per_byte": _entropy(counts),
        "not_ascii": float(counts[128:].sum() / counts.sum()),
        "ratings": _ratings(shown),
        "epoch": _epoch(train, batch, window, corpus.stop),
        "samples": [_text(shown, index) for index in chosen],
    }


def _byte_counts(data: CheckedBytes) -> NDArray[np.int64]:
    counts = np.zeros(256, np.int64)
    for start in range(0, len(data), _CHUNK):
        counts += np.bincount(data[start : start + _CHUNK], minlength=256)
    return counts


def _entropy(counts: NDArray[np.int64]) -> float:
    """Return the bits per byte from byte frequencies alone: a model must do better."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def _text(split: Split, index: int) -> str:
    start, end = (int(split.offsets[index + n]) for n in (0, 1))
    return split.bytes[start : min(end, start + _SHOWN)].tobytes().decode("utf-8", "replace")


def _ratings(split: Split) -> dict[str, Any] | None:
    """Return how many documents have each of the most common ratings, another, or none."""
    if split.ratings is None:
        return None
    known = np.asarray(split.ratings)[~np.isnan(split.ratings)]
    values, counts = np.unique(known, return_counts=True)
    kept = np.sort(np.argsort(-counts, kind="stable")[:_MOST_RATINGS])
    return {
        "counts": {f"{values[n]:g}": int(counts[n]) for n in kept},
        "other": int(counts.sum() - counts[kept].sum()),
        "without": int(np.isnan(split.ratings.reshape(len(split.ratings), -1)).all(axis=1).sum()),
    }


def _epoch(split: Split, batch: int, window: int, stop: int | None) -> dict[str, Any]:
    rows = {"batch": batch, "window": window}
    try:
        stream = TrainStream(split, batch=batch, window=window, stop=stop)
    except UserError as error:
        return rows | {"error": str(error)}
    return rows | {
        "steps": stream.steps_per_epoch,
        "shards": stream.shards,
        "idle": stream.padding_fraction,
    }


def format_summary(summary: dict[str, Any]) -> str:
    """Return a summary as text for people, without what `corpus.format_corpus` shows."""
    lengths, epoch = summary["document_bytes"], summary["epoch"]
    counts = np.array(summary["byte_counts"])
    common = [int(byte) for byte in np.argsort(-counts, kind="stable")[:12]]
    shares = "  ".join(f"{_name(byte)} {100 * counts[byte] / counts.sum():.1f}%" for byte in common)
    lines = [
        f"documents: {lengths['shortest']:,} to {lengths['longest']:,} bytes, median "
        f"{lengths['median']:,.0f}, mean {lengths['mean']:,.0f}",
        f"bytes: {int((counts > 0).sum())} values, {100 * summary['not_ascii']:.2f}% not ASCII, "
        f"{summary['bits_per_byte']:.3f} bits per byte by frequency alone",
        f"  {shares}",
    ]
    if summary["ratings"]:
        ratings = summary["ratings"]
        most = max(ratings["counts"].values(), default=1)
        others = f", {ratings['other']:,} with rarer ones" if ratings["other"] else ""
        lines.append(f"ratings: {ratings['without']:,} documents without{others}")
        lines += [
            f"  {value:>6} {count:>12,} {'#' * math.ceil(40 * count / most)}"
            for value, count in ratings["counts"].items()
        ]
    if "error" in epoch:
        lines.append(f"epoch: {epoch['error']}")
    else:
        lines.append(
            f"epoch: {epoch['steps']:,} steps of {epoch['batch']:,} rows x {epoch['window']:,} "
            f"bytes, from {epoch['shards']:,} shards; {100 * epoch['idle']:.1f}% of these are "
            "padding, or rows that wait for the longest"
        )
    for name in ("shortest", "longest"):
        lines.append(f"{name}: {_line(summary[name])}")
    lines += [f"sample: {_line(text)}" for text in summary["samples"]]
    return "\n".join(lines)


def _name(byte: int) -> str:
    names = {9: "tab", 10: "newline", 32: "space"}
    return names.get(byte) or (repr(chr(byte))[1:-1] if 32 < byte < 127 else f"0x{byte:02x}")


def _line(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= 100 else f"{shown[:100]} …"


def advice(corpus: Corpus, sources: Sequence[str], document: Unit | None) -> Iterator[str]:
    """Yield notes on a corpus, one line each; often there are none.

    Args:
        corpus: the corpus.
        sources: its sources, as passed to `find_sources`.
        document: the requested unit of a document in a text file; None: no request.

    Raises:
        UserError: a split's files do not match the manifest.
    """
    manifest = corpus.manifest
    if manifest.rejected:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in manifest.rejected.items())
        yield f"skipped, and listed in {corpus.path}.rejects.jsonl: {counts}."
        if any("gzip" in kind for kind in manifest.rejected):
            yield "the rest of a damaged gzip file is lost; fetch or create the file again."
    train = corpus.split("train")
    share = _markup_share(train)
    if share >= _MUCH_MARKUP:
        yield (
            f"{share:.0%} of the train split's bytes are in tags such as <p>, so it looks like "
            "HTML or XML; if that is not intended, extract the text first."
        )
    others = skipped_files(sources, without=(corpus.path.resolve(),))
    if others:
        names = ", ".join(path.name for path in others[:_MOST_NAMED])
        yield (
            f"{len(others):,} file(s) in the folders are of an unknown kind and were not read: "
            f"{names}{', ...' if len(others) > _MOST_NAMED else ''}; if one is text, rename it to "
            "end in .txt."
        )
    of_lines = any(source.name.lower().endswith(_TEXT_FILES) for source in manifest.sources)
    is_cut = document is None and manifest.split is not None and of_lines
    median = _wrapped(train) if is_cut else 0
    if median:
        yield (
            f"half of the documents have at most {median:,} bytes, and most end in mid-sentence. "
            "Each line of a text file is a document: if the lines are wrapped, use `document` "
            "paragraph or file."
        )
    yield from _too_small(manifest)


def _too_small(manifest: Manifest) -> Iterator[str]:
    """Yield a note on each split that is too small to score, with how to enlarge it."""
    sizes = {name: split.bytes for name, split in manifest.splits.items()}
    _, valid, test = (int(weight > 0) for weight in manifest.split or (1, 1, 1))
    # A quarter more, because documents differ in length.
    train = int(sum(sizes.values()) / (1.25 * _LEAST_SCORED)) - valid - test
    if manifest.split is None:
        remedy = f"a good score needs {_LEAST_SCORED:,}."
    elif train >= _LEAST_TRAINED:
        share = f"one in {train + valid + test} documents"
        remedy = f"`split` {train},{valid},{test} gives {share} to each, enough for good scores."
    else:
        remedy = f"a good score needs {_LEAST_SCORED:,}, so add more text."
    for name in ("valid", "test"):
        if 0 < sizes[name] < _LEAST_SCORED:
            yield (
                f"the {name} split has only {sizes[name]:,} bytes, so its scores will be noisy; "
                f"{remedy}"
            )


def _wrapped(split: Split) -> int:
    """Return the median bytes of documents that look like lines of wrapped prose; 0 otherwise.

    Wrapped lines have similar lengths, and most of them end in mid-sentence.
    """
    lengths = np.diff(np.asarray(split.offsets[: _LINES + 1])).astype(np.int64)
    if not lengths.size:
        return 0
    texts = [_text(split, index).rstrip() for index in range(len(lengths))]
    ended = sum(text.endswith(_ENDS) for text in texts)
    median, long = (int(np.percentile(lengths, share)) for share in (50, 95))
    wraps = median >= _LEAST_WRAPPED and long <= _MOST_WRAPPED and ended < len(texts) / 2
    return median if wraps else 0


def _markup_share(split: Split) -> float:
    """Return the share of a split's bytes in tags, from 0 to 1, among its first million."""
    sample = split.bytes[:_SAMPLE].tobytes()
    return sum(len(tag[0]) for tag in _TAG.finditer(sample)) / max(1, len(sample))
