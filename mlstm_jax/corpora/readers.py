"""Read documents from a source, one at a time, and report each bad record, with place and reason.

Only a newline ends a line, so that line numbers match an editor's.
"""

import codecs
import io
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from mlstm_jax.corpora.columns import parquet_records, tfds_records
from mlstm_jax.corpora.documents import Document, Recipe, Record, rating_of
from mlstm_jax.corpora.records import (
    Line,
    RecordOrReject,
    as_json,
    json_records,
    similar_columns,
    text_records,
)
from mlstm_jax.corpora.rejects import EXCERPT, MAX_REJECT_FRACTION, Reject, Rejects, rejected
from mlstm_jax.corpora.sources import GZIP_ERRORS, STDIN, Source, check_source
from mlstm_jax.corpora.tables import csv_records
from mlstm_jax.errors import UserError, note

LONGEST_LINE = 2**28  # bytes; a longer one is probably not text
_LINES_A_REPORT = 1000
_END_OF_FILE = b"\x1a"  # Ctrl-Z, which DOS programs write at the end of a text
_MOST_FIELDS_SHOWN = 20
# Readers of typed columns.
_OF_COLUMNS = {"parquet": parquet_records, "tfds": tfds_records}

# Called from time to time with the bytes on disk that were read since the last call.
OnRead = Callable[[int], None]


def read_documents(
    source: Source, recipe: Recipe, *, again: bool = False
) -> Iterator[Document | None]:
    """Yield the documents of a source, in its order; None for a record without text, or a reject.

    Rejects are skipped as `prepare` does, and noted at the end, unless it is read `again`. Raises
    UserError as `read_source` does, or if more than `MAX_REJECT_FRACTION` of the records are
    rejects.
    """
    rejects = Rejects()
    count = 0
    for record in read_source(source, recipe):
        if isinstance(record, Reject):
            rejects.add(record)
            if record.is_note:
                continue
            record = None
        count += 1
        yield record
    if again:
        return
    rejects.check(count, MAX_REJECT_FRACTION)
    for text in rejects.notes():
        note(text)
    if rejects:
        note(f"skipped, because they cannot be read:\n{rejects.describe()}")


def _no_text(source: Source, recipe: Recipe, fields: Sequence[str], kinds: Counter[str]) -> str:
    """Why no record of a file has a text: the fields seen, and what they have in its place."""
    if not kinds:
        return f"{source} has no record: it is empty, or has only a header; leave it out."
    found = [name for name in recipe.text_columns if name in fields]
    columns = found or recipe.text_columns
    wanted = " or ".join(columns)
    others = ", ".join(f"{kind} in {n:,}" for kind, n in kinds.items())
    seen = ", ".join(fields) or "(none)"
    end = "." if found else similar_columns(columns, fields)
    return (
        f"{source}: none of its {kinds.total():,} records has text in {wanted} ({others}); the "
        f"fields seen are {seen}. Write strings there, or name another field with "
        f"`text_column`{end}"
    )


def kind_of(value: object) -> str:
    """Describe what is in place of a text or a label, in a few words."""
    if value is None:
        return "missing"
    if isinstance(value, str):
        return f"{value.strip()!r}, which means missing" if value.strip() else "blank"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return f"an object with the fields {', '.join(value) or '(none)'}"[:EXCERPT]
    names = {list: "a list", bool: "a boolean", int: "a number", float: "a number", bytes: "bytes"}
    return names.get(type(value), f"a {type(value).__name__}")


def read_source(
    source: Source, recipe: Recipe, on_read: OnRead | None = None
) -> Iterator[Document | Reject | None]:
    """Yield the documents of a source, None for each record without text, rejects, and notes.

    By default the fields of text and rating are the first of `TEXT_COLUMNS` and `RATING_COLUMNS`
    that is not null (a rating must be a number, or it is ignored), and a document is a line in .txt
    and a paragraph in `pydoc:`.
    """
    check_source(source)
    texts = recipe.text_columns
    ratings = recipe.rating_columns
    has_label = recipe.label_column is not None
    has_text = False
    fields: dict[str, None] = {}
    kinds: Counter[str] = Counter()  # of what records have in place of a text
    records = 0
    first_reject: Reject | None = None
    # Errors raised by the code that uses the documents do not pass through here.
    try:
        for found in _records(source, recipe, on_read):
            if isinstance(found, Reject):
                if not found.is_note:
                    first_reject = first_reject or found
                yield found
                continue
            where, record = found
            text = _first(record, texts)
            records += 1
            if not has_text:
                has_text = isinstance(text, str) and bool(text.strip())
                kinds[kind_of(text)] += 1
                if len(fields) < _MOST_FIELDS_SHOWN:
                    fields |= dict.fromkeys(record)
            if isinstance(text, str):
                rating = rating_of(_first(record, ratings))
                yield Document(text, rating, record if has_label else None)
            elif text is None:
                yield None
            else:
                excerpt = as_json(text)
                why = f"its text is {excerpt[:EXCERPT]}, not a string"
                yield rejected("text of another type", source, where, why, excerpt)
    except GZIP_ERRORS as error:
        why = f"the gzip data is cut short or damaged ({error}); fetch or create it again."
        where = f"after record {records:,}"
        damage = rejected("gzip cut short or damaged", source, where, why)
        first_reject = first_reject or damage
        yield damage
    except OSError as error:
        raise UserError(f"{source} cannot be read: {error.strerror or error}") from error
    if not has_text:
        why = first_reject.message if first_reject else _no_text(source, recipe, [*fields], kinds)
        raise UserError(why)


