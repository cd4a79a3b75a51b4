"""Write and read a model as one .safetensors file, which other programs can read; OpenAI's model.

The arrays have the names of language_model.py and of the layers, are float32 or float16 and
[in, out]: ``embedding``, ``layer_0/wmx_v``, ... A matrix V of a weight normalisation can be int8:
W = g V / |V| needs no scale of its columns. One JSON text describes them, the metadata
``mlstm_jax`` of the file::

    {"format": 1, "model": {"hidden": 64, ...}, "cleaning": "radford", "source": "...",
     "fingerprint": a sha256 of all arrays as float32; optional,
     "first_start": that of the parameters with which training began; optional,
     "crc32": of the rest of this text, see digest.py; optional}

Nothing in the file is executed, no pickle is read, and the size of a file bounds the memory that it
takes: NumPy and safetensors check what a header claims. Equal parameters give equal bytes.
"""

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mlstm_jax import digest, fields, output
from mlstm_jax.errors import UserError, first_line, first_of, require
from mlstm_jax.fields import Between
from mlstm_jax.model.architecture import Architecture, Tree
from mlstm_jax.options import Cleaning, renamed

FORMAT = 1
KEY = "mlstm_jax"  # of the metadata

Parameters = Tree  # of float32 arrays, as in language_model.py
Arrays = dict[str, NDArray[Any]]

_LONGEST = 200  # characters of a name, or of a library's message

# Ours, in the order of OpenAI's files, 0.npy to 14.npy; Wh is four files, a quarter of the columns
# each.
_OPENAI = (
    "embedding",
    "layer_0/wx_v",
    *["layer_0/wh_v"] * 4,
    "layer_0/wmx_v",
    "layer_0/wmh_v",
    "layer_0/b",
    "layer_0/wx_g",
    "layer_0/wh_g",
    "layer_0/wmx_g",
    "layer_0/wmh_g",
    "decoder_kernel",
    "decoder_bias",
)


