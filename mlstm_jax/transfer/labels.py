"""Texts, with or without labels, from a source of any kind that `prepare` reads.

Labels are of two kinds: the class of each text, in one column; or binary labels, in several
columns.
"""

import hashlib
import itertools
import math
import reprlib
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.corpora.documents import Recipe, clean, label_of, rating_of
from mlstm_jax.corpora.readers import kind_of, read_documents
from mlstm_jax.corpora.sources import FASTA, Source
from mlstm_jax.data.corpus import Cleaning
from mlstm_jax.errors import UserError, did_you_mean, nearest, note

_SHOWN = 5
MISSING = -1  # a binary label that a text does not have
_YES_OR_NO = {None: MISSING, "0": 0, "false": 0, "1": 1, "true": 1}


class Task(NamedTuple):
    """What a classifier predicts: a text's class, or several binary labels."""

    names: list[str]  # of the classes, or of the labels
    several: bool = False

    def codes(self, labels: Sequence[Any]) -> NDArray[np.int64]:
        """Return the index of each class, [texts]; or [texts, K]: 1 yes, 0 no, −1 missing."""
        if self.several:
            return np.array(labels, np.int64).reshape(-1, len(self.names))
        place = {name: number for number, name in enumerate(self.names)}
        return np.array([place[label] for label in labels], np.int64)


class Labelled(NamedTuple):
    """Texts and the label of each."""

    texts: list[str]
    # The class of each text, as a string: "1", "positive". Or, if there are columns, the texts'
    # values in them: 1 yes, 0 no, −1 missing.
    labels: list[str] | list[tuple[int, ...]]
    columns: tuple[str, ...] = ()  # names of several binary labels
    name: str = "the texts"  # in messages, such as a file

    @property
    def task(self) -> Task:
        """The columns; or the distinct classes, first numbers in numeric order, then words."""
        if self.columns:
            return Task(list(self.columns), several=True)
        return Task(sorted(set(map(str, self.labels)), key=_order))

    def without_blank(self, cleaning: Cleaning) -> "Labelled":
        """Return the texts that are not blank after cleaning, as `classify` gives them a label.

        Notes how many are left out; UserError if none is left.
        """
        kept = [n for n, text in enumerate(self.texts) if clean(text, cleaning)]
        if not kept:
            raise UserError(f"{self.name} has no text; name other texts.")
        if len(kept) == len(self.texts):
            return self
        _note_blank(self.name, len(self.texts) - len(kept), len(self.texts))
        return self.select(kept)

    def select(self, places: Sequence[int]) -> "Labelled":
        """Return the texts at some places, with their labels."""
        labels: Any = [self.labels[n] for n in places]
        return self._replace(texts=[self.texts[n] for n in places], labels=labels)


def _order(label: str) -> tuple[float, str]:
    try:
        number = float(label)
    except ValueError:
        number = math.inf
    return (number if math.isfinite(number) else math.inf), label  # "nan" is a word


def columns_of(column: str | None, columns: Sequence[str] | None) -> str | tuple[str, ...]:
    """Return the one column of classes, by default `label`, or those of binary labels.

    Raises UserError if both are given, or if one of the several is named twice, or none.
    """
    if columns is None:
        return "label" if column is None else column
    if column is not None:
        raise UserError(
            "label_column and `label_columns` exclude each other: give `label_column` for the "
            "classes of one column, or `label_columns` for binary labels."
        )
    if isinstance(columns, str) or not columns or len(set(columns)) < len(columns):
        given = columns if isinstance(columns, str) else " ".join(columns)
        raise UserError(f"label_columns {given}: name one or more columns, each only once.")
    return tuple(columns)


