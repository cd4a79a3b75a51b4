"""Read documents of Parquet files, with DuckDB."""

from collections.abc import Iterator
from pathlib import Path

import duckdb

from mlstm_jax.data.documents import Document, Recipe
from mlstm_jax.data.sql import parquet_rows

_ROWS_A_FETCH = 4096


def read_parquet(source: Path, recipe: Recipe) -> Iterator[Document | None]:
    """Yield the documents of a file, and None for each record without text."""
    with duckdb.connect() as con:
        con.execute(parquet_rows(con, source, recipe))
        while rows := con.fetchmany(_ROWS_A_FETCH):
            for text, rating in rows:
                yield None if text is None else Document(text, rating)
