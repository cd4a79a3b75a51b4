"""Read documents from files, one at a time, and clean them into bytes.

A document is a review, a line, a paragraph or a file: what is deduplicated, shuffled and never cut
by a split or a shard. Every mistake in a file is a `UserError` that names the file and, where there
is one, the line. Cleaning follows Radford et al. 2017 and Puri et al. 2018.
"""

import csv
import gzip
import html
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from mlstm_jax.errors import UserError

Cleaning = Literal["radford", "none", "protein"]
Unit = Literal["line", "paragraph", "file"]

TEXT_FIELDS = ("text", "reviewText", "review_body", "sentence", "content")
RATING_FIELDS = ("rating", "overall", "star_rating", "stars")
PYDOC = "pydoc:"

_SUFFIXES = (".json", ".jsonl", ".csv", ".tsv", ".txt")
_GZIP_MAGIC = b"\x1f\x8b"
_LARGEST_RATING = 3.4e38  # of float32, in which a corpus keeps them
_LINES_A_REPORT = 1000
_MOST_FIELDS_SHOWN = 20

Record = Mapping[str, object]


class Document(NamedTuple):
    """A text, perhaps blank, and the rating and the label that came with it."""

    text: str
    rating: float | None
    label: str | None = None  # where a field of labels was named


def clean(text: str, cleaning: Cleaning) -> bytes:
    r"""Return a document's bytes in the corpus, empty if nothing but padding would be left.

    "radford": HTML-unescape, newlines to spaces, strip, "\n " in front, " " behind. "none": the
    text as it is and "\n". "protein": STX, the start of a sequence in UniRep, and the sequence in
    capitals without white space. All are UTF-8; a lone surrogate, which has none, becomes "?".
    """
    if cleaning == "radford":
        text = html.unescape(text)
        text = text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ").strip()
        padded = f"\n {text} "
    elif cleaning == "protein":
        padded = "\x02" + "".join(text.split()).upper()
    else:
        padded = f"{text}\n"
    return padded.encode("utf-8", errors="replace") if text.strip() else b""


def check_source(source: Path) -> None:
    """Raise UserError unless `source` is a file of a known kind, or `pydoc:`; reads two bytes."""
    if str(source) == PYDOC:
        return
    if not source.exists():
        raise UserError(f"{source}: there is no such file; check the name.")
    if source.is_dir():
        raise UserError(f"{source}: is a folder; name the files in it, such as {source}/*.json.gz")
    if _suffix(source) not in _SUFFIXES:
        raise UserError(
            f"{source}: a file of an unknown kind ({source.suffix or 'its name has no suffix'}); "
            f"known are {', '.join(_SUFFIXES)}, each also with .gz after it."
        )
    try:
        with source.open("rb") as raw:
            is_gzip = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error.strerror}") from error
    if is_gzip and not _named_gzip(source):
        raise UserError(f"{source}: is compressed by gzip; rename it to {source.name}.gz")
    if not is_gzip and _named_gzip(source):
        raise UserError(f"{source}: is not gzip, though its name ends in .gz; take the .gz off.")


def read_documents(
    source: Path,
    *,
    text_field: str | None = None,
    rating_field: str | None = None,
    label_field: str | None = None,
    document: Unit | None = None,
    on_read: Callable[[int], None] | None = None,
) -> Iterator[Document | None]:
    """Yield the documents of a file, in its order, and None for each record that has no text.

    Args:
        source: .json, .jsonl, .csv, .tsv or .txt, each also .gz; or `pydoc:`, the topics of
            Python's own documentation.
        text_field: field of the text; by default the first of `TEXT_FIELDS` that is not null.
        rating_field: field of the rating; by default the first of `RATING_FIELDS`. What is not a
            number is no rating.
        label_field: field of a label, a number or a text; by default none is read.
        document: what a document is in .txt and `pydoc:`; by default a line and a paragraph.
        on_read: told now and then how many bytes on disk were read since it was last told.

    Raises:
        UserError: the file cannot be read, is not what its name says, or ends without any text.
    """
    check_source(source)
    text_fields = (text_field,) if text_field else TEXT_FIELDS
    rating_fields = (rating_field,) if rating_field else RATING_FIELDS
    records = found = 0
    seen: dict[str, None] = {}
    # What is raised where the documents are used never comes through here.
    try:
        for record in _records(source, text_fields, document, on_read):
            records += 1
            text = _first(record, text_fields)
            blank = not isinstance(text, str) or not text.strip()
            found += not blank
            if not found and len(seen) < _MOST_FIELDS_SHOWN:
                seen |= dict.fromkeys(record)
            if isinstance(text, str):
                label = _label(record.get(label_field)) if label_field else None
                yield Document(text, _rating(_first(record, rating_fields)), label)
            else:
                yield None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{source}: the gzip data is cut short or damaged ({error}); fetch or make it again."
        ) from error
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error.strerror or error}") from error
    if not found:
        raise UserError(f"{source}: {_why_no_text(records, text_fields, seen)}")


def _why_no_text(records: int, text_fields: tuple[str, ...], seen: Iterable[str]) -> str:
    if not records:
        return "holds no text at all; leave it out."
    return (
        f"none of its {records:,} records has text in {' or '.join(text_fields)}; the fields seen "
        f"are {', '.join(seen) or '(none)'}. Name the right one with --text-column."
    )


