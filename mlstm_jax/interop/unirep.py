"""UniRep: protein mLSTMs in .npy files, of one layer or a stack (Alley et al. 2019).

The cell is ours. The alphabet is 25 tokens beside padding: amino acids, a start and a stop. They
become the bytes of their letters, start and stop the control bytes STX and ETX, so that a sequence
is a text of the cleaning "protein". Letters that share a token (X, B, Z, J) share its row; of these
the decoder gives X. Bytes that are no token read as padding and are never predicted.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import config
from mlstm_jax.errors import UserError
from mlstm_jax.interop.weights import Weights, read_npy, require
from mlstm_jax.model.language_model import VOCABULARY

# Token n is the n-th, from 1; 0 is padding.
_LETTERS = "MRHKDESTNQCUGPAVIFYWLOX"
_SAME_AS_X = "BZJ"
_TOKENS = [*map(ord, _LETTERS), 2, 3]  # ... start, stop
_NEVER = -1e4  # a logit: its probability is 0 in float32

_NAMES = {"wx_v": "wx", "wh_v": "wh", "wmx_v": "wmx", "wmh_v": "wmh", "b": "b"}
_NAMES |= {"wx_g": "gx", "wh_g": "gh", "wmx_g": "gmx", "wmh_g": "gmh"}


def read(folder: Path) -> Weights:
    """Read a folder of weights; UserError names the file that is missing or of another shape."""
    if not folder.is_dir():
        raise UserError(f"{folder}: is no folder; name the one that holds embed_matrix:0.npy.")
    files = {path.name: path for path in folder.glob("*.npy")}
    embedding_path, embedding = _array(folder, files, "embed_matrix")
    width = embedding.shape[-1]
    require(str(embedding_path), embedding, (len(_TOKENS) + 1, width))
    stacked = [re.match(r"rnn_mlstm_stack_mlstm_stack(\d+)_", name) for name in files]
    layers = 1 + max((int(match[1]) for match in stacked if match), default=0)
    prefixes = (
        [f"rnn_mlstm_stack_mlstm_stack{k}_mlstm_stack{k}_" for k in range(layers)]
        if any(stacked)
        else ["rnn_mlstm_mlstm_"]
    )
    hidden = _array(folder, files, f"{prefixes[0]}gmh")[1].size
    params: dict[str, Any] = {}
    for layer, prefix in enumerate(prefixes):
        inputs = hidden if layer else width
        shapes: dict[str, tuple[int, ...]] = {
            "wx_v": (inputs, 4 * hidden),
            "wh_v": (hidden, 4 * hidden),
            "wmx_v": (inputs, hidden),
            "wmh_v": (hidden, hidden),
            "b": (4 * hidden,),
            "wx_g": (4 * hidden,),
            "wh_g": (4 * hidden,),
            "wmx_g": (hidden,),
            "wmh_g": (hidden,),
        }
        made = {}
        for ours, theirs in _NAMES.items():
            path, array = _array(folder, files, prefix + theirs)
            require(str(path), array, shapes[ours])
            made[ours] = np.asarray(array, np.float32)
        params[f"layer_{layer}"] = made
    kernel_path, kernel = _array(folder, files, "fully_connected_weights")
    require(str(kernel_path), kernel, (hidden, len(_TOKENS)))
    bias_path, bias = _array(folder, files, "fully_connected_biases")
    require(str(bias_path), bias, (len(_TOKENS),))

    embedding_VE = np.tile(np.asarray(embedding[:1], np.float32), (VOCABULARY, 1))
    embedding_VE[_TOKENS] = embedding[1:]
    embedding_VE[[ord(letter) for letter in _SAME_AS_X]] = embedding_VE[ord("X")]
    kernel_HV = np.zeros((hidden, VOCABULARY), np.float32)
    kernel_HV[:, _TOKENS] = kernel
    bias_V = np.full(VOCABULARY, _NEVER, np.float32)
    bias_V[_TOKENS] = bias
    params |= {"embedding": embedding_VE, "decoder_kernel": kernel_HV, "decoder_bias": bias_V}
    model = config.Model(hidden=hidden, embedding=width, layers=layers)
    return Weights(model, "protein", params, "churchlab/UniRep")


def _array(folder: Path, files: dict[str, Path], name: str) -> tuple[Path, NDArray[Any]]:
    """Read NAME:0.npy, or what systems that allow no colon call it."""
    for end in (":0.npy", "_0.npy", ".npy"):
        if name + end in files:
            path = files[name + end]
            return path, read_npy(path)
    raise UserError(f"{folder}: lacks {name}:0.npy; it must hold all files of one model.")
