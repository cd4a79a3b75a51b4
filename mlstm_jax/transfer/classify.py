"""Label texts, and note those whose label or accuracy cannot be relied on.

Accuracy is too high on texts that a model or a classifier has learned from; `labels.digests` finds
them.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import shipped
from mlstm_jax.errors import note
from mlstm_jax.loaded import Loaded
from mlstm_jax.transfer.classifier import Classifier
from mlstm_jax.transfer.features import Featurizer, TextFile
from mlstm_jax.transfer.labels import Digests, Sets, digests

# Fewer of the texts may be equal by chance, or change the accuracy by less than its standard error.
_LEAST = 0.001
_LEAST_OF_ROOT = 0.1

# What texts are, in `sentence`.
_HIGH = "so their accuracy looks better than it is"
READ = f"in the model's own training data with their ratings, {_HIGH}"
FITTED = f"among the texts that the classifier was fitted to, {_HIGH}"
FITTED_BEFORE = f"among the texts that the model's own classifier was fitted to, {_HIGH}"
_REPEATED = f"also among the training texts, apart from case, space and punctuation, {_HIGH}"
_BLANK = "blank, and without a label"
_UNLIKE = (
    "unlike the texts that the classifier knows, such as in another language; do not rely on the "
    "label"
)


def label_texts(
    run: Loaded,
    texts: Sequence[str] | TextFile,
    classifier: Classifier,
    featurizer: Featurizer,
    *,
    show_progress: bool,
) -> Iterator[tuple[Sequence[str], list[dict[str, float]]]]:
    """Yield texts, a file's in parts, with the probability of each class by name; then note.

    A blank text has none. The featurizer scores texts if the classifier knows what is familiar.
    """
    learned = {READ: read_with_ratings(run)}
    if classifier.texts is not None:
        learned[FITTED] = classifier.texts
    familiar = classifier.about.familiar
    total = 0
    firsts: dict[str, int] = {}  # number of the first text of each finding, from 1
    counts = Counter[str]()
    for part, read in featurizer.read_each(texts, "classify", show_progress=show_progress):
        blank_N = read.scored_N == 0  # every cleaning adds a byte to a text
        marked = {_BLANK: blank_N}
        if familiar:
            marked[_UNLIKE] = familiar.is_out_of_domain(read.nats_N, read.scored_N)
        found_N = digests(part, run.cleaning)
        for finding, theirs in learned.items():
            marked[finding] = _is_among(found_N, theirs)
        for finding, is_marked_N in marked.items():
            if is_marked_N.any():
                firsts.setdefault(finding, total + 1 + int(is_marked_N.argmax()))
                counts[finding] += int(is_marked_N.sum())
        total += len(part)
        shares_NK = classifier.probabilities(read.features, part)
        by_name = [dict(zip(classifier.classes, row, strict=True)) for row in shares_NK.tolist()]
        for n in np.flatnonzero(blank_N):
            by_name[n] = {}
        yield part, by_name
    for finding, count in counts.items():
        if finding in learned and is_negligible(count, total):
            continue
        note(sentence(finding, count, total, first=firsts[finding]))


def read_with_ratings(run: Loaded) -> Digests:
    """Digests of the texts that a pretrained model has read so, or a run that began with one."""
    path = shipped.rated_texts(run.fingerprint) or shipped.rated_texts(run.first_start)
    return np.zeros(0, np.uint32) if path is None else _read(path)


@functools.cache
def _read(path: Path) -> Digests:
    """Read a file of the package, which does not change."""
    return np.sort(np.load(path, allow_pickle=False))


def _is_among(texts: Digests, known: Digests) -> NDArray[np.bool_]:
    """Whether each digest is known; `np.isin` sorts all known ones each time."""
    if not known.size:
        return np.zeros(len(texts), np.bool_)
    place_N = np.searchsorted(known, texts)
    is_known_N: NDArray[np.bool_] = known[np.minimum(place_N, len(known) - 1)] == texts
    return is_known_N


def sentence(
    finding: str, count: int, total: int, *, name: str = "", first: int | None = None
) -> str:
    """Say what some of the texts are, with the name of all, and the number of the first of them."""
    of_all = f"of the {total:,} texts of {name}" if name else f"of {total:,} texts"
    place = "" if first is None else f", the first number {first:,},"
    verb = "is" if count == 1 else "are"
    return f"{count:,} {of_all}{place} {verb} {finding}."


def is_negligible(count: int, total: int) -> bool:
    """Whether so few of the texts are known that their accuracy is as good as it was."""
    return count < max(_LEAST * total, _LEAST_OF_ROOT * math.sqrt(total), 1)


def note_among(name: str, texts: Digests, known: Digests, finding: str) -> list[str]:
    """Note how many of the texts are among the known, which are sorted; return the note, if any."""
    count = int(_is_among(texts, known).sum())
    if is_negligible(count, len(texts)):
        return []
    text = sentence(finding, count, len(texts), name=name)
    note(text)
    return [text]


def note_known(run: Loaded, sets: Sets) -> tuple[list[str], list[str]]:
    """Note, and return notes on, texts that the model has read with ratings; and those in train."""
    read = read_with_ratings(run)
    on_read = []
    on_repeated = []
    for name, part in sets.texts.items():
        on_read += note_among(part.name, sets.same[name], read, READ)
        if name != "train":
            of_train_N = np.sort(sets.alike["train"])
            on_repeated += note_among(part.name, sets.alike[name], of_train_N, _REPEATED)
    return on_read, on_repeated
