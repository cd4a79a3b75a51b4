"""Check the arguments of public functions; read texts and labels, from files or from memory."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, runtime_checkable

from mlstm_jax import fields
from mlstm_jax.corpora.documents import TEXT_COLUMNS
from mlstm_jax.errors import UserError, did_you_mean, nearest
from mlstm_jax.transfer.labels import (
    Labelled,
    columns_of,
    of_classes,
    of_columns,
    read_labelled,
)

# Texts in memory; or a file of them, of any kind that `prepare` reads, or Path("-").
Texts: TypeAlias = Iterable[str] | Path


@runtime_checkable
class Table(Protocol):
    """A DataFrame of pandas or polars."""

    columns: Any

    def __getitem__(self, column: str) -> Any:
        """Return a column."""


# A file or table of texts with labels, or the texts and the labels; several labels are a dict of
# columns.
Examples: TypeAlias = (
    str | Path | Table | tuple[Sequence[str], Sequence[object] | Mapping[str, Sequence[object]]]
)

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def public(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Check the types of a function's arguments, which Python itself does not do."""
    signature = inspect.signature(function)
    names = [name for name in signature.parameters if name != "self"]

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        for name in kwargs:
            if name not in names:
                near = did_you_mean(nearest(name, names), f"; it has {', '.join(names)}.")
                raise TypeError(f"{function.__name__} has no argument {name!r}{near}")
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            fields.require_kind(name, value, function.__annotations__.get(name, Any))
        return function(*args, **kwargs)

    return wrapped


def as_texts(texts: Texts, name: str = "texts", *, files: bool = False) -> list[str]:
    """Return texts in memory as a list.

    Args:
        texts: to check.
        name: of the argument, for messages.
        files: the argument may also be a `Path`.

    Raises:
        UserError: `texts` is a single string, which would be read letter by letter; or a table, a
            dict or a set, which would give other texts than those meant; or an item is not a
            string.
    """
    kind = type(texts).__name__
    if isinstance(texts, (str, bytes)):
        or_file = ", or Path(file)" if files else ""
        raise UserError(f"{name} is a single {kind}; give a list of texts, [text]{or_file}.")
    is_table = hasattr(texts, "columns") or getattr(texts, "ndim", 1) != 1
    if is_table or isinstance(texts, (Mapping, Set)) or not isinstance(texts, Iterable):
        hint = ", such as one column of the table" if is_table else ""
        raise UserError(f"{name} has type {kind}, but it must be a list of texts{hint}.")
    result = list(texts)
    wrong = next((n for n, text in enumerate(result) if not isinstance(text, str)), None)
    if wrong is not None:
        raise UserError(
            f"{name}[{wrong}] has type {type(result[wrong]).__name__}, but it must be a str; leave "
            'missing texts out, or give "".'
        )
    return result


def as_labelled(
    given: Mapping[str, Examples | None],
    text_column: str | None,
    label_column: str | None,
    label_columns: Sequence[str] | None,
) -> dict[str, Labelled]:
    """Return the texts and labels of each set.

    Raises:
        UserError: a file cannot be read, texts and labels do not fit together, or a label is of
            the wrong kind.
    """
    parts: dict[str, Any] = {}
    for name, part in given.items():
        is_table = isinstance(part, Table)
        pair = _of_table(name, part, text_column, label_column) if is_table else part
        parts[name] = _with_columns(name, pair)
    dicts = [one[1] for one in parts.values() if isinstance(one, tuple)]
    columns = next((list(one) for one in dicts if isinstance(one, Mapping)), None)
    column = columns_of(label_column, columns if label_columns is None else label_columns)
    texts = {}
    for name, one in parts.items():
        if one is None:
            continue
        if isinstance(one, (str, Path)):
            texts[name] = read_labelled(Path(one), text_column, column)._replace(name=str(one))
            continue
        some, labels = as_texts(one[0], f"{name}[0]"), one[1]
        several = _columns(name, labels, column)
        for values in several.values():
            if len(some) != len(values):
                raise UserError(f"{name} has {len(some):,} texts, but {len(values):,} labels.")
        if not some:
            raise UserError(f"{name} has no texts.")
        places = [f"{name}[1], text {number:,}" for number in range(len(some))]
        if isinstance(column, str):
            places = [f"{place}: the label" for place in places]
            labelled = of_classes(some, several[column], places)
        else:
            labelled = of_columns(some, several, places)
        texts[name] = labelled._replace(name=name)
    return texts


def _of_table(name: str, table: Any, text_column: str | None, label_column: str | None) -> Any:
    """Return the texts and the classes of a table; UserError if it lacks a column."""
    columns = [str(column) for column in table.columns]
    wanted = TEXT_COLUMNS if text_column is None else (text_column,)
    text = next((column for column in wanted if column in columns), None)
    label = label_column or "label"
    if text is None or label not in columns:
        missing = "text" if text is None else "label"
        raise UserError(
            f"{name} is a table with no {missing} among its columns, {', '.join(columns)}; give "
            f"`{missing}_column`, or a tuple such as (df.text, df.label)."
        )
    return table[text], table[label]


def _with_columns(name: str, one: Any) -> Any:
    """Return examples with a DataFrame or dict of labels as a dict whose keys are strings.

    Raises UserError if two columns have the same name.
    """
    if not isinstance(one, tuple) or len(one) != 2:
        return one
    texts, labels = one
    columns = getattr(labels, "columns", labels if isinstance(labels, Mapping) else None)
    if columns is None:
        return one
    names = list(map(str, columns))
    if len({*names}) < len(names):
        raise UserError(f"{name}[1] has columns of the same name: {', '.join(names)}; rename one.")
    return texts, dict(zip(names, (labels[column] for column in columns), strict=True))


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
            near = did_you_mean(nearest(one, map(str, labels)))
            raise UserError(f"{name}[1] has no label {one!r}{near}")
    return {one: list(labels[one]) for one in column}
