"""Label texts with Python and NumPy alone: `mlstm-jax export NAME.pyz` packs this with a model.

    python NAME.pyz "I loved it." "It broke after a week."
    python NAME.pyz texts.csv > labels.csv       # or .jsonl, .txt, ..., -; --column NAME

In Python, where `NAME.classify(texts)` returns the probability of each class for each text::

    sys.path.insert(0, "NAME.pyz")
    import NAME

It has no other file of the package but model/numpy_model.py, so it says again how a text is cleaned
(corpora/documents.py). `classify` writes its CSV, and answers, by functions of this file.
"""

import argparse
import contextlib
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
# Parts of some texts: the texts, and the probability of each class of each, none of a blank one.
Labelled = Iterable[tuple[Sequence[str], list[dict[str, float]]]]
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


def _label(texts: Sequence[str]) -> tuple[list[dict[str, float]], list[bool]]:
    """The probabilities of texts, and whether each is unlike what the classifier knows."""
    about, model, weights_KD, intercepts_K = _loaded()
    cleaned = [clean(text, about["cleaning"]) for text in texts]
    familiar = about["familiar"]
    answers: list[dict[str, float]] = [{} for _ in texts]
    is_unlike = [False for _ in texts]
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
                is_unlike[n] = bool(nats > most * np.log(2))
    return answers, is_unlike


def classify(texts: Iterable[str]) -> list[dict[str, float]]:
    """Return the probability of each class of each text, by name; none of a blank one."""
    if isinstance(texts, str):
        raise TypeError("texts is a single str; pass a list of texts, [text].")
    given = list(texts)
    for number, text in enumerate(given):
        if not isinstance(text, str):
            raise TypeError(f"texts[{number}] is of type {type(text).__name__}; pass strings.")
    return _label(given)[0]


def _is_file(text: str) -> bool:
    """Whether an argument names a file, which may be missing, and is not a text."""
    if text == "-" or re.fullmatch(r"\S+\.[A-Za-z]\w{1,5}", text):
        return True
    with contextlib.suppress(OSError):  # a text is too long for a name
        return Path(text).is_file()
    return False


def _texts(path: str, column: str | None) -> Iterator[str]:
    """The texts of a file; ends the program, with a message, if it cannot be read."""
    formats = _loaded()[0]["formats"] | {"-": ("text", "")}
    suffix = Path(path).suffix.lower() or path
    if suffix not in formats:
        sys.exit(f"{path} is of an unknown kind; known kinds are {', '.join(formats)}.")
    parser, delimiter = formats[suffix]
    csv.field_size_limit(2**31 - 1)
    try:
        with open(0 if path == "-" else path, newline="", encoding="utf-8-sig") as file:
            if parser == "table":
                rows = csv.DictReader(file, delimiter=delimiter)
                for row in rows:
                    yield row[_column(path, rows.fieldnames or [], column)] or ""
            elif parser in ("json", "jsonl"):
                yield from _json_texts(path, file, column)
            else:
                for line in file:
                    yield line.rstrip("\r\n")
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}; check the name.")
    except UnicodeDecodeError as error:
        sys.exit(f"{path} is not UTF-8 text ({error}); convert it.")


def _json_texts(path: str, lines: Iterable[str], column: str | None) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            sys.exit(f'{path}, line {number}: write a JSON object, such as {{"text": "..."}}.')
        text = record[_column(path, list(record), column)]
        yield text if isinstance(text, str) else ""


def _column(path: str, names: Sequence[str], column: str | None) -> str:
    known = [column] if column else _COLUMNS
    wanted = [name for name in known if name in names]
    if not wanted:
        missing = column or " or ".join(_COLUMNS)
        have = ", ".join(names)
        advice = "name the texts with --column"
        if len(names) == 1 and re.search("[;\t|]", have):
            advice = "separate the fields with commas"
        sys.exit(f"{path} has no column {missing}, but {have}; {advice}.")
    return wanted[0]


def records(labelled: Labelled) -> Iterator[tuple[int, str, str, dict[str, float]]]:
    """Yield number, text, likeliest class and probabilities; of a blank text "" and none."""
    number = 0
    for texts, answers in labelled:
        for text, shares in zip(texts, answers, strict=True):
            number += 1
            yield number, text, max(shares, key=lambda name: shares[name], default=""), shares


def write_csv(file: Any, labelled: Labelled, classes: Sequence[str]) -> None:
    """Write a CSV of labels."""

    def write(row: str) -> None:
        file.write(row.removesuffix("\r\n") + "\n")

    # Python quotes a carriage return within a field only if lines end with one.
    writer = csv.writer(SimpleNamespace(write=write), lineterminator="\r\n")
    writer.writerow(["record", "text", "label", *(f"p({name})" for name in classes)])
    for number, text, label, shares in records(labelled):
        values = [f"{share:.4f}" for share in shares.values()] or [""] * len(classes)
        writer.writerow([number, text, label, *values])


def _labelled(
    texts: Iterator[str], is_unlike: list[bool]
) -> Iterator[tuple[Sequence[str], list[dict[str, float]]]]:
    """Label texts, some at a time, and note which are unlike what the classifier knows."""
    while part := list(itertools.islice(texts, _PART)):
        answers, more = _label(part)
        is_unlike += more
        yield part, answers


def main(arguments: list[str] | None = None) -> None:
    """Label the texts of a command line, or a file's as CSV."""
    about = _loaded()[0]
    said = f"Label texts: {', '.join(about['classes'])}."
    parser = argparse.ArgumentParser(prog=about["name"], description=said)
    kinds = ", ".join(about["formats"])
    parser.add_argument("text", nargs="+", help=f"texts, or one file: {kinds}; -: standard input")
    parser.add_argument("--column", help="of the texts in a file")
    given = parser.parse_args(arguments)
    is_file = any(map(_is_file, given.text))
    if is_file and len(given.text) > 1:
        parser.error("name one file, or give texts")
    texts = _texts(given.text[0], given.column) if is_file else iter(given.text)
    is_unlike: list[bool] = []
    parts = _labelled(texts, is_unlike)
    first = next(parts, None)  # so a file that is wrong has no output
    if first is None:
        sys.exit(f"{given.text[0]} has no text.")
    labelled = itertools.chain([first], parts)
    if is_file:
        write_csv(sys.stdout, labelled, about["classes"])
    else:
        for _, text, label, shares in records(labelled):
            print(f"{label or '-':<10} {max(shares.values(), default=0):.4f}  {text}")
    if any(is_unlike):
        print(
            f"note: {sum(is_unlike):,} of {len(is_unlike):,} texts are unlike the texts that the "
            "classifier knows, such as in another language; do not rely on the label.",
            file=sys.stderr,
        )
