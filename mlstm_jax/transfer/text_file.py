"""Texts of a file that may be larger than memory, of any kind that `prepare` reads."""

import weakref
from collections.abc import Iterator
from pathlib import Path

from mlstm_jax.corpora.documents import Recipe, clean
from mlstm_jax.corpora.readers import read_documents
from mlstm_jax.corpora.sources import Source, check_source
from mlstm_jax.data.corpus import Cleaning
from mlstm_jax.errors import UserError

_MOST_CHARACTERS, _MOST_TEXTS = 1 << 25, 1 << 13  # in memory; fewer would fill rows less


class TextFile:
    """The texts of a source, in order, with "" for a record without text; yields lists of them.

    Only one list is in memory. The whole source is read once before, since reading it takes a
    hundredth of the time that a model takes, so its errors and notes come before the work.

    Attributes:
        count: of the texts.
        size: of the cleaned texts, in bytes.
    """

    def __init__(self, path: Path | str, text_column: str | None, cleaning: Cleaning) -> None:
        """Read the source.

        Args:
            path: a file of any kind that `prepare` reads, `tfds:...`, or `-` for standard input:
                JSON lines, or lines of text, which are copied to a temporary file.
            text_column: of the text; None: the first of those that `prepare` reads.
            cleaning: of the texts before they count for `size`.

        Raises UserError if the source cannot be read or holds no text; see `read_documents`.
        """
        check_source(Source(str(path)))
        self._source, self._recipe = Source(str(path)).repeatable(), Recipe(text_column)
        if self._source.copy:
            weakref.finalize(self, self._source.copy.close)
        self.count = self.size = 0
        for document in read_documents(self._source, self._recipe):
            self.count += 1
            self.size += len(clean(document.text, cleaning)) if document else 0

    def __iter__(self) -> Iterator[list[str]]:
        texts, size, count = list[str](), 0, 0
        for document in read_documents(self._source, self._recipe, again=True):
            texts.append(document.text if document else "")
            size, count = size + len(texts[-1]), count + 1
            if size >= _MOST_CHARACTERS or len(texts) == _MOST_TEXTS or count == self.count:
                yield texts
                texts, size = [], 0
        if count != self.count:
            raise UserError(
                f"{self._source}: has changed since its texts were counted; read it again."
            )
