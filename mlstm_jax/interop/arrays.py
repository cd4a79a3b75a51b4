"""Arrays in untrusted files: .npy and .safetensors.

No pickle is read. NumPy and safetensors check what a header claims against the size of the file, so
a file's size bounds the memory that it takes.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mlstm_jax.errors import UserError, first_line

_SHOWN = 5  # names in a message
_LONGEST = 200  # characters of a name, or of a library's message

Arrays = dict[str, NDArray[Any]]


def write_safetensors(path: Path, values: Arrays, metadata: dict[str, str] | None = None) -> None:
    """Write a .safetensors file; OSError if it cannot be written."""
    from safetensors.numpy import save

    # The library writes an array of another order as if it had this one, and with `save_file` a
    # file that only its owner can read.
    ordered = {name: np.asarray(value, order="C") for name, value in values.items()}
    path.write_bytes(save(ordered, metadata))


def read_arrays(
    where: str,
    arrays: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: DTypeLike = np.float32,
) -> Arrays:
    """Copy the arrays of a model to memory as C-contiguous `dtype`, a floating-point type.

    Exactly the arrays of `shapes` must exist; `where` is their file or folder, for messages.
    """
    check_names(where, arrays, shapes)
    result = {}
    for name, shape in shapes.items():
        array = arrays[name]
        place = _place(where, name, array)
        if array.shape != shape or array.dtype.kind != "f":
            raise UserError(
                f"{place} has the shape {array.shape}, but must have {shape}; its numbers are "
                f"{array.dtype}, and must be floating-point."
            )
        with np.errstate(over="ignore"):
            array = np.array(array, dtype, order="C")
        result[name] = array
        if not np.isfinite(array).all():
            raise UserError(f"{place} must be finite numbers of {array.dtype}, but has inf or NaN.")
    return result


def _place(where: str, name: str, array: Any) -> str:
    """The file of a memory-mapped array, or the name of another one, for messages."""
    return str(getattr(array, "filename", f"{where}: {brief(name)}"))


def sizes(where: str, arrays: Mapping[str, Any], name: str, count: int) -> tuple[int, ...]:
    """The shape of an array; UserError unless it has `count` dimensions, none of them empty."""
    shape = tuple(arrays[name].shape)
    if len(shape) != count or min(shape) < 1:
        raise UserError(
            f"{_place(where, name, arrays[name])} has the shape {shape}, but must have {count} "
            "dimensions, each at least 1."
        )
    return shape


def check_names(where: str, actual: Collection[str], wanted: Collection[str]) -> None:
    """Raise UserError unless the names are the wanted ones; it names the first few differences."""
    wrong = []
    if missing := set(wanted) - set(actual):
        wrong.append(f"is missing {preview(missing)}")
    if unexpected := set(actual) - set(wanted):
        wrong.append(f"has the unexpected {preview(unexpected)}")
    if wrong:
        raise UserError(f"{where} {' and '.join(wrong)}.")


def preview(names: Collection[str]) -> str:
    """The first few names and the number of others, as text."""
    shown = ", ".join(map(brief, sorted(names)[:_SHOWN])) or "nothing"
    return f"{shown} and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else shown


def brief(text: str) -> str:
    """A name or a message, shortened if it is too long to show."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Turn any error of a library, which are of many types for an invalid file, into UserError."""
    if not path.is_file():  # Opening a pipe would wait for its writer.
        raise UserError(f"{path}: there is no such file; check the name and the folder.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers of Python 2, unknown pickle protocols
            yield
    except Exception as error:
        raise UserError(f"{path} {what} ({brief(first_line(error))}).") from error


def npy(path: Path) -> NDArray[Any]:
    """Memory-map a .npy file; UserError if it is missing, or is not a .npy file of numbers."""
    with _reading(path, "is not a .npy file of numbers"):
        return np.lib.format.open_memmap(path, mode="r")


def safetensors(path: Path, metadata: str) -> tuple[str | None, Arrays]:
    """Read a .safetensors file: its metadata text named `metadata`, or None, and its arrays."""
    from safetensors import safe_open

    with _reading(path, "cannot be read"), safe_open(path, "np") as file:
        text = (file.metadata() or {}).get(metadata)
        return text, {name: file.get_tensor(name) for name in list(file.keys())}
