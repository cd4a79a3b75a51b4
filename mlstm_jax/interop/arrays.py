"""Arrays in untrusted files: names, types and sizes are checked before any data is read.

A file, .npy, .npz or .safetensors, is opened as the `Array`s that its headers describe;
`read_arrays` checks all of them before it reads the first. `np.load` would trust a header: here its
size is limited, and it must match the size of the file. A file that claims far more data than it
holds is refused, so its size bounds the memory that it takes. No pickle is read.
"""

import io
import math
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mlstm_jax.errors import UserError, first_line

MOST_ARRAYS = 10_000
MOST_METADATA = 1 << 20  # bytes
_MOST_HEADER = 1 << 14  # bytes; NumPy itself takes 10,000
# Weights barely compress, but a file may store them in few bits, or once under two names.
_MOST_EXPANSION = 20
_SHOWN = 5  # names in a message
_LONGEST = 200  # characters of a name, or of a library's message


class Array(NamedTuple):
    """An array that has not been read yet, as its header describes it."""

    where: str  # file and name, for messages
    shape: tuple[int, ...]
    type: str  # of its elements, for messages
    is_float: bool
    load: Callable[[], NDArray[Any]]

    def sizes(self, count: int) -> tuple[int, ...]:
        """Return the shape; UserError unless it has `count` dimensions, none of them empty."""
        if len(self.shape) != count or min(self.shape) < 1:
            raise UserError(
                f"{self.where} has the shape {self.shape}, but must have {count} dimensions, each "
                "at least 1."
            )
        return self.shape


def write_safetensors(
    path: Path, values: dict[str, NDArray[Any]], metadata: dict[str, str] | None = None
) -> None:
    """Write a .safetensors file with the permissions that the umask gives a new file.

    Raises:
        OSError: the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path.touch()
    mode = path.stat().st_mode
    try:
        # The library replaces the file with a temporary one of mode 0600.
        save_file(values, path, metadata=metadata)
    except SafetensorError as error:  # the library raises its own error even for a full disk
        raise OSError(str(error)) from error
    path.chmod(mode)


def read_arrays(
    where: str,
    arrays: Mapping[str, Array],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: DTypeLike = np.float32,
) -> dict[str, NDArray[Any]]:
    """Read the arrays of a model, as C-contiguous `dtype`.

    Args:
        where: the file or folder, for messages.
        arrays: the arrays that exist, by name.
        shapes: the shapes of exactly the arrays that must exist.
        dtype: a floating-point type.

    Raises:
        UserError: an array is missing, unexpected, has another shape, is not floating-point, is not
            finite, or cannot be read.
    """
    check_names(where, arrays, shapes)
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != shape:
            raise UserError(f"{array.where} has the shape {array.shape}, but must have {shape}.")
        if not array.is_float:
            raise UserError(
                f"{array.where} must be finite floating-point numbers, not {array.type}."
            )
    return {name: _load(arrays[name], dtype) for name in shapes}


def check_names(where: str, actual: Collection[str], wanted: Collection[str]) -> None:
    """Raise UserError unless the names are the wanted ones; it names the first few differences."""
    missing, extra = sorted(set(wanted) - set(actual)), sorted(set(actual) - set(wanted))
    if missing or extra:
        raise UserError(
            f"{where}: "
            + "; ".join(
                f"{what} {preview(names)}"
                for what, names in (("is missing", missing), ("has the unexpected", extra))
                if names
            )
            + "."
        )


def preview(names: Collection[str]) -> str:
    """Return the first few names and the number of others, as text."""
    shown = ", ".join(brief(name) for name in sorted(names)[:_SHOWN]) or "nothing"
    return f"{shown} and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else shown


def count_layers(where: str, numbers: Collection[str]) -> int:
    """Return the number of layers, from the numbers in names; UserError if one is missing."""
    wrong = set(numbers) - {str(number) for number in range(len(set(numbers)))}
    if wrong:
        raise UserError(f"{where}: has layer {preview(wrong)}, but a layer before it is missing.")
    return len(set(numbers))


def require_finite(where: str, array: NDArray[Any]) -> None:
    """Raise UserError if an array holds inf or NaN."""
    if not np.isfinite(array).all():
        raise UserError(f"{where} must be finite numbers of {array.dtype}, but has inf or NaN.")


def reject_zip_bomb(path: Path, bytes_claimed: int) -> None:
    """Raise UserError if a file claims far more bytes than it holds."""
    held = path.stat().st_size
    if bytes_claimed > _MOST_EXPANSION * held:
        raise UserError(
            f"{path}: claims {bytes_claimed:,} bytes of arrays, but the file has only {held:,} "
            "bytes; weights do not compress that well, so it is damaged or meant to exhaust memory."
        )


def _load(array: Array, dtype: DTypeLike) -> NDArray[Any]:
    try:
        with np.errstate(over="ignore"):  # require_finite finds it
            values = np.array(array.load(), dtype, order="C")
    except Exception as error:  # zipfile, zlib, NumPy, safetensors and torch each raise their own
        raise UserError(f"{array.where}: cannot be read ({reason(error)}).") from error
    require_finite(array.where, values)
    return values


def reason(error: BaseException) -> str:
    """Return the message of a library's error as one line of limited length."""
    return brief(first_line(error))


