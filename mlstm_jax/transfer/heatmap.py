"""A text coloured by a unit's value or a classifier's score.

Radford et al. 2017, fig. 4. Each character has the colour of the value after its last byte: blue
below zero, orange above, on one stated scale. A curve below the text shows the same values.
heatmap_page.py and heatmap_picture.py draw it.
"""

from pathlib import Path
from typing import Any

import numpy as np

from mlstm_jax import output
from mlstm_jax.errors import UserError
from mlstm_jax.terminal import one_line
from mlstm_jax.transfer.classifier_file import Description
from mlstm_jax.transfer.classify import Classifier
from mlstm_jax.transfer.features import State, states_of
from mlstm_jax.transfer.generate import prompt_bytes
from mlstm_jax.transfer.heatmap_page import Heat, as_html, as_part, word_ends
from mlstm_jax.transfer.heatmap_picture import draw
from mlstm_jax.transfer.reader import Reader, characters
from mlstm_jax.transfer.running_score import running_score, shown_label

_STATES: dict[State, str] = {
    "c": "cell state c",
    "h": "h",
    "mean_h": "mean of h so far",
}


class Heatmap(Heat):
    """A heat map that can be written, and that a notebook shows."""

    def __repr__(self) -> str:
        low, high = self.values.min(), self.values.max()
        return (
            f"{type(self).__name__}: {self.name} from {low:.3f} to {high:.3f} over "
            f"{len(self.texts):,} characters"
        )

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write an .html page or a .png picture; UserError if the file exists."""
        output.require_file(Path(path), overwrite=overwrite, option="path")
        write(Path(path), self)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return as_part(self)


def heat(
    reader: Reader,
    text: str,
    unit: int,
    scale: float | None = None,
    *,
    state: State | None = None,
    layer: int | None = None,
) -> Heatmap:
    """Read a text, cleaned as `generate` cleans its prompt.

    Args:
        reader: of a trained model.
        text: the text to read.
        unit: its number in the layer.
        scale: the absolute value with the full colour; unset: the 99th percentile of the text.
        state: c or h after each character, or the mean of h up to it; unset: see `states_of`.
        layer: unset: the top layer.

    Raises:
        UserError: the text is empty, or the unit, layer or state does not exist.
    """
    layers, hidden = reader.run.config.model.shape
    (state,) = states_of(reader.run.config.model, state and (state,))
    layer = layers - 1 if layer is None else layer
    if not 0 <= layer < layers:
        raise UserError(f"--layer {layer} does not exist: the model has layers 0 to {layers - 1}.")
    if not 0 <= unit < hidden:
        raise UserError(f"--unit {unit} does not exist: the model has units 0 to {hidden - 1}.")
    _require_text(text, scale)
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

    Args:
        reader: of the model that the classifier was made with.
        text: the text to read.
        classifier: of classes, or of several labels.
        about: the classifier's features.
        label: the class or label; unset: the last, of two classes the second.
        scale: the absolute value with the full colour; unset: the largest after a whole word. The
            mean of a few bytes, far from that of any whole text, has a larger score.

    Raises:
        UserError: the text is empty, the class does not exist, or the model reads ahead.
    """
    _require_text(text, scale)
    label = shown_label(classifier, label)
    cleaned, values_T = running_score(reader, classifier, about, text, label)
    heading = f"score of {one_line(label)}"
    name = f"log-odds of {one_line(label)}"
    made = _heatmap(reader, cleaned, values_T, scale, heading.capitalize(), name)
    largest = float(np.abs(made.values[word_ends(made.texts)]).max())
    return made._replace(by_word=True, scale=scale or largest or 1.0)


def _require_text(text: str, scale: float | None) -> None:
    if not text.strip():
        raise UserError("the text is empty; give one with a character that is not a space.")
    if scale is not None and not 0 < scale < float("inf"):
        raise UserError(f"--scale is {scale}, but it must be above 0 and finite.")


def _heatmap(
    reader: Reader, text: bytes, values_T: Any, scale: float | None, heading: str, name: str
) -> Heatmap:
    found = characters(text)
    values = values_T[[one.end for one in found]]
    # In a long text a few outliers would make all other characters white.
    largest = float(np.percentile(np.abs(values), 99, method="higher"))
    texts, title = [one.text for one in found], one_line(reader.run.name)
    return Heatmap(texts, values, scale or largest or 1.0, heading, name, title)


def write(path: Path, made: Heat) -> str:
    """Write an .html page or a .png picture; UserError for another suffix.

    Returns the characters of a picture that no font on this machine has; "" if there are none.
    """
    require_suffix(path)
    with output.write_errors(path):
        if path.suffix.lower() == ".html":
            output.write_text(path, as_html(made))
            return ""
        with output.atomic_file(path, ".partial.png") as partial:
            return draw(partial, made)


def require_suffix(path: Path) -> None:
    """Raise UserError unless a heat map can be written under a name."""
    if path.suffix.lower() not in (".html", ".png"):
        raise UserError(f"{path}: a heat map is an .html or .png file; use such a name.")
