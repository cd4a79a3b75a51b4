"""Write a corpus: check its folder and the disk, then write what an engine has gathered."""

import errno
import io
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import digest, output
from mlstm_jax.corpora.documents import CleanDocument, Recipe, Reject
from mlstm_jax.corpora.options import PrepareOptions
from mlstm_jax.corpora.records import Rejects
from mlstm_jax.corpora.sources import Source, manifest_names
from mlstm_jax.data import corpus
from mlstm_jax.data.corpus import SourceManifest, SplitManifest
from mlstm_jax.errors import UserError
from mlstm_jax.terminal import file_size

_DOCUMENTS_A_WRITE = 4096
_BYTES_A_BATCH = 1 << 24
# Bytes of text per compressed byte of reviews, at most.
_COMPRESSION = 4
# Bytes of a file name on most systems, less what is added for temporary files.
_LONGEST_NAME = 255 - len(".partial-4194304.old") - len(".")
# Bytes of temporary files per byte of text, which many short documents need.
_SCRATCH = 2

# Called with a stage and the fraction of it that is done, from 0 to 1.
Report = Callable[[str, float], None]


class Job(NamedTuple):
    """What the steps of a `prepare` share."""

    options: PrepareOptions
    recipe: Recipe
    rejects: Rejects
    scratch: Path  # folder of temporary files
    report: Report


class Block(NamedTuple):
    """Documents in their order."""

    text: bytes  # one after the other
    sizes: NDArray[np.int64]
    ratings: NDArray[np.float64]


class SortedDocuments(NamedTuple):
    """The result of an engine."""

    counts: list["SourceCounts"]
    documents: int  # number to write
    in_order: Iterator["Block"]  # can be iterated once
    sizes: Mapping[str, int] = MappingProxyType({})  # documents per split, if the splits are given


def bytes_read(sources: Iterable[Source], report: Report) -> Callable[[int], None]:
    """Count bytes that are read, with the function that this returns, and report their share."""
    total = sum(source.size for source in sources) or 1
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report("read", min(1.0, done / total))

    return advance


@dataclass
class SourceCounts:
    """The counts of a source's records."""

    source: Source
    documents: int = 0
    without_text: int = 0
    blank: int = 0
    is_rated: bool = False  # whether any document has a rating

    def texts(
        self,
        records: Iterable[CleanDocument | Reject | None],
        on_reject: Callable[[Reject], None],
    ) -> Iterator[CleanDocument]:
        """Count records, and yield the records that have text."""
        for record in records:
            if isinstance(record, Reject):
                on_reject(record)
            elif record is None:
                self.without_text += 1
            elif not record[0]:
                self.blank += 1
            else:
                self.documents += 1
                self.is_rated = self.is_rated or not isnan(record[1])
                yield record


def source_manifests(counts: Sequence[SourceCounts]) -> list[SourceManifest]:
    """The counts of each source, as in a manifest; UserError if a source has no text."""
    names = manifest_names([one.source for one in counts])
    manifests = []
    for name, one in zip(names, counts, strict=True):
        if not one.documents:
            raise UserError(f"{one.source}: no text is left after cleaning; leave it out.")
        manifests.append(SourceManifest(name, one.documents, one.without_text, one.blank))
    return manifests


def batches(
    documents: Iterable[CleanDocument], most: int = _DOCUMENTS_A_WRITE
) -> Iterator[tuple[list[bytes], list[float]]]:
    """Yield texts and ratings of at most `most` documents, and of fewer if they are long."""
    texts: list[bytes] = []
    ratings: list[float] = []
    size = 0
    for text, rating in documents:
        texts.append(text)
        ratings.append(rating)
        size += len(text)
        if len(texts) == most or size >= _BYTES_A_BATCH:
            yield texts, ratings
            texts = []
            ratings = []
            size = 0
    if texts:
        yield texts, ratings


def packed(documents: Iterable[CleanDocument]) -> Iterator[Block]:
    """Yield the documents in blocks."""
    for texts, ratings in batches(documents):
        sizes = np.array(list(map(len, texts)), np.int64)
        yield Block(b"".join(texts), sizes, np.array(ratings, np.float64))


