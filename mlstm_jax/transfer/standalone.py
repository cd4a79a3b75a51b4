"""Label texts with Python and NumPy alone: `mlstm-jax export NAME.pyz` packs this with a model.

    python NAME.pyz "I loved it." "It broke after a week."
    python NAME.pyz texts.csv > labels.csv       # or .jsonl, .txt, ..., -; --column NAME

In Python, where `NAME.classify(texts)` returns the probability of each class for each text::

    sys.path.insert(0, "NAME.pyz")
    import NAME

It has no other file of the package but model/numpy_model.py, so it says again how files are read
(corpora/) and cleaned. `classify` writes its CSV, and answers, by functions of this file.
"""

import argparse
import contextlib
import csv
import functools
import html
import io
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
_PART = 8192  # texts that are labelled before any is written
# Parts of some texts: the texts, and the probability of each class of each, none of a blank one.
Labelled = Iterable[tuple[Sequence[str], list[dict[str, float]]]]
Fields = Iterable[tuple[str, Any]]  # of a record, by name
_LONG_REFERENCE = re.compile("&#[0-9]{4301,};?")
_DELIMITERS = ",\t;|"
_HEADER_FIELD = re.compile(r"\s*(\"?)[^\W\d]\w*([ .-]\w+)*\1\s*")
_SEPARATOR = re.compile(r"sep=(.)\r?\n?")
_TYPES = re.compile(
    r"bool(ean)?|categor(y|ical)|char|continuous|date(time)?|discrete|(float|int)(8|16|32|64)?|"
    r"double|integer|number|numeric|object|real|str(ing)?|text|varchar(\(\d+\))?",
    re.IGNORECASE,
)
_SPACED = re.compile(' +"(?:[^"]|"")*"')
# A field between tabs that has a tab or a line end in it, or neither.
_QUOTED = re.compile(r'(?m)(?:^|(?<=\t))"((?:[^"\n]++|"")*+|(?:[^"\t]++|"")*+)"(?=[\t\r\n]|\Z)')


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


def scores_of(features_ND: Any, weights_KD: Any, intercepts_K: Any) -> Any:
    """Features · weights + intercepts, of each text the same to the bit whatever others are there.

    One product of all texts would sum in an order that depends on their number.
    """
    features_ND = np.asarray(features_ND, np.float64, order="C")
    return (features_ND[:, None] @ weights_KD.T)[:, 0] + intercepts_K


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
        scores_NK = scores_of(np.concatenate(parts, axis=1), weights_KD, intercepts_K)
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


def _texts(path: str, column: str | None) -> list[str]:
    """The texts of a file, as `classify` reads them; ends the program if it refuses the file."""
    formats = _loaded()[0]["formats"]
    suffix = Path(path).suffix.lower()
    if path != "-" and suffix not in formats:
        sys.exit(f"{path} is of an unknown kind; known kinds are {', '.join(formats)}, -.")
    lines = _lines(path)
    parser, delimiter = formats[suffix or _suffix_of(lines)]
    wanted = [column] if column else _COLUMNS
    if parser == "table":
        records = _rows(path, lines, delimiter, wanted)
    elif parser == "text":
        records = ([(wanted[0], line.rstrip("\r\n"))] for line in lines if line.strip())
    else:
        records = _objects(path, lines)
    texts = []
    names = list(wanted)
    for record in records:
        names = [name for name, _ in record]
        values = dict(record)
        found = [values[name] for name in wanted if values.get(name) is not None] or [""]
        if twice := [name for name in wanted if names.count(name) > 1]:
            sys.exit(f"{path} has {twice[0]} more than once in a record; rename all but one.")
        if not isinstance(found[0], str):
            sys.exit(f"{path} has a text that is no string, but {found[0]!r:.80}; write strings.")
        texts.append(found[0])
    if not any(map(str.strip, texts)):
        have = f"column {' or '.join(wanted)}, but {', '.join(names)}; name the texts with --column"
        sys.exit(f"{path} has no {have if set(wanted).isdisjoint(names) else 'text'}.")
    return texts


def _lines(path: str) -> list[str]:
    """The lines of a file, which only a newline ends."""
    try:
        with open(0 if path == "-" else path, newline="\n", encoding="utf-8") as file:
            lines = [line.removeprefix("\ufeff").removesuffix("\x1a") for line in file]
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}; check the name.")
    except UnicodeDecodeError as error:
        sys.exit(f"{path} is not UTF-8 text ({error}); convert it.")
    if re.search(r"\0|\A[^\n]*\r[^\n]+\Z", "".join(lines)):
        sys.exit(f"{path} has NUL bytes, or carriage returns for newlines; convert it.")
    return lines


