"""Arrays in files that a stranger may have written: names, types and sizes first, then the data.

A file is opened as the `Array`s that its headers speak of; `read` holds all of them to what they
must be before it reads the first. A file that claims far more than it holds is refused, so its size
bounds the memory that it takes. No pickle is read.
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

from mlstm_jax.errors import UserError

MOST_ARRAYS = 10_000
_MOST_METADATA = 1 << 20  # bytes
_MOST_HEADER = 1 << 14  # bytes; NumPy itself takes 10,000
# Weights hardly compress. A file may still hold them in few bits, or twice under two names.
_MOST_EXPANSION = 20
_SHOWN = 5  # names in a message
_LONGEST = 200  # characters of a name, or of a library's message


class Array(NamedTuple):
    """An array that is not read yet, as its header describes it."""

    where: str  # file and name, for messages
    shape: tuple[int, ...]
    type: str
    is_float: bool
    load: Callable[[], NDArray[Any]]

    def sizes(self, count: int) -> tuple[int, ...]:
        """Return the shape; UserError unless it has `count` dimensions, none of them empty."""
        if len(self.shape) != count or min(self.shape) < 1:
            raise UserError(
                f"{self.where} has the shape {self.shape}, but must have {count} dimensions of at "
                "least 1."
            )
        return self.shape


def write_safetensors(
    path: Path, values: dict[str, NDArray[Any]], metadata: dict[str, str] | None = None
) -> None:
    """Write a .safetensors file that those may read whom the umask lets read a new file."""
    from safetensors.numpy import save_file

    path.touch()
    mode = path.stat().st_mode
    # The library puts a temporary file of mode 0600 in its place.
    save_file(values, path, metadata=metadata)
    path.chmod(mode)


def read(
    where: str,
    arrays: Mapping[str, Array],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: DTypeLike = np.float32,
) -> dict[str, NDArray[Any]]:
    """Read the arrays of a model, as C-contiguous `dtype`.

    Args:
        where: the file or folder, for messages.
        arrays: what is there.
        shapes: what must be there, no less and no more.
        dtype: a floating type.

    Raises:
        UserError: one is missing, unknown, of another shape, not of floating numbers, not finite,
            or cannot be read.
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


def check_names(where: str, found: Collection[str], wanted: Collection[str]) -> None:
    """Raise UserError unless the names are the wanted ones; it tells the first of the others."""
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        raise UserError(
            f"{where}: "
            + "; ".join(
                f"{what} {some(names)}"
                for what, names in (("lacks", missing), ("has the unknown", extra))
                if names
            )
            + "."
        )


def some(names: Collection[str]) -> str:
    """Return the first few names, and how many others there are."""
    shown = ", ".join(brief(name) for name in sorted(names)[:_SHOWN]) or "nothing"
    return f"{shown} and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else shown


def count_layers(where: str, numbers: Collection[str]) -> int:
    """Return how many layers a file has, by the numbers in its names; UserError for a gap."""
    wrong = set(numbers) - {str(number) for number in range(len(set(numbers)))}
    if wrong:
        raise UserError(f"{where}: has a layer {some(wrong)}, but not all before it.")
    return len(set(numbers))


def require_finite(where: str, array: NDArray[Any]) -> None:
    """Raise UserError where an array holds inf or NaN."""
    if not np.isfinite(array).all():
        raise UserError(f"{where} must be finite numbers of {array.dtype}, but has inf or NaN.")


def require_room(path: Path, bytes_claimed: int) -> None:
    """Raise UserError where a file claims far more bytes than it holds."""
    held = path.stat().st_size
    if bytes_claimed > _MOST_EXPANSION * held:
        raise UserError(
            f"{path}: claims {bytes_claimed:,} bytes of arrays, but has {held:,} bytes itself; "
            "weights do not compress so well, so it is damaged or made to fill the memory."
        )


def _load(array: Array, dtype: DTypeLike) -> NDArray[Any]:
    try:
        with np.errstate(over="ignore"):  # is found beneath
            values = np.array(array.load(), dtype, order="C")
    except Exception as error:  # of zipfile, zlib, NumPy, safetensors, torch: each has its own
        raise UserError(f"{array.where}: cannot be read ({reason(error)}).") from error
    require_finite(array.where, values)
    return values


def reason(error: BaseException) -> str:
    """Return what an error of a library says, in one line that is not too long."""
    return brief(next(iter(str(error).splitlines()), "") or type(error).__name__)


