"""Weight normalisation, one gain per output column: W = g ∘ V · rsqrt(max(Σ_rows V², ε)).

Salimans and Kingma 2016, as Puri et al. 2018 use it on the four matrices of the mLSTM. It is
computed once per training step, outside the scan over time: inside, it would double the time of the
gradient. This form keeps the gradient finite at a zero column; ``V / ‖V‖`` does not.
"""

import jax
import jax.numpy as jnp

EPSILON = 1e-12


def weight_norm(v_IO: jax.Array, g_O: jax.Array) -> jax.Array:
    """Return the normalised matrix, float32 [I, O]; the sums are float32 for any input type."""
    v_IO = v_IO.astype(jnp.float32)
    scale_O = g_O * jax.lax.rsqrt(jnp.maximum(jnp.sum(v_IO * v_IO, axis=0), EPSILON))
    return v_IO * scale_O[None, :]


def column_norms(v_IO: jax.Array) -> jax.Array:
    """Return ‖V‖ by column, float32 [O]: the initial gain for which W = V."""
    return jnp.sqrt(jnp.sum(v_IO.astype(jnp.float32) ** 2, axis=0))
