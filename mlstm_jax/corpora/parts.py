"""Parts of a corpus while it is made: a part has the documents whose keys begin alike.

Documents are distributed to parts as they are read. A part fits into memory, where it is sorted;
the parts, one after the other, are the corpus in its order.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.corpora.documents import CleanDocument, Recipe, order_key
from mlstm_jax.corpora.sources import Source, text_size

_BYTES_A_PART = 1 << 25
_DOCUMENTS_AT_ONCE = 1 << 14
_BYTES_AT_ONCE = 1 << 24
MOST = 1 << 16

# Of a document: its key as two numbers, its bytes, its rating or NaN.
_ROW = np.dtype([("key", ">u8", 2), ("size", "<i8"), ("rating", "<f8")])


class Piece(NamedTuple):
    """Some documents."""

    rows: NDArray[Any]
    text: bytes  # of the documents, one after the other


def count(sources: Sequence[Source], most: int) -> int:
    """The number of parts, so that each fits into memory."""
    return min(1 + text_size(sources) // _BYTES_A_PART, most)


def distributed(
    documents: Iterable[CleanDocument], recipe: Recipe, parts: int
) -> Iterator[tuple[int, Piece]]:
    """Yield the documents in pieces, each with the number of its part."""
    key_of = order_key(recipe.seed, recipe.dedupe)
    for texts, ratings in _batches(documents):
        rows = np.empty(len(texts), _ROW)
        rows["key"] = np.frombuffer(b"".join(map(key_of, texts)), ">u8").reshape(-1, 2)
        rows["size"] = list(map(len, texts))
        rows["rating"] = ratings
        first_bits = rows["key"][:, 0].astype(np.uint64) >> 48
        part = (first_bits * parts // MOST).astype(np.int64)
        order = np.argsort(part, kind="stable")
        numbers, starts = np.unique(part[order], return_index=True)
        for number, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            text = b"".join([texts[place] for place in places.tolist()])
            yield number, Piece(rows[places], text)


def _batches(documents: Iterable[CleanDocument]) -> Iterator[tuple[list[bytes], list[float]]]:
    """Yield texts and ratings of a number of documents, and of fewer if they are long."""
    texts: list[bytes] = []  # Pairs would be so many objects to collect as garbage.
    ratings: list[float] = []
    size = 0
    for text, rating in documents:
        texts.append(text)
        ratings.append(rating)
        size += len(text)
        if len(texts) == _DOCUMENTS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield texts, ratings
            texts = []
            ratings = []
            size = 0
    if texts:
        yield texts, ratings


def append(folder: Path, number: int, piece: Piece) -> None:
    """Add a piece to the files of its part."""
    for name, data in ((f"{number}.rows", piece.rows.tobytes()), (f"{number}.text", piece.text)):
        with (folder / name).open("ab") as file:
            file.write(data)


def read_rows(folders: Sequence[Path], number: int) -> NDArray[Any]:
    """The rows of a part, from its files in several folders; a folder may have none."""
    return np.frombuffer(_read_bytes(folders, f"{number}.rows"), _ROW)


def read(folders: Sequence[Path], number: int) -> Piece:
    """All documents of a part, from its files in several folders."""
    return Piece(read_rows(folders, number), _read_bytes(folders, f"{number}.text"))


def _read_bytes(folders: Sequence[Path], name: str) -> bytes:
    found = [folder / name for folder in folders]
    return b"".join(path.read_bytes() for path in found if path.exists())


def joined(pieces: Iterable[Piece]) -> Piece:
    every = [Piece(np.empty(0, _ROW), b""), *pieces]
    rows = np.concatenate([piece.rows for piece in every])
    return Piece(rows, b"".join([piece.text for piece in every]))


def kept(rows: NDArray[Any], recipe: Recipe) -> int:
    """How many documents of a part remain without duplicates, by its rows."""
    _, is_first = _sorted(rows)
    return len(rows) if recipe.dedupe == "none" else int(is_first.sum())


def _sorted(rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """An order of rows by key, and at each place whether it is the first with its key."""
    keys = rows["key"].astype(np.uint64)
    # Sorting by the first half is several times as fast; it hardly ever leaves the rest to do.
    order = np.argsort(keys[:, 0])
    differ = keys[order[1:]] != keys[order[:-1]]
    if (differ[:, 1] & ~differ[:, 0]).any():
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        differ = keys[order[1:]] != keys[order[:-1]]
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = differ.any(axis=1)
    return order, is_first


def in_order(part: Piece, recipe: Recipe) -> Piece:
    """The documents of a whole part to keep, in order."""
    rows, text = part
    cuts = [0, *np.cumsum(rows["size"]).tolist()]
    ratings = rows["rating"]
    md5_of = order_key(recipe.seed, "exact")

    def copy_key(row: int) -> tuple[Any, ...]:
        """Of texts that share a key the first is kept: by its own md5, with its lowest rating."""
        copy = text[cuts[row] : cuts[row + 1]]
        rating = float(ratings[row])
        return md5_of(copy), copy, isnan(rating), rating

    order, is_first = _sorted(rows)
    bounds = np.append(np.flatnonzero(is_first), len(order))
    for group in np.flatnonzero(np.diff(bounds) > 1).tolist():
        copies = slice(bounds[group], bounds[group + 1])
        order[copies] = sorted(order[copies].tolist(), key=copy_key)
    if recipe.dedupe != "none":
        order = order[is_first]
    text = b"".join([text[cuts[row] : cuts[row + 1]] for row in order.tolist()])
    return Piece(rows[order], text)
