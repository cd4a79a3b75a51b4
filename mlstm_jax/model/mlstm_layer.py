"""The layers of the mLSTM: their parameters, and how a window is read.

Parameters of a layer, all float32::

    wmx_v, wmx_g   [I, H], [H]
    wmh_v, wmh_g   [H, H], [H]
    wx_v,  wx_g    [I, G], [G]      I = E for the first layer, H above
    wh_v,  wh_g    [H, G], [G]
    b              [G]      zero
"""

from typing import Any

import jax
from flax import linen

from mlstm_jax.model.architecture import Carry, How
from mlstm_jax.model.cells.mlstm import MLSTM
from mlstm_jax.model.initial import uniform
from mlstm_jax.model.layer import LayerWeights, Sequence
from mlstm_jax.model.matmul import matmul
from mlstm_jax.model.recurrence import recurrence, recurrence_states
from mlstm_jax.model.weight_norm import column_norms, weight_norm

Array = jax.Array


class Weights(linen.Module):
    """The matrices of one mLSTM layer."""

    model: MLSTM

    def _matrix(
        self, name: str, rows: int, columns: int, initialise: Any, gain: float = 1.0
    ) -> Array:
        """Create one weight-normalised matrix; initially W = gain · V."""
        v_IO = self.param(f"{name}_v", initialise, (rows, columns))
        g_O = self.param(f"{name}_g", lambda _: gain * column_norms(v_IO))
        return weight_norm(v_IO, g_O)

    @linen.compact
    def __call__(self, inputs: int) -> LayerWeights:
        """Return the normalised matrices; `inputs` is the width I of the layer's input."""
        hidden, gain = self.model.hidden, self.model.recurrent_gain
        same = uniform(hidden)
        orthogonal = linen.initializers.orthogonal()
        recurrent = orthogonal if self.model.recurrent_init == "orthogonal" else same
        return LayerWeights(
            wmx_IH=self._matrix("wmx", inputs, hidden, same),
            wmh_HH=self._matrix("wmh", hidden, hidden, recurrent, gain),
            wx_IG=self._matrix("wx", inputs, 4 * hidden, same),
            wh_HG=self._matrix("wh", hidden, 4 * hidden, recurrent, gain),
            b_G=self.param("b", linen.initializers.zeros, (4 * hidden,)),
        )


def start(
    weights: LayerWeights, embedding_VE: Array, bytes_TB: Array, compute: Any
) -> tuple[LayerWeights, Array]:
    """Multiply the input matrices by the embedding.

    There are only 256 bytes: their projections are a table, computed once per window.
    """
    return weights._replace(
        wmx_IH=matmul(embedding_VE, weights.wmx_IH, compute),
        wx_IG=matmul(embedding_VE, weights.wx_IG, compute),
    ), bytes_TB


def read(
    model: MLSTM, weights: LayerWeights, before: Carry, x: Array, hold_TB: Array | None, how: How
) -> tuple[Carry, Array, Carry | None]:
    """Read a window; see `Layers`."""
    sequence, compute = Sequence(x, hold_TB), how.compute
    if how.states:
        after, steps = recurrence_states(before, sequence, weights, compute)
        return after, steps.h.astype(compute), steps
    loops: Any = how.loops or ("apart" if jax.default_backend() == "cpu" else "packed")
    return *recurrence(before, sequence, weights, compute, how.recompute_every, loops), None
