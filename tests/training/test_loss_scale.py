"""Dynamic loss scaling: halves, doubles, stays between its limits, keeps its types."""

import jax
import jax.numpy as jnp
import pytest

from mlstm_jax.config import Precision
from mlstm_jax.training.state import adjust_loss_scale, init_loss_scale


def run(precision: Precision, finite: list[bool]) -> list[float]:
    scale, seen = init_loss_scale(precision), []
    adjust = jax.jit(lambda s, f: adjust_loss_scale(s, f, precision))
    for value in finite:
        scale = adjust(scale, jnp.bool_(value))
        assert (scale.scale.dtype, scale.clean.dtype) == (jnp.float32, jnp.int32)
        seen.append(float(scale.scale))
    return seen


def test_halves_on_an_overflow_and_doubles_after_clean_updates() -> None:
    precision = Precision(compute="fp16", initial_loss_scale=8.0, growth_interval=3)
    finite = [True, True, False, True, True, True, True]
    assert run(precision, finite) == [8, 8, 4, 4, 4, 8, 8]


def test_stays_between_floor_and_cap() -> None:
    precision = Precision(compute="fp16", initial_loss_scale=2.0, growth_interval=1)
    assert run(precision, [False] * 4) == [1, 1, 1, 1]
    capped = Precision(
        compute="fp16", initial_loss_scale=2.0**23, growth_interval=1, max_loss_scale=2.0**24
    )
    assert run(capped, [True] * 3) == [2.0**24] * 3


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_other_types_are_not_scaled(compute: str) -> None:
    assert run(Precision(compute=compute, growth_interval=1), [True, False, True]) == [1, 1, 1]
