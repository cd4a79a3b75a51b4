"""The byte-level language model: embedding → body → linear decoder, for every architecture.

Puri et al. 2018, section VI. The Linen module below owns the parameters that all models share, and
connects the layers of a kind of model (architecture.py).

Parameters, all float32::

    embedding                     [V, E]   normal(0, embedding_std)
    layer_0/...                   of the kind of model, see mlstm.py
    decoder_kernel, decoder_bias  [H, V], [V]
    label_kernel, label_bias      [H, K], [K]      with rating_head (K = 1) or classes; zero
"""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen

from mlstm_jax.model.architecture import VOCABULARY, Architecture, StateOutput, Window
from mlstm_jax.model.ops import matmul, uniform
from mlstm_jax.model.stack import Loops
from mlstm_jax.model.time_loop import put_step, step_of, steps_read
from mlstm_jax.options import NumberTypes

Array = jax.Array
Parameters = Any  # A tree of float32 arrays, as in the docstring above.
Carry = Any  # A tree of arrays, rows first; see `Architecture.init_carry`.

_TYPES = {"fp32": jnp.float32, "tf32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}


class ModelOutput(NamedTuple):
    """The output of the model for a window."""

    carry: Carry  # after the window
    logits_BTV: Array  # of each next byte, float32
    # After each byte, for a document that ends there: its rating, float32, in standard deviations
    # from the mean of the training split, or the logit of each class; None without a label head.
    labels_BTK: Array | None
    states: Any = None  # as `Architecture.read` returns them


class LanguageModel(linen.Module):
    """Predict each next byte from the previous bytes and the carried state."""

    architecture: Architecture
    types: NumberTypes = NumberTypes()
    recompute_every: int | None = None
    loops: Loops | None = None  # None: XLA's fastest for JAX's default backend

    @property
    def compute(self) -> Any:
        """Operand type of every matrix product."""
        return _TYPES[self.types.compute]

    def product_precision(self) -> AbstractContextManager[Any]:
        """The context in which a model and its gradient are traced, so that fp32 is not TF32."""
        if self.compute == jnp.float32 and self.types.compute != "tf32":
            return jax.default_matmul_precision("highest")
        return nullcontext()

    def backward_order(self) -> list[str]:
        """List the parameters that grow large with H, in the order of their gradients."""
        names = ["decoder_kernel"]
        for layer in reversed(range(self.architecture.layers)):
            names += [f"layer_{layer}/{name}" for name in self.architecture.large_parameters(layer)]
        return names

    @property
    def cell(self) -> Any:
        """Type of the cell state c."""
        return self.compute if self.types.cell == "compute" else jnp.float32

    def init_carry(self, rows: int) -> Carry:
        """The zero state of `rows` streams, as at the start of a shard, on the host."""
        return self.architecture.init_carry(rows, self.cell)

    def reading_carry(self, rows: int) -> Carry:
        """The state of `rows` texts at their start, for reading them without training."""
        return self.architecture.reading_carry(rows, self.cell)

    def reading_weights(self, params: Parameters, *, several_rows: bool = True) -> Any:
        """Compute what reading needs of the parameters alone, on the host; None: nothing."""
        with self.product_precision():
            weights = _reading_weights(self.architecture, self.compute, several_rows, params)
            return jax.device_get(weights)

    @linen.compact
    def __call__(
        self,
        bytes_BT: Array,
        carry: Carry,
        padding_mask_BT: Array | None = None,
        return_states: StateOutput = "none",
        dropout_B: Array | None = None,
        scales_3: Array | None = None,
    ) -> ModelOutput:
        """Read a window of every row.

        Beside the collection "params" there may be what `reading_weights` returns of the same
        parameters, as "weights" in the collection "reading".

        Args:
            bytes_BT: the bytes to read, of any integer type.
            carry: the state after the previous bytes.
            padding_mask_BT: bool, true in the padding after the end of a text. There the state does
                not change, and the logits are meaningless.
            return_states: see `Architecture.read`; without a gradient. With "each", no product has
                a shape that depends on the length of the window.
            dropout_B: factors of units, see `Architecture.dropout_shape`.
            scales_3: of a gradient in fp8, see fp8.py; their "gradient" is the operands' maxima.
        """
        model = self.architecture
        with self.product_precision():
            normal = linen.initializers.normal(model.embedding_std)
            embedding_VE = self.param("embedding", normal, (model.symbols, model.embedding))
            window = Window(
                embedding_VE=embedding_VE,
                bytes_TB=bytes_BT.T.astype(jnp.int32),
                carry=carry,
                compute=self.compute,
                padding_mask_TB=None if padding_mask_BT is None else padding_mask_BT.T,
                dropout_B=dropout_B,
                states=return_states,
                reading_weights=self.get_variable("reading", "weights"),
                recompute_every=self.recompute_every,
                loops=self.loops,
                scales_3=scales_3,
            )
            carry, x, states = model.read(window)
            shape = (model.hidden, VOCABULARY)
            kernel_HV = self.param("decoder_kernel", uniform(model.hidden), shape)
            bias_V = self.param("decoder_bias", linen.initializers.zeros, (VOCABULARY,))
            if return_states == "each":
                steps = steps_read(x.shape[0], window.padding_mask_TB)
                logits_TBV = _logits_by_step(x, kernel_HV, self.compute, steps)
            else:
                logits_TBV = matmul(x, kernel_HV, self.compute)
            logits_TBV = logits_TBV + bias_V[None, None, :]
            labels_BTK = self._labels(x) if model.labels else None
            return ModelOutput(carry, logits_TBV.swapaxes(0, 1), labels_BTK, states)

    def _labels(self, x_TBH: Array) -> Array:
        """The outputs of the label head, [B, T, K]."""
        model = self.architecture
        zeros = linen.initializers.zeros
        label_HK = self.param("label_kernel", zeros, (model.hidden, model.labels))
        bias_K = self.param("label_bias", zeros, (model.labels,))
        if model.bidirectional:
            count_T = jnp.arange(1, x_TBH.shape[0] + 1, dtype=jnp.float32)
            x_TBH = jnp.cumsum(x_TBH.astype(jnp.float32), axis=0) / count_T[:, None, None]
        return matmul(x_TBH, label_HK, self.compute).swapaxes(0, 1) + bias_K[None, None]

    def init_parameters(self, key: Array) -> Parameters:
        """Draw initial parameters; the same key gives the same values on every device."""
        window_BT = jnp.zeros((1, 1), jnp.uint8)
        return self.init(key, window_BT, self.init_carry(1))["params"]


def _logits_by_step(x_TBH: Array, kernel_HV: Array, compute: Any, steps: Array | int) -> Array:
    """`matmul` one step at a time: a product of all would round a row differently for another T."""

    def step(t: Array, logits_TBV: Array) -> Array:
        return put_step(logits_TBV, matmul(step_of(x_TBH, t), kernel_HV, compute), t)

    zeros_TBV = jnp.zeros((*x_TBH.shape[:2], kernel_HV.shape[1]), jnp.float32)
    return jax.lax.fori_loop(0, steps, step, zeros_TBV)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _reading_weights(
    architecture: Architecture, compute: Any, several_rows: bool, params: Parameters
) -> Any:
    return architecture.reading_weights(params, compute, several_rows=several_rows)


@functools.cache
def parameter_shapes(architecture: Architecture) -> Parameters:
    """Only the shapes and types of a model's parameters, as a tree."""
    model = LanguageModel(architecture)
    return jax.eval_shape(lambda: model.init_parameters(jax.random.key(0)))


def reset(carry: Carry, reset_B: Any) -> Carry:
    """Zero the state of the rows that start a shard or a separate document."""

    def zero(x: Array) -> Array:
        return jnp.where(jnp.expand_dims(reset_B, range(1, x.ndim)), 0, x).astype(x.dtype)

    return jax.tree.map(zero, carry)


def cross_entropy(logits: Array, targets: Any) -> Array:
    """−log softmax(logits) at the targets: logits [..., V] → float32 [...].

    Optax's reads the targets' logits with a gather, whose gradient is slow on GPUs.
    """
    is_target = jax.nn.one_hot(targets.astype(jnp.int32), logits.shape[-1], dtype=jnp.bool_)
    target_logits = jnp.sum(jnp.where(is_target, logits, 0), axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - target_logits
