"""A stack of recurrent layers, each of which reads the states of the layer below."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from mlstm_jax.model.architecture import How, Tree, Window


class Layers(Protocol):
    """The layers of one kind of cell: a module such as mlstm_layer.py."""

    # The Linen module that owns the parameters of a layer: its call takes the width I of the
    # layer's input, and returns what `read` needs of them, computed once per window.
    Weights: Any

    def start(
        self, weights: Tree, embedding_VE: Any, bytes_TB: Any, compute: Any
    ) -> tuple[Tree, Any]:
        """Return the weights of the first layer, and its input; an upper layer reads [T, B, H]."""

    def read(
        self, model: Any, weights: Tree, before: Tree, x: Any, hold_TB: Any, how: How
    ) -> tuple[Tree, Any, Tree]:
        """Read a window.

        Args:
            model: the kind.
            weights: of this layer.
            before: its carry before the window, [B, ...].
            x: its input.
            hold_TB: see `Window`.
            how: see `How`.

        Returns:
            The carry after the window; the output [T, B, H] in the compute type; and the carry
            after each byte, [T, B, ...], or None unless `how.states`.
        """


def read(parts: Layers, model: Any, window: Window, how: How) -> tuple[Tree, Any, Tree]:
    """Read a window with all layers; see `Body`."""
    x, ends, states = window.bytes_TB, [], []
    for layer in range(model.layers):
        inputs = model.hidden if layer else model.embedding
        weights = parts.Weights(model, name=f"layer_{layer}")(inputs)
        if layer == 0:
            weights, x = parts.start(weights, window.embedding_VE, x, how.compute)
        before = jax.tree.map(lambda part: part[:, layer], window.carry)  # noqa: B023
        after, x, steps = parts.read(model, weights, before, x, window.hold_TB, how)
        ends.append(after)
        states.append(steps)
        if window.dropout_B is not None:
            x = x * window.dropout_B[None, :, layer].astype(x.dtype)
    carry = jax.tree.map(lambda *layers: jnp.stack(layers, axis=1), *ends)
    if not how.states:
        return carry, x, None
    return carry, x, jax.tree.map(lambda *layers: jnp.stack(layers, 2).swapaxes(0, 1), *states)
