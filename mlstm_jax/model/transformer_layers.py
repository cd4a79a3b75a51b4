"""The layers of a Transformer: their parameters, and how a window is read.

Parameters, all float32; matrices are normal(0, 1/√I), or 1/√(2 L) of it where they end a branch of
the sum, so that the sum keeps its size with any number of layers (Radford et al. 2019)::

    input/positions                    [P, H]    sinusoids, of embedding_std like the bytes
    input/kernel                       [E, H]    unless E = H
    layer_0/attention_norm/{scale,bias} [H]
    layer_0/{query,key,value,out}/kernel [H, H]  and biases [H], except of the keys
    layer_0/dense_norm/{scale,bias}    [H]
    layer_0/up/kernel, down/kernel     [H, 4H], [4H, H]  and biases
    norm/{scale,bias}                  [H]       after the top layer

The sum x is float32; operands of products are of the compute type.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from mlstm_jax.model.architecture import How, Tree, Window
from mlstm_jax.model.cells.transformer import Context, Transformer
from mlstm_jax.model.inputs import lookup
from mlstm_jax.model.matmul import matmul

Array = jax.Array


def _normal(gain: float = 1.0) -> Any:
    return linen.initializers.variance_scaling(gain**2, "fan_in", "normal")


def _sinusoids(std: float) -> Any:
    """Return an initialiser: the encoding of Vaswani et al. 2017, section 3.5, of deviation `std`.

    With random vectors, as in BERT, each place learns by itself which are its neighbours, and a
    small BERT predicts no more than the frequency of each byte for far longer.
    """

    def initialise(_: Array, shape: tuple[int, ...]) -> Array:
        places, units = shape
        pair_U = np.arange(units) // 2
        angle_PU = np.arange(places)[:, None] * 10_000.0 ** (-2 * pair_U / units)
        waves_PU = np.where(np.arange(units) % 2, np.cos(angle_PU), np.sin(angle_PU))
        return jnp.asarray(std * math.sqrt(2) * waves_PU, jnp.float32)

    return initialise


class Dense(linen.Module):
    """y = x W + b, float32, or x W without a bias."""

    outputs: int
    compute: Any
    gain: float = 1.0
    has_bias: bool = True

    @linen.compact
    def __call__(self, x: Array) -> Array:
        """Return y [..., O] of x [..., I]."""
        kernel_IO = self.param("kernel", _normal(self.gain), (x.shape[-1], self.outputs))
        y = matmul(x, kernel_IO, self.compute)
        if not self.has_bias:
            return y
        bias_O = self.param("bias", linen.initializers.zeros, (self.outputs,))
        return y + jnp.expand_dims(bias_O, range(x.ndim - 1))


class Input(linen.Module):
    """The sum's first terms: a byte's embedding and its place's."""

    model: Transformer
    compute: Any

    @linen.compact
    def __call__(self, bytes_BT: Array, embedding_VE: Array, place_BT: Array | None) -> Array:
        """Return x [B, T, H]; without places the bytes are at the first ones."""
        hidden = self.model.hidden
        table_VH = embedding_VE
        if self.model.embedding != hidden:
            kernel_EH = self.param("kernel", _normal(), (self.model.embedding, hidden))
            table_VH = matmul(embedding_VE, kernel_EH, self.compute)
        places = _sinusoids(self.model.embedding_std)
        positions_PH = self.param("positions", places, (self.model.longest_window, hidden))
        x_TBH = lookup(bytes_BT.T, table_VH)
        if place_BT is None:
            return x_TBH.swapaxes(0, 1) + positions_PH[None, : bytes_BT.shape[1]]
        return x_TBH.swapaxes(0, 1) + positions_PH[place_BT]


class Layer(linen.Module):
    """Attention, then two dense matrices, each added to its input."""

    model: Transformer
    compute: Any

    @linen.compact
    def __call__(self, x_BTH: Array, seen: dict[str, Any], dropout_B2TH: Array | None) -> Array:
        """Return the sum after the layer; `seen` says to attention which bytes see which."""
        model, compute = self.model, self.compute
        rows, window, hidden = x_BTH.shape
        heads = rows, window, model.heads, hidden // model.heads
        ending = (2 * model.layers) ** -0.5

        def norm(name: str, x: Array) -> Array:
            return linen.LayerNorm(epsilon=1e-5, name=name)(x)

        def dense(name: str, x: Array, outputs: int, gain: float = 1.0) -> Array:
            # A bias of the keys would add the same to all scores of a query.
            return Dense(outputs, compute, gain, has_bias=name != "key", name=name)(x)

        read = norm("attention_norm", x_BTH)
        query, key, value = (
            dense(name, read, hidden).astype(compute).reshape(heads)
            for name in ("query", "key", "value")
        )
        found = jax.nn.dot_product_attention(query, key, value, **seen).reshape(x_BTH.shape)
        branch = dense("out", found, hidden, ending)
        if dropout_B2TH is not None:
            branch = branch * dropout_B2TH[:, 0]
        x_BTH = x_BTH + branch
        wide = jax.nn.gelu(dense("up", norm("dense_norm", x_BTH), 4 * hidden)).astype(compute)
        branch = dense("down", wide, hidden, ending)
        if dropout_B2TH is not None:
            branch = branch * dropout_B2TH[:, 1]
        return x_BTH + branch


