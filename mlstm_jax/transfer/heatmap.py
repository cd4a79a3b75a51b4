"""Heat maps: a text in the colours of a unit or of a score, as a page of HTML without a script.

Each character has the colour of a unit's value (Radford et al. 2017, fig. 4), or of a classifier's
score, after its last byte: blue below zero, orange above, on one stated scale. A curve below the
text shows the same values.
"""

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import output
from mlstm_jax.corpora.documents import clean, prompt_bytes
from mlstm_jax.errors import UserError, require
from mlstm_jax.options import HEATMAP, HeatmapOptions, State
from mlstm_jax.terminal import one_line
from mlstm_jax.transfer.classifier import Classifier
from mlstm_jax.transfer.features import state_of
from mlstm_jax.transfer.trace import Tracer, go_on

_STATES: dict[State, str] = {
    "c": "cell state c",
    "h": "h",
    "mean_h": "mean of h so far",
    "max_h": "maximum of h so far",
}
_NOT_BLANK = "a text with a character that is not a space"

# Of the curve.
_WIDTH = 1000
_HEIGHT = 160

_STYLE = """
.heat { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; padding: 0 1rem; color: #111;
  background: #fff }
.heat .text { font: 16px/1.7 ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere }
.heat .scale { height: .9rem; border: 1px solid #999 }
.heat .ends { display: flex; justify-content: space-between }
.heat .text:has(ruby) { line-height: 2.2 }
.heat ruby { display: inline-block; position: relative; min-width: 22px; max-width: 100%;
  text-align: center }
.heat rt { display: block; position: absolute; top: -1px; left: 50%; transform: translateX(-50%);
  white-space: nowrap; font: 10px/1 system-ui, sans-serif; color: #555 }
.heat svg { width: 100%; height: auto; border: 1px solid #ccc; margin-top: 1rem }
"""


# Colour-blind people can tell blue from orange.
_NEGATIVE = (33, 102, 172)
_POSITIVE = (230, 97, 1)


class Heatmap(NamedTuple):
    """A text and a value after each character; it can be written, and a notebook shows it.

    Attributes:
        texts: the characters.
        values: float32, one after each character.
        scale: the value with the full colour.
        heading: of the page.
        name: what is shown: the state, unit and layer, or the class, in words.
        title: of the model.
        by_word: a page also shows the value after each word, in digits.
    """

    texts: list[str]
    values: NDArray[np.float32]
    scale: float
    heading: str
    name: str
    title: str
    by_word: bool = False

    def __repr__(self) -> str:
        ends = f"{self.values.min():.3f} to {self.values.max():.3f}"
        return f"Heatmap: {self.name} from {ends} over {len(self.texts):,} characters"

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a page.

        Args:
            path: of the .html file.
            overwrite: replace an existing file.

        Raises:
            ValueError: the file exists, or has another suffix.
        """
        path = Path(path)
        output.require_file(path, overwrite=overwrite, name="path")
        require_suffix(path)
        output.write_text(path, as_html(self))

    def _repr_html_(self) -> str:
        """A part of another page, whose own style it does not change."""
        spans = []
        befores = [" ", *self.texts]
        afters = [*self.texts[1:], " "]
        values = self.values.tolist()
        for before, text, after, value in zip(befores, self.texts, afters, values, strict=False):
            back = colour(value, self.scale)
            in_word = self.by_word and not text.isspace()
            if in_word and before.isspace():
                spans.append("<ruby>")
            spans.append(
                f'<span style="background:{_css(back)};color:{ink(back)}" title="{value:.3f}">'
                f"{html.escape(shown(text))}</span>"
            )
            if in_word and after.isspace():
                spans.append(f"<rt>{value:+.1f}</rt></ruby>".replace("-", "−"))
        stops = ", ".join(_css(colour(share, 1.0)) for share in np.linspace(-1, 1, 9))
        scale = f"{self.scale:.3g}"
        return f"""<style>{_STYLE}</style>
<div class="heat">
<h1>{html.escape(self.heading)}</h1>
<p>After each character: {html.escape(self.name)}, by {html.escape(self.title)}.</p>
<div class="scale" style="background: linear-gradient(to right, {stops})"></div>
<div class="ends"><span>−{scale}</span><span>0</span><span>{scale}</span></div>
<p class="text">{"".join(spans)}</p>
{_curve(self)}
</div>"""


def colour(value: float, scale: float) -> tuple[int, int, int]:
    """Return red, green and blue of a value: white at zero, the full colour at the scale."""
    share = min(abs(value) / scale, 1.0)
    full = np.array(_POSITIVE if value > 0 else _NEGATIVE)
    red, green, blue = np.rint(255 + (full - 255) * share).astype(int).tolist()
    return red, green, blue


def _css(colour: tuple[int, int, int]) -> str:
    return f"rgb{colour}".replace(" ", "")


def ink(background: tuple[int, int, int]) -> str:
    """Return white or near black, whichever is more readable on a background colour."""
    red, green, blue = background
    return "#fff" if 0.299 * red + 0.587 * green + 0.114 * blue < 110 else "#111"


def shown(text: str) -> str:
    """Return a character as it is shown: itself, or a symbol or escape if it is invisible."""
    if text == "\n":
        return "↵"
    # Unicode has a symbol for each control character, such as ␂ for STX.
    return chr(0x2400 + ord(text)) if text < " " else one_line(text)


def as_html(heat: Heatmap) -> str:
    """Return a self-contained page with text, scale and curve; no script and no other file."""
    return f"""<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>{html.escape(f"{heat.name}, {heat.title}")}</title>
