"""Read documents from a file, one at a time, and report each bad record, with place and reason.

Only a newline ends a line, so that line numbers match an editor's.
"""

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

from mlstm_jax.data.documents import (
    Document,
    Recipe,
    Reject,
    Unit,
    first,
    rating_of,
)
from mlstm_jax.data.records import (
    Line,
    RecordOrReject,
    csv_records,
    fasta_records,
    json_records,
    reject,
    units,
)
from mlstm_jax.data.sources import FASTA, Source, check_source
from mlstm_jax.errors import UserError

_LINES_A_REPORT = 1000
_MOST_FIELDS_SHOWN = 20
_EXCERPT = 80  # characters


def read_documents(
    source: Source,
    *,
    text_column: str | None = None,
    rating_column: str | None = None,
    label_columns: Sequence[str] = (),
    document: Unit | None = None,
) -> Iterator[Document | None]:
    """Yield the documents of a file, in its order, and None for each record without text.

    For the arguments see `read_file`. Also raises UserError at the first unreadable record.
    """
    recipe = Recipe(text_column=text_column, rating_column=rating_column, document=document)
    for found in read_file(source, recipe, label_columns=label_columns):
        if not isinstance(found, Reject):
            yield found
        elif found.kind == NOT_TEXT:
            yield None
        else:
            raise UserError(found.message)


NOT_TEXT = "text of another type"


def read_source(
    source: Source, recipe: Recipe, on_read: Callable[[int], None] | None = None
) -> Iterator[Document | Reject | None]:
    """Yield what `read_file` does, for any source that `find_sources` returns."""
    if source.kind == "tfds":
        from mlstm_jax.data.tfds import read_tfds

        return read_tfds(source, recipe)
    if source.kind == "parquet":
        from mlstm_jax.data.parquet import read_parquet

        return read_parquet(source, recipe)
    return read_file(source, recipe, on_read=on_read)


def read_file(
    source: Source,
    recipe: Recipe,
    *,
    label_columns: Sequence[str] = (),
    on_read: Callable[[int], None] | None = None,
) -> Iterator[Document | Reject | None]:
    """Yield the documents of a file, None for each record without text, and rejects.

    Args:
        source: .json, .jsonl, .csv, .tsv, .txt or .fasta, each also .gz; or `pydoc:`, the topics of
            Python's own documentation.
        recipe: the fields of text and rating, by default the first of `TEXT_COLUMNS` and
            `RATING_COLUMNS` that is not null (a rating must be a number, or it is ignored); what a
            document is, by default a line in .txt and a paragraph in `pydoc:`.
        label_columns: fields of labels; if there are any, each document has its whole record.
        on_read: called from time to time with the bytes on disk read since its last call.

    Raises:
        UserError: the file cannot be opened, does not match its name, or contains no text.
    """
    check_source(source)
    text_columns, rating_columns = recipe.text_columns, recipe.rating_columns
    records = found = 0
    first_reject: Reject | None = None
    seen: dict[str, None] = {}
    # Errors raised by the code that uses the documents do not pass through here.
    try:
        for one in _records(source, recipe, label_columns, on_read):
            if isinstance(one, Reject):
                first_reject = first_reject or one
                yield one
                continue
            where, record = one
            records += 1
            text = first(record, text_columns)
            if isinstance(text, str):
                found += bool(text.strip())
                rating = rating_of(first(record, rating_columns))
                yield Document(text, rating, record if label_columns else None)
            elif text is None:
                yield None
            else:
                place = f"{source}, {f'line {where:,}' if isinstance(where, int) else where}"
                excerpt = json.dumps(text, default=str)[:_EXCERPT]
                yield Reject(
                    NOT_TEXT, place, f"{place}: its text is {excerpt}, not a string", excerpt
                )
            if not found and len(seen) < _MOST_FIELDS_SHOWN:
                seen |= dict.fromkeys(record)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        place = f"{source}, after record {records:,}"
        cut = Reject(
            "gzip cut short or damaged",
            place,
            f"{source}: the gzip data is cut short or damaged ({error}); fetch or create it again.",
        )
        first_reject = first_reject or cut
        yield cut
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error.strerror or error}") from error
    if not found:
        if first_reject and first_reject.kind != NOT_TEXT:
            raise UserError(first_reject.message)
        raise UserError(f"{source}: {_why_no_text(records, text_columns, seen)}")


def _why_no_text(records: int, text_columns: tuple[str, ...], seen: Iterable[str]) -> str:
    if not records:
        return "contains no text; leave it out."
    return (
        f"none of its {records:,} records has text in {' or '.join(text_columns)}; the fields seen "
        f"are {', '.join(seen) or '(none)'}. Name the right one with --text-column."
    )


def _records(
    source: Source,
    recipe: Recipe,
    label_columns: Sequence[str],
    on_read: Callable[[int], None] | None,
) -> Iterator[RecordOrReject]:
    text_columns, document = recipe.text_columns, recipe.document
    fields = {*text_columns, *recipe.rating_columns, *label_columns}
    if source.kind == "pydoc":
        from pydoc_data.topics import topics

        for _, topic in sorted(topics.items()):
            numbered = enumerate(io.StringIO(topic), 1)
            for text in units(numbered, document or "paragraph"):
                yield text if isinstance(text, Reject) else (0, {text_columns[0]: text})
        return
    with source.path.open("rb") as raw:
        stream = gzip.GzipFile(fileobj=raw) if source.is_gzip else raw
        lines = _lines(source, stream, raw, on_read)
        if source.kind == "txt":
            for text in units(lines, document or "line"):
                yield text if isinstance(text, Reject) else (0, {text_columns[0]: text})
        elif source.kind in FASTA:
            yield from fasta_records(source, lines, text_columns[0])
        elif source.kind in ("csv", "tsv"):
            delimiter = "," if source.kind == "csv" else "\t"
            yield from csv_records(source, lines, text_columns, fields, delimiter)
        else:
            yield from json_records(source, lines, fields, may_be_array=source.kind == "json")


def _lines(
    source: Source,
    stream: Iterable[bytes],
    raw: BinaryIO,
    on_read: Callable[[int], None] | None,
) -> Iterator[Line]:
    r"""Yield lines with their numbers and line ends."""
    told = 0
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            yield reject(
                "not UTF-8",
                source,
                number,
                f"not UTF-8 text (byte 0x{line[error.start]:02x}); convert the file to UTF-8.",
                line.decode(errors="backslashreplace"),
            )
        else:
            if "\0" in text:
                yield reject(
                    "NUL byte",
                    source,
                    number,
                    "has a NUL byte, so it is a binary file, not text as its name suggests; "
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
