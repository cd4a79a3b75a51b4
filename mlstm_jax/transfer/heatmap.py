"""A text coloured by a unit's value or a classifier's score.

Radford et al. 2017, fig. 4. Each character has the colour of the value after its last byte: blue
below zero, orange above, on one stated scale. A curve below the text shows the same values.
heatmap_drawing.py draws it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.corpora.documents import clean
from mlstm_jax.errors import UserError, nearest, question
from mlstm_jax.terminal import one_line
from mlstm_jax.transfer.classifier_file import Description
from mlstm_jax.transfer.classify import Classifier
from mlstm_jax.transfer.generate import prompt_bytes
from mlstm_jax.transfer.heatmap_drawing import Heatmap, word_ends
from mlstm_jax.transfer.reader import State, require_index, states_of
from mlstm_jax.transfer.trace import Reader, characters

_STATES: dict[State, str] = {
    "c": "cell state c",
    "h": "h",
    "mean_h": "mean of h so far",
}
_EMPTY = "the text is empty; give one with a character that is not a space."


def heat(
    reader: Reader,
    text: str,
    unit: int,
    scale: float | None = None,
    *,
    state: State | None = None,
    layer: int | None = None,
) -> Heatmap:
    """Read a text, cleaned as `generate` cleans its prompt; see `TrainedModel.heatmap`."""
    layers, hidden = reader.run.config.model.shape
    (state,) = states_of(reader.run.config.model, state and (state,))
    layer = layers - 1 if layer is None else layer
    require_index("layer", layer, layers)
    require_index("unit", unit, hidden)
    if not text.strip():
        raise UserError(_EMPTY)
    trace = reader(prompt_bytes(text, reader.run.cleaning), state, layer)
    heading = f"unit {unit} of layer {layer}"
    name = f"{_STATES[state]} of {heading}"
    return _heatmap(reader, trace.text, trace.values_TH[:, unit], scale, heading.capitalize(), name)


def score_heat(
    reader: Reader,
    text: str,
    classifier: Classifier,
    about: Description,
    label: str | None = None,
    scale: float | None = None,
) -> Heatmap:
    """Read a text, cleaned as a document: a classifier's score after each character.

    See `TrainedModel.heatmap`. The scale is that of whole words: the mean of a few bytes, far from
    that of any whole text, has a larger score.
    """
    label = shown_label(classifier, label)
    cleaned, values_T = running_score(reader, classifier, about, text, label)
    heading = f"score of {one_line(label)}"
    name = f"log-odds of {one_line(label)}"
    heat = _heatmap(reader, cleaned, values_T, scale, heading.capitalize(), name)
    largest = float(np.abs(heat.values[word_ends(heat.texts)]).max())
    return heat._replace(by_word=True, scale=scale or largest or 1.0)


def running_score(
    reader: Reader, classifier: Classifier, about: Description, text: str, label: str
) -> tuple[bytes, NDArray[np.float64]]:
    """Return the cleaned text, and the score of one class or label after each of its bytes.

    The text is cleaned as a document is, so that the last score is the classifier's own.

    Returns:
        float64 [bytes]: see `Classifier.scores`.

    Raises:
        UserError: the text is empty after cleaning, the model is bidirectional, or the classifier
            has words.
    """
    reader.run.config.model.require_next_byte("a score after each character")
    cleaned = clean(text, reader.run.cleaning)
    if not cleaned:
        raise UserError(_EMPTY)
    layers = about.layers(reader.run.config.model)
    read = [reader(cleaned, state, layer).values_TH for state, layer in layers]
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
    near = question(nearest(label, classifier.classes))
    known = ", ".join(classifier.classes)
    raise UserError(f"the classifier has no class or label {label!r}{near} It has {known}.")


def _heatmap(
    reader: Reader, text: bytes, values_T: Any, scale: float | None, heading: str, name: str
) -> Heatmap:
    every = characters(text)
    values = values_T[[one.end for one in every]]
    # In a long text a few outliers would make all other characters white.
    largest = float(np.percentile(np.abs(values), 99, method="higher"))
    texts, title = [one.text for one in every], one_line(reader.run.name)
    return Heatmap(texts, values, scale or largest or 1.0, heading, name, title)
