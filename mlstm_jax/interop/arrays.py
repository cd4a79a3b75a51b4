"""Arrays in untrusted files: names, types and sizes are checked before any data is read.

A file is opened as the `Array`s that its headers describe; `read_arrays` checks all of them before
it reads the first. A file that claims far more data than it holds is refused, so its size bounds
the memory that it takes. No pickle is read.
"""

import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mlstm_jax.errors import UserError

MOST_ARRAYS = 10_000
MOST_METADATA = 1 << 20  # bytes
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


def check_names(where: str, found: Collection[str], wanted: Collection[str]) -> None:
    """Raise UserError unless the names are the wanted ones; it names the first few differences."""
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        raise UserError(
            f"{where}: "
            + "; ".join(
                f"{what} {some(names)}"
                for what, names in (("is missing", missing), ("has the unexpected", extra))
                if names
            )
            + "."
        )


def some(names: Collection[str]) -> str:
    """Return the first few names and the number of others, as text."""
    shown = ", ".join(brief(name) for name in sorted(names)[:_SHOWN]) or "nothing"
    return f"{shown} and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else shown


def count_layers(where: str, numbers: Collection[str]) -> int:
    """Return the number of layers, from the numbers in names; UserError if one is missing."""
    wrong = set(numbers) - {str(number) for number in range(len(set(numbers)))}
    if wrong:
        raise UserError(f"{where}: has layer {some(wrong)}, but a layer before it is missing.")
    return len(set(numbers))


def require_finite(where: str, array: NDArray[Any]) -> None:
    """Raise UserError if an array holds inf or NaN."""
    if not np.isfinite(array).all():
        raise UserError(f"{where} must be finite numbers of {array.dtype}, but has inf or NaN.")


def require_room(path: Path, bytes_claimed: int) -> None:
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
    return brief(next(iter(str(error).splitlines()), "") or type(error).__name__)


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
        require_room(path, sum(member.file_size for member in archive.infolist()))
        yield archive


def require_honest_zip(path: Path) -> None:
    """Raise UserError if an archive has too many files, or claims far more bytes than it holds."""
    with open_zip(path):
        pass  # opening it checks it


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
