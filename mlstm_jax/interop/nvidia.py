"""NVIDIA's sentiment-discovery: a state_dict, loaded by torch without executing its contents.

The dict is nested: encoder/encoder, encoder/rnn/rnns.K and decoder. Its matrices are [out, in]; its
gates are in PyTorch's order i, f, g, o, with two biases that are added. Weight-normalised tensors
have ``_g`` and ``_v`` (a row of [out, in] is a column of ours); others are already the product.
With a padding token, row 0 of embedding and decoder is the token, and byte b has row b + 1.
"""

import math
import re
import warnings
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import config
from mlstm_jax.errors import UserError
from mlstm_jax.interop import arrays
from mlstm_jax.interop.arrays import Array
from mlstm_jax.interop.weights import ModelWeights
from mlstm_jax.model.language_model import VOCABULARY

# Ours, theirs.
_MATRICES = (("wx", "w_ih"), ("wh", "w_hh"), ("wmx", "w_mih"), ("wmh", "w_mhh"))


def read_nvidia(path: Path) -> ModelWeights:
    """Read a .pt file; a UserError names the tensor that is missing or has another shape."""
    stored = _load(path)
    wanted = _Wanted(path, stored)
    vocabulary, width = wanted.find("encoder.encoder.weight", "encoder.weight").sizes(2)
    if vocabulary not in (VOCABULARY, VOCABULARY + 1):
        raise UserError(
            f"{path}: encoder.weight has {vocabulary:,} rows, but must have 256, or 257 with a "
            "padding token; a model of subword tokens cannot be imported."
        )
    _, hidden = wanted.find("decoder.weight").sizes(2)
    wanted.add("embedding", (vocabulary, width), "encoder.encoder.weight", "encoder.weight")
    wanted.add("decoder", (vocabulary, hidden), "decoder.weight")
    wanted.add("bias", (vocabulary,), "decoder.bias")
    numbers = [re.search(r"\brnns\.([0-9]+)\.", name) for name in stored]
    layers = arrays.count_layers(str(path), {match[1] for match in numbers if match})
    if not layers:
        raise UserError(
            f"{path}: has no rnns.0, the first mLSTM layer; its tensors are "
            f"{arrays.preview(stored)}."
        )
    for layer in range(layers):
        _add_layer(wanted, layer, hidden if layer else width, hidden)
    tensors = wanted.read()
    padding = vocabulary - VOCABULARY
    params: dict[str, Any] = {
        "embedding": tensors["embedding"][padding:],
        "decoder_kernel": np.ascontiguousarray(tensors["decoder"][padding:].T),
        "decoder_bias": tensors["bias"][padding:],
    }
    for layer in range(layers):
        params[f"layer_{layer}"] = _layer(path, tensors, layer, hidden)
    model = config.Model(hidden=hidden, embedding=width, layers=layers)
    return ModelWeights(model, "radford", params, "NVIDIA/sentiment-discovery")


def _add_layer(wanted: "_Wanted", layer: int, inputs: int, hidden: int) -> None:
    for ours, theirs in _MATRICES:
        rows = 4 * hidden if ours in ("wx", "wh") else hidden
        columns = inputs if ours in ("wx", "wmx") else hidden
        name = f"rnns.{layer}.{theirs}"
        if wanted.has(name):  # already the product
            wanted.add(f"{layer}/{ours}", (rows, columns), name)
            continue
        wanted.add(f"{layer}/{ours}_v", (rows, columns), f"{name}_v")
        # Some versions of PyTorch leave the second dimension out.
        flat = len(wanted.find(f"{name}_g").shape) == 1
        wanted.add(f"{layer}/{ours}_g", (rows,) if flat else (rows, 1), f"{name}_g")
    for name in ("b_ih", "b_hh"):
        if wanted.has(f"rnns.{layer}.{name}"):
            wanted.add(f"{layer}/{name}", (4 * hidden,), f"rnns.{layer}.{name}")


