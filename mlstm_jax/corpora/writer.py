"""Write a corpus: check its folder and the disk, then write what an engine has gathered."""

import io
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from mlstm_jax import digest, output
from mlstm_jax.corpora.parts import Piece
from mlstm_jax.corpora.sources import Source, text_size
from mlstm_jax.data import corpus
from mlstm_jax.data.corpus import SplitManifest
from mlstm_jax.errors import UserError
from mlstm_jax.terminal import file_size

# Bytes of temporary files per byte of text, which many short documents need.
_SCRATCH = 2


class Pieces:
    """All documents of a corpus, to be taken from the start, split by split."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces = pieces
        self._rest: Piece | None = None

    def take(self, count: int) -> Iterator[Piece]:
        """Yield the next `count` documents, or as many as there are."""
        while count:
            piece = self._rest or next(self._pieces, None)
            if piece is None:
                return
            rows, text = piece
            taken = min(count, len(rows))
            end = int(rows["size"][:taken].sum())
            self._rest = Piece(rows[taken:], text[end:]) if taken < len(rows) else None
            yield Piece(rows[:taken], text[:end])
            count -= taken


def write_split(
    folder: Path, name: str, pieces: Iterable[Piece], count: int, rated: bool
) -> SplitManifest:
    """Write the files of a split of `count` documents, a piece at a time."""
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
        for rows, text in pieces:
            write_bytes(text)
            ends = size + np.cumsum(rows["size"])
            write_offsets(ends.astype(np.uint64).tobytes())
            write_ratings(rows["rating"].astype(np.float32).tobytes())
            size += len(text)
            written += len(rows)
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


def check_disk(sources: Sequence[Source], out: Path, scratch: Path) -> None:
    """Raise UserError unless there is enough disk space for a corpus of these sources.

    Temporary files are written next to the folder `scratch`.
    """
    text = text_size(sources)
    temporary = _SCRATCH * text
    needed: Counter[int] = Counter()  # bytes, by device
    for place, size in ((out.parent, text), (scratch.parent, temporary)):
        folder = next(folder for folder in (place, *place.parents) if folder.exists())
        device = folder.stat().st_dev
        needed[device] += size
        free = shutil.disk_usage(folder).free
        if needed[device] > free:
            raise UserError(
                f"{folder}: about {file_size(needed[device])} may be needed here, but only "
                f"{file_size(free)} is free; free some space, or write the corpus to another disk "
                f"with `out`. The temporary files, about {file_size(temporary)}, may be on another "
                "disk, with `temp_dir`."
            )
