"""The engines of `prepare`: read all sources, deduplicate and order their documents.

Both distribute the documents to parts, and sort each by itself. One does it here, in one process or
several. Apache Beam does it as a pipeline, on any of its runners. Its workers read sources and
write parts by path, so both must be in places that all workers see.
"""

import json
import os
import shlex
import socket
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlstm_jax import output
from mlstm_jax.corpora import parts, writer
from mlstm_jax.corpora.documents import Recipe, Reject
from mlstm_jax.corpora.readers import read_cleaned
from mlstm_jax.corpora.sources import Source
from mlstm_jax.corpora.workers import Task, run_all
from mlstm_jax.corpora.writer import Block, Job, SortedDocuments, SourceCounts
from mlstm_jax.data.stream import prefetch
from mlstm_jax.errors import KnownError, UserError, extra, first_line

_BYTES_A_PART = 1 << 25
_MOST_PARTS = 1 << 10  # here, where each has two files; of Beam's: parts.MOST
_BYTES_A_WORKER = 1 << 25  # fewer are read before another process has started

_OF_WORKER = "the worker on"
_SHARED = "`out` and `temp_dir` must be in a folder that all workers share."


@contextmanager
def sort_here(sources: Sequence[Source], job: Job) -> Iterator[SortedDocuments]:
    """Read all sources into files of parts in the folder `scratch`, and yield what to write."""
    recipe = job.recipe
    count = _part_count(sources, _MOST_PARTS)
    most = min(job.options.workers or _cores(), len(sources))
    workers = max(1, min(most, writer.text_size(sources) // _BYTES_A_WORKER))
    by_size = sorted(sources, key=lambda source: -source.size)
    folders = [job.scratch / str(number) for number in range(workers)]
    tasks = []
    for number, folder in enumerate(folders):
        folder.mkdir(parents=True)
        tasks.append(Task(by_size[number::workers], recipe, count, folder))
    counts = run_all(tasks, writer.bytes_read(sources, job.report), job.rejects.add)
    job.report("read", 1)
    job.report("sort", 0)
    kept = sum(parts.kept(parts.read_rows(folders, part), recipe) for part in range(count))

    def block(part: int) -> Block:
        return parts.in_order(parts.read(folders, part), recipe)

    # One part is put in order while the one before it is written.
    with closing(prefetch(block, range(count), depth=1)) as in_order:
        yield SortedDocuments(counts, kept, in_order)


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _part_count(sources: Sequence[Source], most: int) -> int:
    """The number of parts, so that each fits into memory."""
    return min(1 + writer.text_size(sources) // _BYTES_A_PART, most)


@contextmanager
def sort_with_beam(sources: Sequence[Source], job: Job) -> Iterator[SortedDocuments]:
    """Run the pipeline, with its files in the folder `scratch`, and yield what to write."""
    with extra("beam", "engine beam needs Apache Beam"):
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    # New each time: what a Dask cluster is asked twice, it may answer with an earlier error.
    folder = job.scratch / uuid.uuid4().hex
    folder.mkdir(parents=True)
    told = [folder / f"source-{number}" for number in range(len(sources))]
    count = _part_count(sources, parts.MOST)
    job.report("read", 0)
    try:
        # Only what every runner has. Files carry the results.
        options = PipelineOptions(shlex.split(job.options.beam_options))
        with beam.Pipeline(options=options) as pipeline:
            (
                pipeline
                | "sources" >> beam.Create(list(zip(map(str, told), sources, strict=True)))
                | "spread" >> beam.Reshuffle()
                | "read" >> beam.FlatMap(_read, job.recipe, count)
                | "by part" >> beam.GroupByKey()
                | "write" >> beam.Map(_write_part, job.recipe)
            )
    except KnownError:
        raise
    except Exception as error:  # about its options or runner, or from a worker
        raise UserError(f"Beam could not run the pipeline: {_reason(error)}") from error
    counts = []
    files: set[str] = set()
    errors = []
    for file, source in zip(told, sources, strict=True):
        _require_here(file)
        result = _Result(*json.loads(file.read_text(encoding="utf-8")))
        errors += result.errors
        files.update(result.parts)
        for reject in result.rejected:
            job.rejects.add(Reject(*reject))
        counts.append(SourceCounts(source, *result.counts))
    if errors:
        raise UserError(min(errors))
    job.report("read", 1)
    documents = 0
    in_order = list(map(Path, sorted(files)))
    for file in in_order:
        _require_here(file)
        with np.load(file, allow_pickle=False) as arrays:
            documents += len(arrays["sizes"])
    yield SortedDocuments(counts, documents, map(_load, in_order))


def _reason(error: Exception) -> str:
    """The line of a runner's message that says what went wrong: ours, if there is one."""
    _, found, rest = str(error).partition(_OF_WORKER)
    return found + rest.splitlines()[0] if found else first_line(error)


def _require_here(part: Path) -> None:
    if not part.exists():
        raise UserError(f"{part} was written by a worker, but is not here. {_SHARED}")


class _Result(NamedTuple):
    """What a worker tells about a source."""

    errors: list[str]
    parts: list[str]  # the files of its documents
    rejected: Sequence[tuple[Any, ...]]
    counts: tuple[Any, ...]  # the fields of SourceCounts behind the source


def _read(told: tuple[str, Source], recipe: Recipe, count: int) -> Iterator[tuple[str, Any]]:
    """Yield pieces of a source's documents by the files of their parts; then what is told of it."""
    file, source = told
    folder = os.path.dirname(file)
    counts = SourceCounts(source)
    errors = []
    found: set[str] = set()
    rejected: list[Reject] = []
    try:
        documents = counts.texts(read_cleaned(source, recipe), rejected.append)
        for part, piece in parts.distributed(documents, recipe, count):
            name = f"{folder}/{part:05}.npz"
            found.add(name)
            yield name, piece
    except UserError as error:
        # Raised here, it would reach the user inside a traceback from Beam.
        text = str(error)
        if source.is_file and not os.path.exists(source.path):
            text = (
                f"{_OF_WORKER} {socket.gethostname()}: {source.path.absolute()} is not there; all "
                "workers must see the sources under the same paths."
            )
        errors.append(text)
    yield file, _Result(errors, sorted(found), rejected, astuple(counts)[1:])


def _write_part(group: tuple[str, Iterable[Any]], recipe: Recipe) -> None:
    """Write what is told about a source, or a sorted part; workers may repeat it."""
    name, values = group
    part = Path(name)
    suffix = f".{uuid.uuid4().hex}.partial"
    try:
        if not os.path.exists(part.parent):  # It is not created where a worker does not see it.
            raise UserError(f"{part.parent} is not there. {_SHARED}")
        with output.atomic_file(part, suffix) as partial, partial.open("wb") as file:
            if part.suffix:
                block = parts.in_order(parts.joined(values), recipe)
                text = np.frombuffer(block.text, np.uint8)
                np.savez(file, text=text, sizes=block.sizes, ratings=block.ratings)
            else:
                file.write(json.dumps(next(iter(values))).encode())
    except KnownError as error:
        raise RuntimeError(f"{_OF_WORKER} {socket.gethostname()}: {error}") from error


def _load(file: Path) -> Block:
    with np.load(file, allow_pickle=False) as arrays:
        return Block(arrays["text"].tobytes(), arrays["sizes"], arrays["ratings"])
