"""Read, deduplicate and order documents with DuckDB, out of core and on all cores.

DuckDB itself parses clean JSON lines and Parquet. If it finds anything in a file that it cannot
read, `readers.read_source` reads the file again and reports what and where. That function also
reads the kinds whose records can only be found from the start of the file (CSV, paragraphs,
arrays). SQL cleans plain ASCII text without "&" and computes its keys, because there it is easy to
match `documents.clean` and `documents.order_key`; those functions handle all other text. (Python's
alone, called for each row or in a pool of processes, need a fifth more CPU seconds.)
"""

import gzip
import math
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any

import duckdb
import numpy as np

from mlstm_jax.corpora.columns import parquet_rows
from mlstm_jax.corpora.documents import (
    CleanDocument,
    Recipe,
    Reject,
    clean,
    normalized,
    without_copies,
)
from mlstm_jax.corpora.options import PrepareOptions
from mlstm_jax.corpora.readers import read_source
from mlstm_jax.corpora.records import Rejects
from mlstm_jax.corpora.sources import Source
from mlstm_jax.corpora.sql import BAD, BLANK, NONE, TEXT, insert, json_rows
from mlstm_jax.corpora.writer import Report, SortedDocuments, source_manifests
from mlstm_jax.data.corpus import SourceManifest
from mlstm_jax.errors import UserError, first_line

