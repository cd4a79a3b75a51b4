"""The engines of `prepare`: read all sources, deduplicate and order their documents.

DuckDB does it out of core. Apache Beam does it as a pipeline, on any of its runners: documents are
grouped by the first digits of their keys, one worker sorts each group and writes it as a part file,
and the parts, in the order of their digits, form the corpus. Workers read sources and write parts
by path, so both must be in places that all workers see.
"""

import json
import os
import shlex
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import duckdb
import numpy as np

from mlstm_jax import output
from mlstm_jax.corpora.documents import (
    CleanDocument,
    Recipe,
    Reject,
    in_order,
    order_key,
    without_copies,
)
from mlstm_jax.corpora.readers import read_cleaned
from mlstm_jax.corpora.sources import Source
from mlstm_jax.corpora.writer import Job, SortedDocuments, SourceCounts, batches, bytes_read
from mlstm_jax.errors import KnownError, UserError, extra, first_line

_DOCUMENTS_A_BATCH = 8192
_BYTES_A_ROW = 1 << 13
_ROWS_A_FETCH = 4096

_DOCUMENTS_A_GROUPING = 1 << 16
_BYTES_A_PART = 1 << 25
_MOST_DIGITS = 4
_COUNTS = "source-"
_PARTS = "parts"
_OF_WORKER = "the worker on"


