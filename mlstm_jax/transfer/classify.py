"""Label texts, and note those whose label or accuracy cannot be relied on."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from mlstm_jax.errors import note
from mlstm_jax.loaded import Loaded
from mlstm_jax.transfer.classifier import Classifier
from mlstm_jax.transfer.features import Featurizer, TextFile
from mlstm_jax.transfer.known import (
    FITTED,
    READ,
    digests,
    is_among,
    is_negligible,
    read_with_ratings,
    sentence,
)

# What texts are, in `sentence`.
_BLANK = "blank, and without a label"
_UNLIKE = (
    "unlike the texts that the classifier knows, such as in another language; do not rely on the "
    "label"
)


def label_texts(
    loaded: Loaded,
    texts: Sequence[str] | TextFile,
    classifier: Classifier,
    featurizer: Featurizer,
    *,
    show_progress: bool,
) -> Iterator[tuple[Sequence[str], list[dict[str, float]]]]:
    """Yield texts, a file's in parts, with the probability of each class by name; then note.

    A blank text has none. The featurizer scores texts if the classifier knows what is familiar.
    """
    learned = {READ: read_with_ratings(loaded)}
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
        found_N = digests(part, loaded.cleaning)
        for finding, theirs in learned.items():
            marked[finding] = is_among(found_N, theirs)
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
