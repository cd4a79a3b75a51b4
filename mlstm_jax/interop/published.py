"""Published models: OpenAI's and UniRep's in .npy files, and NVIDIA's sentiment-discovery in .pt.

OpenAI's, and UniRep's for proteins, have our cell: matrices are [in, out], gates are in the order
i, f, o, u, and W = g · V / ‖V‖ over columns. Only the names of the files differ.

NVIDIA's is a state_dict, loaded by torch without executing its contents. The dict is nested:
encoder/encoder, encoder/rnn/rnns.K and decoder. Its matrices are [out, in]; its gates are in
PyTorch's order i, f, g, o, with two biases that are added. Weight-normalised tensors have ``_g``
and ``_v`` (a row of [out, in] is a column of ours); others are already the product. With a padding
token, row 0 of embedding and decoder is the token, and byte b has row b + 1.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import config
from mlstm_jax.corpora.documents import AMBIGUOUS
from mlstm_jax.errors import UserError, extra
from mlstm_jax.interop import arrays
from mlstm_jax.interop.weights import ModelWeights, expected_shapes, unflatten
from mlstm_jax.model.language_model import NEVER, VOCABULARY

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

# UniRep's alphabet: the n-th is token n, from 1; token 0 is padding. Amino acids become the bytes
# of their letters, start and stop the control bytes STX and ETX.
_TOKENS = [*map(ord, "MRHKDESTNQCUGPAVIFYWLOX"), 2, 3]
# Ours, UniRep's.
_UNIREP = {"wx_v": "wx", "wh_v": "wh", "wmx_v": "wmx", "wmh_v": "wmh", "b": "b"}
_UNIREP |= {"wx_g": "gx", "wh_g": "gh", "wmx_g": "gmx", "wmh_g": "gmh"}

# Ours, theirs.
_NVIDIA_MATRICES = (("wx", "w_ih"), ("wh", "w_hh"), ("wmx", "w_mih"), ("wmh", "w_mhh"))
_NVIDIA_BIASES = ("b_ih", "b_hh")
_MOST_TENSORS = 10_000


def read_openai(folder: Path) -> ModelWeights:
    """Read the model of generating-reviews-discovering-sentiment (Radford et al. 2017).

    A UserError names the file that is missing or has another shape.
    """
    ours = {f"{number}.npy": name for number, name in enumerate(_OPENAI)}
    files = {name: arrays.npy(folder / name) for name in ours}
    # These two files give the sizes that all others must match.
    _, width = arrays.sizes(str(folder), files, "0.npy", 2)
    (hidden,) = arrays.sizes(str(folder), files, "12.npy", 1)
    model = config.Model(hidden=hidden, embedding=width)
    shapes = expected_shapes(model) | {"layer_0/wh_v": (hidden, hidden)}
    of_files = {name: shapes[parameter] for name, parameter in ours.items()}
    values = arrays.read_arrays(str(folder), files, of_files)
    flat = dict(zip(_OPENAI, values.values(), strict=True))
    flat["layer_0/wh_v"] = np.concatenate(list(values.values())[2:6], axis=1)
    source = "openai/generating-reviews-discovering-sentiment"
    return ModelWeights(model, "radford", unflatten(flat), source)


def read_unirep(folder: Path) -> ModelWeights:
    """Read an mLSTM of proteins, with one layer or several (Alley et al. 2019).

    A sequence is a text of the cleaning "protein", which writes X for the letters that share its
    token (B, Z, J). The model has no symbol for other bytes (language_model.py, `NEVER`). A
    UserError names the file that is missing or has another shape.
    """
    there = {path.name for path in folder.glob("*.npy")}
    layers = len(set(re.findall(r"rnn_mlstm_stack_mlstm_stack([0-9]+)_", "\n".join(there))))
    prefixes = [f"rnn_mlstm_stack_mlstm_stack{k}_mlstm_stack{k}_" for k in range(layers)]
    prefixes = prefixes or ["rnn_mlstm_mlstm_"]
    model_names = {}
    for layer, prefix in enumerate(prefixes):
        for ours, theirs in _UNIREP.items():
            model_names[prefix + theirs] = f"layer_{layer}/{ours}"
    others = ("embed_matrix", "fully_connected_weights", "fully_connected_biases")
    paths = {name: _unirep_file(folder, there, name) for name in (*model_names, *others)}
    files = {name: arrays.npy(path) for name, path in paths.items()}
    _, width = arrays.sizes(str(folder), files, "embed_matrix", 2)
    (hidden,) = arrays.sizes(str(folder), files, f"{prefixes[0]}gmh", 1)
    model = config.Model(hidden=hidden, embedding=width, layers=len(prefixes))
    expected = expected_shapes(model)
    shapes: dict[str, tuple[int, ...]] = {
        "embed_matrix": (len(_TOKENS) + 1, width),
        "fully_connected_weights": (hidden, len(_TOKENS)),
        "fully_connected_biases": (len(_TOKENS),),
    }
    for theirs, ours in model_names.items():
        shapes[theirs] = expected[ours]
    values = arrays.read_arrays(str(folder), files, shapes)
    embedding = values["embed_matrix"]
    embedding_VE = np.tile(embedding[:1], (VOCABULARY, 1))
    embedding_VE[_TOKENS] = embedding[1:]
    embedding_VE[list(AMBIGUOUS.encode())] = embedding_VE[ord("X")]
    kernel_HV = np.zeros((hidden, VOCABULARY), np.float32)
    kernel_HV[:, _TOKENS] = values["fully_connected_weights"]
    bias_V = np.full(VOCABULARY, NEVER, np.float32)
    bias_V[_TOKENS] = values["fully_connected_biases"]
    flat = {"embedding": embedding_VE, "decoder_kernel": kernel_HV, "decoder_bias": bias_V}
    for theirs, ours in model_names.items():
        flat[ours] = values[theirs]
    notes: tuple[str, ...] = ()
    if unread := there.difference(path.name for path in paths.values()):
        notes = (
            f"{folder}: these files were skipped because they are not part of the language model: "
            f"{arrays.preview(unread)}. To fit a new head on the mean of h, use "
            "`mlstm-jax transfer --state mean_h`.",
        )
    return ModelWeights(model, "protein", unflatten(flat), "churchlab/UniRep", notes)


def _unirep_file(folder: Path, there: set[str], name: str) -> Path:
    """The file of an array of UniRep, `NAME:0.npy`: some systems allow no colon."""
    names = (f"{name}:0.npy", f"{name}_0.npy", f"{name}.npy")
    return folder / next((file for file in names if file in there), names[0])


def read_nvidia(path: Path) -> ModelWeights:
    """Read a .pt file; a UserError names the tensor that is missing or has another shape."""
    stored = _load_pt(path)
    encoder = "encoder.encoder.weight"
    if not _named(stored, encoder):
        encoder = "encoder.weight"
    vocabulary, width = arrays.sizes(str(path), stored, _find(path, stored, encoder), 2)
    padding = int(vocabulary > VOCABULARY)
    vocabulary = VOCABULARY + padding
    _, hidden = arrays.sizes(str(path), stored, _find(path, stored, "decoder.weight"), 2)
    layers = len(set(re.findall(r"\brnns\.([0-9]+)\.", "\n".join(stored)))) or 1
    shapes: dict[str, tuple[int, ...]] = {
        encoder: (vocabulary, width),
        "decoder.weight": (vocabulary, hidden),
        "decoder.bias": (vocabulary,),
    }
    for layer in range(layers):
        shapes |= _nvidia_shapes(stored, layer, hidden if layer else width, hidden)
    files = {}
    for name in shapes:
        tensor = stored[_find(path, stored, name)]
        with arrays.errors(f"{path}: {name}"):  # a sparse tensor, for example
            if tensor.is_floating_point():
                tensor = tensor.float()  # NumPy has no bfloat16
            files[name] = tensor.detach().numpy()
    tensors = arrays.read_arrays(str(path), files, shapes)
    params: dict[str, Any] = {
        "embedding": tensors[encoder][padding:],
        "decoder_kernel": np.ascontiguousarray(tensors["decoder.weight"][padding:].T),
        "decoder_bias": tensors["decoder.bias"][padding:],
    }
    for layer in range(layers):
        params[f"layer_{layer}"] = _nvidia_layer(path, tensors, layer, hidden)
    model = config.Model(hidden=hidden, embedding=width, layers=layers)
    return ModelWeights(model, "radford", params, "NVIDIA/sentiment-discovery")


def _named(stored: Iterable[str], end: str) -> str | None:
    """The shortest name that ends in `end`, after a dot; None if there is none."""
    names = (name for name in stored if f".{name}".endswith(f".{end}"))
    return min(names, key=len, default=None)


def _find(path: Path, stored: Collection[str], end: str) -> str:
    name = _named(stored, end)
    if name is None:
        raise UserError(f"{path}: has no {end}; it has {arrays.preview(stored)}.")
    return name


def _nvidia_shapes(
    stored: Mapping[str, Any], layer: int, inputs: int, hidden: int
) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's tensors, by the ends of their names."""
    shapes: dict[str, tuple[int, ...]] = {}
    for ours, theirs in _NVIDIA_MATRICES:
        rows = 4 * hidden if ours in ("wx", "wh") else hidden
        columns = inputs if ours in ("wx", "wmx") else hidden
        name = f"rnns.{layer}.{theirs}"
        if _named(stored, name):  # already the product
            shapes[name] = (rows, columns)
            continue
        # Some versions of PyTorch leave the second dimension out.
        g_O = _named(stored, f"{name}_g")
        flat = g_O is not None and stored[g_O].ndim == 1
        shapes |= {f"{name}_v": (rows, columns), f"{name}_g": (rows,) if flat else (rows, 1)}
    for bias in _NVIDIA_BIASES:
        if _named(stored, f"rnns.{layer}.{bias}"):
            shapes[f"rnns.{layer}.{bias}"] = (4 * hidden,)
    return shapes


