"""The recurrent layers as Flax modules, for models of your own.

Each reads vectors over time and returns its carry and h after each step.

>>> import jax, mlstm_jax.layers
>>> layer = mlstm_jax.layers.MLSTM(hidden=4)
>>> x_BTI = jax.numpy.ones((2, 3, 5))
>>> variables = layer.init(jax.random.key(0), x_BTI)
>>> carry, h_BTH = layer.apply(variables, x_BTI)
>>> carry, h_BTH = layer.apply(variables, x_BTI, carry)
>>> h_BTH.shape
(2, 3, 4)

Their gradient is the explicit one of model/mlstm.py and model/gated.py. benchmarks/layers.py
compares its speed with `flax.linen.RNN`.
"""

from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen

from mlstm_jax.errors import UserError
from mlstm_jax.model import gated, mlstm
from mlstm_jax.model.stack import LayerParameters, Recurrence, Recurrent, run_layer

Array = jax.Array


class _Layer(linen.Module):
    hidden: int
    compute: Any = jnp.float32

    @abstractmethod
    def _kind(self) -> Recurrent:
        """The layer's equations."""

    @linen.compact
    def __call__(
        self, x_BTI: Array, carry: Any = None, padding_mask_BT: Array | None = None
    ) -> tuple[Any, Array]:
        """Read a window of every row.

        Args:
            x_BTI: the inputs, floating-point, [B, T, I].
            carry: what the window before returned; None: zeros.
            padding_mask_BT: bool [B, T], true in the padding, where the carry does not change. With
                it there is no gradient: for training leave it out, and give the padding no weight
                in the loss, since no h depends on later inputs.

        Returns:
            The carry, a NamedTuple of h and, except of a GRU, c, float32 [B, H]; and h after each
            step, [B, T, H], of the type `compute`.

        Raises:
            ValueError: the padding mask has another shape than [B, T].
        """
        if padding_mask_BT is not None and padding_mask_BT.shape != x_BTI.shape[:2]:
            raise UserError(
                f"padding_mask_BT has the shape {padding_mask_BT.shape}, but must have "
                f"{x_BTI.shape[:2]}, rows and steps of x_BTI."
            )
        kind = self._kind()
        weights = LayerParameters(kind, name="layer")(x_BTI.shape[-1])
        if carry is None:
            zeros = kind.init_carry(x_BTI.shape[0], jnp.float32)
            carry = jax.tree.map(lambda state: jnp.asarray(state[:, 0]), zeros)
        mask_TB = None if padding_mask_BT is None else padding_mask_BT.T
        x_TBI = x_BTI.swapaxes(0, 1).astype(self.compute)
        recurrence = Recurrence(kind, jnp.dtype(self.compute))
        carry, h_TBH = run_layer(recurrence, carry, x_TBI, weights, mask_TB)
        return carry, h_TBH.swapaxes(0, 1)


class MLSTM(_Layer):
    """The multiplicative LSTM with weight normalisation (Krause et al. 2016; Puri et al. 2018).

    Attributes:
        hidden: units H.
        compute: type of the matrix products, such as jnp.bfloat16; sums are float32.
        recurrent_init: "uniform", as in the paper, or "orthogonal".
    """

    recurrent_init: Any = "uniform"

    def _kind(self) -> Recurrent:
        return mlstm.MLSTM(hidden=self.hidden, recurrent_init=self.recurrent_init)


class LSTM(_Layer):
    """The LSTM (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    Attributes:
        hidden: units H.
        compute: see `MLSTM`.
        weight_norm: whether the columns of the matrices are normalised, as an mLSTM's are.

    Examples:
        >>> layer = mlstm_jax.layers.LSTM(hidden=4, weight_norm=True)
        >>> (carry, h_BTH), variables = layer.init_with_output(jax.random.key(0), x_BTI)
    """

    weight_norm: bool = False

    def _kind(self) -> Recurrent:
        return gated.LSTM(hidden=self.hidden, weight_norm=self.weight_norm)


class GRU(_Layer):
    """The gated recurrent unit (Cho et al. 2014).

    Attributes:
        hidden: units H.
        compute: see `MLSTM`.
        weight_norm: see `LSTM`.

    Examples:
        >>> layer = mlstm_jax.layers.GRU(hidden=4, weight_norm=True)
        >>> (carry, h_BTH), variables = layer.init_with_output(jax.random.key(0), x_BTI)
    """

    weight_norm: bool = False

    def _kind(self) -> Recurrent:
        return gated.GRU(hidden=self.hidden, weight_norm=self.weight_norm)
