"""What the engines of `prepare` share: they read sources, and yield documents in their order.

`local.py` and `beam.py` are engines; given splits keep their order, and need none.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mlstm_jax.corpora.documents import CleanDocument, Recipe, clean
from mlstm_jax.corpora.options import PrepareOptions
from mlstm_jax.corpora.parts import Piece
from mlstm_jax.corpora.readers import OnRead, limited_lines, read_source
from mlstm_jax.corpora.rejects import Reject, Rejects
from mlstm_jax.corpora.sources import READ_ERRORS, Source
from mlstm_jax.errors import UserError
from mlstm_jax.options import Unit


class Job(NamedTuple):
    """What the steps of a `prepare` share."""

    options: PrepareOptions
    recipe: Recipe
    rejects: Rejects
    scratch: Path  # folder of temporary files
    show_progress: bool


class SortedDocuments(NamedTuple):
    """The result of an engine."""

    counts: list["SourceCounts"]
    documents: int  # number to write
    in_order: Iterator[Piece]  # can be iterated once
    sizes: Mapping[str, int] | None = None  # documents per split, if the splits are given


@dataclass
class SourceCounts:
    """The counts of a source's records."""

    source: Source
    documents: int = 0
    without_text: int = 0
    blank: int = 0
    is_rated: bool = False  # whether any document has a rating

    def read(
        self,
        recipe: Recipe,
        on_reject: Callable[[Reject], None],
        on_read: OnRead | None = None,
    ) -> Iterator[CleanDocument]:
        """Count the records of the source, and yield the documents that have text."""
        for record in read_source(self.source, recipe, on_read):
            if isinstance(record, Reject):
                on_reject(record)
            elif record is None:
                self.without_text += 1
            elif text := clean(record.text, recipe.cleaning):
                self.documents += 1
                self.is_rated = self.is_rated or record.rating is not None
                yield text, math.nan if record.rating is None else record.rating
            else:
                self.blank += 1

    def read_raw(self, document: Unit, on_read: OnRead) -> Iterator[CleanDocument]:
        """Yield all bytes of the source, a file, as documents, with line ends and blank lines.

        The bytes are not decoded: a split of enwik8 may begin inside a character.
        """
        lines: list[bytes] = []
        has_text = False
        was_blank = False
        try:
            for line in limited_lines(self.source, on_read):
                is_blank = not line.strip()
                ends = document == "line" or (document == "paragraph" and was_blank)
                if has_text and ends and not is_blank:
                    self.documents += 1
                    yield b"".join(lines), math.nan
                    lines = []
                    has_text = False
                lines.append(line)
                has_text = has_text or not is_blank
                was_blank = is_blank
        except READ_ERRORS as error:
            why = f"cannot be read: {error}; fetch or create it again."
            raise UserError(f"{self.source} {why}") from error
        if lines:
            self.documents += 1
            yield b"".join(lines), math.nan