def read(model: Transformer, window: Window, how: How) -> tuple[Tree, Array, Tree]:
    """Read a window; see `Body`."""
    bytes_BT, before, hold_TB = window.bytes_TB.T, window.carry, window.hold_TB
    size = bytes_BT.shape[1]
    causal = not model.sees_ahead
    real_B = None if hold_TB is None else size - jnp.sum(hold_TB, axis=0, dtype=jnp.int32)
    place_BT = None
    seen: dict[str, Any] = {"is_causal": causal}
    if isinstance(before, Context):
        bytes_BT, first_B = _with_context(before, bytes_BT)
        place_BT = jnp.maximum(jnp.arange(bytes_BT.shape[1])[None] - first_B[:, None], 0)
        last_B = model.longest_window - size + (size if real_B is None else real_B)
        key_BP = jnp.arange(model.longest_window)[None]
        key_BP = (key_BP >= first_B[:, None]) & (key_BP < jnp.reshape(last_B, (-1, 1)))
        seen["mask"] = key_BP[:, None, None]
    elif not causal and real_B is not None:
        seen["key_value_seq_lengths"] = real_B
    if "mask" not in seen and _has_flash(model, how.compute):
        seen["implementation"] = "cudnn"

    x = Input(model, how.compute, name="input")(bytes_BT, window.embedding_VE, place_BT)
    states = []
    for layer in range(model.layers):
        dropout = None if window.dropout_B is None else window.dropout_B[:, layer]
        x = Layer(model, how.compute, name=f"layer_{layer}")(x, seen, dropout)
        states.append(x)
    x = linen.LayerNorm(epsilon=1e-5, name="norm")(x)[:, -size:]
    output_TBH = x.astype(how.compute).swapaxes(0, 1)
    if not isinstance(before, Context):
        if how.states:
            h_BTLH = jnp.stack([*states[:-1], x], axis=2)
            return before, output_TBH, Context(h_BTLH, None, None)
        return before, output_TBH, None
    h_BTLH = jnp.stack([*(state[:, -size:] for state in states[:-1]), x], axis=2)
    after = _follow(before, window.bytes_TB.T, h_BTLH, real_B)
    return after, output_TBH, Context(h_BTLH, None, None) if how.states else None


def _has_flash(model: Transformer, compute: Any) -> bool:
    """Return whether cuDNN's attention can be used, which keeps no probabilities.

    It takes half types, and heads of at most 128 units, a multiple of 8.
    """
    units = model.hidden // model.heads
    fits = units <= 128 and units % 8 == 0
    return jax.default_backend() == "gpu" and compute in (jnp.bfloat16, jnp.float16) and fits


def _with_context(before: Context, bytes_BT: Array) -> tuple[Array, Array]:
    """Return P bytes, the last T of them new, and the index of the first that belongs to the text.

    The new bytes are at the end in all rows, wherever their text begins.
    """
    positions, size = before.bytes_BP.shape[1], bytes_BT.shape[1]
    old_BC = before.bytes_BP[:, size:].astype(bytes_BT.dtype)
    first_B = positions - size - jnp.minimum(before.count_B, positions - size)
    return jnp.concatenate([old_BC, bytes_BT], axis=1), first_B


def _follow(before: Context, bytes_BT: Array, h_BTLH: Array, real_B: Array | None) -> Context:
    """Return the context after a window, of which the first `real_B` bytes belong to the text."""
    positions, size = before.bytes_BP.shape[1], bytes_BT.shape[1]
    both = jnp.concatenate([before.bytes_BP, bytes_BT.astype(jnp.uint8)], axis=1)
    if real_B is None:
        count_B = jnp.minimum(before.count_B + size, positions)
        return Context(h_BTLH[:, -1], both[:, -positions:], count_B)

    def row(h_LH: Array, both_N: Array, h_TLH: Array, real: Array) -> tuple[Array, Array]:
        last_LH = jnp.where(real > 0, h_TLH[jnp.maximum(real - 1, 0)], h_LH)
        return last_LH, jax.lax.dynamic_slice(both_N, (real,), (positions,))

    h_BLH, bytes_BP = jax.vmap(row)(before.h, both, h_BTLH, real_B)
    return Context(h_BLH, bytes_BP, jnp.minimum(before.count_B + real_B, positions))
