"""The multiplicative LSTM (Krause et al. 2016), with weight normalisation; see recurrence.py."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from mlstm_jax.errors import require
from mlstm_jax.model.architecture import Architecture, Body, Products, Sizes


@dataclass(frozen=True, kw_only=True)
class _Initial(Sizes):
    # Initial recurrent matrices Wh and Wmh. Paper: uniform(±1/√H).
    recurrent_init: Literal["uniform", "orthogonal"] = "uniform"
    # Initial gains of Wh and Wmh, relative to the column norms of V, so that W = gain · V. √3 makes
    # the columns of a uniform Wmh as long as those of an orthogonal one. Paper: 1.
    recurrent_gain: float = 1.0


# A config.json has the fields of `_Initial` before those of `Architecture`.
@dataclass(frozen=True, kw_only=True)
class MLSTM(Architecture, _Initial, title="mLSTM"):
    """The network and its initial parameters."""

    has_own_loops: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        gain = self.recurrent_gain
        require(0 < gain < math.inf, "model.recurrent_gain", gain, "above 0, and finite")

    def body(self) -> Body:
        """Return the layers."""
        from mlstm_jax.model import mlstm_layer, stack

        return partial(stack.read, mlstm_layer)

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

    def kept_bytes(self, units: int, window: int, every: int | None, width: int, cell: int) -> int:
        """Count h, mh, four gates and c, then dz, dmh and dmx, of each step that is kept."""
        kept = window if every is None else min(every, window)
        of_a_step = units * (6 * width + cell + 6 * width)
        carries = 0 if kept == window else -(-window // kept) * units * (4 + cell)
        return kept * of_a_step + carries + window * units * width * 2
