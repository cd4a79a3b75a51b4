"""The parameters of a model as a tree and as arrays by name, and .safetensors files of arrays.

Nothing in a file is executed, no pickle is read, and the size of a file bounds the memory that it
takes: NumPy and safetensors check what a header claims.
"""

import hashlib
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mlstm_jax.errors import UserError, first_line, first_of
from mlstm_jax.model.architecture import Tree

Parameters = Tree  # of float32 arrays, as in language_model.py
Arrays = dict[str, NDArray[Any]]

_LONGEST = 200  # characters of a name, or of a library's message


def named(params: Parameters) -> dict[str, Any]:
    """The leaves of a tree of parameters by name: `layer_0/wh_v`."""
    leaves: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            leaves |= {f"{name}/{rest}": leaf for rest, leaf in named(value).items()}
        else:
            leaves[name] = value
    return leaves


def flatten(params: Parameters) -> Arrays:
    """The arrays of a tree by name, as C-contiguous float32."""
    flat = named(params)
    for name, value in flat.items():
        flat[name] = np.ascontiguousarray(value, np.float32)
    return flat


def unflatten(flat: Mapping[str, NDArray[Any]]) -> Parameters:
    """Undo `flatten`."""
    tree: dict[str, Any] = {}
    for name, array in flat.items():
        *above, last = name.split("/")
        inner = tree
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = array
    return tree


def fingerprint(params: Parameters) -> str:
    """A sha256 of all parameters and their names."""
    digest = hashlib.sha256()
    for name, array in sorted(flatten(params).items()):
        digest.update(f"{name} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write_arrays(path: Path, values: Arrays, metadata: dict[str, str] | None = None) -> None:
    """Write a .safetensors file; OSError if it cannot be written."""
    from safetensors.numpy import save

    # The library writes an array of another order as if it had this one, and with `save_file` a
    # file that only its owner can read.
    ordered = {name: np.asarray(value, order="C") for name, value in values.items()}
    path.write_bytes(save(ordered, metadata))


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn any error of a library, which are of many types for an invalid file, into UserError."""
    if not path.is_file():  # Opening a pipe would wait for its writer.
        raise UserError(f"{path}: there is no such file; check the name and the folder.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers of Python 2, unknown pickle protocols
            yield
    except Exception as error:
        raise UserError(f"{path} {what} ({_brief(first_line(error))}).") from error


def read_arrays(path: Path) -> tuple[dict[str, str], Arrays]:
    """The metadata and the arrays of a .safetensors file."""
    from safetensors import safe_open

    with reading(path, "cannot be read as .safetensors"), safe_open(path, "np") as file:
        return file.metadata() or {}, {name: file.get_tensor(name) for name in list(file.keys())}


def checked_arrays(
    where: str,
    arrays: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: DTypeLike = np.float32,
) -> Arrays:
    """Copy the arrays of a model to memory as C-contiguous `dtype`, a floating-point type.

    Exactly the arrays of `shapes` must exist. In messages `where`, such as "model.safetensors: ",
    stands before a name.
    """
    check_names(where, arrays, shapes)
    result = {}
    for name, shape in shapes.items():
        array = arrays[name]
        place = where + _brief(name)
        if array.shape != shape or array.dtype.kind != "f":
            raise UserError(
                f"{place} has the shape {array.shape}, but must have {shape}; its numbers are "
                f"{array.dtype}, and must be floating-point."
            )
        with np.errstate(over="ignore"):
            array = np.array(array, dtype, order="C")
        if not np.isfinite(array).all():
            raise UserError(f"{place} must be finite numbers of {array.dtype}, but has inf or NaN.")
        result[name] = array
    return result


def sizes(where: str, arrays: Mapping[str, Any], name: str, count: int) -> tuple[int, ...]:
    """The shape of an array; UserError unless it has `count` dimensions, none of them empty."""
    shape = tuple(arrays[name].shape)
    if len(shape) != count or min(shape) < 1:
        raise UserError(
            f"{where}{name} has the shape {shape}, but must have {count} dimensions, each at "
            "least 1."
        )
    return shape


def check_names(where: str, actual: Collection[str], wanted: Collection[str]) -> None:
    """Raise UserError, with the first few differences, unless the names are the wanted ones."""
    wrong = []
    if missing := set(wanted).difference(actual):
        wrong.append(f"is missing {_preview(missing)}")
    if unexpected := set(actual).difference(wanted):
        wrong.append(f"has the unexpected {_preview(unexpected)}")
    if wrong:
        raise UserError(f"{where}it {' and '.join(wrong)}.")


def _preview(names: Collection[str]) -> str:
    return first_of([_brief(name) for name in sorted(names)])


def _brief(text: str) -> str:
    """A name or a message, shortened if it is too long to show."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
