"""Texts that a model or a classifier has learned from: accuracy on them is too high.

A text is recognised by four bytes of the md5 by which `prepare` finds duplicates, so case, white
space and the line breaks of HTML do not matter. One of n digests equals that of another text by
chance with a probability of n / 2^32: of the model in the box, one in 126,000 texts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import shipped
from mlstm_jax.corpora.documents import clean, order_key
from mlstm_jax.data.corpus import Cleaning
from mlstm_jax.errors import note
from mlstm_jax.run import Run
from mlstm_jax.transfer.labels import Labelled

# Fewer of the texts change their accuracy by less than 0.1 points, and may be equal by chance.
_LEAST = 0.001

Digests = NDArray[np.uint32]


class Finding(NamedTuple):
    """What is said of one text, and of several."""

    one: str
    several: str


READ = Finding(
    "was read by the model with its rating; accuracy on it is too high",
    "were read by the model with their ratings; accuracy on them is too high",
)
FITTED = Finding(
    "is one that the classifier was fitted to; accuracy on it is too high",
    "are among those that the classifier was fitted to; accuracy on them is too high",
)
_FITTED_BEFORE = Finding(
    "is one that the model's own classifier was fitted to; accuracy on it is too high",
    "are among those that the model's own classifier was fitted to; accuracy on them is too high",
)
_REPEATED = Finding(
    "is also in the training texts; accuracy on it is too high",
    "are also in the training texts; accuracy on them is too high",
)


def digests(texts: Sequence[str], cleaning: Cleaning) -> Digests:
    """Return a digest of each text, [texts]."""
    return np.array([digest_of(clean(text, cleaning)) for text in texts], np.uint32)


def digest_of(cleaned: bytes) -> int:
    """Return the digest of a cleaned text."""
    cleaned = cleaned.replace(b"<br />", b" ")  # many people remove it from IMDB's reviews
    return int(order_key(cleaned, 0, "normalized")[:8], 16)


def read_with_ratings(run: Run) -> Digests:
    """Return the digests of the texts that the model has read with their ratings.

    They are recorded for the models of the package, and count for a run fine-tuned from one. Of
    other models there are none.
    """
    path = shipped.rated_texts(run.folder)
    if path is None and run.config.train.start_from:
        path = shipped.rated_texts(Path(run.config.train.start_from))
    if path:
        found: Digests = np.load(path, allow_pickle=False)
        return found
    return np.zeros(0, np.uint32)


def sentence(finding: Finding, count: int, total: int, first: int | None = None) -> str:
    """Return a sentence on some of the texts, with the number of the first of them."""
    if total == 1:
        return f"the text {finding.one}."
    if count == 1:
        place = "" if first is None else f", number {first:,},"
        return f"1 of {total:,} texts{place} {finding.one}."
    place = "" if first is None else f", the first number {first:,},"
    return f"{count:,} of {total:,} texts{place} {finding.several}."


def is_negligible(count: int, total: int) -> bool:
    """Return whether so few of the texts are known that their accuracy is as good as it was."""
    return not count or count < _LEAST * total


def note_read(run: Run, texts: Sequence[str], name: str) -> None:
    """Note the texts that the model has read with their ratings."""
    known = read_with_ratings(run)
    if known.size:
        _notes(name, READ, digests(texts, run.cleaning), known)


def note_known(run: Run, texts: Mapping[str, Labelled]) -> list[str]:
    """Note the texts that the model has read with their ratings, or that are also in `train`.

    Args:
        run: the model.
        texts: train, and others to measure on.

    Returns:
        The notes.
    """
    read = read_with_ratings(run)
    found = {name: digests(part.texts, run.cleaning) for name, part in texts.items()}
    notes = []
    for name, part in texts.items():
        notes += _notes(part.name, READ, found[name], read)
        if name != "train":
            notes += _notes(part.name, _REPEATED, found[name], found["train"])
    return notes


def note_fitted(run: Run, texts: Labelled, fitted: Digests) -> list[str]:
    """Note the texts that the model's own classifier was fitted to; return the notes."""
    return _notes(texts.name, _FITTED_BEFORE, digests(texts.texts, run.cleaning), fitted)


def _notes(name: str, finding: Finding, texts: Digests, known: Digests) -> list[str]:
    count = int(np.isin(texts, known).sum())
    if is_negligible(count, len(texts)):
        return []
    text = f"{name}: {sentence(finding, count, len(texts))}"
    note(text)
    return [text]
