"""NVIDIA's sentiment-discovery: a state_dict, loaded by torch without executing what is in it.

The dict is nested, encoder/encoder, encoder/rnn/rnns.K and decoder. Its matrices are [out, in], its
gates in PyTorch's order i, f, g, o with two biases that are added; weight-normalised tensors have
``_g`` and ``_v`` (a row of [out, in] is a column of ours), others are the product already. With a
padding token, row 0 of embedding and decoder is that, and byte b has row b + 1.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import config
from mlstm_jax.errors import UserError
from mlstm_jax.interop.weights import Weights, require
from mlstm_jax.model.language_model import VOCABULARY

# Ours, theirs.
_MATRICES = (("wx", "w_ih"), ("wh", "w_hh"), ("wmx", "w_mih"), ("wmh", "w_mhh"))


def read(path: Path) -> Weights:
    """Read a .pt file; UserError names the tensor that is missing or of another shape."""
    found = _load(path)
    tensors = _Tensors(path, found)
    embedding = tensors.take("encoder.encoder.weight", "encoder.weight")
    decoder = tensors.take("decoder.weight")
    vocabulary = embedding.shape[0]
    if embedding.ndim != 2 or vocabulary not in (VOCABULARY, VOCABULARY + 1):
        raise UserError(
            f"{path}: encoder.weight has the shape {embedding.shape}, but must have 256 rows, or "
            "257 with a padding token; a model of word pieces cannot be imported."
        )
    width = embedding.shape[1]
    hidden = decoder.shape[1] if decoder.ndim == 2 else 0
    require(f"{path}: decoder.weight", decoder, (vocabulary, hidden))
    bias = tensors.take("decoder.bias")
    require(f"{path}: decoder.bias", bias, (vocabulary,))
    names = [re.search(r"\brnns\.(\d+)\.", name) for name in found]
    layers = 1 + max((int(match[1]) for match in names if match), default=-1)
    if not layers:
        raise UserError(f"{path}: holds no rnns.0 of an mLSTM; its tensors are {sorted(found)}.")
    padding = vocabulary - VOCABULARY
    params: dict[str, Any] = {
        "embedding": embedding[padding:],
        "decoder_kernel": np.ascontiguousarray(decoder[padding:].T),
        "decoder_bias": bias[padding:],
    }
    for layer in range(layers):
        inputs = hidden if layer else width
        params[f"layer_{layer}"] = _layer(tensors, layer, inputs, hidden)
    model = config.Model(hidden=hidden, embedding=width, layers=layers)
    return Weights(model, "radford", params, "NVIDIA/sentiment-discovery")


def _layer(
    tensors: "_Tensors", layer: int, inputs: int, hidden: int
) -> dict[str, NDArray[np.float32]]:
    made = {}
    for ours, theirs in _MATRICES:
        rows = 4 * hidden if ours in ("wx", "wh") else hidden
        columns = inputs if ours in ("wx", "wmx") else hidden
        v_OI, g_O = tensors.normalised(f"rnns.{layer}.{theirs}", (rows, columns))
        if rows == 4 * hidden:
            v_OI, g_O = _reorder(v_OI), _reorder(g_O)
        made[f"{ours}_v"], made[f"{ours}_g"] = np.ascontiguousarray(v_OI.T), g_O
    biases = [tensors.optional(f"rnns.{layer}.{name}", (4 * hidden,)) for name in ("b_ih", "b_hh")]
    given = [bias for bias in biases if bias is not None]
    made["b"] = _reorder(np.sum(given, axis=0)) if given else np.zeros(4 * hidden, np.float32)
    return made


def _reorder(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Turn i, f, g, o into i, f, o, u; g is u."""
    i, f, g, o = np.split(rows, 4)
    return np.concatenate([i, f, o, g])


class _Tensors:
    """The tensors of a file by their dotted names; one is found by the end of its name."""

    def __init__(self, path: Path, found: Mapping[str, NDArray[np.float32]]) -> None:
        self._path, self._found = path, found

    def _find(self, end: str) -> NDArray[np.float32] | None:
        names = [name for name in self._found if name == end or name.endswith("." + end)]
        return self._found[min(names, key=len)] if names else None

    def take(self, *ends: str) -> NDArray[np.float32]:
        for end in ends:
            array = self._find(end)
            if array is not None:
                return array
        raise UserError(
            f"{self._path}: lacks {ends[0]}; it has {', '.join(sorted(self._found)) or 'nothing'}."
        )

    def optional(self, end: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        array = self._find(end)
        if array is not None:
            require(f"{self._path}: {end}", array, shape)
        return array

    def normalised(
        self, end: str, shape: tuple[int, int]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return V and the gain of each row, of a tensor that is normalised or folded."""
        folded = self._find(end)
        if folded is not None:
            require(f"{self._path}: {end}", folded, shape)
            return folded, np.linalg.norm(folded, axis=1)
        v, g = self.take(f"{end}_v"), self.take(f"{end}_g")
        require(f"{self._path}: {end}_v", v, shape)
        require(f"{self._path}: {end}_g", g.reshape(-1), shape[:1])
        return v, g.reshape(-1)


def _load(path: Path) -> dict[str, NDArray[np.float32]]:
    try:
        import torch
    except ImportError as error:
        raise UserError(
            "a .pt file is read by PyTorch, of which the CPU build is enough: pip install "
            "-e '.[torch]'"
        ) from error
    if not path.is_file():
        raise UserError(f"{path}: there is no such file.")
    try:
        # Tensors and plain containers alone: nothing in the file is executed.
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has many, and this file may be anything
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path}: is no file of tensors alone ({text}). Save the model's state_dict() by "
            "itself where it was trained, and import that."
        ) from error
    found: dict[str, NDArray[np.float32]] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, item in value.items():
                walk(f"{prefix}.{name}" if prefix else str(name), item)
        elif isinstance(value, torch.Tensor):
            found[prefix] = value.to(torch.float32).numpy()

    walk("", content)
    return found