def _suffix_of(lines: Iterable[str]) -> str:
    """The suffix for the kind of standard input, by its beginning, as in corpora/sources.py."""
    header, *others = "".join(lines).lstrip(" \t\r\n")[:8192].splitlines() or [""]
    if header.startswith(("{", "[")):
        return ".jsonl"
    for delimiter in _DELIMITERS:
        fields = header.split(delimiter)
        is_header = len(fields) > 1 and all(map(_HEADER_FIELD.fullmatch, fields))
        if is_header and (not others or delimiter in others[0]):
            return ".csv"
    return ".csv" if header in _COLUMNS or re.fullmatch("sep=.", header) else ".txt"


def _objects(path: str, lines: Iterable[str]) -> Iterator[Fields]:
    for number, line in enumerate(lines, 1):
        record = None
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line.strip(), object_pairs_hook=tuple)
        if isinstance(record, tuple):
            yield record
        elif line.strip():
            sys.exit(f'{path}, line {number}: write a JSON object, such as {{"text": "..."}}.')


def _rows(path: str, lines: Sequence[str], usual: str, wanted: Sequence[str]) -> Iterator[Fields]:
    """The rows of a table, by the rules of corpora/tables.py."""
    header = next(filter(str.strip, lines), "")
    if named := _SEPARATOR.fullmatch(header):
        usual = named[1]
    for delimiter in usual + _DELIMITERS:
        if not {*wanted}.isdisjoint(name.strip(' "\r\n') for name in header.split(delimiter)):
            break
    else:
        delimiter = usual
    text = "".join(lines)
    # Between tabs a quote is a character, unless one is doubled or each is at an end of a field.
    quoted = _QUOTED.findall(text) if delimiter == "\t" else ['""']
    is_quoted = '""' in "".join(quoted) or text.count('"') == 2 * len(quoted)
    csv.field_size_limit(2**31 - 1)
    quotes: Any = csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
    rows = csv.reader(lines, delimiter=delimiter, quoting=quotes, strict=True)
    try:
        first = next((row for row in rows if row not in ([], ["sep=", ""])), [])
        names = [name.strip() for name in first]
        places = [names.index(name) for name in wanted if name in names]
        is_first = True
        for row in filter(None, rows):
            if wrong := _wrong(row, names, max(places[:1], default=0), is_first, is_quoted):
                sys.exit(f"{path}, line {rows.line_num}: {wrong}")
            if not _is_header(row, names, is_first):
                yield [*zip(names, row, strict=False)]
            is_first = False
    except csv.Error as error:
        sys.exit(
            f"{path}, line {rows.line_num}: not CSV ({error}); put a field that contains a quote "
            "in quotes, and double each quote in it."
        )


def _wrong(
    row: Sequence[str], names: Sequence[str], place: int, is_first: bool, is_quoted: bool
) -> str:
    """What is wrong with a row, whose text is at `place`, and what to do; "" if nothing."""
    if is_quoted and any(map(_SPACED.fullmatch, row)):
        return "a space before a quoted field; remove it."
    if len(row) <= place or any(row[len(names) :]):
        return (
            f"{len(row)} columns where the header has {len(names)}; put a field that contains the "
            "delimiter or a newline in quotes."
        )
    found = _folded(row)
    known = set(filter(None, _folded(names)))
    is_other = found[place] in known and len(known.intersection(found)) > 1
    if is_other and not _is_header(row, names, is_first):
        return "a header unlike the first; keep the files apart."
    return ""


def _is_header(row: Sequence[str], names: Sequence[str], is_first: bool) -> bool:
    """Whether a row is the header again, as in files that were joined, or types of columns."""
    fields = [field.strip() for field in row]
    if len(fields) == 1:
        return fields == names
    is_types = is_first and all(map(_TYPES.fullmatch, fields))
    return is_types or _folded(fields) == _folded(names)


def _folded(fields: Sequence[str]) -> list[str]:
    return [field.strip().casefold() for field in fields]


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


def _labelled(texts: Sequence[str], is_unlike: list[bool]) -> Labelled:
    """Label texts, some at a time, and note which are unlike what the classifier knows."""
    for start in range(0, len(texts), _PART):
        part = texts[start : start + _PART]
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
    parser.add_argument("--column", help="of the texts in a file; unset: as for the classifier")
    given = parser.parse_args(arguments)
    is_file = any(map(_is_file, given.text))
    if is_file and len(given.text) > 1:
        parser.error("name one file, or give texts")
    column = given.column or about["column"]
    texts = _texts(given.text[0], column) if is_file else given.text
    is_unlike: list[bool] = []
    labelled = _labelled(texts, is_unlike)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a character that its encoding does not have
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