def brief(text: str) -> str:
    """Return a name or a message, cut where it is too long to show."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def npy(path: Path) -> Array:
    """Open one .npy file; its data are memory-mapped when they are read.

    Raises UserError where it is missing, or no .npy file of numbers.
    """
    if not path.is_file():
        raise UserError(f"{path}: is missing; the folder must hold all files.")
    try:
        with path.open("rb") as file:
            header = _Header.read(file)
        if header.offset + header.size > path.stat().st_size:
            raise ValueError("it is cut short")
    except Exception as error:  # NumPy has many for a header that is none
        raise UserError(f"{path}: is not a .npy file of numbers ({reason(error)}).") from error
    load = partial(
        np.memmap, path, header.dtype, "r", header.offset, header.shape, order=header.order
    )
    return Array(str(path), header.shape, str(header.dtype), header.dtype.kind == "f", load)


class _Header(NamedTuple):
    """What a .npy file says of its array."""

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
        """Read a header; an exception of any kind means that there is none."""
        # NumPy alone would believe a header's own length, up to 4 GB.
        start = io.BytesIO(file.read(_MOST_HEADER))
        parsers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        version = np.lib.format.read_magic(start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that Python 2 wrote it, or that it has odd escapes
            shape, is_fortran, dtype = parsers[version](start)
        if dtype.hasobject:
            raise ValueError("it holds pickled objects")
        if any(size < 0 for size in shape):
            raise ValueError(f"its shape is {shape}")
        return cls(shape, dtype, "F" if is_fortran else "C", start.tell())


@contextmanager
def npz(path: Path, metadata: str) -> Iterator[tuple[str | None, dict[str, Array]]]:
    """Open an .npz: the text of its uint8 array `metadata`, None without, and the other arrays.

    Raises UserError where it is no such file, or claims far more than it holds.
    """
    with _zip(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if len(members) != len(archive.infolist()):
            raise UserError(f"{path}: cannot be read (two arrays have one name).")
        arrays = {name: _member(path, archive, name, member) for name, member in members.items()}
        about = arrays.pop(metadata, None)
        yield None if about is None else _text(about), arrays


def _member(path: Path, archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> Array:
    where = f"{path}: {brief(name)}"
    try:
        with archive.open(member) as file:
            header = _Header.read(file)
        if header.offset + header.size != member.file_size:
            raise ValueError("it is not of the size that its header says")
    except Exception as error:  # zipfile and NumPy have many
        raise UserError(f"{where}: cannot be read ({reason(error)}).") from error

    def load() -> NDArray[Any]:
        with archive.open(member) as file:
            file.read(header.offset)
            data = np.frombuffer(file.read(header.size), header.dtype)
        return data.reshape(header.shape, order=header.order)  # type: ignore[call-overload]

    return Array(where, header.shape, str(header.dtype), header.dtype.kind == "f", load)


def _text(about: Array) -> str:
    if about.type != "uint8" or len(about.shape) != 1 or about.shape[0] > _MOST_METADATA:
        raise UserError(
            f"{about.where} must be at most {_MOST_METADATA:,} bytes of text, but is {about.type} "
            f"of shape {about.shape}."
        )
    try:
        return about.load().tobytes().decode()
    except Exception as error:  # of zipfile and zlib, and bytes that are no text
        raise UserError(f"{about.where}: cannot be read ({reason(error)}).") from error


@contextmanager
def _zip(path: Path) -> Iterator[zipfile.ZipFile]:
    _require_file(path)
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:  # zipfile has many for what is none
        raise UserError(f"{path}: cannot be read ({reason(error)}).") from error
    with archive:
        require_count(path, len(archive.infolist()))
        require_room(path, sum(member.file_size for member in archive.infolist()))
        yield archive


def require_honest_zip(path: Path) -> None:
    """Raise UserError where an archive holds too many files, or claims far more than it holds."""
    with _zip(path):
        pass


def require_count(path: Path, arrays: int) -> None:
    """Raise UserError where a file has more arrays than any model."""
    if arrays > MOST_ARRAYS:
        raise UserError(
            f"{path}: holds {arrays:,} arrays, but a model has at most {MOST_ARRAYS:,}."
        )


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path}: there is no such file.")


@contextmanager
def safetensors(path: Path, metadata: str) -> Iterator[tuple[str | None, dict[str, Array]]]:
    """Open a .safetensors: the text `metadata`, None without, and the arrays.

    Raises UserError where it is no such file.
    """
    from safetensors import safe_open

    _require_file(path)
    try:
        file = safe_open(path, "np")
        about = (file.metadata() or {}).get(metadata)
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # the library's own, and the system's
        raise UserError(f"{path}: cannot be read ({reason(error)}).") from error
    require_count(path, len(slices))
    if about is not None and len(about) > _MOST_METADATA:
        raise UserError(f"{path}: its {metadata!r} metadata are longer than {_MOST_METADATA:,}.")
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
