"""Weight normalisation: norm by gain, finite at a zero column, float32 inside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlstm_jax.model.ops import column_norms, weight_norm
from tests.tolerance import assert_close

pytestmark = pytest.mark.numeric


def test_column_norms_are_the_gains(random: np.random.Generator) -> None:
    v = random.normal(size=(9, 5)).astype(np.float32)
    g = random.normal(size=5).astype(np.float32)
    w = weight_norm(v, g)
    assert_close(np.linalg.norm(w, axis=0), np.abs(g), terms=9)
    assert_close(weight_norm(7 * v, g), w, terms=9)
    assert_close(weight_norm(v, column_norms(v)), v, terms=9)


def test_gradient_is_finite_at_a_zero_column() -> None:
    v = jnp.ones((4, 3)).at[:, 1].set(0)
    gradient = jax.grad(lambda v, g: weight_norm(v, g).sum(), argnums=(0, 1))(v, jnp.ones(3))
    assert all(np.isfinite(leaf).all() for leaf in gradient)


@pytest.mark.fp16
def test_sums_do_not_overflow_in_half_precision() -> None:
    v = jnp.full((400, 2), 30.0, jnp.float16)  # its squares sum to 360,000, past 65,504
    w = weight_norm(v, jnp.ones(2))
    assert_close(np.linalg.norm(w, axis=0), np.ones(2), terms=400)
