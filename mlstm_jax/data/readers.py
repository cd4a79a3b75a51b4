"""Read documents from a file, one at a time, and say of each record that is none where and why.

Only a newline ends a line, so that line numbers are an editor's. After a bad record the next line
is read as if nothing had been: what is lost is that record alone.
"""

import csv
import gzip
import io
import json
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from mlstm_jax.data.documents import (
    Document,
    Recipe,
    Record,
    Reject,
    Unit,
    first,
    label_of,
    rating_of,
)
from mlstm_jax.data.sources import (
    PARQUET,
    PYDOC,
    TFDS,
    check_source,
    is_builtin,
    is_gzip_name,
    suffix_of,
)
from mlstm_jax.errors import UserError

_LINES_A_REPORT = 1000
_MOST_FIELDS_SHOWN = 20
_EXCERPT = 80  # characters
# A CSV record of more is a quote never closed: that it does not swallow the rest of the file.
_MOST_LINES_A_RECORD = 1000

Line = tuple[int, str] | Reject
# A record and its line, or where it is in words.
Found = tuple[int | str, Record] | Reject


def read_documents(
    source: Path,
    *,
    text_field: str | None = None,
    rating_field: str | None = None,
    label_field: str | None = None,
    document: Unit | None = None,
) -> Iterator[Document | None]:
    """Yield the documents of a file, in its order, and None for each record that has no text.

    For the arguments see `read`. Raises UserError at the first record that cannot be read, too.
    """
    recipe = Recipe(text_field=text_field, rating_field=rating_field, document=document)
    for found in read(source, recipe, label_field=label_field):
        if not isinstance(found, Reject):
            yield found
        elif found.kind == NOT_TEXT:
            yield None
        else:
            raise UserError(found.message)


NOT_TEXT = "text of another type"


def read_source(
    name: str, recipe: Recipe, on_read: Callable[[int], None] | None = None
) -> Iterator[Document | Reject | None]:
    """Yield what `read` does, of any source that `find_sources` finds."""
    if name.startswith(TFDS):
        from mlstm_jax.data.tfds import read_tfds

        return read_tfds(name, recipe)
    if not is_builtin(name) and suffix_of(Path(name)) == PARQUET:
        from mlstm_jax.data.parquet import read_parquet

        return read_parquet(Path(name), recipe)
    return read(Path(name), recipe, on_read=on_read)


def read(
    source: Path,
    recipe: Recipe,
    *,
    label_field: str | None = None,
    on_read: Callable[[int], None] | None = None,
) -> Iterator[Document | Reject | None]:
    """Yield the documents of a file, None for each record without text, and what cannot be read.

    Args:
        source: .json, .jsonl, .csv, .tsv or .txt, each also .gz; or `pydoc:`, the topics of
            Python's own documentation.
        recipe: the fields of text and rating, by default the first of `TEXT_FIELDS` and
            `RATING_FIELDS` that is not null (what is not a number is no rating); what a document
            is in .txt and `pydoc:`, by default a line and a paragraph.
        label_field: field of a label, a number or a text; by default none is read.
        on_read: told now and then how many bytes on disk were read since it was last told.

    Raises:
        UserError: the file cannot be opened, is not what its name says, or ends without any text.
    """
    check_source(source)
    text_fields, rating_fields = recipe.text_fields, recipe.rating_fields
    records = found = 0
    first_reject: Reject | None = None
    seen: dict[str, None] = {}
    # What is raised where the documents are used never comes through here.
    try:
        for one in _records(source, recipe, on_read):
            if isinstance(one, Reject):
                first_reject = first_reject or one
                yield one
                continue
            where, record = one
            records += 1
            text = first(record, text_fields)
            if isinstance(text, str):
                found += bool(text.strip())
                label = label_of(record.get(label_field)) if label_field else None
                yield Document(text, rating_of(first(record, rating_fields)), label)
            elif text is None:
                yield None
            else:
                place = f"{source}, {f'line {where:,}' if isinstance(where, int) else where}"
                excerpt = json.dumps(text, default=str)[:_EXCERPT]
                yield Reject(NOT_TEXT, place, f"{place}: its text is {excerpt}", excerpt)
            if not found and len(seen) < _MOST_FIELDS_SHOWN:
                seen |= dict.fromkeys(record)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        place = f"{source}, after record {records:,}"
        cut = Reject(
            "gzip cut short or damaged",
            place,
            f"{source}: the gzip data is cut short or damaged ({error}); fetch or make it again.",
        )
        first_reject = first_reject or cut
        yield cut
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error.strerror or error}") from error
    if not found:
        if first_reject and first_reject.kind != NOT_TEXT:
            raise UserError(first_reject.message)
        raise UserError(f"{source}: {_why_no_text(records, text_fields, seen)}")


