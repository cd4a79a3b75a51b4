"""UniRep: protein mLSTMs in .npy files, with one layer or several (Alley et al. 2019).

The cell is the same as ours. The alphabet has 25 tokens besides padding: amino acids, a start and a
stop. Amino acids become the bytes of their letters, start and stop the control bytes STX and ETX,
so a sequence is a text of the cleaning "protein", which writes X for the letters that share its
token (B, Z, J). The model has no symbol for other bytes (language_model.py, `NEVER`).
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from mlstm_jax import config
from mlstm_jax.corpora.documents import AMBIGUOUS
from mlstm_jax.errors import UserError
from mlstm_jax.interop import arrays
from mlstm_jax.interop.arrays import Array
from mlstm_jax.interop.weights import ModelWeights
from mlstm_jax.model.language_model import NEVER, VOCABULARY

# The n-th is token n, from 1; token 0 is padding.
_LETTERS = "MRHKDESTNQCUGPAVIFYWLOX"
_TOKENS = [*map(ord, _LETTERS), 2, 3]  # ... start, stop

_NAMES = {"wx_v": "wx", "wh_v": "wh", "wmx_v": "wmx", "wmh_v": "wmh", "b": "b"}
_NAMES |= {"wx_g": "gx", "wh_g": "gh", "wmx_g": "gmx", "wmh_g": "gmh"}


def read_unirep(folder: Path) -> ModelWeights:
    """Read a folder of weights; a UserError names the file that is missing or has another shape."""
    if not folder.is_dir():
        raise UserError(
            f"{folder}: is not a folder; give the one that contains embed_matrix:0.npy."
        )
    files = {path.name: path for path in folder.glob("*.npy")}
    files_of = {"embed_matrix": _array(folder, files, "embed_matrix")}
    stacked = [re.match(r"rnn_mlstm_stack_mlstm_stack([0-9]+)_", name) for name in files]
    layers = arrays.count_layers(str(folder), {match[1] for match in stacked if match})
    prefixes = [f"rnn_mlstm_stack_mlstm_stack{k}_mlstm_stack{k}_" for k in range(layers)]
    prefixes = prefixes or ["rnn_mlstm_mlstm_"]
    for prefix in prefixes:
        files_of |= {
            prefix + name: _array(folder, files, prefix + name) for name in _NAMES.values()
        }
    for name in ("fully_connected_weights", "fully_connected_biases"):
        files_of[name] = _array(folder, files, name)
    _, width = files_of["embed_matrix"].sizes(2)
    (hidden,) = files_of[f"{prefixes[0]}gmh"].sizes(1)
    shapes: dict[str, tuple[int, ...]] = {
        "embed_matrix": (len(_TOKENS) + 1, width),
        "fully_connected_weights": (hidden, len(_TOKENS)),
        "fully_connected_biases": (len(_TOKENS),),
    }
    for layer, prefix in enumerate(prefixes):
        inputs = hidden if layer else width
        shapes |= {
            prefix + "wx": (inputs, 4 * hidden),
            prefix + "wh": (hidden, 4 * hidden),
            prefix + "wmx": (inputs, hidden),
            prefix + "wmh": (hidden, hidden),
            prefix + "b": (4 * hidden,),
            prefix + "gx": (4 * hidden,),
            prefix + "gh": (4 * hidden,),
            prefix + "gmx": (hidden,),
            prefix + "gmh": (hidden,),
        }
    used = {one for name in files_of for one in _names(name)}
    unread = [name for name in files if name not in used]
    notes: tuple[str, ...] = ()
    if unread:
        notes = (
            f"{folder}: these files were skipped because they are not part of the language model: "
            f"{arrays.preview(unread)}. To fit a new head on the mean of h, use "
            "`mlstm-jax transfer --state mean_h`.",
        )
    values = arrays.read_arrays(str(folder), files_of, shapes)
    params: dict[str, Any] = {
        f"layer_{layer}": {ours: values[prefix + theirs] for ours, theirs in _NAMES.items()}
        for layer, prefix in enumerate(prefixes)
    }

    embedding = values["embed_matrix"]
    embedding_VE = np.tile(embedding[:1], (VOCABULARY, 1))
    embedding_VE[_TOKENS] = embedding[1:]
    embedding_VE[[ord(letter) for letter in AMBIGUOUS]] = embedding_VE[ord("X")]
    kernel_HV = np.zeros((hidden, VOCABULARY), np.float32)
    kernel_HV[:, _TOKENS] = values["fully_connected_weights"]
    bias_V = np.full(VOCABULARY, NEVER, np.float32)
    bias_V[_TOKENS] = values["fully_connected_biases"]
    params |= {"embedding": embedding_VE, "decoder_kernel": kernel_HV, "decoder_bias": bias_V}
    model = config.Model(hidden=hidden, embedding=width, layers=len(prefixes))
    return ModelWeights(model, "protein", params, "churchlab/UniRep", notes)


def _names(name: str) -> tuple[str, ...]:
    """Return the file names that an array may have: some systems do not allow a colon."""
    return f"{name}:0.npy", f"{name}_0.npy", f"{name}.npy"


def _array(folder: Path, files: dict[str, Path], name: str) -> Array:
    """Open NAME:0.npy, or the file name used on systems that do not allow a colon."""
    for file in _names(name):
        if file in files:
            return arrays.npy(files[file])
    raise UserError(
        f"{folder}: {name}:0.npy is missing; the folder must contain all files of one model."
    )