class ModelWeights(NamedTuple):
    """A model and everything needed to read a text with it."""

    architecture: Architecture
    cleaning: Cleaning
    params: Parameters  # NumPy, float32
    source: str  # where it comes from; only shown
    first_start: str | None = None  # a fingerprint of the parameters with which training began


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
def _reading(path: Path, what: str) -> Iterator[None]:
    """Turn any error of a library, which are of many types for an invalid file, into UserError."""
    if not path.is_file():  # Opening a pipe would wait for its writer.
        raise UserError(f"{path}: there is no such file; check the name and the folder.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers of Python 2, unknown pickle protocols
            yield
    except Exception as error:
        raise UserError(f"{path} {what} ({_brief(first_line(error))}).") from error


def read_safetensors(path: Path) -> tuple[str | None, Arrays]:
    """Our metadata text in a .safetensors file, or None, and the arrays."""
    from safetensors import safe_open

    with _reading(path, "cannot be read as .safetensors"), safe_open(path, "np") as file:
        text = (file.metadata() or {}).get(KEY)
        return text, {name: file.get_tensor(name) for name in list(file.keys())}


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


def to_int8(flat: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays of a file: each V as int8, at most 127 in a column, the rest as float16."""
    stored = {}
    for name, array in flat.items():
        if not name.endswith("_v"):
            stored[name] = _to_half(name, array)
            continue
        largest_O = np.maximum(np.abs(array.astype(np.float64)).max(axis=0), np.finfo(float).tiny)
        stored[name] = np.rint(array * (127 / largest_O)).astype(np.int8)
    if not any(name.endswith("_v") for name in flat):
        raise UserError("int8 is for models with weight normalisation; export float16.")
    return stored


def from_int8(stored: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays with each V of int8 as float32: of the size of W, as training starts.

    The sums are of whole numbers, and the operations in float64 are the ones that IEEE 754 rounds
    correctly, so each processor has the same bits.
    """
    flat = dict(stored)
    for name, array in stored.items():
        gains = f"{name[:-1]}g"
        if array.dtype != np.int8 or not name.endswith("_v") or gains not in stored:
            continue
        squares_O = np.square(array, dtype=np.int64).sum(axis=0)
        size_O = np.abs(stored[gains].astype(np.float64))
        size_O[size_O == 0] = 1
        scale_O = size_O / np.sqrt(np.maximum(squares_O, 1))
        flat[name] = (array * scale_O).astype(np.float32)
    return flat


def equal(arrays_: Mapping[str, NDArray[Any]], others: Arrays) -> bool:
    """Whether the arrays are the others, as float32."""
    return all(np.array_equal(arrays_[name].astype(np.float32), others[name]) for name in others)


def _to_half(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """The array as float16; UserError if a value is too large."""
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    if (np.isinf(half) & ~np.isinf(array)).any():
        raise UserError(f"{name} has values too large for float16; export float32.")
    return half


def expected_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of a model, by name."""
    from mlstm_jax.model.language_model import parameter_shapes  # imports JAX

    return {name: leaf.shape for name, leaf in named(parameter_shapes(architecture)).items()}


def save(path: Path, weights: ModelWeights, dtype: str = "float32") -> None:
    """Write a model file atomically, as float32, float16 or int8; UserError if that cannot be."""
    wanted = "float32, float16 or int8 of a .safetensors"
    require(dtype in ("float32", "float16", "int8"), "dtype", dtype, wanted)
    flat = dict(sorted(flatten(weights.params).items()))
    if dtype == "int8":
        flat = to_int8(flat)
    elif dtype == "float16":
        flat = {name: _to_half(name, array) for name, array in flat.items()}
    before = fingerprint(weights.params)
    now = fingerprint(unflatten(from_int8(flat)))
    about = {
        "format": FORMAT,
        "model": dataclasses.asdict(weights.architecture),
        "cleaning": weights.cleaning,
        "source": weights.source,
        "fingerprint": now,
    }
    if weights.first_start:
        about["first_start"] = weights.first_start
    elif before != now:  # Rounded parameters have read the same texts.
        about["first_start"] = before
    text = json.dumps(digest.sealed(about), sort_keys=True)
    with output.atomic_file(path) as partial:
        write_arrays(partial, flat, {KEY: text})


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Metadata:
    format: Annotated[int, Between(FORMAT, FORMAT)]
    model: Architecture
    cleaning: Cleaning
    source: str
    fingerprint: str | None = None  # other programs may omit it
    first_start: str | None = None


def load_weights(path: Path) -> ModelWeights:
    """Read a file of this format; a UserError names the array or field that is wrong."""
    text, stored = read_safetensors(path)
    if text is None:
        raise UserError(f"{path} has no {KEY!r} metadata, so it is not a model of this program.")
    with fields.named(f"{path}: its metadata are invalid"):
        about = fields.build(_Metadata, metadata(text))
    flat = from_int8(stored)
    params = unflatten(checked_arrays(f"{path}: ", flat, expected_shapes(about.model)))
    if about.fingerprint not in (None, fingerprint(params)):
        raise UserError(
            f"{path}: its arrays do not match its fingerprint, so they changed after it was "
            "written; copy it again from its source."
        )
    return ModelWeights(about.model, about.cleaning, params, about.source, about.first_start)


def metadata(text: str) -> dict[str, Any]:
    """The metadata in a file, with the names that fields have now.

    InvalidField if they are no object, or do not match a checksum.
    """
    values = fields.parse(text)
    if not isinstance(values, dict) or digest.FIELD in values:  # other programs may omit it
        values = digest.verified(values)
    model = values.get("model")
    if isinstance(model, dict) and model.get("binary_labels") == 0:
        del model["binary_labels"]  # the head of earlier versions, which this model lacks
    return renamed(values)


def read_openai(folder: Path) -> ModelWeights:
    """Read the model of generating-reviews-discovering-sentiment (Radford et al. 2017).

    It has our cell, in .npy files with other names: matrices are [in, out], gates are in the order
    i, f, o, u, and W = g · V / ‖V‖ over columns. UserError names a file that is missing or differs.
    """
    from mlstm_jax.config import Model

    where = f"{folder}/"
    files = {}
    parameters = {}
    for number, parameter in enumerate(_OPENAI):
        path = folder / f"{number}.npy"
        parameters[path.name] = parameter
        with _reading(path, "is not a .npy file of numbers"):
            files[path.name] = np.lib.format.open_memmap(path, mode="r")
    # These two files give the sizes that all others must match.
    _, width = sizes(where, files, "0.npy", 2)
    (hidden,) = sizes(where, files, "12.npy", 1)
    architecture = Model(hidden=hidden, embedding=width)
    of_model = expected_shapes(architecture) | {"layer_0/wh_v": (hidden, hidden)}
    shapes = {name: of_model[parameter] for name, parameter in parameters.items()}
    values = checked_arrays(where, files, shapes)
    flat = {parameters[name]: array for name, array in values.items()}
    flat["layer_0/wh_v"] = np.concatenate(list(values.values())[2:6], axis=1)
    source = "openai/generating-reviews-discovering-sentiment"
    return ModelWeights(architecture, "radford", unflatten(flat), source)
