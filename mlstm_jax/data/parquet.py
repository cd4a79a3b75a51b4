"""Read documents of Parquet files: by DuckDB, or by pyarrow where a text is not UTF-8.

DuckDB gives up a whole file for one such text, and of the rows around it gives none.
"""

from collections.abc import Iterator
from pathlib import Path

import duckdb

from mlstm_jax.data.documents import Document, Recipe, Reject, first, rating_of
from mlstm_jax.data.sql import parquet_rows
from mlstm_jax.errors import UserError

_ROWS_A_FETCH = 4096
_NOT_UTF8 = "Invalid string encoding"  # in the words of DuckDB
_STRINGS = ("string", "large_string", "string_view")  # pyarrow's
_EXCERPT = 80  # characters


def read_parquet(source: Path, recipe: Recipe) -> Iterator[Document | Reject | None]:
    """Yield the documents of a file, None for each record without text, and what cannot be read.

    Raises:
        UserError: the file cannot be read, has no column of text, or no text that can be read.
    """
    done = 0
    with duckdb.connect() as con:
        try:
            con.execute(parquet_rows(con, source, recipe))
            while rows := con.fetchmany(_ROWS_A_FETCH):
                for text, rating in rows:
                    yield None if text is None else Document(text, rating)
                done += len(rows)
            return
        except duckdb.Error as error:
            if _NOT_UTF8 not in str(error):
                why = str(error).strip().split("\n")[0]
                raise UserError(f"{source}: cannot be read as Parquet: {why}") from error
    bad: Reject | None = None
    good = done
    for number, found in enumerate(_read_bytes(source, recipe), 1):
        if number <= done:
            continue
        if isinstance(found, Reject):
            bad = bad or found
        else:
            good += 1
        yield found
    if bad and not good:
        raise UserError(bad.message)


def _read_bytes(source: Path, recipe: Recipe) -> Iterator[Document | Reject | None]:
    """Do the same by pyarrow, which gives a text as bytes, whether or not they are UTF-8."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            f"{source}: has a text that is not UTF-8; to leave out its row alone needs pyarrow: "
            f"pip install 'mlstm-jax[parquet]' ({error}); or convert the file."
        ) from error
    try:
        with pyarrow.parquet.ParquetFile(source) as file:
            fields = [*recipe.text_fields, *recipe.rating_fields]
            there = [name for name in fields if name in file.schema_arrow.names]
            number = 0
            for batch in file.iter_batches(_ROWS_A_FETCH, columns=there):
                columns = {}
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if pyarrow.types.is_dictionary(column.type):
                        column = column.dictionary_decode()
                    if str(column.type) in _STRINGS:
                        column = column.cast(pyarrow.large_binary())
                    columns[name] = column.to_pylist()
                for values in zip(*columns.values(), strict=True):
                    number += 1
                    record = dict(zip(columns, values, strict=True))
                    yield _found(f"{source}, row {number:,}", record, recipe)
    except (pyarrow.ArrowException, OSError) as error:
        why = str(error).strip().split("\n")[0]
        raise UserError(f"{source}: cannot be read as Parquet: {why}") from error


def _found(place: str, record: dict[str, object], recipe: Recipe) -> Document | Reject | None:
    text = first(record, recipe.text_fields)
    mark = first(record, recipe.rating_fields)
    if text is None:
        return None
    assert isinstance(text, bytes)
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        excerpt = text.decode(errors="backslashreplace")[:_EXCERPT]
        why = f"not UTF-8 text (byte 0x{text[error.start]:02x}); correct it where the file is made."
        return Reject("not UTF-8", place, f"{place}: {why}", excerpt)
    rating = mark.decode(errors="replace") if isinstance(mark, bytes) else str(mark)
    return Document(decoded, rating_of(rating))
