"""Texts and the class of each, from a source of any kind that `prepare` reads."""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from decimal import Decimal
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.corpora.documents import (
    SEVERAL_LABELS,
    Recipe,
    clean,
    is_broken,
    label_of,
    note_broken,
    rating_of,
)
from mlstm_jax.corpora.readers import kind_of, read_documents
from mlstm_jax.corpora.sources import Source
from mlstm_jax.errors import UserError, did_you_mean, first_of, nearest, note
from mlstm_jax.options import CSV, Cleaning, CsvOptions

_FEW_NUMBERS = 5  # as many may be classes, such as stars


def codes(labels: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
    """Return the index of each label among the classes, [texts]."""
    index = {name: number for number, name in enumerate(classes)}
    return np.array([index[label] for label in labels], np.int64)


class Labelled(NamedTuple):
    """Texts and the class of each."""

    texts: list[str]
    labels: list[str]  # such as "1", "positive"
    name: str = "the texts"  # in messages, such as a file
    records: int = 0  # of the file, with those without text; 0: not from a file

    @property
    def classes(self) -> list[str]:
        """The distinct labels, first numbers in numeric order, then words."""
        return sorted(set(self.labels), key=_order)

    def without_blank(self, cleaning: Cleaning) -> "Labelled":
        """The texts that are not blank after cleaning; notes the others, and broken ones."""
        kept = self.select([bool(clean(text, cleaning)) for text in self.texts])
        if not kept.texts:
            raise UserError(f"{self.name} has no text; name other texts.")
        _note_blank(self.name, len(self.texts) - len(kept.texts), len(self.texts))
        broken = [number for number, text in enumerate(self.texts, 1) if is_broken(text)]
        note_broken(broken, len(self.texts), self.name)
        return kept

    def select(self, is_chosen: Iterable[bool]) -> "Labelled":
        is_chosen = list(is_chosen)
        texts = list(compress(self.texts, is_chosen))
        return self._replace(texts=texts, labels=list(compress(self.labels, is_chosen)))


def _order(label: str) -> tuple[bool, float, str]:
    number = rating_of(label)
    return number is None, number or 0, label  # "nan" and "inf" are words


def read_labelled(
    path: Path | str, text_column: str | None, column: str = "label", csv: CsvOptions = CSV
) -> Labelled:
    """Return the texts of a source and their labels; records without text are left out."""
    source = Source(str(path))
    if not source.format.has_columns:
        raise UserError(
            f"{path}: a {source.format.suffix} file has texts, but no labels; use a table or JSON "
            "with a field for each, such as a .csv file whose first line is label,text."
        )
    texts = []
    places = []
    values = []
    seen = dict[str, None]()
    recipe = Recipe(text_column, label_column=column, **asdict(csv))
    documents = list(read_documents(source, recipe))
    for number, document in enumerate(documents, 1):
        if document is None or document.record is None or not document.text.strip():
            continue
        texts.append(document.text)
        places.append(f"{path}: the label of record {number:,}, in {column!r},")
        values.append(_plain(document.record.get(column)))
        seen |= dict.fromkeys(document.record)
    _note_blank(str(path), len(documents) - len(texts), len(documents))
    if not any(label_of(value) for value in values):
        counts = Counter(map(kind_of, values))
        kinds = ", ".join(f"{kind} in {count:,}" for kind, count in counts.items())
        what = f"it is {kinds} of {len(texts):,}" if column in seen else "there is no such field"
        near = nearest(column, seen.keys() - {column})
        otherwise = f"; the fields seen are {', '.join(seen)}."
        raise UserError(
            f"{path} has no label in {column!r}; {what}. A "
            "label is a string or a number: write one there, or name another field or column "
            f"with `label_column` ({SEVERAL_LABELS}){did_you_mean(near, otherwise)}"
        )
    return of_classes(texts, values, places, str(path), len(documents))


def _note_blank(name: str, blank: int, total: int) -> None:
    if blank:
        note(f"{name}: {blank:,} of {total:,} records have no text, and are left out.")


def of_classes(
    texts: list[str], values: Sequence[object], places: Sequence[str], name: str, records: int = 0
) -> Labelled:
    """Return texts with the class of each; UserError, with its place, for no string or number."""
    labels = []
    spellings = defaultdict[str, set[str]](set)
    for place, value in zip(places, values, strict=True):
        label = label_of(_plain(value))
        if label is None:
            kind = kind_of(_plain(value))
            raise UserError(
                f"{place} must be a string or a number, but it is {kind}; add a "
                f"label, or remove the record ({SEVERAL_LABELS})."
            )
        labels.append(label)
        if isinstance(value, str):
            spellings[label].add(value.strip())
    for label, written in spellings.items():
        if len(written) > 1:
            shown = ", ".join(map(repr, sorted(written)))
            note(f"the labels {shown} are read as one class, {label!r}.")
    return Labelled(texts, labels, name, records)


def _plain(value: Any) -> Any:
    """Return a NumPy number as a Python number, and pandas's missing values as None."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, np.floating):
        return float(str(value))  # 0.1, where `item` of a float32 gives 0.10000000149011612
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return None if np.isnat(value) else value  # `item` may give a number of nanoseconds
    return value.item() if isinstance(value, np.generic) else value


def require_known(labelled: Labelled, classes: Sequence[str]) -> None:
    """Raise UserError if texts to measure on have other classes than the training texts."""
    for name in labelled.classes:
        if name not in classes:
            raise UserError(
                f"{labelled.name} has the label {name!r}, which the training texts do not have; "
                f"theirs: {first_of(classes)}{did_you_mean(nearest(name, classes))}"
            )


def require_classes(labelled: Labelled) -> list[str]:
    """The classes of training texts; UserError unless there are several, and not too many."""
    require_no_numbers(labelled)
    names = labelled.classes
    if len(names) < 2:
        only = ", ".join(names)
        raise UserError(
            f"{labelled.name} has only the label {only}; a classifier needs at least two."
        )
    if len(names) > max(100, len(labelled.texts) // 2):
        raise UserError(
            f"{labelled.name} has {len(names):,} different labels ({first_of(names)}) for "
            f"{len(labelled.texts):,} texts; is `label_column` right?"
        )
    by_skeleton = defaultdict[object, list[str]](list)
    for name in names:
        by_skeleton[_skeleton(name)].append(name)
    for similar in by_skeleton.values():
        if len(similar) > 1:
            note(
                f"{labelled.name}: the labels {', '.join(map(ascii, similar))} differ only in case,"
                " space, number format, Unicode form or invisible characters, and are different "
                "classes; if they mean one, give them one name."
            )
    return names


def require_no_numbers(labelled: Labelled) -> None:
    """Raise UserError if labels are values on a scale, such as 4.987, and not classes, 1 to 5."""
    names = labelled.classes
    numbers = [number for name in names if (number := rating_of(name)) is not None]
    if len(numbers) < len(names) or len(names) <= _FEW_NUMBERS:
        return
    broken = sum(not number.is_integer() for number in numbers)
    if 2 * broken > len(names) or 2 * len(names) > len(labelled.texts):
        raise UserError(
            f"{labelled.name} has {len(names):,} different labels ({first_of(names)}): these are "
            "numbers, not classes. To predict numbers, fit a regression to `mlstm_jax.Features` "
            '("Numbers" in docs/transfer.md). If they are names, write a letter before each, such '
            "as v3.1."
        )


def _skeleton(name: str) -> object:
    """Return the value of a number; else a name without case, space, form and what is invisible."""
    if rating_of(name) is not None:
        return Decimal(name)  # exact, unlike a float: two ids of 17 digits differ
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(c for c in folded if unicodedata.category(c)[0] not in "CZ")
