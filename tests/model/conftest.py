"""The model's own arithmetic promotes no types in silence; optax's does, so only here."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def strict_types() -> Iterator[None]:
    """Raise where two types meet without a cast."""
    with jax.numpy_dtype_promotion("strict"):
        yield
