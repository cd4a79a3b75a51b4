"""The documents that an engine has read and ordered, before they are written."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from mlstm_jax.data.corpus import SourceManifest
from mlstm_jax.data.documents import Written

# Called with a stage and the fraction of it that is done, from 0 to 1.
Report = Callable[[str, float], None]


class Gathered(NamedTuple):
    """The result of an engine."""

    counts: list[SourceManifest]  # sorted
    documents: int  # number to write
    rated: bool  # whether any has a rating
    in_order: Iterator[Written]  # can be iterated once
    sizes: Mapping[str, int] = MappingProxyType({})  # documents per split, if the splits are given
