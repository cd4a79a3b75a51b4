"""Read given splits: every document of each, in the order of its files.

Benchmarks such as enwik8, Penn Treebank and WikiText are published this way. Nothing is sorted, so
no engine is needed: the files are read twice, to count their documents and to write them.
"""

import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from math import nan

from mlstm_jax.corpora.documents import CleanDocument, Recipe, Reject, Unit
from mlstm_jax.corpora.readers import cleaned, limited_lines, read_source
from mlstm_jax.corpora.records import Rejects
from mlstm_jax.corpora.sources import Source
from mlstm_jax.corpora.writer import Report, SortedDocuments, Tally, reading, source_manifests
from mlstm_jax.errors import UserError

_BYTES_A_REPORT = 1 << 20

OnRead = Callable[[int], None]


@contextmanager
def read_and_sort(
    sources: Mapping[str, Sequence[Source]], recipe: Recipe, rejects: Rejects, *, report: Report
) -> Iterator[SortedDocuments]:
    """Count the documents of every split, and yield what to write.

    Args:
        sources: the sources of each split, in the order in which to write the splits.
        recipe: with cleaning "none", a text file is kept byte for byte, and a document is cut
            after the end of a line or paragraph; otherwise see `clean`.

    Raises:
        UserError: a source cannot be used.
    """
    every = [source for of_split in sources.values() for source in of_split]
    advance = reading(every, report)
    tallies = {source: Tally() for source in every}
    for source, tally in tallies.items():
        deque(tally.texts(_read(source, recipe, advance), rejects.add), maxlen=0)
    sizes = {
        split: sum(tallies[source].documents for source in of_split)
        for split, of_split in sources.items()
    }
    documents = chain.from_iterable(_again(source, recipe, tallies[source]) for source in every)
    rated = any(tally.rated for tally in tallies.values())
    manifests = source_manifests(every, list(tallies.values()))
    yield SortedDocuments(manifests, sum(sizes.values()), rated, documents, sizes)


def _again(source: Source, recipe: Recipe, expected: Tally) -> Iterator[CleanDocument]:
    tally = Tally()
    yield from tally.texts(_read(source, recipe, lambda count: None), lambda reject: None)
    if tally != expected:
        raise UserError(f"{source}: changed while it was being read; run prepare again.")


def _read(
    source: Source, recipe: Recipe, on_read: OnRead
) -> Iterator[CleanDocument | Reject | None]:
    if recipe.cleaning == "none" and source.kind == "txt":
        texts = _as_it_is(source, recipe.document or "line", on_read)
        return ((text, nan) for text in texts)
    return cleaned(read_source(source, recipe, on_read), recipe.cleaning)


def _as_it_is(source: Source, document: Unit, on_read: OnRead) -> Iterator[bytes]:
    """Yield all bytes of a file as documents, including line ends and blank lines.

    The bytes are not decoded: a split of enwik8 may begin inside a character.
    """
    parts: list[bytes] = []
    told, has_text, was_blank = 0, False, False
    try:
        with source.path.open("rb") as raw:
            for line in limited_lines(source, raw):
                is_blank = not line.strip()
                ends = document == "line" or (document == "paragraph" and was_blank)
                if has_text and ends and not is_blank:
                    yield b"".join(parts)
                    parts, has_text = [], False
                parts.append(line)
                has_text, was_blank = has_text or not is_blank, is_blank
                if (position := raw.tell()) - told >= _BYTES_A_REPORT:
                    on_read(position - told)
                    told = position
            on_read(raw.tell() - told)
    except (OSError, EOFError, zlib.error) as error:  # also from gzip
        raise UserError(f"{source}: cannot be read: {error}; fetch or create it again.") from error
    if parts:
        yield b"".join(parts)


def check_apart(sources_of: Mapping[str, Sequence[Source]]) -> None:
    """Raise UserError if two splits have a file in common."""
    split_of: dict[tuple[str, ...], str] = {}
    for split, sources in sources_of.items():
        for source in sources:
            other = split_of.setdefault(source.place, split)
            if other != split:
                raise UserError(
                    f"{source}: is named for `{other}` and `{split}`; a score on text that was "
                    "trained on says nothing about new text, so name it for only one."
                )