def _suffix(source: Path) -> str:
    return (Path(source.stem) if _named_gzip(source) else source).suffix.lower()


def _named_gzip(source: Path) -> bool:
    return source.suffix.lower() == ".gz"


def _records(
    source: Path,
    text_fields: tuple[str, ...],
    document: Unit | None,
    on_read: Callable[[int], None] | None,
) -> Iterator[Record]:
    if str(source) == PYDOC:
        from pydoc_data.topics import topics

        for _, topic in sorted(topics.items()):
            for text in _units(io.StringIO(topic), document or "paragraph"):
                yield {text_fields[0]: text}
        return
    with source.open("rb") as raw:
        stream = gzip.GzipFile(fileobj=raw) if _named_gzip(source) else raw
        lines = _lines(source, stream, raw, on_read)
        suffix = _suffix(source)
        if suffix == ".txt":
            for text in _units(lines, document or "line"):
                yield {text_fields[0]: text}
        elif suffix in (".csv", ".tsv"):
            yield from _csv_records(source, lines, text_fields, "," if suffix == ".csv" else "\t")
        else:
            yield from _json_records(source, lines, may_be_array=suffix == ".json")


def _lines(
    source: Path,
    stream: Iterable[bytes],
    raw: BinaryIO,
    on_read: Callable[[int], None] | None,
) -> Iterator[str]:
    r"""Yield lines with their ends. Only \n ends one, so that line numbers are an editor's."""
    told = 0
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{source}, line {number:,}: not UTF-8 text (byte 0x{line[error.start]:02x}); "
                "convert the file to UTF-8."
            ) from error
        if "\0" in text:
            raise UserError(
                f"{source}, line {number:,}: has a NUL byte, so it is a binary file, not the text "
                "that its name says; leave it out."
            )
        yield text
        if on_read and number % _LINES_A_REPORT == 0:
            position = raw.tell()
            on_read(position - told)
            told = position
    if on_read:
        on_read(raw.tell() - told)


def _units(lines: Iterable[str], document: Unit) -> Iterator[str]:
    if document == "file":
        text = "".join(lines)
        if text.strip():
            yield text
    elif document == "line":
        yield from (line.rstrip("\r\n") for line in lines if line.strip())
    else:
        paragraph: list[str] = []
        for line in lines:
            if line.strip():
                paragraph.append(line)
            elif paragraph:
                yield "".join(paragraph).rstrip("\r\n")
                paragraph = []
        if paragraph:
            yield "".join(paragraph).rstrip("\r\n")


def _json_records(source: Path, lines: Iterator[str], may_be_array: bool) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        if may_be_array and text.startswith("["):
            array = _json(source, number, "".join([line, *lines]))
            assert isinstance(array, list)
            for index, record in enumerate(array, 1):
                yield _object(f"{source}, element {index:,} of its array", record)
            return
        may_be_array = False
        yield _object(f"{source}, line {number:,}", _json(source, number, text))


def _json(source: Path, line: int, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError):
            line += error.lineno - 1
        raise UserError(
            f"{source}, line {line:,}: not JSON ({error}): {text[:40]!r}; a record is one JSON "
            "object on one line."
        ) from error


def _object(where: str, value: object) -> Record:
    if isinstance(value, dict):
        return value
    raise UserError(
        f"{where}: {json.dumps(value)[:40]} is not a record; a record is a JSON object, such as "
        '{"text": "..."}'
    )


def _csv_records(
    source: Path, lines: Iterator[str], text_fields: tuple[str, ...], delimiter: str
) -> Iterator[Record]:
    # A review may be longer than the csv module's 131,072 characters; the limit is the process's.
    csv.field_size_limit(2**31 - 1)
    # Strict, because a quote never closed would otherwise swallow the rest of the file in silence.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] = []
    needed = 0  # column of the text
    while True:
        first_line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise UserError(
                f"{source}, line {first_line:,}: not CSV ({error}): a quote is stray or never "
                'closed; a field with a " in it is put in quotes and each " in it doubled.'
            ) from error
        if row is None:
            return
        if not row:
            continue
        if header:
            if len(row) <= needed or any(row[len(header) :]):
                raise UserError(
                    f"{source}, line {first_line:,}: {len(row)} columns where the header has "
                    f"{len(header)}; a field that holds the delimiter or a newline must be quoted."
                )
            yield dict(zip(header, row, strict=False))
            continue
        header = [name.strip() for name in row]
        columns = [header.index(name) for name in text_fields if name in header]
        if not columns:
            raise UserError(
                f"{source}: no column {' or '.join(text_fields)}; its columns are "
                f"{', '.join(header)}. Name the one of the text with --text-column."
            )
        needed = columns[0]


def _first(record: Record, fields: tuple[str, ...]) -> object:
    return next((record[name] for name in fields if record.get(name) is not None), None)


def _label(value: object) -> str | None:
    """Return a label as text: 1, 1.0 and "1" are one."""
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int | float) else None


def _rating(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        rating = float(value)
    except (ValueError, OverflowError):
        return None
    return rating if abs(rating) <= _LARGEST_RATING else None
