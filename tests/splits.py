"""Splits of given bytes, on disk like those of a corpus."""

import tempfile
from pathlib import Path

import numpy as np

from mlstm_jax import digest
from mlstm_jax.data.corpus import Split
from mlstm_jax.digest import CheckedBytes


def make_split(
    data: np.ndarray, offsets: np.ndarray, ratings: np.ndarray | None = None, name: str = "train"
) -> Split:
    """A split of these bytes."""
    content = data.tobytes()
    with tempfile.NamedTemporaryFile() as file:  # stays open after it is unlinked
        file.write(content)
        file.flush()
        kept = CheckedBytes(Path(file.name), digest.of_blocks(content))
        return Split(name, kept, offsets, ratings)
