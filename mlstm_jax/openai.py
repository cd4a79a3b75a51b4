"""Read the model of OpenAI's generating-reviews-discovering-sentiment (Radford et al. 2017)."""

from pathlib import Path

import numpy as np

from mlstm_jax.arrays import checked_arrays, reading, sizes, unflatten
from mlstm_jax.config import Model
from mlstm_jax.weights import ModelWeights, expected_shapes

# Ours, in the order of OpenAI's files, 0.npy to 14.npy; Wh is four files, a quarter of the columns
# each.
_FILES = (
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


def read_openai(folder: Path) -> ModelWeights:
    """Read the folder of .npy files with the model.

    It has our cell, in .npy files with other names: matrices are [in, out], gates are in the order
    i, f, o, u, and W = g · V / ‖V‖ over columns. UserError names a file that is missing or differs.
    """
    where = f"{folder}/"
    files = {}
    parameters = {}
    for number, parameter in enumerate(_FILES):
        path = folder / f"{number}.npy"
        parameters[path.name] = parameter
        with reading(path, "is not a .npy file of numbers"):
            files[path.name] = np.lib.format.open_memmap(path, mode="r")
    # These two files give the sizes that all others must match.
    _, width = sizes(where, files, "0.npy", 2)
    (hidden,) = sizes(where, files, "12.npy", 1)
    architecture = Model(hidden=hidden, embedding=width)
    of_model = expected_shapes(architecture) | {"layer_0/wh_v": (hidden, hidden)}
    shapes = {name: of_model[parameter] for name, parameter in parameters.items()}
    values = checked_arrays(where, files, shapes)
    flat = {parameters[name]: array for name, array in values.items()}
    flat["layer_0/wh_v"] = np.concatenate(list(values.values())[2:6], axis=1)
    source = "openai/generating-reviews-discovering-sentiment"
    return ModelWeights(architecture, "radford", unflatten(flat), source)
