"""OpenAI's model of 2017: the 15 .npy files of openai/generating-reviews-discovering-sentiment.

Radford, Józefowicz, Sutskever 2017. Only the names of their tensors differ from ours: matrices are
[in, out], gates are in the order i, f, o, u, and W = g · V / ‖V‖ over columns. Wh is split into
four files, each with a quarter of the columns.
"""

from pathlib import Path

import numpy as np

from mlstm_jax import config
from mlstm_jax.errors import UserError
from mlstm_jax.interop import arrays
from mlstm_jax.interop.weights import ModelWeights
from mlstm_jax.model.language_model import VOCABULARY


def read_openai(folder: Path) -> ModelWeights:
    """Read 0.npy to 14.npy; a UserError names the file that is missing or has another shape."""
    if not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; give the one that contains 0.npy to 14.npy.")
    paths = [folder / f"{number}.npy" for number in range(15)]
    files = [arrays.npy(path) for path in paths]
    # These two files give the sizes that all others must match.
    (_, embedding), (hidden,) = files[0].sizes(2), files[12].sizes(1)
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
    names = [path.name for path in paths]
    values = arrays.read_arrays(
        str(folder), dict(zip(names, files, strict=True)), dict(zip(names, shapes, strict=True))
    )
    tensors = list(values.values())
    layer = {
        "wx_v": tensors[1],
        "wh_v": np.concatenate(tensors[2:6], axis=1),
        "wmx_v": tensors[6],
        "wmh_v": tensors[7],
        "b": tensors[8],
        "wx_g": tensors[9],
        "wh_g": tensors[10],
        "wmx_g": tensors[11],
        "wmh_g": tensors[12],
    }
    params = {
        "embedding": tensors[0],
        "layer_0": layer,
        "decoder_kernel": tensors[13],
        "decoder_bias": tensors[14],
    }
    model = config.Model(hidden=hidden, embedding=embedding)
    return ModelWeights(model, "radford", params, "openai/generating-reviews-discovering-sentiment")
