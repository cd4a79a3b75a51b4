"""The documents that an engine has read and ordered, before they are written."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from mlstm_jax.data.corpus import SourceManifest
from mlstm_jax.data.documents import Written
from mlstm_jax.data.sources import Source, manifest_names

# Called with a stage and the fraction of it that is done, from 0 to 1.
Report = Callable[[str, float], None]


class Gathered(NamedTuple):
    """The result of an engine."""

    counts: list[SourceManifest]  # sorted, unless the splits are given
    documents: int  # number to write
    rated: bool  # whether any has a rating
    in_order: Iterator[Written]  # can be iterated once
    sizes: Mapping[str, int] = MappingProxyType({})  # documents per split, if the splits are given


def source_manifests(
    sources: Sequence[Source], counts: Iterable[tuple[int, int, int]]
) -> list[SourceManifest]:
    """Return the counts of each source: of its records with text, without text, and blank."""
    return [
        SourceManifest(name=name, documents=documents, without_text=without, blank=blank)
        for name, (documents, without, blank) in zip(manifest_names(sources), counts, strict=True)
    ]
