"""Texts with labels, from files or from memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from mlstm_jax import suggestion
from mlstm_jax.api.arguments import as_texts
from mlstm_jax.errors import UserError
from mlstm_jax.transfer.labels import Labelled, columns_of, of_classes, of_columns, read_labelled

# A file of texts with labels, or the texts and the labels; several labels are a dict of columns.
Examples: TypeAlias = (
    str | Path | tuple[Sequence[str], Sequence[object] | Mapping[str, Sequence[object]]]
)


def as_labelled(
    given: Mapping[str, Examples | None],
    text_column: str | None,
    label_column: str | None,
    label_columns: Sequence[str] | None,
) -> tuple[dict[str, Labelled], dict[str, str]]:
    """Return the texts and labels of each set, and what messages call it.

    Raises:
        UserError: a file cannot be read, texts and labels do not fit together, or a label is of
            the wrong kind.
    """
    given = {name: _with_columns(one) for name, one in given.items()}
    dicts = [one[1] for one in given.values() if isinstance(one, tuple)]
    columns = next((list(one) for one in dicts if isinstance(one, Mapping)), None)
    column = columns_of(label_column, columns if label_columns is None else label_columns)
    texts, names = {}, {}
    for name, one in given.items():
        if one is None:
            continue
        if isinstance(one, (str, Path)):
            texts[name], names[name] = read_labelled(Path(one), text_column, column), str(one)
            continue
        some, labels = as_texts(one[0], f"{name}[0]", files=False), one[1]
        several = _columns(name, labels, column)
        for values in several.values():
            if len(some) != len(values):
                raise UserError(f"{name} has {len(some):,} texts, but {len(values):,} labels.")
        if not some:
            raise UserError(f"{name} has no texts.")
        places = [f"{name}[1], text {number:,}" for number in range(len(some))]
        if isinstance(column, str):
            places = [f"{place}: the label" for place in places]
            texts[name] = of_classes(some, several[column], places)
        else:
            texts[name] = of_columns(some, several, places)
        names[name] = name
    return texts, names


def _with_columns(one: Any) -> Any:
    """Return examples with a DataFrame of labels as a dict of its columns."""
    if isinstance(one, tuple) and len(one) == 2 and hasattr(one[1], "columns"):
        return one[0], dict(one[1].items())
    return one


def _columns(name: str, labels: Any, column: str | tuple[str, ...]) -> dict[str, Sequence[object]]:
    """Return the labels of texts in memory by column; UserError if one is missing."""
    if isinstance(column, str):
        return {column: list(labels)}
    if not isinstance(labels, Mapping):
        raise UserError(
            f"{name}[1] has type {type(labels).__name__}, but several labels must be a dict of "
            "columns: {'joy': [1, 0, None], ...}."
        )
    for one in column:
        if one not in labels:
            near = suggestion.question(suggestion.nearest(one, map(str, labels)))
            raise UserError(f"{name}[1] has no label {one!r}{near or '.'}")
    return {one: list(labels[one]) for one in column}
