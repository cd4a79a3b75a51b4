"""Read documents of Parquet files, with DuckDB."""

from collections.abc import Iterator
from pathlib import Path

import duckdb

from mlstm_jax.data.documents import LARGEST_RATING, NUMBER, Document, Recipe
from mlstm_jax.errors import UserError

_ROWS_A_FETCH = 4096


def read_parquet(source: Path, recipe: Recipe) -> Iterator[Document | None]:
    """Yield the documents of a file, and None for each record without text."""
    with duckdb.connect() as con:
        con.execute(parquet_query(con, source, recipe))
        while rows := con.fetchmany(_ROWS_A_FETCH):
            for text, rating in rows:
                yield None if text is None else Document(text, rating)


def parquet_query(con: duckdb.DuckDBPyConnection, source: Path, recipe: Recipe) -> str:
    """Return the SQL of the columns `raw`, the text, and `rating` of all records of a file.

    Raises:
        UserError: it is no Parquet file, or has no column of text.
    """
    table = f"read_parquet({quoted(unglobbed(str(source)))})"
    try:
        described = con.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()
    except duckdb.Error as error:
        why = str(error).strip().split("\n")[0]
        raise UserError(f"{source}: cannot be read as Parquet: {why}") from error
    types = {row[0]: row[1] for row in described}
    text = [field for field in recipe.text_fields if field in types]
    marks = [field for field in recipe.rating_fields if field in types]
    if not text:
        raise UserError(
            f"{source}: no column {' or '.join(recipe.text_fields)}; its columns are "
            f"{', '.join(types)}. Name the one of the text with --text-column."
        )
    for field in text:
        if types[field] != "VARCHAR":
            raise UserError(
                f"{source}: its column {field} is {types[field]}, not text; name another with "
                "--text-column."
            )

    def first(fields: list[str]) -> str:
        return f"coalesce({', '.join([f'{_name(f)}::VARCHAR' for f in fields] + ['NULL'])})"

    return f"SELECT {first(text)} AS raw, {number(first(marks))} AS rating FROM {table}"


def number(text: str) -> str:
    """Return the SQL of `documents.rating_of` for a text."""
    stripped = f"trim({text}, chr(9)||chr(10)||chr(11)||chr(12)||chr(13)||' ')"
    return (
        f"CASE WHEN regexp_full_match({stripped}, {quoted(NUMBER)}) "
        f"AND abs(TRY_CAST({stripped} AS DOUBLE)) <= {LARGEST_RATING} "
        f"THEN TRY_CAST({stripped} AS DOUBLE) + 0.0 END"
    )


def quoted(text: str) -> str:
    """Return a text as SQL."""
    return "'" + text.replace("'", "''") + "'"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def unglobbed(path: str) -> str:
    """Return a path in which DuckDB sees no pattern."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)
