"""The written-out gradient against JAX's own, in every type and at odd sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlstm_jax.model.recurrence import LayerCarry, recurrence, recurrence_reference


def arguments(random: np.random.Generator, t: int, b: int, h: int) -> tuple:
    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    carry = LayerCarry(np.tanh(normal(b, h)), normal(b, h))
    return (
        normal(t, b, h),
        normal(t, b, 4 * h),
        normal(h, h) / np.sqrt(h),
        normal(h, 4 * h) / np.sqrt(h),
        carry,
    )


def gradients(function: object, inputs: tuple, compute: object, weights: tuple) -> tuple:
    def scalar(*inputs: object) -> jax.Array:
        h_TBH, last = function(*inputs, compute)
        parts = (h_TBH.astype(jnp.float32), last.h, last.c)
        return sum(jnp.vdot(part, weight) for part, weight in zip(parts, weights, strict=True))

    return jax.jit(jax.grad(scalar, argnums=(0, 1, 2, 3, 4)))(*inputs)


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
    plain = jax.jit(recurrence_reference, static_argnums=5)(*inputs, compute)
    # As it runs under a gradient, where it also saves what the backward scan needs.
    saving = jax.jit(lambda *a: jax.vjp(lambda *a: recurrence(*a, compute), *a)[0])(*inputs)
    jax.tree.map(np.testing.assert_array_equal, saving, plain)


def test_weight_gradient_is_summed_in_float32(random: np.random.Generator) -> None:
    """2,000 small equal terms: a running sum in bf16 stops growing at 256 of them."""
    t, h = 2000, 4
    mx, zx, wmh, wh, carry = arguments(random, t, 1, h)
    mx, zx = np.ones_like(mx), np.broadcast_to(zx[:1], zx.shape)
    zeros = (np.zeros((1, h), np.float32),) * 2
    weights = (np.full((t, 1, h), 1 / 64, np.float32), *zeros)
    exact = gradients(recurrence_reference, (mx, zx, wmh, wh, carry), jnp.float32, weights)
    half = gradients(recurrence, (mx, zx, wmh, wh, carry), jnp.bfloat16, weights)
    for mine, judge in zip(half[2:4], exact[2:4], strict=True):
        assert np.linalg.norm(mine - judge) / np.linalg.norm(judge) < 0.03
