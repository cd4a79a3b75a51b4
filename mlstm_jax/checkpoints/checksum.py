"""Checksums of arrays, which show that a checkpoint is read as it was written.

CRC-32 detects every single flipped bit and every burst of up to 32 bits; it misses one in 2³² other
errors. It also covers an array's type and shape, because a reader casts to what it expects.
"""

import zlib
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray


def of_array(array: Any) -> int:
    """Return the CRC-32 of an array's type, shape and bytes."""
    array = np.ascontiguousarray(array)
    head = f"{array.dtype.name} {array.shape}".encode()
    return zlib.crc32(array.reshape(-1).view(np.uint8), zlib.crc32(head))


def of_tree(tree: Any) -> dict[str, int]:
    """Return the checksum of every array of a tree, by its path, such as `layer_0/wh_v`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): of_array(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def of_rows(tree: Any) -> NDArray[np.uint32]:
    """Return one checksum per row of arrays whose first axis is the rows, uint32 [rows].

    A process can thus verify the rows that it reads, however many processes wrote them.
    """
    leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(tree)]
    sums = np.zeros(len(leaves[0]), np.uint32)
    for row in range(len(sums)):
        for leaf in leaves:
            sums[row] = zlib.crc32(leaf[row].reshape(-1).view(np.uint8), int(sums[row]))
    return sums


def require(name: str, tree: Any, sums: dict[str, int]) -> None:
    """Raise ValueError, with `name`, unless a tree's arrays have these checksums."""
    found = of_tree(tree)
    wrong = [place for place in {**found, **sums} if found.get(place) != sums.get(place)]
    if wrong:
        raise ValueError(f"{', '.join(wrong[:3])} of {name} does not match its checksum")