@contextmanager
def sort_with_duckdb(sources: Sequence[Source], job: Job) -> Iterator[SortedDocuments]:
    """Read all sources into a database, which spills to `scratch`; yield what to write."""
    options = job.options
    recipe = job.recipe
    usual = 400 * min(max(options.threads or os.cpu_count() or 1, 2), 10)
    config: dict[str, Any] = {
        "memory_limit": options.memory_limit or f"{usual}MB",
        "temp_directory": str(job.scratch / "spill"),
        "preserve_insertion_order": False,
        # Download nothing, not even an extension.
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    if options.threads:
        config["threads"] = options.threads
    job.scratch.mkdir(parents=True, exist_ok=True)
    try:
        # In memory, what exceeds the limit is spilled; in a file, all would be written and read.
        with duckdb.connect(":memory:", config=config) as con:
            counts = [SourceCounts(source) for source in sources]
            on_read = bytes_read(sources, job.report)
            texts = [
                one.texts(read_cleaned(one.source, recipe, on_read), job.rejects.add)
                for one in counts
            ]
            _insert(con, chain.from_iterable(texts), recipe)
            job.report("read", 1)
            job.report("sort", 0)
            what = "*" if recipe.dedupe == "none" else "DISTINCT key"
            query = f"SELECT count({what}) FROM documents WHERE is_last"
            kept = con.execute(query).fetchall()[0][0]
            yield SortedDocuments(counts, kept, _in_order(con, recipe))
    except duckdb.Error as error:
        what = "DuckDB"
        advice = ""
        if isinstance(error, duckdb.OutOfMemoryException):
            what = "the memory limit is too low"
            advice = "\nRaise `memory_limit`, or use fewer `threads`."
        if isinstance(error, duckdb.IOException):
            what = str(job.scratch)
            advice = "\nFree some space there, or name another folder with `temp_dir`."
        raise UserError(f"{what}: {first_line(error)}{advice}") from error


def _insert(
    con: duckdb.DuckDBPyConnection, documents: Iterator[CleanDocument], recipe: Recipe
) -> None:
    """Create the table `documents`, with the keys of their order.

    DuckDB holds some thousand rows at once, so a long document has several, at consecutive places.
    """
    con.execute(
        "CREATE TABLE documents(key UUID, place BIGINT, is_last BOOLEAN, text BLOB, rating DOUBLE)"
    )
    # The table is read once: compression would cost more than it saves.
    con.execute("SET force_compression = 'uncompressed'")
    rows = 0
    for some in batches(documents, _DOCUMENTS_A_BATCH):
        keys = []
        are_last = []
        parts = []
        ratings = []
        for text, rating in some:
            key = order_key(text, recipe.seed, recipe.dedupe)
            for start in range(0, len(text), _BYTES_A_ROW):
                end = start + _BYTES_A_ROW
                keys.append(key)
                are_last.append(end >= len(text))
                parts.append(text[start:end])
                ratings.append(rating)
        # Found by its name: a registered one would be kept until the transaction ends.
        batch = {  # noqa: F841
            "key": np.array(keys, object),
            "place": np.arange(rows, rows + len(keys)),
            "is_last": np.array(are_last),
            "text": np.array(parts, object),
            "rating": np.array(ratings, np.float64),
        }
        con.execute(
            "INSERT INTO documents SELECT key::UUID, place, is_last, text, rating FROM batch"
        )
        rows += len(keys)


def _in_order(con: duckdb.DuckDBPyConnection, recipe: Recipe) -> Iterator[CleanDocument]:
    """Yield the documents to keep, in the order of their keys."""
    con.execute(
        "SELECT key::VARCHAR, is_last, text, coalesce(rating, 'nan'::DOUBLE) FROM documents "
        "ORDER BY key, place"
    )
    rows = chain.from_iterable(iter(lambda: con.fetchmany(_ROWS_A_FETCH), []))
    yield from without_copies(_joined(rows), recipe.seed, recipe.dedupe)


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


@contextmanager
def sort_with_beam(sources: Sequence[Source], job: Job) -> Iterator[SortedDocuments]:
    """Run the pipeline, with its files in the folder `scratch`, and yield what to write."""
    with extra("beam", "engine beam needs Apache Beam"):
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    folder = job.scratch / _PARTS
    folder.mkdir(parents=True)
    digits = _digits(sources)
    job.report("read", 0)
    try:
        # Only what every runner has. Files carry the results.
        with beam.Pipeline(
            options=PipelineOptions(shlex.split(job.options.beam_options))
        ) as pipeline:
            (
                pipeline
                | "sources" >> beam.Create(list(enumerate(sources)))
                | "spread" >> beam.Reshuffle()
                | "read" >> beam.FlatMap(_read, job.recipe, digits)
                | "by first digits" >> beam.GroupByKey()
                | "write" >> beam.Map(_write_part, job.recipe, str(folder))
            )
    except KnownError:
        raise
    except Exception as error:  # about its options or runner, or from a worker
        raise UserError(f"Beam could not run the pipeline: {_reason(error)}") from error
    counts = []
    wanted = set()
    errors = []
    for number, source in enumerate(sources):
        told = folder / f"{_COUNTS}{number}"
        if not told.exists():
            raise UserError(_lost(told))
        result = _Result(*json.loads(told.read_text(encoding="utf-8")))
        errors += result.errors
        wanted |= {f"{first}.npz" for first in result.digits}
        for reject in result.rejected:
            job.rejects.add(Reject(*reject))
        counts.append(SourceCounts(source, *result.counts))
    if errors:
        raise UserError(min(errors))
    parts = sorted(folder.glob("*.npz"))
    if lost := wanted.difference(part.name for part in parts):
        raise UserError(_lost(folder / min(lost)))
    job.report("read", 1)
    documents = 0
    for part in parts:
        with np.load(part, allow_pickle=False) as arrays:
            documents += len(arrays["ends"])
    yield SortedDocuments(counts, documents, _in_parts(parts))


def _reason(error: Exception) -> str:
    """The line of a runner's message that says what went wrong: ours, if there is one."""
    _, found, rest = str(error).partition(_OF_WORKER)
    return found + rest.splitlines()[0] if found else first_line(error)


def _lost(part: Path) -> str:
    return (
        f"{part} was written by a worker, but is not here. `out` and `temp_dir` must be in a "
        "folder that all workers share."
    )


def _digits(sources: Sequence[Source]) -> int:
    """The number of hex digits to group by, so that a worker can hold each group."""
    groups = 4 * sum(source.size for source in sources) / _BYTES_A_PART  # as if all are compressed
    digits = 1
    while 16**digits < groups and digits < _MOST_DIGITS:
        digits += 1
    return digits


class _Result(NamedTuple):
    """What a worker tells about a source."""

    errors: list[str]
    digits: list[str]  # of the groups of its documents
    rejected: Sequence[tuple[Any, ...]]
    counts: tuple[Any, ...]  # the fields of SourceCounts behind the source


def _read(numbered: tuple[int, Source], recipe: Recipe, digits: int) -> Iterator[tuple[str, Any]]:
    """Yield lists of a source's documents by their first digits; then what is told about it."""
    number, source = numbered
    counts = SourceCounts(source)
    errors = []
    found: set[str] = set()
    rejected: list[Reject] = []
    try:
        documents = counts.texts(read_cleaned(source, recipe), rejected.append)
        for some in batches(documents, _DOCUMENTS_A_GROUPING):
            groups: dict[str, list[CleanDocument]] = {}
            for text, rating in some:
                first = order_key(text, recipe.seed, recipe.dedupe)[:digits]
                groups.setdefault(first, []).append((text, rating))
            found |= groups.keys()
            yield from groups.items()
    except UserError as error:
        # Raised here, it would reach the user inside a traceback from Beam.
        errors.append(str(error))
    yield f"{_COUNTS}{number}", _Result(errors, sorted(found), rejected, astuple(counts)[1:])


def _write_part(group: tuple[str, Iterable[Any]], recipe: Recipe, folder: str) -> None:
    """Write what is told about a source, or a sorted group of documents; workers may repeat it."""
    name, values = group
    is_told = name.startswith(_COUNTS)
    part = Path(folder) / (name if is_told else f"{name}.npz")
    suffix = f".{uuid.uuid4().hex}.partial"
    try:
        part.parent.stat()  # is not created where a worker does not see it
        with output.atomic_file(part, suffix) as partial, partial.open("wb") as file:
            if is_told:
                file.write(json.dumps(next(iter(values))).encode())
            else:
                _save(file, in_order(chain.from_iterable(values), recipe.seed, recipe.dedupe))
    except OSError as error:
        raise RuntimeError(
            f"{_OF_WORKER} {socket.gethostname()} cannot write {part}: {error.strerror or error}; "
            "`out` and `temp_dir` must be in a folder that all workers share."
        ) from error


def _save(file: BinaryIO, documents: Iterable[CleanDocument]) -> None:
    texts, ratings = zip(*documents, strict=True)
    np.savez(
        file,
        text=np.frombuffer(b"".join(texts), np.uint8),
        ends=np.cumsum(list(map(len, texts)), dtype=np.int64),
        ratings=np.array(ratings, np.float64),
    )


def _in_parts(parts: Iterable[Path]) -> Iterator[CleanDocument]:
    for file in parts:
        with np.load(file, allow_pickle=False) as part:
            text = part["text"].tobytes()
            start = 0
            for end, rating in zip(part["ends"].tolist(), part["ratings"].tolist(), strict=True):
                yield text[start:end], rating
                start = end
