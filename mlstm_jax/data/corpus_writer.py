"""Write the files of a corpus as the documents arrive, and flush them to the disk."""

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mlstm_jax import digest, output
from mlstm_jax.data import corpus
from mlstm_jax.data.corpus import SplitManifest
from mlstm_jax.errors import UserError

_DOCUMENTS_A_WRITE = 4096


def write_split(
    folder: Path,
    name: str,
    documents: Iterable[tuple[bytes, Any]],
    count: int,
    rated: bool,
    several: int = 0,
) -> SplitManifest:
    """Write the files of a split from `count` documents, with a few in memory at a time.

    A document is its text and its rating, or with `several` an array of so many labels.
    """
    sums: dict[str, str] = {}
    size = written = 0
    ratings_name = corpus.ratings_file(name)
    with (
        _file(folder / corpus.bytes_file(name), sums) as data,
        _file(folder / corpus.offsets_file(name), sums) as offsets,
        _file(folder / ratings_name if rated else None, sums) as ratings,
    ):
        offsets.write(_npy_header(np.dtype(np.uint64), (count + 1,)))
        offsets.write(np.zeros(1, np.uint64).tobytes())
        shape = (count, several) if several else (count,)
        ratings.write(_npy_header(np.dtype(np.float32), shape))
        remaining = iter(documents)
        while some := list(islice(remaining, _DOCUMENTS_A_WRITE)):
            data.write(b"".join(text for text, _ in some))
            ends = size + np.cumsum([len(text) for text, _ in some], dtype=np.uint64)
            offsets.write(ends.astype(np.uint64).tobytes())
            ratings.write(np.array([rating for _, rating in some], np.float32).tobytes())
            size, written = int(ends[-1]), written + len(some)
    if written != count:
        raise RuntimeError(f"{name}: received {written} documents, but {count} were counted")
    return SplitManifest(documents=count, bytes=size, crc32=sums)


def _npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the header of a .npy file, as `numpy.save` writes it."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": dtype.str, "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


class _Summed:
    """A file that computes its checksums as it is written."""

    def __init__(self, file: BinaryIO | None) -> None:
        self._file = file
        self.sums = digest.BlockSums()

    def write(self, data: bytes) -> None:
        if self._file:
            self._file.write(data)
            self.sums.update(data)


@contextmanager
def _file(path: Path | None, sums: dict[str, str]) -> Iterator[_Summed]:
    if path is None:
        yield _Summed(None)
        return
    with durable(path) as file:
        summed = _Summed(file)
        yield summed
    sums[path.name] = summed.sums.text()


@contextmanager
def durable(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing, and flush it from caches to the disk when the block ends."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def check_out(out: Path, overwrite: bool) -> None:
    """Raise UserError unless a corpus may be written to `out`."""
    if out.is_mount():
        raise UserError(f"{out}: is a mount point; name a folder in it with --out.")
    parent = next(folder for folder in out.parents if folder.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise UserError(
            f"{out}: cannot be written: {parent} is not a writable folder; name another."
        )
    if not out.exists():
        output.require_folder(out)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out.is_dir() and corpus.is_corpus(out)):
        raise UserError(
            f"{out}: exists and is not a corpus, or has other files in it, so it is not replaced; "
            "name another folder with --out."
        )
    if not overwrite:
        raise UserError(
            f"{out}: exists; name another folder with --out, or replace it with --overwrite."
        )
