"""Columns of what tests read, and the texts and arrays that several files share."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def column(rows: Iterable[Any], name: Any) -> list[Any]:
    """A field of all rows."""
    return [row[name] for row in rows]


def attributes(objects: Iterable[Any], name: str) -> list[Any]:
    """An attribute of all objects."""
    return [getattr(one, name) for one in objects]


def praise_and_blame(first: int, last: int) -> list[str]:
    """Texts of two classes by turns."""
    texts = []
    for number in range(first, last):
        texts += [f"my guitar is good {number}.", f"my guitar is bad {number}."]
    return texts


def draw_arrays(random, shapes: Mapping[str, tuple[int, ...]], spread: float = 1) -> Any:
    """Float32 numbers of these shapes."""
    arrays = {}
    for name, shape in shapes.items():
        arrays[name] = (spread * random.normal(size=shape)).astype(np.float32)
    return arrays
