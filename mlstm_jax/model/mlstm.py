"""The multiplicative LSTM (Krause et al. 2016), with weight normalisation; see recurrence.py.

Parameters of a layer, all float32::

    wmx_v, wmx_g   [I, H], [H]
    wmh_v, wmh_g   [H, H], [H]
    wx_v,  wx_g    [I, G], [G]      I = E for the first layer, H above
    wh_v,  wh_g    [H, G], [G]
    b              [G]      zero
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen

from mlstm_jax.fields import Positive
from mlstm_jax.model.architecture import Carry, Products, ReadOptions, Recurrent, Sizes
from mlstm_jax.model.mlstm_step import LayerWeights, Sequence, rounded
from mlstm_jax.model.ops import column_norms, matmul, uniform, weight_norm
from mlstm_jax.model.recurrence import (
    SEPARATE,
    STACKED,
    recurrence,
    recurrence_states,
    recurrence_sum,
)

Array = jax.Array


class Weights(linen.Module):
    """The matrices of one mLSTM layer."""

    model: "MLSTM"

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


@dataclass(frozen=True, kw_only=True)
class _Initial(Sizes):
    # Initial recurrent matrices Wh and Wmh. Paper: uniform(±1/√H).
    recurrent_init: Literal["uniform", "orthogonal"] = "uniform"
    # Initial gains of Wh and Wmh, relative to the column norms of V, so that W = gain · V. √3 makes
    # the columns of a uniform Wmh as long as those of an orthogonal one. Paper: 1.
    recurrent_gain: Positive = 1.0


# A config.json has the fields of `_Initial` before those of `Architecture`.
@dataclass(frozen=True, kw_only=True)
class MLSTM(Recurrent, _Initial, title="mLSTM"):
    """The network and its initial parameters."""

    has_own_loops: ClassVar[bool] = True

    def layer_weights(self, name: str, inputs: int) -> LayerWeights:
        """Create a layer's matrices."""
        weights: LayerWeights = Weights(self, name=name)(inputs)
        return weights

    def first_input(
        self, weights: LayerWeights, embedding_VE: Array, bytes_TB: Array, compute: Any
    ) -> tuple[LayerWeights, Array]:
        """Multiply the input matrices by the embedding.

        There are only 256 bytes: their projections are a table, computed once per window.
        """
        return weights._replace(
            wmx_IH=matmul(embedding_VE, weights.wmx_IH, compute),
            wx_IG=matmul(embedding_VE, weights.wx_IG, compute),
        ), bytes_TB

    def ready(self, params: Any, compute: Any) -> list[LayerWeights]:
        """Return the rounded matrices of all layers, normalised, and the tables of the first."""
        layers = []
        for layer in range(self.layers):
            one = params[f"layer_{layer}"]
            wmx, wx, wmh, wh = (
                weight_norm(one[f"{name}_v"], one[f"{name}_g"])
                for name in ("wmx", "wx", "wmh", "wh")
            )
            weights = LayerWeights(wmx_IH=wmx, wx_IG=wx, wmh_HH=wmh, wh_HG=wh, b_G=one["b"])
            x = wmx if layer else jnp.zeros((), jnp.int32)  # bytes
            if layer == 0:
                weights, _ = self.first_input(weights, params["embedding"], x, compute)
            layers.append(rounded(weights, x, compute))
        return layers

    def read_layer(
        self,
        weights: LayerWeights,
        before: Carry,
        x: Array,
        padding_mask_TB: Array | None,
        options: ReadOptions,
    ) -> tuple[Carry, Array, Any]:
        """Run the recurrence over a window."""
        sequence, compute = Sequence(x, padding_mask_TB), options.compute
        if options.states == "sum":
            return recurrence_sum(before, sequence, weights, compute)
        if options.states:
            after, steps = recurrence_states(before, sequence, weights, compute)
            return after, steps.h.astype(compute), steps
        loops = options.loops or (SEPARATE if jax.default_backend() == "cpu" else STACKED)
        every = options.recompute_every
        return *recurrence(before, sequence, weights, compute, every, loops), None

    def matrices(self, name: str) -> int:
        """Count Wx and Wh, which hold four gates, as four matrices."""
        if name.endswith(("wx_v", "wh_v")):
            return 4
        return 1 if name.endswith("_v") else super().matrices(name)

    def large(self, layer: int) -> list[str]:
        """Leave out the first layer's input matrices: they read a table of bytes, and are small."""
        return ["wmh_v", "wh_v", *(("wmx_v", "wx_v") if layer else ())]

    def products(self, layer: int) -> Products:
        """Count Wmh and Wh in the loops; Wmx and Wx only above the first layer, and forward."""
        square = 5 * self.hidden * self.hidden
        return Products(
            square * (2 if layer else 1), square, 2 * square + (4 * square if layer else 0)
        )

    def activation_bytes(
        self, units: int, window: int, every: int | None, width: int, cell: int
    ) -> int:
        """Count h, mh, four gates and c, then dz, dmh and dmx, of each step that is kept."""
        kept = window if every is None else min(every, window)
        of_a_step = units * (6 * width + cell + 6 * width)
        carries = 0 if kept == window else -(-window // kept) * units * (4 + cell)
        return kept * of_a_step + carries + window * units * width * 2