def read_labelled(
    path: Path | str, text_column: str | None, column: str | tuple[str, ...] = "label"
) -> Labelled:
    """Return the texts of a source and their labels; records without text are left out.

    Args:
        path: see `TextFile`.
        text_column: see `TextFile`.
        column: one of classes, or several of binary labels; see `columns_of`.

    Raises:
        UserError: no record has a label in a column, a text has no class, or a value of several
            columns is neither yes nor no.
    """
    names = (column,) if isinstance(column, str) else column
    source = Source(str(path))
    if source.kind in ("txt", *FASTA, "pydoc"):
        raise UserError(
            f"{path}: a .{source.kind} file has texts, but no labels; give a table or JSON with a "
            "field for each, such as a .csv file whose first line is label,text."
        )
    texts, numbers, seen = list[str](), list[int](), dict[str, None]()
    values: dict[str, list[object]] = {name: [] for name in names}
    documents = list(read_documents(source, Recipe(text_column, label_columns=names)))
    for number, document in enumerate(documents, 1):
        if document is None or document.record is None or not document.text.strip():
            continue
        texts.append(document.text)
        numbers.append(number)
        seen |= dict.fromkeys(document.record)
        for name in names:
            values[name].append(document.record.get(name))
    if len(texts) < len(documents):
        _note_blank(str(path), len(documents) - len(texts), len(documents))
    for name in names:
        if not any(label_of(_plain(value)) for value in values[name]):
            option = "`label_column`" if isinstance(column, str) else "`label_columns`"
            near = nearest(name, seen.keys() - {name})
            otherwise = f"; the fields seen are {', '.join(seen)}."
            counts = Counter(kind_of(_plain(value)) for value in values[name])
            kinds = ", ".join(f"{kind} in {count:,}" for kind, count in counts.items())
            raise UserError(
                f"{path}: no record has a label in {name!r}; it is {kinds} of {len(texts):,}. A "
                "label is a string or a number: write one there, or give another field or column "
                f"with {option}{did_you_mean(near, otherwise)}"
            )
    if not isinstance(column, str):
        return of_columns(texts, values, [f"{path}, record {number:,}" for number in numbers])
    places = [f"{path}: the label of record {number:,}, in {column!r}," for number in numbers]
    return of_classes(texts, values[column], places)


def _note_blank(name: str, blank: int, total: int) -> None:
    note(f"{name}: {blank:,} of {total:,} records have no text, and are left out.")


def usable(texts: Mapping[str, Labelled], cleaning: Cleaning, part: str) -> dict[str, Labelled]:
    """Return sets of texts without blank ones; with `part`, by default held out of train.

    UserError if a set has no text, or train too few to hold out a fifth.
    """
    kept = {name: some.without_blank(cleaning) for name, some in texts.items()}
    if part in kept:
        return kept
    train, held = hold_out(kept["train"])
    if not held.texts:
        raise UserError(
            f"{train.name} has {len(train.texts):,} texts, too few to hold out a fifth; also "
            f"give `{part}`."
        )
    held = held._replace(name=f"the fifth of {train.name} that is held out")
    return {**kept, "train": train, part: held}


def hold_out(labelled: Labelled) -> tuple[Labelled, Labelled]:
    """Return four fifths and a fifth of the texts, with about a fifth of each class.

    The choice depends on the texts and labels, not on their order. Equal texts stay together, and
    one text of each class stays in the larger part.
    """
    labels_of: dict[str, set[Any]] = {}
    for text, label in zip(labelled.texts, labelled.labels, strict=True):
        labels_of.setdefault(text, set()).add(label)

    def place(text: str) -> tuple[list[Any], bytes]:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        return sorted(labels_of[text]), digest

    held = {
        text
        for before, text in list(itertools.pairwise(sorted(labels_of, key=place)))[1::5]
        if labelled.columns or labels_of[before] == labels_of[text]
    }

    places = {is_held: list[int]() for is_held in (False, True)}
    for number, text in enumerate(labelled.texts):
        places[text in held].append(number)
    return labelled.select(places[False]), labelled.select(places[True])


def of_classes(texts: list[str], values: Sequence[object], places: Sequence[str]) -> Labelled:
    """Return texts with the class of each: a string or a number.

    Raises UserError, which names the place of the text, if a value is missing or anything else.
    """
    labels = [label_of(_plain(value)) for value in values]
    if None in labels:
        first = labels.index(None)
        raise UserError(
            f"{places[first]} is empty, nan, or neither a string nor a number: it is "
            f"{kind_of(_plain(values[first]))}; add a label, or remove the record."
        )
    _note_merged(values, labels)
    return Labelled(texts, [label for label in labels if label])


def _note_merged(values: Sequence[object], labels: Sequence[str | None]) -> None:
    """Note texts that are written differently and read as one class, such as "1" and "1.0"."""
    spellings: dict[str | None, set[str]] = {}
    for value, label in zip(values, labels, strict=True):
        if isinstance(value, str):
            spellings.setdefault(label, set()).add(value.strip())
    for label, written in spellings.items():
        if len(written) > 1:
            shown = ", ".join(map(repr, sorted(written)))
            note(f"the labels {shown} are read as one class, {label!r}.")