def _why_no_text(records: int, text_fields: tuple[str, ...], seen: Iterable[str]) -> str:
    if not records:
        return "holds no text at all; leave it out."
    return (
        f"none of its {records:,} records has text in {' or '.join(text_fields)}; the fields seen "
        f"are {', '.join(seen) or '(none)'}. Name the right one with --text-column."
    )


def _records(
    source: Path, recipe: Recipe, on_read: Callable[[int], None] | None
) -> Iterator[Found]:
    text_fields, document = recipe.text_fields, recipe.document
    if str(source) == PYDOC:
        from pydoc_data.topics import topics

        for _, topic in sorted(topics.items()):
            numbered = enumerate(io.StringIO(topic), 1)
            for text in _units(numbered, document or "paragraph"):
                yield text if isinstance(text, Reject) else (0, {text_fields[0]: text})
        return
    with source.open("rb") as raw:
        stream = gzip.GzipFile(fileobj=raw) if is_gzip_name(source) else raw
        lines = _lines(source, stream, raw, on_read)
        suffix = suffix_of(source)
        if suffix == ".txt":
            for text in _units(lines, document or "line"):
                yield text if isinstance(text, Reject) else (0, {text_fields[0]: text})
        elif suffix in (".csv", ".tsv"):
            yield from _csv_records(source, lines, text_fields, "," if suffix == ".csv" else "\t")
        else:
            yield from _json_records(source, lines, may_be_array=suffix == ".json")


def _lines(
    source: Path,
    stream: Iterable[bytes],
    raw: BinaryIO,
    on_read: Callable[[int], None] | None,
) -> Iterator[Line]:
    r"""Yield lines with their numbers and ends."""
    told = 0
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            yield _reject(
                "not UTF-8",
                source,
                number,
                f"not UTF-8 text (byte 0x{line[error.start]:02x}); convert the file to UTF-8.",
                line.decode(errors="backslashreplace"),
            )
        else:
            if "\0" in text:
                yield _reject(
                    "NUL byte",
                    source,
                    number,
                    "has a NUL byte, so it is a binary file, not the text that its name says; "
                    "leave it out.",
                    text,
                )
            else:
                yield number, text
        if on_read and number % _LINES_A_REPORT == 0:
            position = raw.tell()
            on_read(position - told)
            told = position
    if on_read:
        on_read(raw.tell() - told)


def _reject(kind: str, source: Path, line: int, why: str, excerpt: str) -> Reject:
    place = f"{source}, line {line:,}"
    return Reject(kind, place, f"{place}: {why}", excerpt.strip()[:_EXCERPT])


def _units(lines: Iterable[Line], document: Unit) -> Iterator[str | Reject]:
    parts: list[str] = []
    for line in lines:
        if isinstance(line, Reject):
            yield line
        elif line[1].strip():
            if document == "line":
                yield line[1].rstrip("\r\n")
            else:
                parts.append(line[1])
        elif document == "file":
            parts.append(line[1])
        elif parts:
            yield "".join(parts).rstrip("\r\n")
            parts = []
    text = "".join(parts)
    if text.strip():
        yield text if document == "file" else text.rstrip("\r\n")


