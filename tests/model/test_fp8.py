"""fp8 operands of the recurrent products: rounding, gradients, and the Pallas kernels."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlstm_jax.config import Model, Precision
from mlstm_jax.model import fp8
from mlstm_jax.model.architecture import LSTMCarry
from mlstm_jax.model.kernels import INTERPRETED
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.options import NumberTypes
from tests.model.test_language_model import initial, read
from tests.tolerance import error

pytestmark = pytest.mark.numeric

# Rounding x to 3 bits of mantissa is off by 1/16/√3 of its power of two (root mean square), 0.0265
# of x if all mantissas are as frequent; a product has two rounded operands.
PRODUCT = np.sqrt(2) * 0.0265
BF16 = 5e-3


def test_rounding(random: np.random.Generator) -> None:
    numbers = np.arange(256, dtype=np.uint8).view(fp8.E4M3).astype(np.float32)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    # All numbers of the type, all ties between two of them, and what lies just beside both.
    exact = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2]).astype(np.float32)
    beside = [np.nextafter(exact, np.float32(end)) for end in (-np.inf, np.inf)]
    wide = random.normal(size=5000) * 10.0 ** random.uniform(-12, 8, 5000)
    x = np.concatenate([exact, *beside, wide.astype(np.float32)])
    x = x[(x == 0) | (np.abs(x) >= np.finfo(np.float32).tiny)]  # XLA makes zeros of the others
    by_cast = np.clip(x, -fp8.LARGEST, fp8.LARGEST).astype(fp8.E4M3).astype(np.float32)
    np.testing.assert_array_equal(jax.jit(fp8._rounded)(x), by_cast)
    as_operand = jax.jit(lambda x: fp8.operand(x, jnp.float32(1), fp8.E4M3))(x)
    np.testing.assert_array_equal(np.asarray(as_operand, np.float32), by_cast)


def test_matrix_of_zeros() -> None:
    one = jnp.float32(1)
    made = fp8.quantised(jnp.zeros((4, 4), jnp.float32), one, one)
    assert np.isfinite(made.scale)
    np.testing.assert_array_equal(np.asarray(made.w_IO, np.float32), np.zeros((4, 4)))


@functools.cache
def gradient(model: LanguageModel) -> Callable[..., Any]:
    """A function: the carry after a window, its maxima, and the gradients of a layer and the carry.

    Of parameters, bytes, carry and scales.
    """

    @jax.jit
    def function(params: Any, bytes_BT: Any, carry: Any, scales_3: Any) -> Any:
        def loss(params: Any, carry: Any, scales_3: Any) -> Any:
            read = model.apply({"params": params}, bytes_BT, carry, scales_3=scales_3)
            logits = read.logits_BTV
            return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[..., 7]), read.carry

        with model.product_precision():
            function = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)
            (of_params, of_carry, maxima_3), after = function(params, carry, scales_3)
        return after, maxima_3, of_params["layer_0"], of_carry

    return function


# A turn of the kernels' loop has two steps.
HIDDEN = 256
ROWS = 2
WINDOW = 18
SIZE = Model(hidden=HIDDEN, embedding=8)


def fp8_model(**fields: Any) -> LanguageModel:
    """A model whose recurrent products have operands of fp8 where it is given scales."""
    return LanguageModel(SIZE, NumberTypes("bf16"), **fields)


def training_input(random: np.random.Generator) -> tuple[Any, Any, Any]:
    """Parameters, bytes and a carry that is not zero."""
    params = initial(LanguageModel(SIZE))
    bytes_BT = random.integers(0, 256, (ROWS, WINDOW), dtype=np.uint8)
    h, c = np.tanh(random.normal(size=(2, ROWS, 1, HIDDEN)) * 0.5).astype(np.float32)
    return params, bytes_BT, LSTMCarry(h, c)


def typical_error(found: Any, expected: Any) -> float:
    """The error of all but a hundredth of the elements, relative to the largest."""
    wrong = np.quantile(np.abs(np.subtract(found, expected, dtype=np.float64)), 0.99)
    return float(wrong / np.max(np.abs(expected)))


@pytest.mark.fp16  # XLA for CPUs converts E4M3 by way of fp16
def test_gradients_of_emulation_and_kernels(random: np.random.Generator) -> None:
    """By emulation, and in Pallas's interpreter; from the first update on.

    test_language_model.py compares float32 with float64.
    """
    given = training_input(random)
    _, _, exact, of_carry = gradient(LanguageModel(SIZE))(*given, None)
    history_U3 = fp8.no_history()
    for _ in range(2):
        scales_3 = fp8.scales(history_U3, ROWS * WINDOW)
        emulated = gradient(fp8_model())(*given, scales_3)
        after, maxima_3, layer, dcarry = emulated
        # Two products of fp8 on the way: mh and dm, and dh of the later steps.
        for name in ("wmh_v", "wh_v", "wmx_v"):
            found = np.linalg.norm(layer[name] - exact[name]) / np.linalg.norm(exact[name])
            assert 4 * BF16 < found < np.sqrt(2) * PRODUCT + BF16
        assert np.linalg.norm(dcarry.h - of_carry.h) < 2 * PRODUCT * np.linalg.norm(of_carry.h)
        assert after.h.shape == (ROWS, 1, HIDDEN)
        interpreted = gradient(fp8_model(loops=INTERPRETED))(*given, scales_3)
        # The same numbers in another order: sums of fewer than 2^13 terms. A sum between two
        # numbers of E4M3 may then round to either, an eighth apart, at one step of a row.
        typical = jax.tree.map(typical_error, interpreted, emulated)
        assert max(jax.tree.leaves(typical)) < 2e-5
        errors = jax.tree.map(error, interpreted, emulated)
        assert max(jax.tree.leaves(errors)) < 2e-5 + 1 / 8 / (ROWS * WINDOW)
        history_U3 = fp8.with_newest(history_U3, maxima_3, ROWS * WINDOW)


def test_scales() -> None:
    history_U3 = fp8.no_history()
    guess = np.array([1, 448 * 64 / 8, 448 * 64 / 8])
    np.testing.assert_array_equal(fp8.scales(history_U3, 64), guess)
    history_U3 = fp8.with_newest(history_U3, jnp.array([2.0, 0.5, 0.25]), 64)
    for _ in range(fp8.UPDATES - 1):
        history_U3 = fp8.with_newest(history_U3, jnp.array([1.0, 0.125, 0.125]), 64)
        np.testing.assert_array_equal(fp8.scales(history_U3, 64), [224, 896, 1792])
        # Half of the rows: each counts for twice as much.
        np.testing.assert_array_equal(fp8.scales(history_U3, 32), [224, 448, 896])
    history_U3 = fp8.with_newest(history_U3, jnp.array([1.0, 0.125, 0.125]), 64)
    np.testing.assert_array_equal(fp8.scales(history_U3, 64), [448, 3584, 3584])


def test_type_of_reading(random: np.random.Generator) -> None:
    given = training_input(random)
    made = [
        read(LanguageModel(SIZE, Precision(compute="bf16", recurrent=recurrent).types), *given)
        for recurrent in ("compute", "fp8_emulated")
    ]
    jax.tree.map(np.testing.assert_array_equal, *made)