_DOCUMENTS_A_BATCH = 8192
_ROWS_A_FETCH = 4096
_CHUNK = 1 << 20  # bytes


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
            stage = Stage(con, sources, recipe, rejects, report)
            try:
                stage.read()
                counts = stage.counts()
                documents, rated = stage.totals()
                report("sort", 0)
                yield SortedDocuments(counts, documents, rated, stage.in_order())
            finally:
                stage.close()
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
    """The table of all records: `documents(key, source, kind, text, rating)`."""

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        sources: Sequence[Source],
        recipe: Recipe,
        rejects: Rejects,
        report: Report,
    ) -> None:
        self._con, self._sources, self._recipe = con, list(sources), recipe
        self._rejects, self._report = rejects, report
        self._sizes = [source.size for source in sources]
        self._total, self._done = sum(self._sizes) or 1, 0  # bytes
        self._ordered = con.cursor()
        con.execute(
            "CREATE TABLE documents"
            "(key UUID, source INTEGER, kind TINYINT, text VARCHAR, rating DOUBLE)"
        )
        # The table is read once: compression would cost more than it saves.
        con.execute("SET force_compression = 'uncompressed'")
        con.execute("CREATE TABLE files(filename VARCHAR, source INTEGER)")
        text = con.sqltype("VARCHAR")
        self._functions = {"py_clean": self._clean, "py_normalized": normalized}
        for name, function in self._functions.items():
            con.create_function(name, function, [text], text, null_handling="special")

    def close(self) -> None:
        # The functions cannot be removed while a result is not fetched to its end.
        self._ordered.close()
        for name in self._functions:
            self._con.remove_function(name)

    def _clean(self, text: str | None) -> str | None:
        return clean(text, self._recipe.cleaning).decode() or None if text is not None else None

    def read(self) -> None:
        """Read every source into the table, each by the fastest exact method."""
        stop = Event()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            try:
                fit = list(pool.map(lambda source: _is_json_lines(source, stop), self._sources))
            finally:
                stop.set()
        json = [n for n, good in enumerate(fit) if good]
        slowly = [n for n, good in enumerate(fit) if not good]
        for n in json:
            self._con.execute("INSERT INTO files VALUES (?, ?)", [self._sources[n].name, n])
        if json:
            slowly += self._read_json(json, sum(self._sizes[n] for n in json))
            self._done = sum(self._sizes[n] for n in json if n not in slowly)
        for n in sorted(slowly):
            if self._sources[n].kind == "parquet":
                self._read_parquet(n)
            else:
                self._feed(n, self._advance)
        self._report("read", 1)

    def _advance(self, count: int) -> None:
        self._done += count
        self._report("read", self._done / self._total)

    def _read_json(self, numbers: list[int], size: int) -> list[int]:
        """Read JSON lines; return the files that have records that DuckDB cannot read.

        `size`: of all JSON lines, to report progress.
        """
        rows = json_rows([self._sources[n] for n in numbers], self._recipe)
        try:
            self._run(
                insert(rows, self._recipe),
                lambda part: self._report("read", part * size / self._total),
            )
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error:  # Such as a truncated gzip. DuckDB rolled back its inserts.
            if len(numbers) == 1:
                return numbers
            return [bad for n in numbers for bad in self._read_json([n], size)]
        within = f"source IN ({','.join(map(str, numbers))})"
        found = self._con.execute(
            f"SELECT DISTINCT source FROM documents WHERE kind = {BAD} AND {within}"
        ).fetchall()
        for row in found:
            self._con.execute("DELETE FROM documents WHERE source = ?", row)
        return [n for (n,) in found]

    def _read_parquet(self, number: int) -> None:
        query = parquet_rows(self._con, self._sources[number], self._recipe)
        rows = f"SELECT {number} AS source, false AS bad, * FROM ({query})"
        try:
            self._run(insert(rows, self._recipe), lambda part: None)
        except (duckdb.OutOfMemoryException, duckdb.IOException):
            raise
        except duckdb.Error:  # Such as a text that is not UTF-8. DuckDB rolled back its inserts.
            self._feed(number, lambda count: None)
        self._advance(self._sizes[number])

    def _feed(self, number: int, on_read: Callable[[int], None]) -> None:
        """Read a source in Python, a batch of documents at a time."""
        texts: list[str | None] = []
        ratings: list[float] = []

        def flush() -> None:
            batch = {
                "text": np.array([*texts, None], dtype=object)[:-1],
                "rating": np.array(ratings, np.float64),
            }
            self._con.register("batch", batch)
            self._con.execute(
                insert(
                    f"SELECT {number} AS source, false AS bad, text AS raw, "
                    "CASE WHEN isnan(rating) THEN NULL ELSE rating END AS rating FROM batch",
                    self._recipe,
                )
            )
            self._con.unregister("batch")
            texts.clear()
            ratings.clear()

        for document in read_source(self._sources[number], self._recipe, on_read):
            if isinstance(document, Reject):
                self._rejects.add(document)
                continue
            rating = document.rating if document else None
            texts.append(document.text.encode("utf-8", "replace").decode() if document else None)
            ratings.append(math.nan if rating is None else rating)
            if len(texts) == _DOCUMENTS_A_BATCH:
                flush()
        if texts:
            flush()

    def _run(self, query: str, report: Callable[[float], None]) -> None:
        """Execute a query that a signal can interrupt; report the fraction that is done."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            running = pool.submit(self._con.execute, query)
            try:
                while not wait([running], timeout=0.2).done:
                    report(max(0.0, self._con.query_progress()) / 100)
            except BaseException:
                running.cancel()
                # Repeated, because an interrupt before the query starts is lost.
                while not wait([running], timeout=0.05).done:
                    self._con.interrupt()
                raise
            running.result().fetchall()

    def counts(self) -> list[SourceManifest]:
        """Return the counts of each source; raise UserError if one has no text."""
        seen: Counter[tuple[int, int]] = Counter()
        for n, kind, count in self._con.execute(
            "SELECT source, kind, count(*) FROM documents GROUP BY source, kind"
        ).fetchall():
            seen[n, kind] = count
        for n, source in enumerate(self._sources):
            if not seen[n, TEXT] and source.is_file:
                for _ in read_source(source, self._recipe):
                    pass  # This may raise an error that lists the fields.
        kinds = [(seen[n, TEXT], seen[n, NONE], seen[n, BLANK]) for n in range(len(self._sources))]
        return sorted(source_manifests(self._sources, kinds))

    def totals(self) -> tuple[int, bool]:
        """Return how many documents will be written, and whether any has a rating."""
        what = "*" if self._recipe.dedupe == "none" else "DISTINCT key"
        rows = self._con.execute(
            f"SELECT count({what}), count(rating) > 0 FROM documents WHERE kind = {TEXT}"
        ).fetchall()
        return rows[0]

    def in_order(self) -> Iterator[CleanDocument]:
        """Yield the documents to keep, in the order of their keys."""
        self._ordered.execute(
            "SELECT key::VARCHAR, encode(text), coalesce(rating, 'nan'::DOUBLE) FROM documents "
            f"WHERE kind = {TEXT} ORDER BY key"
        )
        fetched = iter(lambda: self._ordered.fetchmany(_ROWS_A_FETCH), [])
        rows = chain.from_iterable(fetched)
        yield from without_copies(rows, self._recipe.seed, self._recipe.dedupe)


def _is_json_lines(source: Source, stop: Event) -> bool:
    """Return whether DuckDB may read a file: JSON lines, and complete if it is compressed.

    Once `stop` is set, this returns early and the result does not matter.
    """
    if source.kind not in ("json", "jsonl"):
        return False
    try:
        source.name.encode()
        with gzip.open(source.path) if source.is_gzip else source.path.open("rb") as file:
            while (byte := file.read(1)).isspace() and not stop.is_set():
                pass  # to the first byte that is not white space
            # DuckDB does not verify the checksum.
            while source.is_gzip and not stop.is_set() and file.read(_CHUNK):
                pass  # to the end, where the checksum is
    except (OSError, EOFError, UnicodeEncodeError, zlib.error):
        return False  # then Python reads it and reports what is wrong
    return source.kind == "jsonl" or byte != b"["