def _json_records(source: Path, lines: Iterator[Line], may_be_array: bool) -> Iterator[Found]:
    for line in lines:
        if isinstance(line, Reject):
            yield line
            continue
        number, raw = line
        text = raw.strip()
        if not text:
            continue
        if may_be_array and text.startswith("["):
            rest: list[str] = []
            for other in lines:
                if isinstance(other, Reject):
                    yield other
                else:
                    rest.append(other[1])
            array = _json(source, number, "".join([raw, *rest]))
            if isinstance(array, Reject):
                yield array
                return
            assert isinstance(array, list)
            for index, record in enumerate(array, 1):
                yield _object(source, f"element {index:,} of its array", record)
            return
        may_be_array = False
        value = _json(source, number, text)
        yield value if isinstance(value, Reject) else _object(source, number, value)


def _json(source: Path, line: int, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError):
            line += error.lineno - 1
        return _reject(
            "not JSON",
            source,
            line,
            f"not JSON ({error}): {text[:40]!r}; a record is one JSON object on one line.",
            text,
        )


def _object(source: Path, where: int | str, value: object) -> Found:
    if isinstance(value, dict):
        return where, value
    excerpt = json.dumps(value)[:_EXCERPT]
    place = f"{source}, {f'line {where:,}' if isinstance(where, int) else where}"
    return Reject(
        "not a JSON object",
        place,
        f"{place}: {excerpt[:40]} is not a record; a record is a JSON object, such as "
        '{"text": "..."}',
        excerpt,
    )


class _Lines:
    """The lines of a CSV file for its reader, which can be given back to be read again."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self._returned: deque[Line] = deque()
        self.taken: list[Line] = []  # by the record that is being read

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        if len(self.taken) >= _MOST_LINES_A_RECORD:
            raise StopIteration
        line = self._returned.popleft() if self._returned else next(self._lines)
        self.taken.append(line)
        # A line that is no text ends the record it is in, as the end of the file would.
        if isinstance(line, Reject):
            raise StopIteration
        return line[1]

    def give_back(self, lines: list[Line]) -> None:
        self._returned.extendleft(reversed(lines))


def _csv_records(
    source: Path, lines: Iterator[Line], text_fields: tuple[str, ...], delimiter: str
) -> Iterator[Found]:
    # A review may be longer than the csv module's 131,072 characters; the limit is the process's.
    csv.field_size_limit(2**31 - 1)
    feed = _Lines(lines)
    header: list[str] = []
    needed = 0  # column of the text
    # Strict, because a quote never closed would otherwise swallow the rest of the file in silence.
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    while True:
        feed.taken.clear()
        bad: tuple[str, str] | None = None
        row = None
        try:
            row = next(reader, None)
        except csv.Error as error:
            bad = (
                "CSV quote",
                f'not CSV ({error}): a quote is stray or never closed; a field with a " in it is '
                'put in quotes and each " in it doubled.',
            )
        taken = list(feed.taken)
        if not taken:
            return
        if isinstance(taken[-1], Reject):  # A line of bytes that are no text.
            yield taken[-1]
            reader = csv.reader(feed, delimiter=delimiter, strict=True)
            if len(taken) == 1:
                continue
            # It ended a record that had begun: that is lost up to here.
            bad, taken = bad or ("CSV quote", "its record is broken off there."), taken[:-1]
            number, text = _numbered(taken[0])
            yield _reject(bad[0], source, number, bad[1], text)
            continue
        number, text = _numbered(taken[0])
        if not bad and not row:
            continue
        if not bad and row and not header:
            header = [name.strip() for name in row]
            columns = [header.index(name) for name in text_fields if name in header]
            if not columns:
                raise UserError(
                    f"{source}: no column {' or '.join(text_fields)}; its columns are "
                    f"{', '.join(header)}. Name the one of the text with --text-column."
                )
            needed = columns[0]
            continue
        if not bad and row and (len(row) <= needed or any(row[len(header) :])):
            bad = (
                "CSV columns",
                f"{len(row)} columns where the header has {len(header)}; a field that holds the "
                "delimiter or a newline must be quoted.",
            )
        if bad:
            yield _reject(bad[0], source, number, bad[1], text)
            # What a stray quote swallowed may be whole records: only its first line is given up.
            feed.give_back(taken[1:])
            reader = csv.reader(feed, delimiter=delimiter, strict=True)
        elif row:
            yield number, dict(zip(header, row, strict=False))


def _numbered(line: Line) -> tuple[int, str]:
    assert not isinstance(line, Reject)
    return line
