"""The multiplicative LSTM (Krause et al. 2016), with weight normalisation; see recurrence.py.

Parameters of a layer, all float32::

    wmx_v, wmx_g   [I, H], [H]
    wmh_v, wmh_g   [H, H], [H]
    wx_v,  wx_g    [I, G], [G]      I = E for the first layer, H above
    wh_v,  wh_g    [H, G], [G]
    b              [G]      zero
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
from flax import linen

from mlstm_jax.fields import Positive
from mlstm_jax.model.architecture import Carry, ReadOptions, Tree
from mlstm_jax.model.ops import uniform
from mlstm_jax.model.recurrence import SEPARATE, STACKED, LayerWeights, layer_step
from mlstm_jax.model.recurrent import Matrix, Recurrent, matrix
from mlstm_jax.model.time_loops import Sequence, recurrence

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class MLSTM(Recurrent, title="mLSTM"):
    """The network and its initial parameters."""

    # Initial recurrent matrices Wh and Wmh. Paper: uniform(±1/√H).
    recurrent_init: Literal["uniform", "orthogonal"] = "uniform"
    # Initial gains of Wh and Wmh, relative to the column norms of V, so that W = gain · V. √3 makes
    # the columns of a uniform Wmh as long as those of an orthogonal one. Paper: 1.
    recurrent_gain: Positive = 1.0

    gates: ClassVar[dict[str, int]] = {"wmh": 1, "wh": 4, "wmx": 1, "wx": 4}
    input_matrices: ClassVar[tuple[str, ...]] = ("wmx", "wx")
    biases: ClassVar[int] = 4

    def initial(self, inputs: int) -> dict[str, Matrix]:
        """Return uniform matrices; the recurrent ones may be orthogonal."""
        hidden, same = self.hidden, uniform(self.hidden)
        orthogonal = linen.initializers.orthogonal()
        recurrent = orthogonal if self.recurrent_init == "orthogonal" else same
        return {
            "wmx": Matrix((inputs, hidden), same),
            "wmh": Matrix((hidden, hidden), recurrent, self.recurrent_gain),
            "wx": Matrix((inputs, 4 * hidden), same),
            "wh": Matrix((hidden, 4 * hidden), recurrent, self.recurrent_gain),
        }

    def weights(self, params: Tree) -> LayerWeights:
        """Return the normalised matrices and the bias."""
        wmx, wx, wmh, wh = (matrix(params, name) for name in ("wmx", "wx", "wmh", "wh"))
        return LayerWeights(wmx_IH=wmx, wx_IG=wx, wmh_HH=wmh, wh_HG=wh, b_G=params["b"])

    def step(self, weights: LayerWeights, rows: int) -> Callable[[Carry, Sequence], Carry]:
        """Return the function of h and c, and of the input, to h and c after a step."""
        run = layer_step(weights, rows)
        return lambda carry, now: run(carry.h, carry, now)[0]

    def run(
        self, weights: LayerWeights, carry: Carry, sequence: Sequence, options: ReadOptions
    ) -> tuple[Carry, Array]:
        """Run the recurrence over a window."""
        loops = options.loops or (SEPARATE if jax.default_backend() == "cpu" else STACKED)
        return recurrence(carry, sequence, weights, options.compute, options.recompute_every, loops)

    def step_bytes(self, width: int, cell: int) -> int:
        """Count h, mh, four gates and c, then dz, dmh and dmx."""
        return 6 * width + cell + 6 * width