def _nvidia_layer(
    path: Path, tensors: Mapping[str, NDArray[np.float32]], layer: int, hidden: int
) -> dict[str, NDArray[np.float32]]:
    parameters = {}
    for ours, theirs in _NVIDIA_MATRICES:
        name = f"rnns.{layer}.{theirs}"
        if name in tensors:
            v_OI = tensors[name]
            # In float32 the squares of large values would overflow.
            g_O = _checked(path, name, np.linalg.norm(v_OI.astype(np.float64), axis=1))
        else:
            v_OI = tensors[f"{name}_v"]
            g_O = tensors[f"{name}_g"].reshape(-1)
        if ours in ("wx", "wh"):
            v_OI = _reorder(v_OI)
            g_O = _reorder(g_O)
        parameters[f"{ours}_v"] = np.ascontiguousarray(v_OI.T)
        parameters[f"{ours}_g"] = g_O
    b_G = np.zeros(4 * hidden)
    for name in _NVIDIA_BIASES:
        b_G += tensors.get(f"rnns.{layer}.{name}", 0.0)
    parameters["b"] = _reorder(_checked(path, f"rnns.{layer}.b_ih", b_G))
    return parameters


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


def _load_pt(path: Path) -> dict[str, Any]:
    """The tensors of a file, by the path of keys to each, joined by dots."""
    arrays.require_file(path)
    with extra("torch", "reading a .pt file needs PyTorch; its CPU build is enough"):
        import torch
    advice = " Save only the model's state_dict() where it was trained, and import that file."
    with arrays.errors(path, "is not a file of tensors only", advice):
        # weights_only: only tensors and plain containers; nothing in the file is executed.
        content = torch.load(path, map_location="cpu", weights_only=True)
    stored: dict[str, Any] = {}
    # A loop with a count, not recursion: dicts may contain each other, or one a thousand times.
    waiting = [("", content)]
    seen = 0
    while waiting:
        prefix, value = waiting.pop()
        seen += 1
        if seen > _MOST_TENSORS:
            raise UserError(f"{path}: has more than {_MOST_TENSORS:,} tensors; no model has.")
        if isinstance(value, Mapping):
            for name, inner in islice(value.items(), _MOST_TENSORS):
                waiting.append((f"{prefix}.{name}".lstrip("."), inner))
        elif isinstance(value, torch.Tensor):
            stored[prefix] = value
    return stored