def _plain(value: Any) -> Any:
    """Return a number of NumPy as one of Python, and pandas's missing values as None."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, np.floating):
        return float(str(value))  # 0.1, where `item` of a float32 gives 0.10000000149011612
    return value.item() if isinstance(value, np.generic) else value


def of_columns(
    texts: list[str], values: Mapping[str, Sequence[object]], places: Sequence[str]
) -> Labelled:
    """Return texts with several labels: 1, 0 or missing, as numbers or as text.

    Raises UserError, which names the place of the text, if a value is anything else.
    """
    for name, column in values.items():
        for place, value in zip(places, column, strict=True):
            if _yes_or_no(value) is None:
                raise UserError(
                    f"{place}: the label {name!r} is {reprlib.repr(value)}, but it must be 1 or "
                    "true for yes, 0 or false for no, or empty if it is not known; correct it, or "
                    "leave the column out of `label_columns`. `label_column` takes one column of "
                    "any classes."
                )
    rows = zip(*(map(_yes_or_no, column) for column in values.values()), strict=True)
    return Labelled(texts, list(rows), tuple(values))


def _yes_or_no(value: Any) -> int | None:
    """Return 1, 0, or −1 for a missing value; None for anything else."""
    value = _plain(value)
    if value is not None and not isinstance(value, str | int | float | Decimal):
        return None
    return _YES_OR_NO.get(label_of(value))


def require_task(labelled: Labelled, task: Task | None = None, *, thresholds: bool = False) -> Task:
    """Return the task of labelled texts, if a classifier can be fitted to it, or measured on it.

    Args:
        labelled: the texts.
        task: of the training texts, whose classes or labels `labelled` must have; None: these are
            the training texts.
        thresholds: thresholds of several labels are chosen on them.

    Raises:
        UserError: there are fewer than two classes, unknown ones, or almost as many as texts; or a
            label has one value only, and has to be learned from the texts, or a threshold chosen.
    """
    task, is_train, path = task or labelled.task, task is None, labelled.name
    if task.several:
        for name, column in zip(task.names, zip(*labelled.labels, strict=True), strict=True):
            known = sorted({int(value) for value in column} - {MISSING})
            if len(known) < 2 and (is_train or thresholds):
                has = f"{known[0]} in every text that has it" if known else "missing in every text"
                why = "a classifier" if is_train else "the choice of its threshold"
                raise UserError(
                    f"{path}: the label {name!r} is {has}, but {why} needs both 1 and 0; add such "
                    "texts, or leave the column out of `label_columns`."
                )
        if not any(1 in row for row in labelled.labels):
            raise UserError(f"{path}: every label is 0 or missing in every text; add texts with 1.")
    elif not is_train:
        if unknown := [label for label in labelled.task.names if label not in task.names]:
            near = did_you_mean(nearest(unknown[0], task.names))
            raise UserError(
                f"{path} has the label {unknown[0]!r}, which the training texts do not have; "
                f"theirs: {', '.join(task.names[:_SHOWN])}"
                f"{', ...' if len(task.names) > _SHOWN else ''}{near}"
            )
    elif len(task.names) < 2:
        raise UserError(
            f"{path} has only the label {', '.join(task.names)}; a classifier needs at least two."
        )
    elif len(task.names) > max(100, len(labelled.texts) // 2):
        shown = ", ".join(task.names[:_SHOWN])
        raise UserError(
            f"{path} has {len(task.names):,} different labels ({shown}, ...) for "
            f"{len(labelled.texts):,} texts; is `label_column` right?"
        )
    else:
        _note_alike(path, task.names)
    return task


def _note_alike(path: str, names: Sequence[str]) -> None:
    """Note classes that look alike: that differ only in what `_skeleton` leaves out."""
    alike: dict[object, list[str]] = {}
    for name in names:
        alike.setdefault(_skeleton(name), []).append(name)
    for some in alike.values():
        if len(some) > 1:
            note(
                f"{path}: the labels {', '.join(map(ascii, some))} differ only in case, space, "
                "number format, Unicode form or invisible characters, and are different classes; "
                "if they mean one, give them one name."
            )


def _skeleton(name: str) -> object:
    """Return the value of a number; else a name without case, space, form and what is invisible."""
    if rating_of(name) is not None:
        return Decimal(name)  # exact, unlike a float: two ids of 17 digits differ
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(c for c in folded if unicodedata.category(c)[0] not in "CZ")
