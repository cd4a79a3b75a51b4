"""The public Flax layers: flax's own cells with the same parameters, and windows that continue."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

from mlstm_jax import layers
from mlstm_jax.errors import UserError

KINDS = {"MLSTM": layers.MLSTM, "LSTM": layers.LSTM, "GRU": layers.GRU}
ROWS = 3
WINDOW = 7
INPUTS = 5
HIDDEN = 16


@pytest.fixture
def x_BTI(random: np.random.Generator) -> Any:
    return jnp.asarray(random.normal(size=(ROWS, WINDOW, INPUTS)), jnp.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_windows_and_padding(kind, x_BTI) -> None:
    """Two windows are one; padding holds the state."""
    layer = KINDS[kind](HIDDEN)
    variables = layer.init(jax.random.key(0), x_BTI)
    read = jax.jit(layer.apply)
    carry, whole = read(variables, x_BTI)
    middle, first = read(variables, x_BTI[:, :4])
    end, second = read(variables, x_BTI[:, 4:], middle)
    np.testing.assert_allclose(jnp.concatenate([first, second], axis=1), whole, rtol=1e-5)
    np.testing.assert_allclose(end.h, carry.h, rtol=1e-5)
    is_padding = jnp.arange(WINDOW)[None] >= jnp.array([[4], [7], [1]])
    carry, h = layer.apply(variables, x_BTI, None, is_padding)
    np.testing.assert_array_equal(carry.h[0], h[0, 3])
    np.testing.assert_array_equal(carry.h[2], h[2, 0])
    with pytest.raises(UserError, match=r"shape \(3, 5\), but must have \(3, 7\)"):
        layer.apply(variables, x_BTI, None, is_padding[:, :5])
    with pytest.raises(UserError, match="gradient"):
        jax.grad(lambda x: layer.apply(variables, x, None, is_padding)[1].sum())(x_BTI)


def test_lstm_of_flax(x_BTI) -> None:
    layer = layers.LSTM(HIDDEN)
    variables = layer.init(jax.random.key(0), x_BTI)
    ours = variables["params"]["layer"]
    theirs: dict[str, Any] = {}
    for part, name in (("i", "wx"), ("h", "wh")):
        for gate, matrix in zip("ifgo", jnp.split(ours[name], 4, axis=1), strict=True):
            theirs[part + gate] = {"kernel": matrix}
    for gate, bias in zip("ifgo", jnp.split(ours["b"], 4), strict=True):
        theirs[f"h{gate}"]["bias"] = bias
    cell = linen.RNN(linen.OptimizedLSTMCell(HIDDEN))

    def of_ours(x: Any) -> Any:
        return layer.apply(variables, x)[1]

    def of_flax(x: Any) -> Any:
        return cell.apply({"params": {"cell": theirs}}, x)

    # Sums of 21 products of float32, over 7 steps.
    np.testing.assert_allclose(of_ours(x_BTI), of_flax(x_BTI), rtol=1e-4, atol=1e-6)
    gradients = [jax.grad(lambda x, f=f: jnp.sin(f(x)).sum())(x_BTI) for f in (of_ours, of_flax)]
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-6)
