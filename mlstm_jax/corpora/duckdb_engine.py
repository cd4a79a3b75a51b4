"""Read, deduplicate and order documents with DuckDB, out of core.

DuckDB parses clean JSON lines on all cores, faster than Python. If it finds anything in a file that
it cannot read, `readers.read_source` reads the file again and reports what and where; that function
also reads all other kinds. Every text is cleaned and keyed by the functions in documents.py.
"""

import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import Any

import duckdb
import numpy as np

from mlstm_jax.corpora.columns import quoted, unglobbed
from mlstm_jax.corpora.documents import (
    CleanDocument,
    Document,
    Recipe,
    Reject,
    order_key,
    rating_of,
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
_CHUNK = 1 << 20  # bytes
# Delimits the names of fields; if a name contains it, Python reads the file.
_KEY_END = '"'

# File, whether it cannot be read, text, rating.
_JsonRow = tuple[str, bool | None, str | None, str | None]


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
        con.execute("CREATE TABLE documents(source INTEGER, key UUID, text VARCHAR, rating DOUBLE)")
        # The table is read once: compression would cost more than it saves.
        con.execute("SET force_compression = 'uncompressed'")

    def read(self, report: Report) -> None:
        """Read every source into the table, each by the fastest exact method."""
        advance, stop = reading(self._sources, report), Event()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            try:
                fit = list(pool.map(lambda source: _is_json_lines(source, stop), self._sources))
            finally:
                stop.set()
        json = [n for n, good in enumerate(fit) if good]
        if json:
            self._read_json(json, advance)
        for n, source in enumerate(self._sources):
            if not self.tallies[n].documents:
                self.tallies[n] = Tally()
                self._insert(self._documents(n, read_source(source, self._recipe, advance)))
        report("read", 1)

    def _read_json(self, numbers: Sequence[int], advance: Callable[[int], None]) -> None:
        """Read JSON lines, but of a file that DuckDB cannot read as a whole, nothing."""
        sources = {self._sources[n].name: n for n in numbers}
        ratings, bad = lru_cache(rating_of), set[int]()

        def records(n: int, rows: Iterable[_JsonRow]) -> Iterator[Document | None]:
            for _, is_bad, text, rating in rows:
                if is_bad:
                    bad.add(n)
                yield None if text is None else Document(text, ratings(rating))

        self._con.begin()
        try:
            by_file = groupby(self._json_rows(sources, advance), itemgetter(0))
            grouped = ((sources[name], rows) for name, rows in by_file)
            self._insert(
                chain.from_iterable(self._documents(n, records(n, rows)) for n, rows in grouped)
            )
            if bad:
                numbers_of_bad = ",".join(map(str, bad))
                self._con.execute(f"DELETE FROM documents WHERE source IN ({numbers_of_bad})")
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error:  # such as a truncated gzip
            self._con.rollback()
            for n in numbers:
                self.tallies[n] = Tally()
                if len(numbers) > 1:
                    self._read_json([n], advance)
            return
        self._con.commit()
        for n in bad:
            self.tallies[n] = Tally()

    def _json_rows(
        self, files: Iterable[str], advance: Callable[[int], None]
    ) -> Iterator[_JsonRow]:
        """Parse the records of JSON lines; advance by the bytes on disk."""
        with self._con.cursor() as cursor:
            # For `query_progress`.
            cursor.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
            cursor.execute(_json_query(files, self._recipe))
            size, told = sum(Path(file).stat().st_size for file in files), 0
            while rows := cursor.fetchmany(_ROWS_A_FETCH):
                yield from rows
                done = max(told, int(size * cursor.query_progress() / 100))
                advance(done - told)
                told = done
        advance(size - told)

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
                "text": np.array([text.decode() for text in texts], object),
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
            "SELECT key::VARCHAR, encode(text), coalesce(rating, 'nan'::DOUBLE) "
            "FROM documents ORDER BY key"
        )
        rows = chain.from_iterable(iter(lambda: cursor.fetchmany(_ROWS_A_FETCH), []))
        yield from without_copies(rows, self._recipe.seed, self._recipe.dedupe)


def _json_query(files: Iterable[str], recipe: Recipe) -> str:
    """Return the SQL of all records of JSON lines; see `_JsonRow`."""
    fields = [*recipe.text_columns, *recipe.rating_columns]
    pointers = ", ".join(
        quoted("/" + name.replace("~", "~0").replace("/", "~1")) for name in fields
    )
    split = len(recipe.text_columns)

    def first(start: int, end: int) -> str:
        each = (f"nullif(field[{n}]::VARCHAR, 'null')" for n in range(start + 1, end + 1))
        return f"coalesce({', '.join(each)}, NULL)"

    # One expression: DuckDB computes `names` again for each time that it is used.
    keys = [re.escape(f"{_KEY_END}{name}{_KEY_END}") for name in fields]
    twice = f"regexp_matches(names, {quoted('(?s)' + '|'.join(f'{key}.*{key}' for key in keys))})"
    return f"""
        SELECT filename,
            json IS NULL OR json_type(json) <> 'OBJECT' OR left(text, 1) <> '"' OR {twice},
            json_extract_string(text, '$'),
            json_extract_string(rating, '$')
        FROM (
            SELECT filename, json, names,
                {first(0, split)} AS text, {first(split, len(fields))} AS rating
            FROM (
                SELECT filename, json, json_extract(json, [{pointers}]) AS field,
                    {quoted(_KEY_END)} || array_to_string(json_keys(json), {quoted(2 * _KEY_END)})
                        || {quoted(_KEY_END)} AS names
                FROM read_ndjson_objects([{", ".join(quoted(unglobbed(file)) for file in files)}],
                    filename = true, ignore_errors = true, hive_partitioning = false)
            )
        )"""


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