<style>body {{ background: #fff }} .heat {{ margin: 2rem auto }}</style>
{heat._repr_html_()}
</html>
"""


def _curve(heat: Heatmap) -> str:
    middle = _HEIGHT / 2
    limit = 1.25 * heat.scale
    if not heat.by_word:
        limit = max(heat.scale, float(np.abs(heat.values).max()))
    across = np.linspace(0, _WIDTH, len(heat.values))
    down = middle - np.clip(heat.values / limit, -1, 1) * (middle - 6)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="the value along the text">'
        f'<line x1="0" x2="{_WIDTH}" y1="{middle}" y2="{middle}" stroke="#bbb"/>'
        f'<polyline points="{points}" fill="none" stroke="#111" stroke-width="1.5"/>'
        f'<text x="4" y="14" font-size="12">{limit:.3g}</text>'
        f'<text x="4" y="{_HEIGHT - 5}" font-size="12">−{limit:.3g}</text></svg>'
    )


def require_suffix(path: Path, name: str = "path") -> None:
    """Raise UserError unless a heat map can be written to the file of this argument."""
    require(path.suffix.lower() == ".html", name, str(path), "an .html file")


def require_either(unit: int | None, score: object, options: HeatmapOptions) -> None:
    """Raise UserError unless one of both is given, and the options go with it."""
    if (unit is None) == (score is None):
        raise UserError("pass either `unit` or `score`.")
    if score is None and options.label is not None:
        raise UserError("`label` goes with `score`, not with `unit`; leave it out.")
    if score is not None and (options.state, options.layer) != (None, None):
        raise UserError("`state` and `layer` go with `unit`, not with `score`; leave them out.")


def characters(text: bytes) -> tuple[list[str], list[int]]:
    """The characters of UTF-8, a � for a byte of none, and the place of the last byte of each."""
    texts = []
    ends = []
    end = -1
    for character in text.decode("utf-8", "surrogateescape"):
        end += len(character.encode("utf-8", "surrogateescape"))
        texts.append("�" if "\udc80" <= character <= "\udcff" else character)
        ends.append(end)
    return texts, ends


def heat(tracer: Tracer, text: str, unit: int, options: HeatmapOptions = HEATMAP) -> Heatmap:
    """Read a text, cleaned as `generate` cleans its prompt; see `TrainedModel.heatmap`."""
    architecture = tracer.loaded.architecture
    layers, hidden = architecture.shape
    state = state_of(architecture, options.state)
    layer = layers - 1 if options.layer is None else options.layer
    require(0 <= layer < layers, "layer", layer, f"0 to {layers - 1}")
    require(0 <= unit < hidden, "unit", unit, f"0 to {hidden - 1}")
    require(bool(text.strip()), "text", text, _NOT_BLANK)
    trace = tracer(prompt_bytes(text, tracer.loaded.cleaning), [(state, layer)])
    heading = f"Unit {unit} of layer {layer}"
    name = f"{_STATES[state]} of unit {unit} of layer {layer}"
    return _heatmap(tracer, trace.text, trace.values_TH[:, unit], options.scale, heading, name)


def score_heat(
    tracer: Tracer, text: str, classifier: Classifier, options: HeatmapOptions = HEATMAP
) -> Heatmap:
    """Read a text, cleaned as a document: a classifier's score after each character."""
    scale = options.scale
    label = shown_label(classifier, options.label)
    cleaned, values_T = running_score(tracer, classifier, text, label)
    shown = one_line(label)
    heading = f"Score of {shown}"
    by_byte = _heatmap(tracer, cleaned, values_T, scale, heading, f"log-odds of {shown}")
    # Of whole words: the mean of a few bytes, far from any whole text's, has a larger score.
    is_space = np.array([*map(str.isspace, by_byte.texts), True])
    is_end = is_space[1:] & ~is_space[:-1]
    largest = float(np.abs(by_byte.values[is_end]).max())
    return by_byte._replace(by_word=True, scale=scale or largest or 1.0)


def running_score(
    tracer: Tracer,
    classifier: Classifier,
    text: str,
    label: str,
    check: Callable[[], None] = go_on,
) -> tuple[bytes, NDArray[np.float64]]:
    """The cleaned text, and the score of a class after each byte; the last is the classifier's."""
    tracer.loaded.architecture.require_next_byte("a score after each character")
    cleaned = clean(text, tracer.loaded.cleaning)
    require(bool(cleaned), "text", text, _NOT_BLANK)
    read = tracer(cleaned, classifier.about.layers(tracer.loaded.architecture), check)
    scores_TK = classifier.scores(read.values_TH)
    return cleaned, scores_TK[:, classifier.classes.index(label)]


def shown_label(classifier: Classifier, label: str | None) -> str:
    """The class to show: this one, or the last, such as positive."""
    known = classifier.classes
    label = known[-1] if label is None else label
    require(label in known, "label", label, f"one of {', '.join(known)}")
    return label


def _heatmap(
    tracer: Tracer, text: bytes, values_T: Any, scale: float | None, heading: str, name: str
) -> Heatmap:
    texts, ends = characters(text)
    values = values_T[ends]
    if not np.isfinite(values).all():
        raise UserError(
            f"the {name} is infinite or not a number; the model may have diverged, so load an "
            "earlier checkpoint."
        )
    # In a long text a few outliers would make all other characters white.
    largest = float(np.percentile(np.abs(values), 99, method="higher"))
    title = one_line(tracer.loaded.name)
    return Heatmap(texts, values, scale or largest or 1.0, heading, name, title)
