"""Dynamic loss scaling: halves, doubles, stays between its limits, keeps its types."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from mlstm_jax.config import Precision
from mlstm_jax.training.state import adjust_loss_scale, init_loss_scale


@pytest.mark.parametrize(
    ("chosen", "finite", "expected"),
    [
        # It halves at an overflow and doubles after three clean updates.
        ({"initial_loss_scale": 8.0, "growth_interval": 3}, "yynyyyy", [8, 8, 4, 4, 4, 8, 8]),
        ({"initial_loss_scale": 2.0}, "nnn", [1, 1, 1]),
        ({"initial_loss_scale": 2.0**23, "max_loss_scale": 2.0**24}, "yyy", [2.0**24] * 3),
        ({"compute": "fp32"}, "yny", [1, 1, 1]),
        ({"compute": "bf16"}, "yny", [1, 1, 1]),
    ],
)
def test_the_loss_scale(chosen: dict[str, Any], finite: str, expected: list[float]) -> None:
    precision = Precision(**{"compute": "fp16", "growth_interval": 1} | chosen)
    scale, adjust = init_loss_scale(precision), jax.jit(adjust_loss_scale, static_argnums=2)
    for letter, value in zip(finite, expected, strict=True):
        scale = adjust(scale, jnp.bool_(letter == "y"), precision)
        assert (scale.scale.dtype, scale.clean.dtype) == (jnp.float32, jnp.int32)
        assert scale.scale == value
