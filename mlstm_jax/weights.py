"""Write and read a model as one .safetensors file, which other programs can read.

The arrays have the names of language_model.py and of the layers, are float32 or float16 and
[in, out]: ``embedding``, ``layer_0/wmx_v``, ... A matrix V of a weight normalisation can be int8:
W = g V / |V| needs no scale of its columns. One JSON text describes them, the metadata
``mlstm_jax`` of the file::

    {"format": 1, "model": {"hidden": 64, ...}, "cleaning": "radford", "source": "...",
     "fingerprint": a sha256 of all arrays as float32; optional,
     "first_start": the fingerprint of the parameters with which training began; optional,
     "crc32": of the rest of this text, see digest.py; optional}

Equal parameters give equal bytes.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import digest, fields, output
from mlstm_jax.arrays import (
    Arrays,
    Parameters,
    checked_arrays,
    fingerprint,
    flatten,
    named,
    read_arrays,
    unflatten,
    write_arrays,
)
from mlstm_jax.errors import UserError, require
from mlstm_jax.fields import Between
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.options import Cleaning, renamed

FORMAT = 1
KEY = "mlstm_jax"  # of the metadata


class ModelWeights(NamedTuple):
    """A model and everything needed to read a text with it."""

    architecture: Architecture
    cleaning: Cleaning
    params: Parameters  # NumPy, float32
    source: str  # where it comes from; only shown
    first_start: str | None = None  # a fingerprint of the parameters with which training began


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
    file_metadata, stored = read_arrays(path)
    if KEY not in file_metadata:
        raise UserError(f"{path} has no {KEY!r} metadata, so it is not a model of this program.")
    with fields.named(f"{path}: its metadata are invalid"):
        about = fields.build(_Metadata, metadata(file_metadata[KEY]))
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
