"""Texts and the class of each, from a source of any kind that `prepare` reads.

Texts are the same if they are equal apart from case, white space and the line breaks of HTML: where
texts that a model has learned from are counted. They are alike if they differ only in these, in
punctuation and in Unicode's forms of a character (NFKC): for the choice of held-out texts, for
cross-validation, and between the sets of a user.
"""

import reprlib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from itertools import chain, compress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.corpora.documents import (
    SEVERAL_LABELS,
    Recipe,
    clean,
    is_broken,
    label_of,
    note_broken,
    order_key,
    rating_of,
)
from mlstm_jax.corpora.readers import kind_of, read_documents
from mlstm_jax.corpora.sources import Source
from mlstm_jax.errors import UserError, did_you_mean, first_of, nearest, note
from mlstm_jax.options import CSV, Cleaning, CsvOptions

_FEW_NUMBERS = 5  # as many may be classes, such as stars

Digests = NDArray[np.uint32]

_key = order_key(0, "normalized")


def digests(texts: Sequence[str], cleaning: Cleaning) -> Digests:
    """Return a digest of each text, [texts]; texts that are the same have the same one.

    It is four bytes of the md5 by which `prepare` finds duplicates. Two texts have one digest by
    chance: with n digests a text meets one of them with a probability of n / 2^32, for the texts
    that the pretrained model has read 1 in 126,000.
    """
    return np.array([digest_of(clean(text, cleaning)) for text in texts], np.uint32)


def digest_of(cleaned: bytes) -> int:
    return int.from_bytes(_key(_without_breaks(cleaned))[:4], "big")


def _without_breaks(cleaned: bytes) -> bytes:
    """Many people remove the line breaks of HTML from IMDB's reviews."""
    return cleaned.replace(b"<br />", b" ").replace(b"<BR />", b" ")


def alike(texts: Sequence[str], cleaning: Cleaning) -> Digests:
    """Return one digest for all texts that are alike, the least of theirs, [texts]."""
    least: dict[str, int] = {}
    letters = []
    for text, same in zip(texts, digests(texts, cleaning).tolist(), strict=True):
        plain = _without_breaks(clean(text, cleaning)).decode()
        plain = unicodedata.normalize("NFKC", plain).casefold()
        left_out = {ord(c): None for c in set(plain) if unicodedata.category(c)[0] in "CPZ"}
        left = plain.translate(left_out) or str(same)  # such as "!!!"
        letters.append(left)
        least[left] = min(same, least.get(left, same))
    return np.array([least[one] for one in letters], np.uint32)


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

    def select(self, is_chosen: Sequence[bool]) -> "Labelled":
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


class Sets(NamedTuple):
    """Texts to train and to measure on, with what is known of them without a model."""

    sources: list[str]  # which records were used, by file
    texts: dict[str, Labelled]  # without blank ones; train, test and, if there are any, valid
    classes: list[str]  # of train
    same: dict[str, Digests]  # by which texts are found among those that a model has learned
    alike: dict[str, Digests]  # by which texts of all sets are compared
    text_column: str | None = None  # that the user named, which a classifier records


def with_held_out(
    texts: Mapping[str, Labelled],
    cleaning: Cleaning,
    part: Literal["valid", "test"],
    text_column: str | None = None,
) -> Sets:
    """Check labelled texts, before a model reads them; `part` is by default held out of train."""
    kept = {name: some.without_blank(cleaning) for name, some in texts.items()}
    sources = []
    for some in kept.values():
        _note_conflicts(some, cleaning)
        if some.records:
            count = f"{len(some.texts):,} of the {some.records:,} records"
            sources.append(f"{count} of {some.name}")
    classes = require_classes(kept["train"])
    if part not in kept:
        train, held = hold_out(kept["train"], cleaning)
        if not held.texts:
            raise UserError(
                f"{train.name} has only {len(train.texts):,} texts, too few to hold out a fifth; "
                f"pass `{part}` as well."
            )
        held = held._replace(name=f"the held-out fifth of {train.name}")
        train = train._replace(name=f"the rest of {train.name}")
        kept |= {"train": train, part: held}
    for some in kept.values():
        require_known(some, classes)
    same = {name: digests(some.texts, cleaning) for name, some in kept.items()}
    together = list(chain.from_iterable(some.texts for some in kept.values()))
    alike_N = alike(together, cleaning)
    ends = np.cumsum([len(some.texts) for some in kept.values()])
    by_set = dict(zip(kept, np.split(alike_N, ends[:-1]), strict=True))
    if "valid" not in kept:
        _require_folds(kept["train"], by_set["train"])
    if len(classes) > 2 and all(rating_of(name) is not None for name in classes):
        note(
            f"the labels {first_of(classes)} are read as {len(classes)} classes, without an order; "
            'to predict numbers, see "Numbers" in docs/transfer.md.'
        )
    return Sets(sources, kept, classes, same, by_set, text_column)


