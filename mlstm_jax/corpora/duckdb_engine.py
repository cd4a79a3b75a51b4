"""Deduplicate and order documents with DuckDB, out of core.

`readers.read_source` reads every source; the functions in documents.py clean and key every text.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from mlstm_jax.corpora.documents import CleanDocument, Recipe, order_key, without_copies
from mlstm_jax.corpora.options import PrepareOptions
from mlstm_jax.corpora.readers import cleaned, read_source
from mlstm_jax.corpora.records import Rejects
from mlstm_jax.corpora.sources import Source
from mlstm_jax.corpora.writer import (
    Report,
    SortedDocuments,
    SourceCounts,
    batches,
    bytes_read,
    source_manifests,
)
from mlstm_jax.errors import UserError, first_line

_DOCUMENTS_A_BATCH = 8192
_BYTES_A_ROW = 1 << 13
_ROWS_A_FETCH = 4096


@contextmanager
def read_and_sort(
    sources: Sequence[Source],
    recipe: Recipe,
    rejects: Rejects,
    scratch: Path,
    options: PrepareOptions,
    report: Report,
) -> Iterator[SortedDocuments]:
    """Read all sources into a database in memory, which spills to `scratch`; yield what to write.

    Raises UserError if a source cannot be used, or there is too little memory or disk.
    """
    usual = 400 * min(max(options.threads or os.cpu_count() or 1, 2), 10)
    config: dict[str, Any] = {
        "memory_limit": options.memory_limit or f"{usual}MB",
        "temp_directory": str(scratch / "spill"),
        "preserve_insertion_order": False,
        # Download nothing, not even an extension.
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    if options.threads:
        config["threads"] = options.threads
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        # In memory, what exceeds the limit is spilled; in a file, all would be written and read.
        with duckdb.connect(":memory:", config=config) as con:
            table = DocumentTable(con, recipe)
            counts = [SourceCounts() for _ in sources]
            on_read = bytes_read(sources, report)
            for source, of_source in zip(sources, counts, strict=True):
                records = cleaned(read_source(source, recipe, on_read), recipe.cleaning)
                table.add(of_source.texts(records, rejects.add))
            report("read", 1)
            manifests = sorted(source_manifests(sources, counts))
            is_rated = any(of_source.is_rated for of_source in counts)
            report("sort", 0)
            with con.cursor() as cursor:
                yield SortedDocuments(manifests, table.count(), is_rated, table.in_order(cursor))
    except duckdb.Error as error:
        why = f"DuckDB: {first_line(error)}"
        if isinstance(error, duckdb.OutOfMemoryException):
            why = (
                f"the memory limit is too low: {first_line(error)}\nRaise `memory_limit`, or use "
                "fewer `threads`."
            )
        if isinstance(error, duckdb.IOException):
            why = (
                f"{scratch}: {first_line(error)}\nFree some space there, or name another folder "
                "with `temp_dir`."
            )
        raise UserError(why) from error


class DocumentTable:
    """The table of all documents with text: `documents(key, place, is_last, text, rating)`.

    DuckDB holds some thousand rows at once, so a long document has several, at consecutive places.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, recipe: Recipe) -> None:
        self._con = con
        self._recipe = recipe
        self._rows = 0
        con.execute(
            "CREATE TABLE documents"
            "(key UUID, place BIGINT, is_last BOOLEAN, text BLOB, rating DOUBLE)"
        )
        # The table is read once: compression would cost more than it saves.
        con.execute("SET force_compression = 'uncompressed'")

    def add(self, documents: Iterator[CleanDocument]) -> None:
        """Insert documents, with the keys of their order."""
        for some in batches(documents, _DOCUMENTS_A_BATCH):
            keys = []
            are_last = []
            parts = []
            ratings = []
            for text, rating in some:
                key = order_key(text, self._recipe.seed, self._recipe.dedupe)
                for start in range(0, len(text), _BYTES_A_ROW):
                    end = start + _BYTES_A_ROW
                    keys.append(key)
                    are_last.append(end >= len(text))
                    parts.append(text[start:end])
                    ratings.append(rating)
            # Found by its name: a registered one would be kept until the transaction ends.
            batch = {  # noqa: F841
                "key": np.array(keys, object),
                "place": np.arange(self._rows, self._rows + len(keys)),
                "is_last": np.array(are_last),
                "text": np.array(parts, object),
                "rating": np.array(ratings, np.float64),
            }
            self._con.execute(
                "INSERT INTO documents SELECT key::UUID, place, is_last, text, rating FROM batch"
            )
            self._rows += len(keys)

    def count(self) -> int:
        """The number of documents that will be written."""
        what = "*" if self._recipe.dedupe == "none" else "DISTINCT key"
        query = f"SELECT count({what}) FROM documents WHERE is_last"
        return self._con.execute(query).fetchall()[0][0]

    def in_order(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[CleanDocument]:
        """Yield the documents to keep, in the order of their keys."""
        cursor.execute(
            "SELECT key::VARCHAR, is_last, text, coalesce(rating, 'nan'::DOUBLE) FROM documents "
            "ORDER BY key, place"
        )
        rows = chain.from_iterable(iter(lambda: cursor.fetchmany(_ROWS_A_FETCH), []))
        yield from without_copies(_joined(rows), self._recipe.seed, self._recipe.dedupe)


def _joined(
    rows: Iterable[tuple[str, bool, bytes, float]],
) -> Iterator[tuple[str, bytes, float]]:
    """Yield the key, text and rating of each document from its rows."""
    parts = []
    for key, is_last, part, rating in rows:
        parts.append(part)
        if is_last:
            yield key, b"".join(parts), rating
            parts = []
