"""The documents that an engine has read and ordered, before they are written."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from mlstm_jax.data.corpus import SourceManifest
from mlstm_jax.data.documents import Written
from mlstm_jax.data.sources import is_builtin


def manifest_names(sources: Sequence[str]) -> list[str]:
    """Return the name of each source in a manifest: a file's name.

    If files in different folders have the same name, as many parent folders are put before it as
    are needed to distinguish them.
    """
    parts = [(name,) if is_builtin(name) else Path(name).resolve().parts for name in sources]
    depths = [1] * len(parts)
    while True:
        names = ["/".join(part[-depth:]) for part, depth in zip(parts, depths, strict=True)]
        counted = Counter(names)
        longer = [
            depth + 1 if counted[name] > 1 and depth < len(part) else depth
            for name, part, depth in zip(names, parts, depths, strict=True)
        ]
        if longer == depths:
            # Not every name is UTF-8.
            return [name.encode("utf-8", "replace").decode() for name in names]
        depths = longer


# Called with a stage and the fraction of it that is done, from 0 to 1.
Report = Callable[[str, float], None]


class Gathered(NamedTuple):
    """The result of an engine."""

    counts: list[SourceManifest]  # sorted
    documents: int  # number to write
    rated: bool  # whether any has a rating
    in_order: Iterator[Written]  # can be iterated once
    sizes: Mapping[str, int] = MappingProxyType({})  # documents per split, if the splits are given
