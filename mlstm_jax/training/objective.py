"""The loss: what a model reads of a window, which symbols it must predict, and their cross-entropy.

An objective is one function here, a line in `OBJECTIVES` and a name of `ObjectiveName`. The loss
is the mean over all positions of weight · cross-entropy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlstm_jax.model.architecture import VOCABULARY, ObjectiveName
from mlstm_jax.model.language_model import cross_entropy

Array = jax.Array

MASK = VOCABULARY
_PREDICTED = 15  # percent of the bytes of a window
# Fractions of the predicted bytes; the others stay.
_MASKED = 0.8
_RANDOM = 0.1


class Targets(NamedTuple):
    """What a model reads of a window, and what it must predict."""

    inputs_BT: Array
    targets_BT: Array
    # float32; the weights of a row sum to the number of its bytes that count.
    weight_BT: Array


# inputs [B, T], next bytes [B, T], which of these count [B, T], keys [B] → targets.
Objective = Callable[[Any, Any, Any, Array], Targets]


def next_byte(inputs_BT: Any, targets_BT: Any, counted_BT: Any, key_B: Array) -> Targets:
    """Predict the byte after each."""
    return Targets(inputs_BT, targets_BT, counted_BT.astype(jnp.float32))


def masked_bytes(inputs_BT: Any, targets_BT: Any, counted_BT: Any, key_B: Array) -> Targets:
    """Predict some of the bytes themselves (Devlin et al. 2018, section 3.1).

    15% of the bytes that count are predicted, at least one; 80% of these are masked, 10% are
    replaced by any byte, and 10% stay. The other bytes have no weight.
    """

    def row(bytes_T: Array, counted_T: Array, key: Array) -> tuple[Array, Array]:
        order_key, way_key, byte_key = jax.random.split(key, 3)
        size = bytes_T.shape
        order_T = jnp.where(counted_T, jax.random.uniform(order_key, size), 2)
        rank_T = jnp.argsort(jnp.argsort(order_T))
        count = jnp.sum(counted_T)
        predicted = (_PREDICTED * count + 99) // 100
        predicted_T = rank_T < predicted
        way_T = jax.random.uniform(way_key, size)
        byte_T = jax.random.randint(byte_key, size, 0, VOCABULARY)
        read_T = jnp.where(way_T < _MASKED + _RANDOM, byte_T, bytes_T)
        read_T = jnp.where(way_T < _MASKED, MASK, read_T)
        weight_T = predicted_T * (count / jnp.maximum(predicted, 1))
        return jnp.where(predicted_T, read_T, bytes_T), weight_T.astype(jnp.float32)

    inputs_BT = inputs_BT.astype(jnp.int32)
    read_BT, weight_BT = jax.vmap(row)(inputs_BT, counted_BT, key_B)
    return Targets(read_BT, inputs_BT, weight_BT)


OBJECTIVES: dict[ObjectiveName, Objective] = {"next-byte": next_byte, "masked-bytes": masked_bytes}


def row_keys(seed: int | Array, use: int, step: Array, row_B: Any) -> Array:
    """Make a key for each row from the seed, its use, the step and the row in the global batch."""
    key = jax.random.key(seed, impl="threefry2x32")
    key = jax.random.fold_in(jax.random.fold_in(key, use), step)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, row_B)


def weighted(nats_BT: Array, weight_BT: Array) -> Array:
    """Weight · nats; zero where the weight is zero, even if the nats are not finite."""
    return jnp.where(weight_BT > 0, nats_BT * weight_BT, 0)


def label_losses(outputs_BTK: Array | None, labels_BT: Any) -> tuple[Array, Array]:
    """The loss of the labels and their number, both as means over all bytes.

    One output per byte is a rating, with a squared error; several are the logits of classes. A
    label that is NaN is missing.
    """
    if outputs_BTK is None or labels_BT is None:
        return jnp.float32(0), jnp.float32(0)
    known_BT = ~jnp.isnan(labels_BT)
    labels_BT = jnp.where(known_BT, labels_BT, 0)
    if outputs_BTK.shape[-1] == 1:
        loss_BT = (outputs_BTK[..., 0] - labels_BT) ** 2
    else:
        loss_BT = cross_entropy(outputs_BTK, labels_BT)
    return jnp.mean(jnp.where(known_BT, loss_BT, 0)), jnp.mean(known_BT, dtype=jnp.float32)
