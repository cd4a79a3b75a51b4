"""Write and read a model as one .safetensors file, which other programs can read.

The arrays have the names of language_model.py and of the layers, are float32 or float16 and
[in, out]: ``embedding``, ``layer_0/wmx_v``, ... One JSON text describes them, the metadata
``mlstm_jax`` of the file::

    {"format": 1, "model": {"hidden": 64, ...}, "cleaning": "radford", "source": "...",
     "fingerprint": a sha256 of all arrays as float32; optional,
     "crc32": of the rest of this text, see digest.py; optional}

Nothing in the file is executed. Equal parameters give equal bytes.
"""

import dataclasses
import hashlib
import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import digest, fields, output
from mlstm_jax.data.corpus import Cleaning
from mlstm_jax.errors import UserError, require
from mlstm_jax.interop import arrays
from mlstm_jax.interop.arrays import Arrays
from mlstm_jax.model.architecture import Architecture, Tree

FORMAT = 1
KEY = "mlstm_jax"  # of the metadata

Parameters = Tree  # of float32 arrays, as in language_model.py


class ModelWeights(NamedTuple):
    """A model and everything needed to read a text with it."""

    model: Architecture
    cleaning: Cleaning
    params: Parameters  # NumPy, float32
    source: str  # where it comes from; only shown


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


def expected_shapes(model: Architecture) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of a model, by name."""
    from mlstm_jax.model.language_model import parameter_shapes  # imports JAX

    return {name: leaf.shape for name, leaf in named(parameter_shapes(model)).items()}


def save(path: Path, weights: ModelWeights, dtype: str = "float32") -> None:
    """Write a model file atomically; float16 halves the file, and rounds the arrays to 11 bits.

    Raises UserError if the dtype is another, or a value is too large for float16, and KnownError if
    the file cannot be written.
    """
    require(dtype in ("float32", "float16"), "dtype", dtype, "float32 or float16 of a .safetensors")
    flat = dict(sorted(flatten(weights.params).items()))
    for name, array in flat.items():
        with np.errstate(over="ignore"):
            flat[name] = array.astype(dtype)
        if (np.isinf(flat[name]) & ~np.isinf(array)).any():
            raise UserError(f"{name} has values too large for {dtype}; export float32.")
    about = {
        "format": FORMAT,
        "model": dataclasses.asdict(weights.model),
        "cleaning": weights.cleaning,
        "source": weights.source,
        "fingerprint": fingerprint(unflatten(flat)),
    }
    text = json.dumps(digest.sealed(about), sort_keys=True)
    with output.atomic_file(path) as partial:
        arrays.write_safetensors(partial, flat, {KEY: text})


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Metadata:
    """The metadata of a file."""

    format: int
    model: Architecture
    cleaning: Cleaning
    source: str
    fingerprint: str | None = None  # other programs may omit it


def load_weights(path: Path) -> ModelWeights:
    """Read a file that `save` or another program wrote in this format.

    Raises a UserError that names the array or the field of the metadata that is wrong.
    """
    if path.suffix != ".safetensors":
        raise UserError(f"{path}: a model file must be a .safetensors that `export` wrote.")
    text, stored = arrays.safetensors(path, KEY)
    if text is None:
        raise UserError(f"{path}: has no {KEY!r} metadata, so it is not a model of this program.")
    about = _about(path, text)
    params = unflatten(arrays.read_arrays(str(path), stored, expected_shapes(about.model)))
    if about.fingerprint not in (None, fingerprint(params)):
        raise UserError(
            f"{path}: its arrays do not match its fingerprint, so they changed after it was "
            "written; copy it again from its source."
        )
    return ModelWeights(about.model, about.cleaning, params, about.source)


def _about(path: Path, text: str) -> _Metadata:
    # Here: NumPy's reader imports this file, and no config.
    from mlstm_jax.config import renamed

    try:
        values = fields.parse(text)
        given = values if isinstance(values, dict) else {}
        version = given.get("format", FORMAT)
        if version != FORMAT:
            raise UserError(
                f"{path}: has format {reprlib.repr(version)}, but this program reads {FORMAT}."
            )
        if digest.FIELD in given:  # other programs may omit it
            values = digest.opened(given)
        model = given.get("model")
        if isinstance(model, dict) and model.get("binary_labels") == 0:
            del model["binary_labels"]  # the head of earlier versions, which this model lacks
        if isinstance(values, dict):
            values = renamed(values)
        return fields.build(_Metadata, values)
    except fields.InvalidField as error:
        raise UserError(f"{path}: its metadata are invalid ({error}).") from error
