"""The written-out gradient against JAX's own, in every type and at odd sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlstm_jax.model.recurrence import Inputs, LayerCarry, recurrence, recurrence_reference


def arguments(random: np.random.Generator, t: int, b: int, h: int) -> Inputs:
    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    carry = LayerCarry(np.tanh(normal(b, h)), normal(b, h))
    return Inputs(
        normal(t, b, h),
        normal(t, b, 4 * h),
        normal(h, h) / np.float32(np.sqrt(h)),
        normal(h, 4 * h) / np.float32(np.sqrt(h)),
        carry,
    )


def gradients(function: object, inputs: Inputs, compute: object, weights: tuple) -> Inputs:
    def scalar(inputs: Inputs) -> jax.Array:
        h_TBH, last = function(inputs, compute)
        parts = (h_TBH.astype(jnp.float32), last.h, last.c)
        return sum(jnp.vdot(part, weight) for part, weight in zip(parts, weights, strict=True))

    return jax.jit(jax.grad(scalar))(inputs)


@pytest.mark.parametrize(("t", "b", "h"), [(1, 1, 1), (5, 3, 7), (32, 4, 16)])
@pytest.mark.parametrize(
    ("compute", "tolerance"), [("float32", 1e-5), ("bfloat16", 3e-2), ("float16", 4e-3)]
)
def test_gradient_agrees_with_the_reference(
    t: int, b: int, h: int, compute: str, tolerance: float, random: np.random.Generator
) -> None:
    inputs = arguments(random, t, b, h)
    weights = tuple(
        random.normal(size=shape).astype(np.float32) for shape in [(t, b, h), (b, h), (b, h)]
    )
    # The reference in float32 is the judge of the half types too.
    exact = gradients(recurrence_reference, inputs, jnp.float32, weights)
    ours = gradients(recurrence, inputs, jnp.dtype(compute), weights)
    for mine, judge in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        assert mine.dtype == judge.dtype == jnp.float32
        error = np.linalg.norm(mine - judge) / (np.linalg.norm(judge) + 1e-6)
        assert error < tolerance


@pytest.mark.parametrize("compute", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_forward_is_the_reference_to_the_bit(
    compute: jnp.dtype, random: np.random.Generator
) -> None:
    inputs = arguments(random, 9, 2, 12)
    plain = jax.jit(recurrence_reference, static_argnums=1)(inputs, compute)
    # As it runs under a gradient, where it also saves what the backward scan needs.
    saving = jax.jit(lambda x: jax.vjp(lambda x: recurrence(x, compute), x)[0])(inputs)
    jax.tree.map(np.testing.assert_array_equal, saving, plain)


def test_weight_gradient_is_summed_in_float32(random: np.random.Generator) -> None:
    """2,000 small equal terms: a running sum in bf16 stops growing at 256 of them."""
    t, h = 2000, 4
    inputs = arguments(random, t, 1, h)
    inputs = inputs._replace(
        mx_TBH=np.ones_like(inputs.mx_TBH),
        zx_TBG=np.broadcast_to(inputs.zx_TBG[:1], inputs.zx_TBG.shape),
    )
    zeros = (np.zeros((1, h), np.float32),) * 2
    weights = (np.full((t, 1, h), 1 / 64, np.float32), *zeros)
    exact = gradients(recurrence_reference, inputs, jnp.float32, weights)
    half = gradients(recurrence, inputs, jnp.bfloat16, weights)
    for name in ("wmh_HH", "wh_HG"):
        mine, judge = getattr(half, name), getattr(exact, name)
        assert np.linalg.norm(mine - judge) / np.linalg.norm(judge) < 0.03
