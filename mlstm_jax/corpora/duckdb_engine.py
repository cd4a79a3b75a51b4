"""Deduplicate and order documents with DuckDB, out of core.

`readers.read_source` reads every source; the functions in documents.py clean and key every text.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from mlstm_jax.corpora.documents import (
    CleanDocument,
    Document,
    Recipe,
    Reject,
    order_key,
    without_copies,
)
from mlstm_jax.corpora.options import PrepareOptions
from mlstm_jax.corpora.readers import cleaned, read_source
from mlstm_jax.corpora.records import Rejects
from mlstm_jax.corpora.sources import Source
from mlstm_jax.corpora.writer import Report, SortedDocuments, Tally, reading, source_manifests
from mlstm_jax.errors import UserError, first_line

_DOCUMENTS_A_BATCH = 8192
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
    """Read all sources into a database in the folder `scratch`, and yield what to write.

    Raises:
        UserError: a source cannot be used, or there is too little memory or disk; it states what to
            do about that.
    """
    threads = options.threads
    usual = 400 * min(max(threads or os.cpu_count() or 1, 2), 10)
    config: dict[str, Any] = {
        "memory_limit": options.memory_limit or f"{usual}MB",
        "temp_directory": str(scratch / "spill"),
        "preserve_insertion_order": False,
        # Download nothing, not even an extension.
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    if threads:
        config["threads"] = threads
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        with duckdb.connect(scratch / "documents.duckdb", config=config) as con:
            stage = Stage(con, sources, recipe, rejects)
            stage.read(report)
            manifests = sorted(source_manifests(sources, stage.tallies))
            rated = any(tally.rated for tally in stage.tallies)
            report("sort", 0)
            with con.cursor() as cursor:
                yield SortedDocuments(manifests, stage.count(), rated, stage.in_order(cursor))
    except duckdb.Error as error:
        why = first_line(error)
        if isinstance(error, duckdb.OutOfMemoryException):
            advice = "Raise `memory_limit`, or use fewer `threads`."
            raise UserError(f"the memory limit is too low: {why}\n{advice}") from error
        if isinstance(error, duckdb.IOException):
            advice = "Free some space there, or name another folder with `temp_dir`."
            raise UserError(f"{scratch}: {why}\n{advice}") from error
        raise UserError(f"DuckDB: {why}") from error


class Stage:
    """The table of all documents with text: `documents(source, key, text, rating)`."""

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        sources: Sequence[Source],
        recipe: Recipe,
        rejects: Rejects,
    ) -> None:
        self._con, self._sources, self._recipe, self._rejects = con, sources, recipe, rejects
        self.tallies = [Tally() for _ in sources]
        con.execute("CREATE TABLE documents(source INTEGER, key UUID, text BLOB, rating DOUBLE)")
        # The table is read once: compression would cost more than it saves.
        con.execute("SET force_compression = 'uncompressed'")

    def read(self, report: Report) -> None:
        """Read every source into the table."""
        advance = reading(self._sources, report)
        for number, source in enumerate(self._sources):
            self._insert(self._documents(number, read_source(source, self._recipe, advance)))
        report("read", 1)

    def _documents(
        self, number: int, records: Iterable[Document | Reject | None]
    ) -> Iterator[tuple[int, bytes, float]]:
        """Clean and count the records of a source; yield its number with each text and rating."""
        texts = cleaned(records, self._recipe.cleaning)
        for text, rating in self.tallies[number].texts(texts, self._rejects.add):
            yield number, text, rating

    def _insert(self, documents: Iterator[tuple[int, bytes, float]]) -> None:
        while taken := list(islice(documents, _DOCUMENTS_A_BATCH)):
            numbers, texts, ratings = zip(*taken, strict=True)
            keys = [order_key(text, self._recipe.seed, self._recipe.dedupe) for text in texts]
            # Found by its name: a registered one would be kept until the transaction ends.
            batch = {  # noqa: F841
                "source": np.array(numbers, np.int32),
                "key": np.array(keys, object),
                "text": np.array(texts, object),
                "rating": np.array(ratings, np.float64),
            }
            self._con.execute(
                "INSERT INTO documents SELECT source, key::UUID, text, rating FROM batch"
            )

    def count(self) -> int:
        """Return how many documents will be written."""
        what = "*" if self._recipe.dedupe == "none" else "DISTINCT key"
        return self._con.execute(f"SELECT count({what}) FROM documents").fetchall()[0][0]

    def in_order(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[CleanDocument]:
        """Yield the documents to keep, in the order of their keys."""
        cursor.execute(
            "SELECT key::VARCHAR, text, coalesce(rating, 'nan'::DOUBLE) FROM documents ORDER BY key"
        )
        rows = chain.from_iterable(iter(lambda: cursor.fetchmany(_ROWS_A_FETCH), []))
        yield from without_copies(rows, self._recipe.seed, self._recipe.dedupe)
