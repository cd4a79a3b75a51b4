"""Untrusted NumPy files, .npy and .npz, opened as `Array`s.

`np.load` would trust a header. Here its size is limited, and it must match the size of the file.
"""

import io
import math
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.errors import UserError
from mlstm_jax.interop.arrays import MOST_METADATA, Array, brief, open_zip, reason

_MOST_HEADER = 1 << 14  # bytes; NumPy itself takes 10,000


def npy(path: Path) -> Array:
    """Open one .npy file; its data are memory-mapped when they are read.

    Raises UserError if it is missing, or is not a .npy file of numbers.
    """
    if not path.is_file():
        raise UserError(f"{path}: is missing; the folder must contain all files of the model.")
    try:
        with path.open("rb") as file:
            header = _Header.read(file)
        if header.offset + header.size > path.stat().st_size:
            raise ValueError("it is truncated")
    except Exception as error:  # NumPy raises many types for an invalid header
        raise UserError(f"{path}: is not a .npy file of numbers ({reason(error)}).") from error
    load = partial(
        np.memmap, path, header.dtype, "r", header.offset, header.shape, order=header.order
    )
    return Array(str(path), header.shape, str(header.dtype), header.dtype.kind == "f", load)


class _Header(NamedTuple):
    """The header of a .npy file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: str
    offset: int  # of the data

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def read(cls, file: IO[bytes]) -> "_Header":
        """Read a header; any exception means that it is invalid."""
        # NumPy on its own would trust the length in the header, up to 4 GB.
        start = io.BytesIO(file.read(_MOST_HEADER))
        parsers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        version = np.lib.format.read_magic(start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers of Python 2 and invalid escapes
            shape, is_fortran, dtype = parsers[version](start)
        if dtype.hasobject:
            raise ValueError("it holds pickled objects")
        if any(size < 0 for size in shape):
            raise ValueError(f"its shape is {shape}")
        return cls(shape, dtype, "F" if is_fortran else "C", start.tell())


@contextmanager
def npz(path: Path, metadata: str) -> Iterator[tuple[str | None, dict[str, Array]]]:
    """Open an .npz: give the text of its uint8 array `metadata`, or None, and the other arrays.

    Raises UserError if it is not such a file, or claims far more bytes than it holds.
    """
    with open_zip(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if len(members) != len(archive.infolist()):
            raise UserError(f"{path}: cannot be read (two arrays have the same name).")
        found = {name: _member(path, archive, name, member) for name, member in members.items()}
        about = found.pop(metadata, None)
        yield None if about is None else _text(about), found


def _member(path: Path, archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> Array:
    where = f"{path}: {brief(name)}"
    try:
        with archive.open(member) as file:
            header = _Header.read(file)
        if header.offset + header.size != member.file_size:
            raise ValueError("its size is not the one in its header")
    except Exception as error:  # zipfile and NumPy raise many types
        raise UserError(f"{where}: cannot be read ({reason(error)}).") from error

    def load() -> NDArray[Any]:
        with archive.open(member) as file:
            file.read(header.offset)
            data = np.frombuffer(file.read(header.size), header.dtype)
        return data.reshape(header.shape, order=header.order)  # type: ignore[call-overload]

    return Array(where, header.shape, str(header.dtype), header.dtype.kind == "f", load)


def _text(about: Array) -> str:
    if about.type != "uint8" or len(about.shape) != 1 or about.shape[0] > MOST_METADATA:
        raise UserError(
            f"{about.where} must be at most {MOST_METADATA:,} bytes of text (uint8), but is "
            f"{about.type} of shape {about.shape}."
        )
    try:
        return about.load().tobytes().decode()
    except Exception as error:  # from zipfile or zlib, or for bytes that are not UTF-8
        raise UserError(f"{about.where}: cannot be read ({reason(error)}).") from error
