"""Read, deduplicate and order documents as an Apache Beam pipeline, on any of its runners.

The documents are grouped by the first digits of their keys. One worker sorts each group and writes
it as a part file; the parts, in the order of their digits, form the corpus. Workers read sources
and write parts by path, so both must be in places that all workers see.
"""

import json
import shlex
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from mlstm_jax import output
from mlstm_jax.corpora.documents import CleanDocument, Recipe, Reject, in_order, order_key
from mlstm_jax.corpora.options import PrepareOptions
from mlstm_jax.corpora.readers import cleaned, read_source
from mlstm_jax.corpora.records import Rejects
from mlstm_jax.corpora.sources import Source
from mlstm_jax.corpora.writer import Report, SortedDocuments, SourceCounts, source_manifests
from mlstm_jax.errors import KnownError, UserError, extra, first_line

_BYTES_A_PART = 1 << 25
_MOST_DIGITS = 4
_ERRORS = "errors"
_COUNTS = "counts"
_REJECTS = "rejects"
_TOTALS = "totals"
_PARTS = "parts"


@contextmanager
def read_and_sort(
    sources: Sequence[Source],
    recipe: Recipe,
    rejects: Rejects,
    scratch: Path,
    options: PrepareOptions,
    report: Report,
) -> Iterator[SortedDocuments]:
    """Run the pipeline, with its files in the folder `scratch`, and yield what to write.

    Raises UserError if Beam is not installed, or a source cannot be used.
    """
    with extra("beam", "engine beam needs Apache Beam"):
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    (scratch / _PARTS).mkdir(parents=True)
    digits = _digits(sources)
    report("read", 0)

    def write(lines: Any, name: str) -> None:
        target = str(scratch / name)
        text = lines | f"{name} as JSON" >> beam.Map(json.dumps)
        text | f"write {name}" >> beam.io.WriteToText(target, shard_name_template="")

    with (
        _complaints(),
        beam.Pipeline(options=PipelineOptions(shlex.split(options.beam_options))) as pipeline,
    ):
        read = (
            pipeline
            | "sources" >> beam.Create(list(enumerate(sources)))
            | "spread" >> beam.Reshuffle()
            | "read"
            >> beam.FlatMap(_read, recipe, digits).with_outputs(
                _ERRORS, _COUNTS, _REJECTS, main="documents"
            )
        )
        for name in (_ERRORS, _COUNTS, _REJECTS):
            write(read[name], name)
        parts = (
            read["documents"]
            | "by first digits" >> beam.GroupByKey()
            | "order" >> beam.Map(_write_part, recipe, str(scratch / _PARTS))
        )
        write(parts, _TOTALS)
    errors = list(_lines(scratch / _ERRORS))
    if errors:
        raise UserError(min(errors))
    for reject in _lines(scratch / _REJECTS):
        rejects.add(Reject(*reject))
    counts = []
    is_rated = False
    for _, *of_source in sorted(_lines(scratch / _COUNTS)):  # by the numbers of their sources
        counts.append(SourceCounts(*of_source))
        is_rated = is_rated or counts[-1].is_rated
    report("read", 1)
    manifests = sorted(source_manifests(sources, counts))
    documents = sum(_lines(scratch / _TOTALS))
    yield SortedDocuments(manifests, documents, is_rated, _in_order(scratch / _PARTS))


@contextmanager
def _complaints() -> Iterator[None]:
    """Convert errors of Beam about its options and runner into one line."""
    try:
        yield
    except KnownError:
        raise
    except (ValueError, RuntimeError) as error:
        raise UserError(f"Beam could not run the pipeline: {first_line(error)}") from error


def _digits(sources: Sequence[Source]) -> int:
    """The number of hex digits to group by, so that a worker can hold each group."""
    groups = 4 * sum(source.size for source in sources) / _BYTES_A_PART  # as if all are compressed
    digits = 1
    while 16**digits < groups and digits < _MOST_DIGITS:
        digits += 1
    return digits


def _read(numbered: tuple[int, Source], recipe: Recipe, digits: int) -> Iterator[Any]:
    """Yield the documents of a source by their first digits, and rejects, counts and errors."""
    from apache_beam.pvalue import TaggedOutput

    number, source = numbered
    counts = SourceCounts()
    rejected: list[Reject] = []
    records = cleaned(read_source(source, recipe), recipe.cleaning)
    try:
        for text, rating in counts.texts(records, rejected.append):
            yield order_key(text, recipe.seed, recipe.dedupe)[:digits], (text, rating)
    except UserError as error:
        # Raised here, it would reach the user inside a traceback from Beam.
        yield TaggedOutput(_ERRORS, str(error))
    for reject in rejected:
        yield TaggedOutput(_REJECTS, list(reject))
    yield TaggedOutput(_COUNTS, [number, *astuple(counts)])


def _write_part(group: tuple[str, Iterable[CleanDocument]], recipe: Recipe, folder: str) -> int:
    """Sort a group and write it; return how many documents it keeps.

    A worker may repeat this, or two may do it at once: the file is always complete and the same.
    """
    digits, documents = group
    kept = list(in_order(documents, recipe.seed, recipe.dedupe))
    texts, ratings = zip(*kept, strict=True)
    part = Path(folder) / f"{digits}.npz"
    suffix = f".{uuid.uuid4().hex}.partial"
    with output.atomic_file(part, suffix) as partial, partial.open("wb") as file:
        np.savez(
            file,
            text=np.frombuffer(b"".join(texts), np.uint8),
            ends=np.cumsum(list(map(len, texts)), dtype=np.int64),
            ratings=np.array(ratings, np.float64),
        )
    return len(kept)


def _lines(file: Path) -> Iterator[Any]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _in_order(folder: Path) -> Iterator[CleanDocument]:
    for file in sorted(folder.glob("*.npz")):
        with np.load(file, allow_pickle=False) as part:
            text = part["text"].tobytes()
            start = 0
            for end, rating in zip(part["ends"].tolist(), part["ratings"].tolist(), strict=True):
                yield text[start:end], rating
                start = end