class Blocks:
    """All documents of a corpus, to be taken from the start, split by split."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self._rest: Block | None = None

    def take(self, count: int) -> Iterator[Block]:
        """Yield the next `count` documents, or as many as there are."""
        while count and (block := self._rest or next(self._blocks, None)):
            text, sizes, ratings = block
            taken = min(count, len(sizes))
            end = int(sizes[:taken].sum())
            self._rest = None
            if taken < len(sizes):
                self._rest = Block(text[end:], sizes[taken:], ratings[taken:])
            yield Block(text[:end], sizes[:taken], ratings[:taken])
            count -= taken

    def require_end(self) -> None:
        """Raise RuntimeError if there are more documents."""
        if self._rest or next(self._blocks, None):
            raise RuntimeError("received more documents than were counted")


def write_split(
    folder: Path, name: str, blocks: Iterable[Block], count: int, rated: bool
) -> SplitManifest:
    """Write the files of a split of `count` documents, a block at a time."""
    sums: dict[str, str] = {}
    size = 0
    written = 0
    files = corpus.files_of(name)
    with (
        _file(folder / files.bytes, sums) as write_bytes,
        _file(folder / files.offsets, sums) as write_offsets,
        _file(folder / files.ratings if rated else None, sums) as write_ratings,
    ):
        write_offsets(_npy_header(np.dtype(np.uint64), (count + 1,)))
        write_offsets(np.zeros(1, np.uint64).tobytes())
        write_ratings(_npy_header(np.dtype(np.float32), (count,)))
        for text, sizes, ratings in blocks:
            write_bytes(text)
            ends = size + np.cumsum(sizes)
            write_offsets(ends.astype(np.uint64).tobytes())
            write_ratings(ratings.astype(np.float32).tobytes())
            size += len(text)
            written += len(sizes)
    if written != count:
        raise RuntimeError(f"{name}: received {written} documents, but {count} were counted")
    return SplitManifest(documents=count, bytes=size, crc32=sums)


def _npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The header of a .npy file, as `numpy.save` writes it."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": dtype.str, "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


@contextmanager
def _file(path: Path | None, sums: dict[str, str]) -> Iterator[Callable[[bytes], None]]:
    """Yield the function that writes to a file; at the end, add the file's checksums to `sums`."""
    if path is None:
        yield lambda data: None
        return
    of_blocks = digest.BlockSums()
    with durable(path) as file:

        def write(data: bytes) -> None:
            file.write(data)
            of_blocks.update(data)

        yield write
    sums[path.name] = of_blocks.text()


@contextmanager
def durable(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing, and flush it from caches to the disk when the block ends."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def check_out(out: Path, overwrite: bool) -> None:
    """Raise UserError unless a corpus may be written to `out`."""
    is_empty = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    wrong = ""
    if out.is_mount():
        wrong = "is a mount point; name a folder in it with `out`."
    elif not is_empty and not (out.is_dir() and corpus.is_corpus(out)):
        wrong = (
            "exists and is not a corpus, or has other files in it, so it is not replaced; name "
            "another folder with `out`."
        )
    elif not is_empty and not overwrite:
        wrong = "exists; name another folder with `out`, or replace it with `overwrite`."
    if wrong:
        raise UserError(f"{out} {wrong}")
    output.require_folder(out.parent if out.exists() else out)  # It will be renamed there.


def resolved(option: str, path: Path) -> Path:
    """Return a path without links; raise UserError if it cannot hold a corpus."""
    try:
        resolved = path.resolve()
        with suppress(FileNotFoundError, NotADirectoryError):
            resolved.stat()  # `exists` hides a loop of links and, since Python 3.14, every error
        if len(os.fsencode(resolved.name)) > _LONGEST_NAME:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        str(resolved).encode()
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        if isinstance(error, RuntimeError):  # before Python 3.13
            why = "a link that leads back to itself"
        if isinstance(error, UnicodeEncodeError):
            why = "this name is not UTF-8"
        raise UserError(f"{option} {path}: {why}; name another folder.") from error
    return resolved


def text_size(sources: Iterable[Source]) -> int:
    """About how many bytes of text the sources have."""
    size = 0
    for source in sources:
        is_compressed = source.compression or not source.format.has_lines
        size += source.size * (_COMPRESSION if is_compressed else 1)
    return size


def check_disk(sources: Sequence[Source], out: Path, scratch: Path, *, sorts: bool) -> None:
    """Raise UserError unless there is enough disk space for a corpus of these sources.

    Temporary files, if it `sorts`, are written next to the folder `scratch`.
    """
    text = text_size(sources)
    advice = "free some space, or write the corpus to another disk with `out`."
    temporary = 0
    if sorts:
        temporary = _SCRATCH * text
        advice += (
            f" The temporary files, about {file_size(temporary)}, may be on another disk, with "
            "`temp_dir`."
        )
    needed: Counter[int] = Counter()  # bytes, by device
    for place, size in ((out.parent, text), (scratch.parent, temporary)):
        folder = next(folder for folder in (place, *place.parents) if folder.exists())
        device = folder.stat().st_dev
        needed[device] += size
        free = shutil.disk_usage(folder).free
        if needed[device] > free:
            raise UserError(
                f"{folder}: about {file_size(needed[device])} may be needed here, but only "
                f"{file_size(free)} is free; {advice}"
            )
