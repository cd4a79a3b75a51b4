"""A classifier's score after each byte of a text: what it would answer if the text ended there."""

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.corpora.documents import clean
from mlstm_jax.errors import UserError, nearest, question
from mlstm_jax.transfer.classifier_file import Description
from mlstm_jax.transfer.classify import Classifier
from mlstm_jax.transfer.features import single_states
from mlstm_jax.transfer.reader import Reader


def running_score(
    reader: Reader, classifier: Classifier, about: Description, text: str, label: str
) -> tuple[bytes, NDArray[np.float64]]:
    """Return the cleaned text, and the score of one class or label after each of its bytes.

    The text is cleaned as a document is, so that the last score is the classifier's own.

    Args:
        reader: of the model that the classifier was made with.
        classifier: of classes, or of several labels.
        about: the classifier's features.
        text: the text to read.
        label: name of the class or label.

    Returns:
        float64 [bytes]: see `Classifier.scores`.

    Raises:
        UserError: the text is empty after cleaning, or each state of the model is of bytes after
            its place, too.
    """
    reader.run.config.model.require_next_byte("a score after each character")
    cleaned = clean(text, reader.run.cleaning)
    if not cleaned:
        raise UserError("the text is empty; give one with a character that is not a space.")
    layers = reader.run.config.model.layers
    lowest = 0 if about.all_layers else layers - 1
    read = [
        reader(cleaned, state, layer).values_TH
        for state in single_states(about.state)
        for layer in range(lowest, layers)
    ]
    scores_TK = classifier.scores(np.concatenate(read, axis=1))
    return cleaned, scores_TK[:, classifier.classes.index(label)]


def shown_label(classifier: Classifier, label: str | None) -> str:
    """Return the class or label to show: the given one, or else the last.

    Of two classes the last is the one whose probability rises with the classifier's score.

    Raises:
        UserError: the classifier does not have it.
    """
    if label is None or label in classifier.classes:
        return label if label is not None else classifier.classes[-1]
    near = question(nearest(label, classifier.classes)) or "."
    known = ", ".join(classifier.classes)
    raise UserError(f"the classifier has no class or label {label!r}{near} It has {known}.")
