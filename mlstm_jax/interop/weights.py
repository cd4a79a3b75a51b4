"""A model in one file, .safetensors or .npz, that other programs can read, and back.

The arrays have the names of language_model.py, float32 and in [in, out] order: ``embedding``,
``layer_0/wmx_v``, ... Beside them is one JSON text, the metadata ``mlstm_jax`` of a .safetensors
and the uint8 array ``mlstm_jax`` of an .npz::

    {"format": 1, "model": {"hidden": 64, ...}, "cleaning": "radford", "source": "..."}

Nothing in either is executed. Equal parameters give equal bytes.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import config
from mlstm_jax.data.documents import Cleaning
from mlstm_jax.errors import KnownError, UserError
from mlstm_jax.model.language_model import VOCABULARY, Parameters

FORMAT = 1
_KEY = "mlstm_jax"

Arrays = dict[str, NDArray[np.float32]]


class Weights(NamedTuple):
    """A model and all that reading a text with it needs."""

    model: config.Model
    cleaning: Cleaning
    params: Parameters  # NumPy, float32
    source: str  # where it comes from, for people


def flatten(params: Parameters, prefix: str = "") -> Arrays:
    """Return the parameters by name, layer_0/wx_v and so on."""
    arrays: Arrays = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            arrays |= flatten(value, f"{prefix}{name}/")
        else:
            arrays[f"{prefix}{name}"] = np.ascontiguousarray(value, np.float32)
    return arrays


def unflatten(arrays: Mapping[str, NDArray[Any]]) -> Parameters:
    """Undo `flatten`."""
    params: dict[str, Any] = {}
    for name, value in arrays.items():
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
    hidden = model.hidden
    shapes: dict[str, tuple[int, ...]] = {"embedding": (VOCABULARY, model.embedding)}
    for layer in range(model.layers):
        inputs = hidden if layer else model.embedding
        for name, rows, columns in (
            ("wmx", inputs, hidden),
            ("wmh", hidden, hidden),
            ("wx", inputs, 4 * hidden),
            ("wh", hidden, 4 * hidden),
        ):
            shapes[f"layer_{layer}/{name}_v"] = (rows, columns)
            shapes[f"layer_{layer}/{name}_g"] = (columns,)
        shapes[f"layer_{layer}/b"] = (4 * hidden,)
    shapes |= {"decoder_kernel": (hidden, VOCABULARY), "decoder_bias": (VOCABULARY,)}
    width = model.classes or int(model.rating_head)
    if width:
        shapes |= {"label_kernel": (hidden, width), "label_bias": (width,)}
    return shapes


def save(path: Path, weights: Weights) -> None:
    """Write a file of the kind that its name says, whole or not at all.

    Raises:
        UserError: it is neither .safetensors nor .npz.
        KnownError: it cannot be written.
    """
    arrays = flatten(weights.params)
    arrays = {name: arrays[name] for name in sorted(arrays)}
    fields = {
        "format": FORMAT,
        "model": dataclasses.asdict(weights.model),
        "cleaning": weights.cleaning,
        "source": weights.source,
    }
    text = json.dumps(fields, sort_keys=True)
    partial = path.with_name(f"{path.name}.partial")
    try:
        if path.suffix == ".safetensors":
            from safetensors.numpy import save_file

            save_file(arrays, partial, metadata={_KEY: text})
        elif path.suffix == ".npz":
            with partial.open("wb") as file:
                about = np.frombuffer(text.encode(), np.uint8)
                np.savez(file, allow_pickle=False, **{_KEY: about}, **arrays)
        else:
            raise UserError(f"{path}: a model is written as .safetensors or .npz; name it so.")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise KnownError(f"{path}: cannot be written: {error.strerror or error}") from error


def load(path: Path) -> Weights:
    """Read a file that `save` wrote, checking every name and shape.

    Raises UserError that says what is wrong with which array.
    """
    text, arrays = _read(path)
    try:
        fields = json.loads(text)
        if fields["format"] != FORMAT:
            raise UserError(
                f"{path}: is of format {fields['format']!r}, but this program reads {FORMAT}."
            )
        model = config.Model(**fields["model"])
        cleaning, source = fields["cleaning"], str(fields["source"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: its metadata are not whole ({error}).") from error
    if cleaning not in get_args(Cleaning):
        raise UserError(f"{path}: cleaning {cleaning!r} is not one of {get_args(Cleaning)}.")
    check(str(path), arrays, expected_shapes(model))
    return Weights(model, cleaning, unflatten(arrays), source)


def check(
    where: str, arrays: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise UserError unless the arrays are these, finite and of these shapes."""
    missing, extra = sorted(shapes.keys() - arrays.keys()), sorted(arrays.keys() - shapes.keys())
    if missing or extra:
        raise UserError(
            f"{where}: "
            + "; ".join(
                f"{what} {', '.join(names)}"
                for what, names in (("lacks", missing), ("has the unknown", extra))
                if names
            )
            + "."
        )
    for name, shape in shapes.items():
        require(f"{where}: {name}", arrays[name], shape)


def require(where: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raise UserError unless an array is of a shape and of finite floating numbers."""
    if array.shape != shape:
        raise UserError(f"{where} has the shape {array.shape}, but must have {shape}.")
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise UserError(f"{where} must be finite floating-point numbers, not {array.dtype}.")


def read_npy(path: Path) -> NDArray[Any]:
    """Read one .npy file of numbers; a pickle in it is refused."""
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; the folder must hold all files.") from None
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: is not a .npy file of numbers ({error}).") from error


def _read(path: Path) -> tuple[str, Arrays]:
    try:
        if path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, "np") as file:
                text = (file.metadata() or {}).get(_KEY)
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            about = arrays.pop(_KEY, None)
            text = None if about is None else about.astype(np.uint8).tobytes().decode()
        else:
            raise UserError(f"{path}: a model is a .safetensors or an .npz file.")
    except UserError:
        raise
    except Exception as error:  # each library has its own errors for a file that is none of its
        raise UserError(f"{path}: cannot be read ({error}).") from error
    if text is None:
        raise UserError(
            f"{path}: holds no {_KEY!r} metadata, so it is not a model of this program."
        )
    return text, arrays
