"""Label texts, and note those whose label or accuracy cannot be relied on."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from mlstm_jax.errors import note
from mlstm_jax.run import Run
from mlstm_jax.transfer import known
from mlstm_jax.transfer.classifier import Classifier
from mlstm_jax.transfer.classifier_file import Description
from mlstm_jax.transfer.features import Featurizer, TextFile

_BLANK = "blank, and without a label"
_UNLIKE = (
    "unlike those that the classifier knows, such as in another language; do not rely on the label"
)


def label_texts(
    run: Run,
    texts: Sequence[str] | TextFile,
    classifier: Classifier,
    about: Description,
    featurizer: Featurizer,
    *,
    quiet: bool = True,
) -> Iterator[tuple[Sequence[str], list[dict[str, float]]]]:
    """Yield texts, those of a file in parts, each with the probability of each class by name.

    A blank text has none. Notes about the texts come after the last one. The featurizer has the
    features that the classifier reads, and a score if it knows what is familiar.
    """
    learned = {known.READ: known.read_with_ratings(run)}
    if classifier.texts is not None:
        learned[known.FITTED] = classifier.texts
    total = 0
    firsts: dict[str, int] = {}
    counts = Counter[str]()
    for part, read in featurizer.read_each(texts, "classify", quiet=quiet):
        blank_N = read.scored_N == 0  # every cleaning adds a byte to a text
        marked = {_BLANK: blank_N}
        if about.familiar:
            marked[_UNLIKE] = about.familiar.is_out_of_domain(read.nats_N, read.scored_N)
        found_N = known.digests(part, run.cleaning)
        for finding, theirs in learned.items():
            marked[finding] = np.isin(found_N, theirs)
        for finding, is_marked_N in marked.items():
            if is_marked_N.any():
                firsts.setdefault(finding, total + int(is_marked_N.argmax()) + 1)
                counts[finding] += int(is_marked_N.sum())
        total += len(part)
        shares_NK = classifier.probabilities(read.features, part)
        by_name = [dict(zip(classifier.classes, row, strict=True)) for row in shares_NK.tolist()]
        for n in np.flatnonzero(blank_N):
            by_name[n] = {}
        yield part, by_name
    for finding, first in firsts.items():
        count = counts[finding]
        if finding not in learned or not known.is_negligible(count, total):
            note(known.sentence(finding, count, total, first))
