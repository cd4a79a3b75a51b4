"""A heat map as a .png picture, with matplotlib."""

from pathlib import Path

from rich.cells import cell_len

from mlstm_jax.errors import UserError
from mlstm_jax.transfer.heatmap_page import Heat, colour, curve_limit, ink, shown

_COLUMNS = 90  # characters on a line
_FONT = "DejaVu Sans Mono"  # comes with matplotlib


def places(texts: list[str]) -> list[tuple[int, int]]:
    """Return the row and column of each character of a picture; lines break between words."""
    found: list[tuple[int, int]] = []
    row = column = 0
    for number, text in enumerate(texts):
        is_start = text != " " and (not number or texts[number - 1] in " \n")
        if is_start and column:
            # The width of the word, up to the point where it is known to exceed a line.
            width = 0
            for other in texts[number : number + _COLUMNS + 1]:
                if other in " \n":
                    break
                width += cell_len(other) or 1
            if column + width > _COLUMNS >= width:
                row, column = row + 1, 0
        wide = cell_len(text) or 1
        # A space may go past the end of a line, rather than start the next one.
        if column + wide > _COLUMNS + (text == " "):
            row, column = row + 1, 0
        found.append((row, column))
        column += wide
        if text == "\n" and number:
            row, column = row + 1, 0
    return found


def _fonts(marks: set[str]) -> tuple[list[str], str]:
    """Return font families that have these characters, and the characters that no font has."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

    def lacked(path: str, wanted: set[str]) -> set[str]:
        known = get_font(path).get_charmap()
        return {text for text in wanted if ord(text) not in known}

    families, missing = [_FONT], lacked(findfont(FontProperties(family=_FONT)), marks)
    for entry in fontManager.ttflist:
        if not missing:
            break
        # matplotlib's last-resort font has a box for every character.
        if entry.name in families or entry.name.startswith("Last Resort"):
            continue
        if (entry.style, entry.weight) != ("normal", 400):
            continue
        left = lacked(entry.fname, missing)
        if left < missing:
            families.append(entry.name)
            missing = left
    return families, "".join(sorted(missing))


def draw(path: Path, made: Heat) -> str:
    """Write a .png; return the characters that no font on this machine has."""
    try:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LinearSegmentedColormap, Normalize
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise UserError(
            "a .png needs matplotlib: pip install 'mlstm-jax[plot]', or write an .html file"
        ) from error
    found = places(made.texts)
    lines = found[-1][0] + 1
    marks = [mark if len(mark) == 1 else "�" for mark in map(shown, made.texts)]
    families, missing = _fonts(set(marks))
    text_height = 0.28 * lines
    figure = Figure(figsize=(12, text_height + 2.8), layout="constrained")
    # A fixed height for the scale: in proportion to one line of text it would be unreadable.
    axes, bar, curve = figure.subplots(3, 1, height_ratios=[text_height, 0.15, 1.4])
    axes.set(xlim=(0, _COLUMNS + 1), ylim=(lines, 0), xticks=[], yticks=[])
    for (row, column), mark, value in zip(found, marks, made.values.tolist(), strict=True):
        back = colour(value, made.scale)
        wide = cell_len(mark) or 1
        axes.add_patch(_cell(column, row, wide, tuple(part / 255 for part in back)))
        if mark.strip():
            axes.text(
                column + wide / 2, row + 0.55, "�" if mark in missing else mark, color=ink(back),
                ha="center", va="center", fontsize=9, family=families, parse_math=False,
            )  # fmt: skip
    # A dollar sign must not start a formula.
    axes.set_title(f"{made.name}, {made.title}", parse_math=False)
    ends = [tuple(part / 255 for part in colour(v, 1)) for v in (-1, 0, 1)]
    scale = ScalarMappable(
        Normalize(-made.scale, made.scale), LinearSegmentedColormap.from_list("heat", ends)
    )
    figure.colorbar(scale, cax=bar, orientation="horizontal", label="value")
    curve.plot(made.values, color="black", lw=1)
    curve.axhline(0, color="gray", lw=0.6)
    curve.set(xlim=(0, max(1, len(made.values) - 1)), xlabel="characters", ylabel="value")
    if made.by_word:
        curve.set_ylim(-curve_limit(made), curve_limit(made))
    curve.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=110)
    return missing


def _cell(column: int, row: int, wide: int, face: tuple[float, ...]) -> object:
    from matplotlib.patches import Rectangle

    return Rectangle((column, row), wide, 1, facecolor=face, edgecolor="none")
