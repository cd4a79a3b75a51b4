"""The mLSTM's own arithmetic promotes no types in silence; optax's and flax's do."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def strict_types(request: pytest.FixtureRequest) -> Iterator[None]:
    """Raise where two types meet without a cast, unless the cell is flax's."""
    parameters = getattr(request.node, "callspec", None)
    kind = parameters.params.get("kind", "mlstm") if parameters else "mlstm"
    with jax.numpy_dtype_promotion("strict" if kind == "mlstm" else "standard"):
        yield
