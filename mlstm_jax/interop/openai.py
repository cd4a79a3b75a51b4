"""OpenAI's model of 2017: the 15 .npy files of openai/generating-reviews-discovering-sentiment.

Radford, Józefowicz, Sutskever 2017. Their tensors are ours in all but name: [in, out] matrices,
gates in the order i, f, o, u, and W = g · V / ‖V‖ over columns. Only Wh lies in four blocks of
columns, each of a quarter of them.
"""

from pathlib import Path

import numpy as np

from mlstm_jax import config
from mlstm_jax.errors import UserError
from mlstm_jax.interop.weights import Weights, read_npy, require
from mlstm_jax.model.language_model import VOCABULARY


def read(folder: Path) -> Weights:
    """Read 0.npy to 14.npy; UserError names the file that is missing or of another shape."""
    if not folder.is_dir():
        raise UserError(f"{folder}: is no folder; name the one that holds 0.npy to 14.npy.")
    paths = [folder / f"{number}.npy" for number in range(15)]
    arrays = [read_npy(path) for path in paths]
    if arrays[0].ndim != 2 or arrays[12].ndim != 1:
        # These two give the sizes that the others are held to.
        wrong = 0 if arrays[0].ndim != 2 else 12
        raise UserError(f"{paths[wrong]}: has the shape {arrays[wrong].shape}.")
    embedding, hidden = arrays[0].shape[1], arrays[12].shape[0]
    gates = 4 * hidden
    shapes: list[tuple[int, ...]] = [
        (VOCABULARY, embedding),
        (embedding, gates),
        *[(hidden, hidden)] * 4,
        (embedding, hidden),
        (hidden, hidden),
        (gates,),
        (gates,),
        (gates,),
        (hidden,),
        (hidden,),
        (hidden, VOCABULARY),
        (VOCABULARY,),
    ]
    for path, array, shape in zip(paths, arrays, shapes, strict=True):
        require(str(path), array, shape)
    arrays = [np.asarray(array, np.float32) for array in arrays]
    layer = {
        "wx_v": arrays[1],
        "wh_v": np.concatenate(arrays[2:6], axis=1),
        "wmx_v": arrays[6],
        "wmh_v": arrays[7],
        "b": arrays[8],
        "wx_g": arrays[9],
        "wh_g": arrays[10],
        "wmx_g": arrays[11],
        "wmh_g": arrays[12],
    }
    params = {
        "embedding": arrays[0],
        "layer_0": layer,
        "decoder_kernel": arrays[13],
        "decoder_bias": arrays[14],
    }
    model = config.Model(hidden=hidden, embedding=embedding)
    return Weights(model, "radford", params, "openai/generating-reviews-discovering-sentiment")
