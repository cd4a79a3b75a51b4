"""Label texts with Python and NumPy alone: `mlstm-jax export NAME.pyz` packs this with a model.

    python NAME.pyz "I loved it." "It broke after a week."
    python NAME.pyz texts.csv > labels.csv       # or .jsonl, .txt, ...; --column NAME

In Python, where `NAME.classify(texts)` returns the probability of each class for each text::

    sys.path.insert(0, "NAME.pyz")
    import NAME

It has no other file of the package but model/numpy_model.py, so it says again how a text is cleaned
(corpora/documents.py). `classify` writes its CSV, and answers, by functions of this file.
"""

import argparse
import csv
import functools
import html
import io
import itertools
import json
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from mlstm_jax.model.numpy_model import NumpyModel

_COLUMNS = ("text", "reviewText", "review_body", "sentence", "content")
_PART = 8192  # texts in memory
_LONG_REFERENCE = re.compile("&#[0-9]{4301,};?")


@functools.cache
def _loaded() -> tuple[dict[str, Any], NumpyModel, Any, Any]:
    """What is known of the model; the model; the classifier's weights [K, D] and intercepts."""
    about = json.loads(pkgutil.get_data(__name__, "about.json") or b"")
    arrays = dict(np.load(io.BytesIO(pkgutil.get_data(__name__, "model.npz") or b"")))
    weights_KD = arrays.pop("classifier/weights")
    intercepts_K = arrays.pop("classifier/intercepts")
    return about, NumpyModel(about["kind"], arrays), weights_KD, intercepts_K


def clean(text: str, cleaning: str) -> bytes:
    """The bytes that the model reads of a text; b"" of a blank one."""
    before, after = "", "\n"
    if cleaning == "radford":
        text = html.unescape(_LONG_REFERENCE.sub("\ufffd", text))
        text = text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ").strip()
        before, after = "\n ", " "
    return (before + text + after).encode("utf-8", "replace") if text.strip() else b""


def shares_of(scores_NK: Any, classes: int, *, softmax: bool) -> Any:
    """The probabilities of classes; of one against the rest, scaled to sum to 1."""
    if softmax:
        shares_NK = np.exp(scores_NK - scores_NK.max(axis=1, keepdims=True))
    else:
        shares_NK = 1 / (1 + np.exp(-np.clip(scores_NK, -500, 500)))
    if classes == 2:
        return np.concatenate([1 - shares_NK, shares_NK], axis=1)
    return shares_NK / shares_NK.sum(axis=1, keepdims=True)


def _label(texts: Sequence[str]) -> tuple[list[dict[str, float]], int]:
    """The probabilities of texts, and how many are unlike what the classifier knows."""
    about, model, weights_KD, intercepts_K = _loaded()
    cleaned = [clean(text, about["cleaning"]) for text in texts]
    familiar = about["familiar"]
    answers: list[dict[str, float]] = [{} for _ in texts]
    unlike = 0
    for read in model.read(cleaned, score=familiar is not None):
        parts = [read.states[state][:, layer] for state, layer in about["layers"]]
        features = np.concatenate(parts, axis=1).astype(np.float64)
        scores_NK = features @ weights_KD.T + intercepts_K
        shares_NK = shares_of(scores_NK, len(about["classes"]), softmax=about["softmax"])
        for n, shares, nats in zip(read.text_N, shares_NK.tolist(), read.nats_N, strict=True):
            scored = len(cleaned[n]) - 1
            if scored < 1:
                continue
            answers[n] = dict(zip(about["classes"], shares, strict=True))
            if familiar:
                most = familiar["bits"] * scored + familiar["short"] * scored**0.5
                unlike += nats > most * np.log(2)
    return answers, int(unlike)


def classify(texts: Iterable[str]) -> list[dict[str, float]]:
    """Return the probability of each class of each text, by name; none of a blank one."""
    if isinstance(texts, str):
        raise TypeError("texts is a single str; pass a list of texts, [text].")
    return _label(list(texts))[0]


def _texts(path: Path, column: str | None) -> Iterator[str]:
    reader, delimiter = _loaded()[0]["formats"].get(path.suffix, ("text", ""))
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        if reader == "table":
            csv.field_size_limit(2**31 - 1)
            rows = csv.DictReader(file, delimiter=delimiter)
            name = _column(path, rows.fieldnames or [], column)
            for row in rows:
                yield row[name] or ""
        elif reader in ("json", "jsonl"):
            for line in filter(str.strip, file):
                record = json.loads(line)
                yield str(record[_column(path, list(record), column)])
        else:
            for line in file:
                yield line.rstrip("\r\n")


def _column(path: Path, names: Sequence[str], column: str | None) -> str:
    wanted = [name for name in ([column] if column else _COLUMNS) if name in names]
    if not wanted:
        sys.exit(f"{path} has the columns {', '.join(names)}; name the texts with --column.")
    return wanted[0]


def csv_writer(file: Any, classes: Sequence[str]) -> Any:
    """Write the head of a CSV of labels; return what writes its rows."""

    def write(row: str) -> None:
        file.write(row.removesuffix("\r\n") + "\n")

    # Python quotes a carriage return within a field only if lines end with one.
    writer = csv.writer(SimpleNamespace(write=write), lineterminator="\r\n")
    writer.writerow(["record", "text", "label", *(f"p({name})" for name in classes)])
    return writer


def main(arguments: list[str] | None = None) -> None:
    """Label the texts of a command line, or a file's as CSV."""
    about = _loaded()[0]
    said = f"Label texts: {', '.join(about['classes'])}."
    parser = argparse.ArgumentParser(prog=about["name"], description=said)
    parser.add_argument("text", nargs="+", help="a text, or one file of texts")
    parser.add_argument("--column", help="of the texts in a file")
    given = parser.parse_args(arguments)
    path = Path(given.text[0])
    is_file = len(given.text) == 1 and len(given.text[0]) < 1000 and path.is_file()
    texts = _texts(path, given.column) if is_file else iter(given.text)
    unlike = 0
    count = 0
    writer = csv_writer(sys.stdout, about["classes"]) if is_file else None
    while part := list(itertools.islice(texts, _PART)):
        answers, more = _label(part)
        unlike += more
        for text, shares in zip(part, answers, strict=True):
            count += 1
            label = max(shares, key=lambda name: shares[name], default="")
            if writer:
                values = [f"{shares[name]:.4f}" if shares else "" for name in about["classes"]]
                writer.writerow([count, text, label, *values])
            else:
                print(f"{label or '-':<10} {max(shares.values(), default=0):.4f}  {text}")
    if unlike:
        print(
            f"note: {unlike:,} of {count:,} texts are unlike the texts that the classifier knows, "
            "such as in another language; do not rely on the label.",
            file=sys.stderr,
        )
