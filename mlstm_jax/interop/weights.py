"""A model in one file, .safetensors or .npz, that other programs can read, and back.

The arrays have the names of language_model.py, float32 and in [in, out] order: ``embedding``,
``layer_0/wmx_v``, ... Beside them is one JSON text, the metadata ``mlstm_jax`` of a .safetensors
and the uint8 array ``mlstm_jax`` of an .npz::

    {"format": 1, "model": {"hidden": 64, ...}, "cleaning": "radford", "source": "...",
     "fingerprint": a sha256 of all arrays; may be left out}

Nothing in either is executed. Equal parameters give equal bytes.
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

from mlstm_jax import config, fields, output
from mlstm_jax.data.documents import Cleaning
from mlstm_jax.errors import UserError
from mlstm_jax.interop import arrays, numpy_files
from mlstm_jax.model.language_model import Parameters, parameter_shapes

FORMAT = 1
_KEY = "mlstm_jax"

Arrays = dict[str, NDArray[np.float32]]


class ModelWeights(NamedTuple):
    """A model and all that reading a text with it needs."""

    model: config.Model
    cleaning: Cleaning
    params: Parameters  # NumPy, float32
    source: str  # where it comes from, for people
    notes: tuple[str, ...] = ()  # on what was not taken over, for people


def named(params: Parameters, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a tree of parameters by name: `layer_0/wh_v`."""
    flat: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            flat |= named(value, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def flatten(params: Parameters) -> Arrays:
    """Return a tree's arrays by name, as C-contiguous float32."""
    leaves = named(params).items()
    return {name: np.ascontiguousarray(value, np.float32) for name, value in leaves}


def unflatten(flat: Mapping[str, NDArray[Any]]) -> Parameters:
    """Undo `flatten`."""
    params: dict[str, Any] = {}
    for name, value in flat.items():
        *folders, leaf = name.split("/")
        tree = params
        for folder in folders:
            tree = tree.setdefault(folder, {})
        tree[leaf] = value
    return params


def fingerprint(params: Parameters) -> str:
    """Return a sha256 of all parameters and their names."""
    digest = hashlib.sha256()
    for name, array in sorted(flatten(params).items()):
        digest.update(f"{name} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def expected_shapes(model: config.Model) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of a model, by name."""
    return {name: leaf.shape for name, leaf in named(parameter_shapes(model)).items()}


def save(path: Path, weights: ModelWeights) -> None:
    """Write a file of the kind that its name says, whole or not at all.

    Raises:
        UserError: it is neither .safetensors nor .npz.
        KnownError: it cannot be written.
    """
    flat = dict(sorted(flatten(weights.params).items()))
    about = {
        "format": FORMAT,
        "model": dataclasses.asdict(weights.model),
        "cleaning": weights.cleaning,
        "source": weights.source,
        "fingerprint": fingerprint(weights.params),
    }
    text = json.dumps(about, sort_keys=True)
    if path.suffix not in (".safetensors", ".npz"):
        raise UserError(f"{path}: a model is written as .safetensors or .npz; name it so.")
    with output.write_errors(path), output.atomic_file(path) as partial:
        if path.suffix == ".safetensors":
            arrays.write_safetensors(partial, flat, {_KEY: text})
        else:
            with partial.open("wb") as file:
                as_bytes = np.frombuffer(text.encode(), np.uint8)
                np.savez(file, allow_pickle=False, **{_KEY: as_bytes}, **flat)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _About:
    """The metadata of a file."""

    format: int
    model: config.Model
    cleaning: Cleaning
    source: str
    fingerprint: str | None = None  # another program may leave it out


def load_weights(path: Path) -> ModelWeights:
    """Read a file that `save` wrote, or another program in its format.

    Names, types and shapes of all arrays are checked before any is read.

    Raises UserError that says which array or which field of the metadata is wrong.
    """
    kinds = {".safetensors": arrays.safetensors, ".npz": numpy_files.npz}
    if path.suffix not in kinds:
        raise UserError(f"{path}: a model is a .safetensors or an .npz file.")
    with kinds[path.suffix](path, _KEY) as (text, found):
        if text is None:
            raise UserError(
                f"{path}: holds no {_KEY!r} metadata, so it is not a model of this program."
            )
        about = _about(path, text)
        params = unflatten(arrays.read_arrays(str(path), found, expected_shapes(about.model)))
    if about.fingerprint not in (None, fingerprint(params)):
        raise UserError(
            f"{path}: its arrays are not those that were written, by their fingerprint; copy it "
            "again from where it came."
        )
    return ModelWeights(about.model, about.cleaning, params, about.source)


def _about(path: Path, text: str) -> _About:
    try:
        values = fields.parse(text)
        version = values.get("format") if isinstance(values, dict) else None
        if version is not None and version != FORMAT:
            raise UserError(
                f"{path}: is of format {reprlib.repr(version)}, but this program reads {FORMAT}."
            )
        return fields.build(_About, values)
    except fields.Wrong as error:
        raise UserError(f"{path}: its metadata are not whole ({error}).") from error
