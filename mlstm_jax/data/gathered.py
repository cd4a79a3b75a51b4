"""What an engine has read and ordered, before any of it is written."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mlstm_jax.data.corpus import SourceManifest
from mlstm_jax.data.documents import Written

# Told the stage and, from 0 to 1, how much of it is done.
Report = Callable[[str, float], None]


class Gathered(NamedTuple):
    """The result of an engine."""

    counts: list[SourceManifest]  # sorted
    documents: int  # to be written
    rated: bool  # whether any has a rating
    in_order: Iterator[Written]  # can be gone through once