def brief(text: str) -> str:
    """Return a name or a message, shortened if it is too long to show."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive; UserError if it is none, has too many files or claims too many bytes."""
    _require_file(path)
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:  # zipfile raises many types for a file that is no archive
        raise UserError(f"{path}: cannot be read ({reason(error)}).") from error
    with archive:
        require_count(path, len(archive.infolist()))
        reject_zip_bomb(path, sum(member.file_size for member in archive.infolist()))
        yield archive


def require_count(path: Path, arrays: int) -> None:
    """Raise UserError if a file has more arrays than any model."""
    if arrays > MOST_ARRAYS:
        raise UserError(
            f"{path}: holds {arrays:,} arrays, but a model has at most {MOST_ARRAYS:,}."
        )


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path}: the file does not exist.")


@contextmanager
def safetensors(path: Path, metadata: str) -> Iterator[tuple[str | None, dict[str, Array]]]:
    """Open a .safetensors file: give its metadata text named `metadata`, or None, and its arrays.

    Raises UserError if it is not such a file.
    """
    from safetensors import safe_open

    _require_file(path)
    try:
        file = safe_open(path, "np")
        about = (file.metadata() or {}).get(metadata)
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # the library raises its own types and OSError
        raise UserError(f"{path}: cannot be read ({reason(error)}).") from error
    require_count(path, len(slices))
    if about is not None and len(about) > MOST_METADATA:
        raise UserError(f"{path}: its {metadata!r} metadata exceed {MOST_METADATA:,} characters.")
    with file:
        yield (
            about,
            {
                name: Array(
                    f"{path}: {brief(name)}",
                    tuple(one.get_shape()),
                    one.get_dtype(),
                    one.get_dtype() in ("F16", "F32", "F64"),
                    partial(file.get_tensor, name),
                )
                for name, one in slices.items()
            },
        )


def npy(path: Path) -> Array:
    """Open one .npy file; its data are memory-mapped when they are read.

    Raises UserError if it is missing, or is not a .npy file of numbers.
    """
    if not path.is_file():
        raise UserError(f"{path}: is missing; the folder must contain all files of the model.")
    try:
        with path.open("rb") as file:
            shape, dtype, size = _read_header(file)
        if size > path.stat().st_size:
            raise ValueError("it is truncated")
    except Exception as error:  # NumPy raises many types for an invalid header
        raise UserError(f"{path}: is not a .npy file of numbers ({reason(error)}).") from error
    load = partial(np.load, path, mmap_mode="r", allow_pickle=False)
    return Array(str(path), shape, str(dtype), dtype.kind == "f", load)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return the shape and the type in the header of a .npy file, and the bytes of the whole file.

    Any exception means that the header is invalid.
    """
    # NumPy on its own would trust the length in the header, up to 4 GB.
    start = io.BytesIO(file.read(_MOST_HEADER))
    parsers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers of Python 2 and invalid escapes
        shape, _, dtype = parsers[version](start)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects")
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape is {shape}")
    return shape, dtype, start.tell() + math.prod(shape) * dtype.itemsize


@contextmanager
def npz(path: Path, metadata: str) -> Iterator[tuple[str | None, dict[str, Array]]]:
    """Open an .npz: give the text of its uint8 array `metadata`, or None, and the other arrays.

    Raises UserError if it is not such a file, or claims far more bytes than it holds.
    """
    with open_zip(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if len(members) != len(archive.infolist()):
            raise UserError(f"{path}: cannot be read (two arrays have the same name).")
        arrays = {name: _member(path, archive, name, member) for name, member in members.items()}
        about = arrays.pop(metadata, None)
        yield None if about is None else _text(about), arrays


def _member(path: Path, archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> Array:
    where = f"{path}: {brief(name)}"
    try:
        with archive.open(member) as file:
            shape, dtype, size = _read_header(file)
        if size != member.file_size:
            raise ValueError("its size is not the one in its header")
    except Exception as error:  # zipfile and NumPy raise many types
        raise UserError(f"{where}: cannot be read ({reason(error)}).") from error

    def load() -> NDArray[Any]:
        with archive.open(member) as file:
            return np.lib.format.read_array(file, allow_pickle=False)

    return Array(where, shape, str(dtype), dtype.kind == "f", load)


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