def _first(record: Record, fields: tuple[str, ...]) -> object:
    """The value of the first of `fields` that is not null."""
    for name in fields:
        value = record.get(name)
        if value is not None:
            return value
    return None


def _records(source: Source, recipe: Recipe, on_read: OnRead | None) -> Iterator[RecordOrReject]:
    if source == STDIN and not source.copy:
        copied = source.repeatable()
        assert copied.copy
        with copied.copy:
            yield from _records(copied, recipe, on_read)
        return
    column = recipe.text_columns[0]
    parser = source.format.parser
    if parser in _OF_COLUMNS:
        yield from _OF_COLUMNS[parser](source, recipe)
        return
    if parser == "pydoc":
        from pydoc_data.topics import topics

        for _, topic in sorted(topics.items()):
            numbered = enumerate(io.StringIO(topic), 1)
            yield from text_records(numbered, recipe.document or "paragraph", column)
        return
    lines = _lines(source, recipe, on_read)
    if parser == "text":
        yield from text_records(lines, recipe.document or "line", column)
    elif parser == "table":
        yield from csv_records(source, recipe, lines, partial(_scan, source, recipe))
    else:
        yield from json_records(source, lines, recipe.columns, may_be_array=parser == "json")


def _scan(source: Source, recipe: Recipe) -> Iterator[Line]:
    """Yield the lines of a file from its start, as far as they can be read."""
    with suppress(*GZIP_ERRORS):  # reported when the file is read
        yield from _lines(source, recipe, None)


def _lines(source: Source, recipe: Recipe, on_read: OnRead | None) -> Iterator[Line]:
    """Yield the lines with their numbers and line ends."""
    needs_lines = source.format.parser in ("table", "text") and recipe.document != "file"
    for number, line in enumerate(limited_lines(source, on_read), 1):
        if number == 1 and needs_lines and line[-1:] != b"\n" and b"\r" in line[:-1]:
            raise UserError(
                f"{source}: its lines end with a carriage return without a newline, as in "
                r"files of old Macs; convert the file, for example with: tr '\r' '\n'"
            )
        yield _decoded(source, number, line.removesuffix(_END_OF_FILE))


def limited_lines(source: Source, on_read: OnRead | None) -> Iterator[bytes]:
    """Yield the lines of a file, unpacked; UserError if one is longer than `LONGEST_LINE`."""
    number = 0
    told = 0
    with source.open() as (raw, stream):
        while line := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise UserError(
                    f"{source}, line {number:,} is longer than {LONGEST_LINE:,} bytes; break the "
                    "text into lines, or leave the file out."
                )
            yield line
            if on_read and number % _LINES_A_REPORT == 0:
                position = raw.tell()
                on_read(position - told)
                told = position
        if on_read:
            on_read(raw.tell() - told)


def _decoded(source: Source, number: int, line: bytes) -> Line:
    """A line with its number, or a reject if it is not text."""
    line = line.removeprefix(codecs.BOM_UTF8)  # also of a file that was appended to another
    try:
        text = line.decode()
        if "\0" not in text:
            return number, text
        kind = "NUL byte"
        why = "it has a NUL byte, as binary files have, though its name is of a text; leave it out."
    except UnicodeDecodeError as error:
        text = line.decode(errors="backslashreplace")
        kind = "not UTF-8"
        byte = f"0x{line[error.start]:02x}"
        why = f"it is not UTF-8 text (byte {byte}); try iconv -f WINDOWS-1252 -t UTF-8"
    if line.startswith((b"\xff\xfe", b"\xfe\xff")) or line.count(0) > len(line) // 3:
        why = "it looks like UTF-16; convert it to UTF-8, such as with: iconv -f UTF-16 -t UTF-8"
    return rejected(kind, source, number, why, text)
