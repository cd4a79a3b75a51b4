"""Initial matrices."""

import math
from typing import Any

import jax
import jax.numpy as jnp


def uniform(hidden: int) -> Any:
    """Return NVIDIA's initialiser of every matrix: uniform(±1/√H), independent of its fan-in."""
    limit = 1 / math.sqrt(hidden)

    def initialise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.uniform(key, shape, jnp.float32, -limit, limit)

    return initialise
