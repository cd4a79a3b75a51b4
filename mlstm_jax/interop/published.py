"""Published models: OpenAI's, in .npy files.

It has our cell: matrices are [in, out], gates are in the order i, f, o, u, and W = g · V / ‖V‖ over
columns. Only the names of the files differ.
"""

from pathlib import Path

import numpy as np

from mlstm_jax import config
from mlstm_jax.interop import arrays
from mlstm_jax.interop.weights import ModelWeights, expected_shapes, unflatten

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
