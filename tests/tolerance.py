"""Whether two answers are equal to rounding, by the bounds that benchmarks/reference.py derives."""

from typing import Any

import jax

from benchmarks.reference import UNIT, bound, error

__all__ = ["UNIT", "assert_close", "bound", "error"]


def assert_close(found: Any, expected: Any, terms: int, compute: str = "float32") -> None:
    """Assert that trees of arrays are equal to the rounding of sums of so many terms."""
    errors = jax.tree_util.tree_leaves_with_path(jax.tree.map(error, found, expected))
    limit = bound(terms, compute)
    wrong = {jax.tree_util.keystr(path): value for path, value in errors if not value <= limit}
    assert not wrong, f"differ by more than {limit:.2g} of their scale: {wrong}"
