"""The published models in .npy files: OpenAI's, and UniRep's for proteins.

Both have our cell: matrices are [in, out], gates are in the order i, f, o, u, and W = g · V / ‖V‖
over columns. Only the names of the files differ.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import config
from mlstm_jax.corpora.documents import AMBIGUOUS
from mlstm_jax.errors import UserError
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


def read_openai(folder: Path) -> ModelWeights:
    """Read the model of generating-reviews-discovering-sentiment (Radford et al. 2017).

    A UserError names the file that is missing or has another shape.
    """
    _require_folder(folder, "0.npy to 14.npy")
    names = [f"{number}.npy" for number in range(len(_OPENAI))]
    files = {name: arrays.npy(folder / name) for name in names}
    # These two files give the sizes that all others must match.
    _, width = arrays.sizes(str(folder), files, "0.npy", 2)
    (hidden,) = arrays.sizes(str(folder), files, "12.npy", 1)
    model = config.Model(hidden=hidden, embedding=width)
    shapes = expected_shapes(model) | {"layer_0/wh_v": (hidden, hidden)}
    ours = dict(zip(names, _OPENAI, strict=True))
    values = arrays.read_arrays(str(folder), files, {name: shapes[ours[name]] for name in names})
    flat = {ours[name]: value for name, value in values.items()}
    flat["layer_0/wh_v"] = np.concatenate([values[name] for name in names[2:6]], axis=1)
    source = "openai/generating-reviews-discovering-sentiment"
    return ModelWeights(model, "radford", unflatten(flat), source)


def read_unirep(folder: Path) -> ModelWeights:
    """Read an mLSTM of proteins, with one layer or several (Alley et al. 2019).

    A sequence is a text of the cleaning "protein", which writes X for the letters that share its
    token (B, Z, J). The model has no symbol for other bytes (language_model.py, `NEVER`). A
    UserError names the file that is missing or has another shape.
    """
    _require_folder(folder, "embed_matrix:0.npy")
    there = {path.name for path in folder.glob("*.npy")}
    stacked = [re.match(r"rnn_mlstm_stack_mlstm_stack([0-9]+)_", name) for name in there]
    layers = arrays.count_layers(str(folder), {match[1] for match in stacked if match})
    prefixes = [f"rnn_mlstm_stack_mlstm_stack{k}_mlstm_stack{k}_" for k in range(layers)]
    prefixes = prefixes or ["rnn_mlstm_mlstm_"]
    ours = {
        prefix + theirs: f"layer_{layer}/{name}"
        for layer, prefix in enumerate(prefixes)
        for name, theirs in _UNIREP.items()
    }
    others = ("embed_matrix", "fully_connected_weights", "fully_connected_biases")
    files = {name: _array(folder, there, name) for name in (*ours, *others)}
    _, width = arrays.sizes(str(folder), files, "embed_matrix", 2)
    (hidden,) = arrays.sizes(str(folder), files, f"{prefixes[0]}gmh", 1)
    model = config.Model(hidden=hidden, embedding=width, layers=len(prefixes))
    expected = expected_shapes(model)
    shapes = {
        "embed_matrix": (len(_TOKENS) + 1, width),
        "fully_connected_weights": (hidden, len(_TOKENS)),
        "fully_connected_biases": (len(_TOKENS),),
        **{name: expected[one] for name, one in ours.items()},
    }
    values = arrays.read_arrays(str(folder), files, shapes)
    embedding = values["embed_matrix"]
    embedding_VE = np.tile(embedding[:1], (VOCABULARY, 1))
    embedding_VE[_TOKENS] = embedding[1:]
    embedding_VE[[ord(letter) for letter in AMBIGUOUS]] = embedding_VE[ord("X")]
    kernel_HV = np.zeros((hidden, VOCABULARY), np.float32)
    kernel_HV[:, _TOKENS] = values["fully_connected_weights"]
    bias_V = np.full(VOCABULARY, NEVER, np.float32)
    bias_V[_TOKENS] = values["fully_connected_biases"]
    params = unflatten({one: values[name] for name, one in ours.items()}) | {
        "embedding": embedding_VE,
        "decoder_kernel": kernel_HV,
        "decoder_bias": bias_V,
    }
    unread = there - {one for name in files for one in _file_names(name)}
    notes: tuple[str, ...] = ()
    if unread:
        notes = (
            f"{folder}: these files were skipped because they are not part of the language model: "
            f"{arrays.preview(unread)}. To fit a new head on the mean of h, use "
            "`mlstm-jax transfer --state mean_h`.",
        )
    return ModelWeights(model, "protein", params, "churchlab/UniRep", notes)


def _require_folder(folder: Path, files: str) -> None:
    if not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; give the one that contains {files}.")


def _file_names(name: str) -> tuple[str, ...]:
    """Return the file names that an array of UniRep may have: some systems allow no colon."""
    return f"{name}:0.npy", f"{name}_0.npy", f"{name}.npy"


def _array(folder: Path, there: set[str], name: str) -> NDArray[Any]:
    for file in _file_names(name):
        if file in there:
            return arrays.npy(folder / file)
    raise UserError(
        f"{folder}: {name}:0.npy is missing; the folder must contain all files of one model."
    )
