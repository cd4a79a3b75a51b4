"""Sets of labelled texts, to train and to measure on: what is held out, and what they share."""

import reprlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.corpora.documents import rating_of
from mlstm_jax.errors import UserError, first_of, note
from mlstm_jax.loaded import Loaded
from mlstm_jax.options import Cleaning
from mlstm_jax.transfer.known import (
    READ,
    REPEATED,
    Digests,
    alike,
    keys_of,
    note_among,
    read_with_ratings,
)
from mlstm_jax.transfer.labels import Labelled, require_classes, require_known


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
    keys = {name: keys_of(some.texts, cleaning) for name, some in kept.items()}
    sources = []
    for name, some in kept.items():
        _note_conflicts(some, keys[name].same_N)
        if some.records:
            count = f"{len(some.texts):,} of the {some.records:,} records"
            sources.append(f"{count} of {some.name}")
    classes = require_classes(kept["train"])
    if part not in kept:
        whole = kept["train"]
        of_whole = keys["train"]
        (alike_N,) = alike([of_whole])
        is_held_N = held_out(whole.labels, alike_N)
        if not is_held_N.any():
            raise UserError(
                f"{whole.name} has only {len(whole.texts):,} texts, too few to hold out a fifth; "
                f"pass `{part}` as well."
            )
        rest = whole.select(~is_held_N)
        held = whole.select(is_held_N)
        kept["train"] = rest._replace(name=f"the rest of {whole.name}")
        kept[part] = held._replace(name=f"the held-out fifth of {whole.name}")
        keys["train"] = of_whole.select(~is_held_N)
        keys[part] = of_whole.select(is_held_N)
    for some in kept.values():
        require_known(some, classes)
    same = {name: some.same_N for name, some in keys.items()}
    by_set = dict(zip(keys, alike(list(keys.values())), strict=True))
    if "valid" not in kept:
        _require_folds(kept["train"], by_set["train"])
    if len(classes) > 2 and all(rating_of(name) is not None for name in classes):
        note(
            f"the labels {first_of(classes)} are read as {len(classes)} classes, without an order; "
            'to predict numbers, see "Numbers" in docs/transfer.md.'
        )
    return Sets(sources, kept, classes, same, by_set, text_column)


def _labels_of(labels: Sequence[str], digests_N: Digests) -> dict[int, set[str]]:
    """The labels of each text, by its digest."""
    labels_of = defaultdict[int, set[str]](set)
    for digest, label in zip(digests_N.tolist(), labels, strict=True):
        labels_of[digest].add(label)
    return labels_of


def _note_conflicts(labelled: Labelled, same_N: Digests) -> None:
    labels_of = _labels_of(labelled.labels, same_N)
    several = [same for same, labels in labels_of.items() if len(labels) > 1]
    if several:
        text = reprlib.repr(labelled.texts[same_N.tolist().index(several[0])])
        labels = ", ".join(sorted(labels_of[several[0]]))
        note(
            f"{labelled.name}: texts with several labels: {len(several):,}, such as {text} with "
            f"{labels}; at most one of them can be right."
        )


def held_out(labels: Sequence[str], alike_N: Digests) -> NDArray[np.bool_]:
    """Whether each text is of a fifth of the texts, with about a fifth of each class.

    The order of the texts and the names of the labels do not matter. Texts that are alike stay
    together, and one text of each class stays in the larger part.
    """
    labels_of = _labels_of(labels, alike_N)
    # The texts of each label, or of several if the same text has them; the smallest first.
    groups = defaultdict[frozenset[str], list[int]](list)
    for digest in sorted(labels_of):
        groups[frozenset(labels_of[digest])].append(digest)
    ordered = [*chain.from_iterable(groups.values())]
    # Of five texts the third; the first of a group may be the only one of its class.
    held = {*ordered[2::5]} - {group[0] for group in groups.values()}
    return np.array([digest in held for digest in alike_N.tolist()], np.bool_)


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
    for number, (_, chosen) in enumerate(StratifiedKFold(count).split(first, labels_N[first])):
        fold[chosen] = number
    return PredefinedSplit(fold[place_N])


def _require_folds(labelled: Labelled, alike_N: Digests) -> None:
    """Raise UserError if a class has fewer than two of the texts that `folds` counts."""
    _, first = np.unique(alike_N, return_index=True)
    counts = Counter(labelled.labels[n] for n in first)
    for label in labelled.classes:
        if counts[label] < 2:
            texts = labelled.labels.count(label)
            has = "only one text"
            if texts > 1:
                counted = f"only {counts[label]} counts" if counts[label] else "none counts"
                has = (
                    f"{texts:,} texts, but {counted}, because texts that are alike count once, for "
                    "the class of the first"
                )
            raise UserError(
                f"{labelled.name}: the class {label!r} has {has}; cross-validation needs two. "
                "Correct the name, add other texts of this class, or pass `valid`."
            )


def note_known(loaded: Loaded, sets: Sets) -> tuple[list[str], list[str]]:
    """Note, and return notes on, texts that the model has read with ratings; and those in train."""
    read = read_with_ratings(loaded)
    on_read = []
    on_repeated = []
    for name, part in sets.texts.items():
        on_read += note_among(part.name, sets.same[name], read, READ)
        if name != "train":
            of_train_N = np.sort(sets.alike["train"])
            on_repeated += note_among(part.name, sets.alike[name], of_train_N, REPEATED)
    return on_read, on_repeated
