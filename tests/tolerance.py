"""How far two right answers may differ: the one place that says so.

A sum of n terms may be taken in any order, and is in another on another processor. Each order is
off by at most n/2 units in the last place of the largest partial sum, so two of them differ by at
most n units. The terms that count are those of the sums that a value passes through in one step of
time, and for the gradient of a weight the rows and steps that it is summed over; what is older the
gates let go of, as they let go of the state. Updates of a run add up. Errors are taken of a whole
array, in proportion to its scale: an element near zero, where large ones cancel, has no digits of
its own.

In a half type the operands of products are rounded to it, while sums stay float32: there the
roundings of one step of time count as well.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# One unit in the last place of 1.
UNIT = {name: float(jnp.finfo(name).eps) for name in ("float64", "float32", "bfloat16", "float16")}
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

# Of a value in a step of time: the layer's input, h, mh, m and a gate forward; dh, dz, dmh back.
ROUNDINGS = 8


def bound(terms: int, compute: str = "float32") -> float:
    """Return how far arrays of scale 1 may differ.

    Args:
        terms: of the longest chain of sums.
        compute: type of the operands of products, by JAX's name or the config's. In float64 both
            sides are; in every other type one has float32 sums.
    """
    compute = _SHORT.get(compute, compute)
    if compute in ("float64", "float32"):
        return terms * UNIT[compute]
    return terms * UNIT["float32"] + ROUNDINGS * UNIT[compute]


def error(found: Any, expected: Any) -> float:
    """Return the largest difference in an array, in proportion to the array's scale."""
    found, expected = (np.asarray(x, np.float64) for x in (found, expected))
    assert found.shape == expected.shape
    if not expected.size:
        return 0.0
    scale = np.abs(expected).max()
    return float(np.abs(found - expected).max() / (scale or 1.0))


def assert_close(found: Any, expected: Any, terms: int, compute: str = "float32") -> None:
    """Assert that trees of arrays are equal to the rounding of sums of so many terms."""
    errors = jax.tree_util.tree_leaves_with_path(jax.tree.map(error, found, expected))
    limit = bound(terms, compute)
    wrong = {jax.tree_util.keystr(path): value for path, value in errors if not value <= limit}
    assert not wrong, f"differ by more than {limit:.2g} of their scale: {wrong}"