def _layer(
    path: Path, tensors: Mapping[str, NDArray[np.float32]], layer: int, hidden: int
) -> dict[str, NDArray[np.float32]]:
    parameters = {}
    for ours, theirs in _MATRICES:
        folded = tensors.get(f"{layer}/{ours}")
        if folded is not None:
            v_OI, g_O = folded, _checked(path, f"rnns.{layer}.{theirs}", _norms(folded))
        else:
            v_OI, g_O = tensors[f"{layer}/{ours}_v"], tensors[f"{layer}/{ours}_g"].reshape(-1)
        if ours in ("wx", "wh"):
            v_OI, g_O = _reorder(v_OI), _reorder(g_O)
        parameters[f"{ours}_v"], parameters[f"{ours}_g"] = np.ascontiguousarray(v_OI.T), g_O
    b_G = np.zeros(4 * hidden)
    for name in ("b_ih", "b_hh"):
        b_G += tensors.get(f"{layer}/{name}", 0.0)
    parameters["b"] = _reorder(_checked(path, f"rnns.{layer}.b_ih", b_G))
    return parameters


def _norms(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the L2 norm of each row; in float32 the squares of large values would overflow."""
    return np.linalg.norm(rows.astype(np.float64), axis=1)


def _checked(path: Path, name: str, values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return computed values as float32; UserError if they overflow."""
    with np.errstate(over="ignore"):
        small = values.astype(np.float32)
    arrays.require_finite(f"{path}: what is computed from {name}", small)
    return small


def _reorder(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Reorder the gates from i, f, g, o to i, f, o, u; g is u."""
    i, f, g, o = np.split(rows, 4)
    return np.concatenate([i, f, o, g])


class _Wanted:
    """The tensors to read from a file, by our names; theirs are found by the end of the name."""

    def __init__(self, path: Path, stored: Mapping[str, Array]) -> None:
        self._path, self._stored = path, stored
        self._arrays: dict[str, Array] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def _named(self, end: str) -> Array | None:
        names = [name for name in self._stored if name == end or name.endswith("." + end)]
        return self._stored[min(names, key=len)] if names else None

    def has(self, end: str) -> bool:
        return self._named(end) is not None

    def find(self, *ends: str) -> Array:
        """Return the tensor of the first of these names that exists; UserError if none does."""
        for end in ends:
            array = self._named(end)
            if array is not None:
                return array
        raise UserError(f"{self._path}: has no {ends[0]}; it has {arrays.preview(self._stored)}.")

    def add(self, name: str, shape: tuple[int, ...], *ends: str) -> None:
        self._arrays[name], self._shapes[name] = self.find(*ends), shape

    def read(self) -> dict[str, NDArray[np.float32]]:
        """Read all tensors that were added; a UserError names the one that is wrong."""
        values = sum(math.prod(shape) for shape in self._shapes.values())
        arrays.reject_zip_bomb(self._path, 4 * values)
        return arrays.read_arrays(str(self._path), self._arrays, self._shapes)


def _load(path: Path) -> dict[str, Array]:
    try:
        import torch
    except ImportError as error:
        raise UserError(
            "reading a .pt file needs PyTorch; its CPU build is enough: pip install "
            "'mlstm-jax[torch]'"
        ) from error
    if not path.is_file():
        raise UserError(f"{path}: the file does not exist.")
    try:
        with path.open("rb") as file:
            is_zip = file.read(4) == b"PK\x03\x04"  # the test that torch uses
        if is_zip:
            with arrays.open_zip(path):
                pass  # opening it checks it
        # weights_only: only tensors and plain containers; nothing in the file is executed.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about an unknown version of pickle
            content = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as error:  # torch raises many types, and the file may be anything
        raise UserError(
            f"{path}: is not a file of tensors only ({arrays.reason(error)}). Save only the "
            "model's state_dict() where it was trained, and import that file."
        ) from error
    stored: dict[str, Array] = {}
    # A loop with a count, not recursion: dicts may contain each other, or one a thousand times.
    waiting, seen = [("", content)], 0
    while waiting:
        prefix, value = waiting.pop()
        seen += 1
        arrays.require_count(path, seen)
        if isinstance(value, Mapping):
            waiting += [
                (f"{prefix}.{name}" if prefix else str(name), value[name])
                for name in islice(value, arrays.MOST_ARRAYS)
            ]
        elif isinstance(value, torch.Tensor):
            stored[prefix] = _array(f"{path}: {arrays.brief(prefix)}", value)
    return stored


def _array(where: str, tensor: Any) -> Array:
    import torch

    is_plain = (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.is_floating_point()
        # A tensor that repeats a few values would expand to the full size of its shape.
        and tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
    )
    return Array(
        where,
        tuple(tensor.shape),
        f"a tensor of {tensor.dtype}, {tensor.layout}" if not is_plain else str(tensor.dtype),
        is_plain,
        lambda: tensor.detach().to(torch.float32).numpy(),
    )
