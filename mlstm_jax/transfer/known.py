"""Texts that a model or a classifier has learned from: accuracy on them is too high.

A text is recognised by four bytes of the md5 by which `prepare` finds duplicates, so case, white
space and the line breaks of HTML do not matter. One of n digests equals that of another text by
chance with a probability of n / 2^32: of the pretrained model, one in 126,000 texts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

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

# What texts are, in `sentence`.
READ = "among those that the model has read with their ratings, so accuracy is too high"
FITTED = "among those that the classifier was fitted to, so accuracy is too high"
FITTED_BEFORE = FITTED.replace("the classifier", "the model's own classifier")
_REPEATED = "also in the training texts, so accuracy is too high"


def digests(texts: Sequence[str], cleaning: Cleaning) -> Digests:
    """Return a digest of each text, [texts]."""
    return np.array([digest_of(clean(text, cleaning)) for text in texts], np.uint32)


def digest_of(cleaned: bytes) -> int:
    """Return the digest of a cleaned text."""
    cleaned = cleaned.replace(b"<br />", b" ")  # many people remove it from IMDB's reviews
    return int(order_key(cleaned, 0, "normalized")[:8], 16)


def read_with_ratings(run: Run) -> Digests:
    """Return the digests of the texts that a pretrained model has read with their ratings.

    They count for a run fine-tuned from it, too. Of other models there are none.
    """
    path = shipped.rated_texts(run.folder)
    if path is None and run.config.train.start_from:
        path = shipped.rated_texts(Path(run.config.train.start_from))
    if path is None:
        return np.zeros(0, np.uint32)
    found: Digests = np.load(path, allow_pickle=False)
    return found


def sentence(finding: str, count: int, total: int, first: int | None = None) -> str:
    """Say what some of the texts are, with the number of the first of them."""
    place = "" if first is None else f", the first number {first:,},"
    verb = "is" if count == 1 else "are"
    return f"{count:,} of {total:,} texts{place} {verb} {finding}."


def is_negligible(count: int, total: int) -> bool:
    """Whether so few of the texts are known that their accuracy is as good as it was."""
    return not count or count < _LEAST * total


def note_among(texts: Labelled, known: Digests, finding: str, cleaning: Cleaning) -> list[str]:
    """Note how many of the texts are known, if any matter; return the note."""
    count = int(np.isin(digests(texts.texts, cleaning), known).sum())
    total = len(texts.texts)
    if is_negligible(count, total):
        return []
    text = f"{texts.name}: {sentence(finding, count, total)}"
    note(text)
    return [text]


def note_known(run: Run, texts: Mapping[str, Labelled]) -> list[str]:
    """Note the texts that the model has read with their ratings, or that are also in `train`.

    `texts` has train, and others to measure on. Returns the notes.
    """
    read = read_with_ratings(run)
    train = digests(texts["train"].texts, run.cleaning)
    notes = []
    for name, part in texts.items():
        notes += note_among(part, read, READ, run.cleaning)
        if name != "train":
            notes += note_among(part, train, _REPEATED, run.cleaning)
    return notes