def _labels_of(labelled: Labelled, digests_N: list[int]) -> dict[int, set[str]]:
    """The labels of each text, by its digest."""
    labels_of = defaultdict[int, set[str]](set)
    for digest, label in zip(digests_N, labelled.labels, strict=True):
        labels_of[digest].add(label)
    return labels_of


def _note_conflicts(labelled: Labelled, cleaning: Cleaning) -> None:
    same_N = digests(labelled.texts, cleaning).tolist()
    labels_of = _labels_of(labelled, same_N)
    several = [same for same, labels in labels_of.items() if len(labels) > 1]
    if several:
        text = reprlib.repr(labelled.texts[same_N.index(several[0])])
        labels = ", ".join(sorted(labels_of[several[0]]))
        note(
            f"{labelled.name}: texts with several labels: {len(several):,}, such as {text} with "
            f"{labels}; at most one of them can be right."
        )


def hold_out(labelled: Labelled, cleaning: Cleaning) -> tuple[Labelled, Labelled]:
    """Return four fifths and a fifth of the texts, with about a fifth of each class.

    The order of the texts and the names of the labels do not matter. Texts that are alike stay
    together, and one text of each class stays in the larger part.
    """
    alike_N = alike(labelled.texts, cleaning).tolist()
    labels_of = _labels_of(labelled, alike_N)
    # The texts of each label, or of several if the same text has them; the smallest first.
    groups = defaultdict[frozenset[str], list[int]](list)
    for digest in sorted(labels_of):
        groups[frozenset(labels_of[digest])].append(digest)
    ordered = [*chain.from_iterable(groups.values())]
    # Of five texts the third; the first of a group may be the only one of its class.
    held = {*ordered[2::5]} - {group[0] for group in groups.values()}
    train = labelled.select([digest not in held for digest in alike_N])
    return train, labelled.select([digest in held for digest in alike_N])


def folds(labels_N: NDArray[np.int64], alike_N: Digests | None, most: int) -> Any:
    """Return at most this many folds, with the texts of a digest in one; None for a lone text."""
    from sklearn.model_selection import PredefinedSplit, StratifiedKFold

    if alike_N is None:
        alike_N = np.arange(len(labels_N), dtype=np.uint32)
    # In the order of digests, which is as good as a random one.
    _, first, place_N = np.unique(alike_N, return_index=True, return_inverse=True)
    count = min(most, *np.bincount(labels_N[first], minlength=labels_N.max() + 1))
    if count < 2:
        return None
    fold = np.zeros(len(first), np.int64)
    for number, (_, held_out) in enumerate(StratifiedKFold(count).split(first, labels_N[first])):
        fold[held_out] = number
    return PredefinedSplit(fold[place_N])


def _require_folds(labelled: Labelled, alike_N: Digests) -> None:
    """Raise UserError if a class has only one text, so that `folds` gives none."""
    pairs = {*zip(labelled.labels, alike_N.tolist(), strict=True)}
    for label, count in Counter(label for label, _ in pairs).items():
        if count < 2:
            raise UserError(
                f"{labelled.name}: the class {label!r} has only one text, but cross-validation "
                "needs two; correct the name, add texts of this class, or pass `valid`."
            )


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
