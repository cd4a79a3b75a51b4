"""The byte-level language model: embedding → mLSTM layers → linear decoder.

Puri et al. 2018, section VI. The Linen module below owns the parameters and connects the layers;
the mathematics is in recurrence.py, weight_norm.py and matmul.py. Only this file imports
flax.linen, so a port to another module library changes only this file.

Parameters, all float32::

    embedding                     [V, E]   normal(0, embedding_std)
    layer_0/wmx_v, wmx_g          [I, H], [H]
    layer_0/wmh_v, wmh_g          [H, H], [H]
    layer_0/wx_v,  wx_g           [I, G], [G]      I = E for the first layer, H above
    layer_0/wh_v,  wh_g           [H, G], [G]
    layer_0/b                     [G]      zero
    decoder_kernel, decoder_bias  [H, V], [V]
    label_kernel, label_bias      [H, K], [K]      with model.rating_head (K = 1) or classes; zero
"""

import functools
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from mlstm_jax import config
from mlstm_jax.model.matmul import matmul
from mlstm_jax.model.recurrence import (
    LayerCarry,
    LayerWeights,
    Loops,
    Sequence,
    recurrence,
    recurrence_states,
)
from mlstm_jax.model.weight_norm import column_norms, weight_norm

Array = jax.Array
Parameters = Any  # A tree of float32 arrays, as in the docstring above.

VOCABULARY = 256
COMPUTE_TYPES = {
    "fp32": jnp.float32,
    "tf32": jnp.float32,
    "bf16": jnp.bfloat16,
    "fp16": jnp.float16,
}


class Carry(NamedTuple):
    """State of every layer between two windows: h float32 [B, L, H], c [B, L, H].

    Rows are the first axis, so the carry of all devices is one array in the order of the streams.
    """

    h: Array
    c: Array


class ModelOutput(NamedTuple):
    """The output of the model for a window."""

    carry: Carry  # after the window
    logits_BTV: Array  # of each next byte, float32
    # After each byte, for a document that ends there: its rating, float32, in standard deviations
    # from the mean of the training split, or the logit of each class; None without a label head.
    labels_BTK: Array | None
    # The state after each byte, h and c [B, T, L, H], if requested.
    states: Carry | None = None


