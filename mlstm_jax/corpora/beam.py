"""The engine of `prepare` for clusters: an Apache Beam pipeline, on any of its runners.

Its workers read sources and write parts by path, so both must be in places that all workers see.
"""

import json
import os
import shlex
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlstm_jax import output
from mlstm_jax.corpora import parts
from mlstm_jax.corpora.documents import Recipe
from mlstm_jax.corpora.engine import Job, SortedDocuments, SourceCounts
from mlstm_jax.corpora.parts import Piece
from mlstm_jax.corpora.rejects import Reject
from mlstm_jax.corpora.sources import Source
from mlstm_jax.errors import KnownError, UserError, extra, first_line

_OF_WORKER = "the worker on"
_SHARED = "`out` and `temp_dir` must be in a folder that all workers share."


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
    count = parts.count(sources, parts.MOST)
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
        # The line of its message that says what went wrong: ours, if there is one.
        _, found, rest = str(error).partition(_OF_WORKER)
        why = found + rest.splitlines()[0] if found else first_line(error)
        raise UserError(f"Beam could not run the pipeline: {why}") from error
    counts = []
    files: set[Path] = set()
    errors = []
    for file, source in zip(told, sources, strict=True):
        _require_here(file)
        result = _Result(*json.loads(file.read_text(encoding="utf-8")))
        errors += result.errors
        files.update(map(Path, result.parts))
        for reject in result.rejected:
            job.rejects.add(Reject(*reject))
        counts.append(SourceCounts(source, *result.counts))
    if errors:
        raise UserError(min(errors))
    documents = 0
    in_order = sorted(files)
    for file in in_order:
        _require_here(file)
        with np.load(file, allow_pickle=False) as arrays:
            documents += len(arrays["rows"])
    yield SortedDocuments(counts, documents, map(_load, in_order))


def _require_here(part: Path) -> None:
    if not part.exists():
        raise UserError(f"{part} was written by a worker, but is not here. {_SHARED}")


class _Result(NamedTuple):
    """What a worker tells about a source: as JSON, since others may write to a shared folder."""

    errors: list[str]
    parts: list[str]  # the files of its documents
    rejected: list[Reject]
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
        documents = counts.read(recipe, rejected.append)
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
                rows, text = parts.in_order(parts.joined(values), recipe)
                np.savez(file, rows=rows, text=np.frombuffer(text, np.uint8))
            else:
                file.write(json.dumps(next(iter(values))).encode())
    except KnownError as error:
        raise RuntimeError(f"{_OF_WORKER} {socket.gethostname()}: {error}") from error


def _load(file: Path) -> Piece:
    with np.load(file, allow_pickle=False) as arrays:
        return Piece(arrays["rows"], arrays["text"].tobytes())
