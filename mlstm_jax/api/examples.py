"""Texts with labels, from files or from memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from mlstm_jax.api.arguments import as_texts
from mlstm_jax.errors import UserError
from mlstm_jax.transfer.labels import Labelled, read_labelled

# A file of texts with labels, or the texts and the labels.
Examples: TypeAlias = str | Path | tuple[Sequence[str], Sequence[object]]


def as_labelled(
    given: Mapping[str, Examples | None], text_column: str | None, label_column: str
) -> tuple[dict[str, Labelled], dict[str, str]]:
    """Return the texts and labels of each set, and what messages call it."""
    texts, names = {}, {}
    for name, one in given.items():
        if one is None:
            continue
        if isinstance(one, (str, Path)):
            texts[name], names[name] = read_labelled(Path(one), text_column, label_column), str(one)
            continue
        some, labels = as_texts(one[0], f"{name}[0]"), [str(label) for label in one[1]]
        if len(some) != len(labels):
            raise UserError(f"{name} has {len(some):,} texts, but {len(labels):,} labels.")
        if not some:
            raise UserError(f"{name} has no texts.")
        texts[name], names[name] = Labelled(some, labels), name
    return texts, names