def _uniform(hidden: int) -> Any:
    """Return NVIDIA's initialiser of every matrix: uniform(±1/√H), independent of its fan-in."""
    limit = 1 / math.sqrt(hidden)

    def initialise(key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.uniform(key, shape, jnp.float32, -limit, limit)

    return initialise


class _Layer(linen.Module):
    """The matrices of one mLSTM layer."""

    model: config.Model

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
        uniform = _uniform(hidden)
        orthogonal = linen.initializers.orthogonal()
        recurrent = orthogonal if self.model.recurrent_init == "orthogonal" else uniform
        return LayerWeights(
            wmx_IH=self._matrix("wmx", inputs, hidden, uniform),
            wmh_HH=self._matrix("wmh", hidden, hidden, recurrent, gain),
            wx_IG=self._matrix("wx", inputs, 4 * hidden, uniform),
            wh_HG=self._matrix("wh", hidden, 4 * hidden, recurrent, gain),
            b_G=self.param("b", linen.initializers.zeros, (4 * hidden,)),
        )


class LanguageModel(linen.Module):
    """Predict each next byte from the previous bytes and the carried state."""

    model: config.Model
    precision: config.Precision
    recompute_every: int | None = None
    # See `recurrence`; None: XLA's fastest loops for JAX's default backend.
    loops: Loops | None = None

    @property
    def compute(self) -> Any:
        """Operand type of every matrix product."""
        return COMPUTE_TYPES[self.precision.compute]

    def product_precision(self) -> AbstractContextManager[Any]:
        """Return the context in which products must be traced, so that fp32 is true float32.

        JAX's default on a GPU is TensorFloat-32. The gradient is traced after the model has been
        applied and therefore needs the context, too.
        """
        if self.precision.compute == "fp32":
            return jax.default_matmul_precision("highest")
        return nullcontext()

    def backward_order(self) -> list[str]:
        """Return the names of the matrices that grow large with H, in the order of the gradients.

        The first layer's input matrices come last and are small, because they use a table of bytes.
        """
        names = ["decoder_kernel"]
        for layer in reversed(range(self.model.layers)):
            upper = ("wmx_v", "wx_v") if layer else ()
            names += [f"layer_{layer}/{name}" for name in ("wmh_v", "wh_v", *upper)]
        return names

    def init_carry(self, rows: int) -> Carry:
        """Return the zero state of `rows` streams, as at the start of a shard, on the host."""
        shape = (rows, self.model.layers, self.model.hidden)
        cell = self.compute if self.precision.cell == "compute" else jnp.float32
        return Carry(cast(Array, np.zeros(shape, np.float32)), cast(Array, np.zeros(shape, cell)))

    @linen.compact
    def __call__(
        self,
        bytes_BT: Array,
        carry: Carry,
        padding_mask_BT: Array | None = None,
        dropout_mask_BLH: Array | None = None,
        return_states: bool = False,
    ) -> ModelOutput:
        """Read a window of every row.

        Args:
            bytes_BT: the bytes to read, of any integer type.
            carry: the state after the previous bytes.
            padding_mask_BT: bool, true in the padding after the end of a text. There the state does
                not change, and the logits are meaningless.
            dropout_mask_BLH: factors of each unit's output to the next layer, the same for a whole
                window. The layer's own state is not multiplied.
            return_states: also return the state after each byte; without a gradient.
        """
        with self.product_precision():
            return self._read(bytes_BT, carry, padding_mask_BT, dropout_mask_BLH, return_states)

    def _read(
        self,
        bytes_BT: Array,
        carry: Carry,
        padding_mask_BT: Array | None,
        dropout_mask_BLH: Array | None,
        return_states: bool,
    ) -> ModelOutput:
        embedding_VE = self.param(
            "embedding",
            linen.initializers.normal(self.model.embedding_std),
            (VOCABULARY, self.model.embedding),
        )
        x = bytes_BT.T.astype(jnp.int32)
        hold_TB = None if padding_mask_BT is None else padding_mask_BT.T
        ends, states = [], []
        for layer in range(self.model.layers):
            inputs = self.model.hidden if layer else self.model.embedding
            weights = _Layer(self.model, name=f"layer_{layer}")(inputs)
            if layer == 0:
                # There are only 256 bytes: their projections are a table, computed once per window.
                weights = weights._replace(
                    wmx_IH=matmul(embedding_VE, weights.wmx_IH, self.compute),
                    wx_IG=matmul(embedding_VE, weights.wx_IG, self.compute),
                )
            before = LayerCarry(carry.h[:, layer], carry.c[:, layer])
            sequence = Sequence(x, hold_TB)
            if return_states:
                state, steps = recurrence_states(before, sequence, weights, self.compute)
                states.append(steps)
                x = steps.h.astype(self.compute)
            else:
                loops = self.loops or ("apart" if jax.default_backend() == "cpu" else "packed")
                state, x = recurrence(
                    before, sequence, weights, self.compute, self.recompute_every, loops
                )
            ends.append(state)
            if dropout_mask_BLH is not None:
                x = x * dropout_mask_BLH[None, :, layer].astype(x.dtype)
        uniform = _uniform(self.model.hidden)
        kernel_HV = self.param("decoder_kernel", uniform, (self.model.hidden, VOCABULARY))
        bias_V = self.param("decoder_bias", linen.initializers.zeros, (VOCABULARY,))
        logits_TBV = matmul(x, kernel_HV, self.compute) + bias_V[None, None, :]
        carry = Carry(
            h=jnp.stack([state.h for state in ends], axis=1),
            c=jnp.stack([state.c for state in ends], axis=1),
        )
        labels_BTK = None
        width = self.model.classes or int(self.model.rating_head)
        if width:
            zeros = linen.initializers.zeros
            label_HK = self.param("label_kernel", zeros, (self.model.hidden, width))
            bias_K = self.param("label_bias", zeros, (width,))
            labels_BTK = matmul(x, label_HK, self.compute).swapaxes(0, 1) + bias_K[None, None]
        steps_BTLH = None
        if return_states:
            steps_BTLH = Carry(
                *(jnp.stack(parts, axis=2).swapaxes(0, 1) for parts in zip(*states, strict=True))
            )
        return ModelOutput(carry, logits_TBV.swapaxes(0, 1), labels_BTK, steps_BTLH)

    def init_parameters(self, key: Array) -> Parameters:
        """Return initial parameters; the same key gives the same values on every device."""
        window_BT = jnp.zeros((1, 1), jnp.uint8)
        return self.init(key, window_BT, self.init_carry(1))["params"]


@functools.cache
def parameter_shapes(model: config.Model) -> Parameters:
    """Return only the shapes and types of a model's parameters, as a tree."""
    shell = LanguageModel(model, config.Precision())
    return jax.eval_shape(lambda: shell.init_parameters(jax.random.key(0)))
