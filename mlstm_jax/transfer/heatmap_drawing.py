"""A heat map as a self-contained HTML page without a script."""

import html
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import output
from mlstm_jax.errors import require
from mlstm_jax.terminal import one_line

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
    """A text and a value after each character; it can be written, and a notebook shows it."""

    texts: list[str]
    values: NDArray[np.float32]
    scale: float  # the value with the full colour
    heading: str
    name: str  # what is shown: the state, unit and layer, or the class, in words
    title: str  # of the model
    by_word: bool = False  # a page also shows the value after each word, in digits

    def __repr__(self) -> str:
        ends = f"{self.values.min():.3f} to {self.values.max():.3f}"
        return f"Heatmap: {self.name} from {ends} over {len(self.texts):,} characters"

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write an .html page; UserError if the file exists, or for another suffix."""
        path = Path(path)
        output.require_file(path, overwrite=overwrite, name="path")
        require_suffix(path)
        output.write_text(path, as_html(self))

    def _repr_html_(self) -> str:
        return as_part(self)


def colour(value: float, scale: float) -> tuple[int, int, int]:
    """Return red, green and blue of a value: white at zero, the full colour at the scale."""
    share = min(abs(value) / scale, 1.0)
    full = np.array(_POSITIVE if value > 0 else _NEGATIVE)
    red, green, blue = np.rint(255 + (full - 255) * share).astype(int).tolist()
    return red, green, blue


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


def word_ends(texts: list[str]) -> list[int]:
    """Return the index of the last character of each word of a text that is not blank."""
    is_space = np.array(list(map(str.isspace, [*texts, " "])))
    ends: list[int] = np.flatnonzero(is_space[1:] & ~is_space[:-1]).tolist()
    return ends


def as_html(heat: Heatmap) -> str:
    """Return a self-contained page with text, scale and curve; no script and no other file."""
    return f"""<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>{html.escape(f"{heat.name}, {heat.title}")}</title>
<style>body {{ background: #fff }} .heat {{ margin: 2rem auto }}</style>
{as_part(heat)}
</html>
"""


def as_part(heat: Heatmap) -> str:
    """Return what the page shows as a part of another page, whose own style it does not change."""
    spans = []
    for text, value in zip(heat.texts, heat.values.tolist(), strict=True):
        back = colour(value, heat.scale)
        background = f"rgb{back}".replace(" ", "")
        spans.append(
            f'<span style="background:{background};color:{ink(back)}" title="{value:.3f}">'
            f"{html.escape(shown(text))}</span>"
        )
    if heat.by_word:
        spans = _with_values(spans, heat)
    stops = [f"rgb{colour(share, 1.0)}".replace(" ", "") for share in np.linspace(-1, 1, 9)]
    return f"""<style>{_STYLE}</style>
<div class="heat">
<h1>{html.escape(heat.heading)}</h1>
<p>After each character: {html.escape(heat.name)}, by {html.escape(heat.title)}.</p>
<div class="scale" style="background: linear-gradient(to right, {", ".join(stops)})"></div>
<div class="ends"><span>−{heat.scale:.3g}</span><span>0</span><span>{heat.scale:.3g}</span></div>
<p class="text">{"".join(spans)}</p>
{_curve(heat)}
</div>"""


def _with_values(spans: list[str], heat: Heatmap) -> list[str]:
    """Return the spans in words, each with the value after its last character above it."""
    pieces = []
    is_space = list(map(str.isspace, [" ", *heat.texts, " "]))
    for number, span in enumerate(spans, 1):
        if is_space[number - 1] and not is_space[number]:
            span = f"<ruby>{span}"
        if is_space[number + 1] and not is_space[number]:
            value = f"{heat.values[number - 1]:+.1f}".replace("-", "−")
            span += f"<rt>{value}</rt></ruby>"
        pieces.append(span)
    return pieces


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
