"""What an engine has read and ordered, before any of it is written."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from mlstm_jax.data.corpus import SourceManifest
from mlstm_jax.data.documents import Written
from mlstm_jax.data.sources import is_builtin


def manifest_name(source: str) -> str:
    """Return what a manifest calls a source."""
    if is_builtin(source):
        return source
    return Path(source).name.encode("utf-8", "replace").decode()  # not every name is UTF-8


# Told the stage and, from 0 to 1, how much of it is done.
Report = Callable[[str, float], None]


class Gathered(NamedTuple):
    """The result of an engine."""

    counts: list[SourceManifest]  # sorted
    documents: int  # to be written
    rated: bool  # whether any has a rating
    in_order: Iterator[Written]  # can be gone through once
