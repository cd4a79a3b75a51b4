"""Published models: OpenAI's and UniRep's, in .npy files.

OpenAI's, and UniRep's for proteins, have our cell: matrices are [in, out], gates are in the order
i, f, o, u, and W = g · V / ‖V‖ over columns. Only the names of the files differ.
"""

import re
from pathlib import Path

import numpy as np

from mlstm_jax import config
from mlstm_jax.corpora.documents import AMBIGUOUS
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
