"""The table of all records in DuckDB: filled, counted, and read in the order of the corpus.

DuckDB itself parses clean JSON lines and Parquet. If it finds anything in a file that it cannot
read, `readers.read_source` reads the file again and reports what and where. That function also
reads the kinds whose records can only be found from the start of the file (CSV, paragraphs,
arrays). SQL cleans plain ASCII text without "&" and computes its keys, because there it is easy to
match `documents.clean` and `documents.order_key`; those functions handle all other text.
"""

import gzip
import math
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

import duckdb
import numpy as np

from mlstm_jax.corpora.columns import parquet_rows
from mlstm_jax.corpora.documents import (
    CleanDocument,
    Recipe,
    Reject,
    clean,
    kept,
    normalized,
)
from mlstm_jax.corpora.readers import read_file, read_source
from mlstm_jax.corpora.records import Rejects
from mlstm_jax.corpora.sources import Source
from mlstm_jax.corpora.sql import BAD, BLANK, NONE, TEXT, insert, json_rows
from mlstm_jax.corpora.writer import Report, source_manifests
from mlstm_jax.data.corpus import SourceManifest
from mlstm_jax.errors import UserError

_DOCUMENTS_A_BATCH = 8192
_ROWS_A_FETCH = 4096
_CHUNK = 1 << 20  # bytes


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
        for n in json:
            self._con.execute("INSERT INTO files VALUES (?, ?)", [self._sources[n].name, n])
        sizes = [source.size for source in self._sources]
        total, done = sum(sizes) or 1, 0
        slowly = [n for n in range(len(self._sources)) if n not in set(json)]
        if json:
            share = sum(sizes[n] for n in json) / total
            slowly += self._read_json(json, lambda part: self._report("read", share * part))
            done = sum(sizes[n] for n in json if n not in slowly)
        for n in sorted(slowly):
            texts_read = 0

            def advance(count: int, start: int = done) -> None:
                nonlocal texts_read
                texts_read += count
                self._report("read", (start + texts_read) / total)

            if self._sources[n].kind == "parquet":
                self._read_parquet(n)
            else:
                self._feed(n, advance)
            done += sizes[n]
        self._report("read", 1)

    def _read_json(self, numbers: list[int], report: Callable[[float], None]) -> list[int]:
        """Read JSON lines; return the files that have records that DuckDB cannot read."""
        try:
            self._run(
                insert(json_rows([self._sources[n] for n in numbers], self._recipe), self._recipe),
                report,
            )
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error:  # Such as a truncated gzip. DuckDB rolled back its inserts.
            if len(numbers) == 1:
                return numbers
            return [bad for n in numbers for bad in self._read_json([n], report)]
        rows = self._con.execute(
            "SELECT DISTINCT source FROM documents WHERE kind = ? AND source IN "
            f"({','.join(map(str, numbers))})",
            [BAD],
        ).fetchall()
        bad = [n for (n,) in rows]
        if bad:
            self._con.execute(f"DELETE FROM documents WHERE source IN ({','.join(map(str, bad))})")
        return bad

    def _read_parquet(self, number: int) -> None:
        query = parquet_rows(self._con, self._sources[number], self._recipe)
        rows = f"SELECT {number} AS source, false AS bad, * FROM ({query})"
        try:
            self._run(insert(rows, self._recipe), lambda part: None)
        except (duckdb.OutOfMemoryException, duckdb.IOException):
            raise
        except duckdb.Error:  # Such as a text that is not UTF-8. DuckDB rolled back its inserts.
            self._feed(number, lambda count: None)

    def _feed(self, number: int, on_read: Callable[[int], None]) -> None:
        """Read a source in Python, a batch of documents at a time."""
        texts: list[str | None] = []
        ratings: list[float] = []

        def flush() -> None:
            batch = {
                "text": np.array([*texts, None], dtype=object)[:-1],
                "rating": np.array(ratings, np.float64),
                "bad": np.zeros(len(texts), np.bool_),
            }
            self._con.register("batch", batch)
            self._con.execute(
                insert(
                    f"SELECT {number} AS source, bad, text AS raw, "
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
        counts = []
        for n, source in enumerate(self._sources):
            if not seen[n, TEXT]:
                self._say_why_none(source)
            counts.append((seen[n, TEXT], seen[n, NONE], seen[n, BLANK]))
        return sorted(source_manifests(self._sources, counts))

    def _say_why_none(self, source: Source) -> None:
        if source.is_file and source.kind != "parquet":
            for _ in read_file(source, self._recipe):
                pass  # This raises an error that lists the fields.
        raise UserError(f"{source}: no text is left after cleaning; leave it out.")

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
        seed, dedupe = self._recipe.seed, self._recipe.dedupe
        copies, last = list[CleanDocument](), None
        while rows := self._ordered.fetchmany(_ROWS_A_FETCH):
            for key, text, rating in rows:
                if key != last:
                    yield from copies if len(copies) < 2 else kept(copies, seed, dedupe)
                    copies, last = [], key
                copies.append((text, rating))
        yield from kept(copies, seed, dedupe)


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
