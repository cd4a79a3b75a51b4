r"""Documents: a text with its rating, its bytes in a corpus, and its place in the order.

A document is a review, a line, a paragraph or a file. Documents are deduplicated and shuffled as
units, and a split never cuts one. Cleaning follows Radford et al. 2017 and Puri et al. 2018. Order
and duplicates depend only on content and seed, so every engine computes the same result.
"""

import hashlib
import html
import re
import string
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from mlstm_jax.errors import note
from mlstm_jax.fields import InvalidField
from mlstm_jax.options import Cleaning, Dedupe, Quoting, Unit

# The first that is not null is used.
TEXT_COLUMNS = ("text", "reviewText", "review_body", "sentence", "content")
RATING_COLUMNS = ("rating", "overall", "star_rating", "stars")

# "nan", "1_000" and full-width digits are no ratings.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LARGEST_RATING = 3.4e38  # of float32, in which a corpus stores them
_NUMBERS = (int, float, Decimal)  # made once: `int | float | Decimal` would be, for every record
# As pandas writes an integer of a column with missing values.
_INTEGER_AS_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)\.0")

_SURROGATE = re.compile("[\ud800-\udfff]")
# A character reference with more digits than Python parses; no character has that number.
_LONG_REFERENCE = re.compile("&#[0-9]{4301,};?")

# ASCII in lower case, with a space for each character that `str.split` splits at.
_PLAIN = bytes.maketrans(
    string.ascii_uppercase.encode() + b"\t\n\v\f\r\x1c\x1d\x1e\x1f",
    string.ascii_lowercase.encode() + b" " * 9,
)

Record = Mapping[str, object]
# Cleaned bytes, and the rating: NaN for none.
CleanDocument = tuple[bytes, float]


class Document(NamedTuple):
    """A text, possibly blank, with its rating."""

    text: str
    rating: float | None
    record: Record | None = None  # all its fields; only if the recipe names a label column


class Recipe(NamedTuple):
    """How records become documents: the same for every engine."""

    text_column: str | None = None
    rating_column: str | None = None
    document: Unit | None = None
    cleaning: Cleaning = "radford"
    dedupe: Dedupe = "normalized"
    seed: int = 0
    quoting: Quoting | None = None
    delimiter: str | None = None
    label_column: str | None = None  # if there is one, each document has its record

    @property
    def text_columns(self) -> tuple[str, ...]:
        return (self.text_column,) if self.text_column is not None else TEXT_COLUMNS

    @property
    def rating_columns(self) -> tuple[str, ...]:
        return (self.rating_column,) if self.rating_column is not None else RATING_COLUMNS

    @property
    def columns(self) -> tuple[str, ...]:
        """All fields that are read."""
        columns = self.text_columns + self.rating_columns
        if self.label_column is not None:
            columns += (self.label_column,)
        return columns


def clean(text: str, cleaning: Cleaning) -> bytes:
    r"""The bytes of a document in the corpus, empty if only padding would be left.

    "radford": unescape HTML, newlines to spaces, strip, "\n " in front, " " behind. "none": the
    unchanged text and "\n". The bytes are UTF-8; a lone surrogate, which has no UTF-8, becomes "?".
    """
    before, kept, after = _pieces(_converted(text, cleaning), cleaning)
    return _utf8(before + kept + after) if kept.strip() else b""


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")


def is_broken(text: str) -> bool:
    """Whether a text has half of a character, a lone surrogate, which becomes "?"."""
    return bool(_SURROGATE.search(text))


def note_broken(broken: Sequence[int], total: int, name: str = "") -> None:
    """Note which of a number of texts are broken, by their numbers from 1, if any are."""
    if broken:
        place = f" of {name}" if name else ""
        note(
            f"half of a character (a lone surrogate) is in {len(broken):,} of {total:,} texts"
            f"{place}, the first number {broken[0]:,}; the model reads it as '?'."
        )


def _converted(text: str, cleaning: Cleaning) -> str:
    """Replace characters; `_pieces` changes the ends of a text later."""
    if cleaning == "none":
        return text
    if "&" in text:
        text = html.unescape(_LONG_REFERENCE.sub("\ufffd", text))
    if "\r" in text:
        text = text.replace("\r\n", " ").replace("\r", " ")
    return text.replace("\n", " ")


def _pieces(converted: str, cleaning: Cleaning) -> tuple[str, str, str]:
    """What `clean` puts in front, what it keeps, and what it puts behind."""
    if cleaning == "radford":
        return "\n ", converted.strip(), " "
    return "", converted, "\n"


def cleaned_spans(text: str, spans: Sequence[tuple[int, int]], cleaning: Cleaning) -> list[int]:
    """The index, in the cleaned bytes of a text, of the last byte of each span.

    The spans are offsets of characters in the text before cleaning, (start, end). InvalidField if
    one is not in the text, or inside of what becomes one, such as "&amp;", or nothing is left.
    """
    last = len(text)
    cuts = {0, last}
    for start, end in spans:
        if not 0 <= start < end <= last:
            raise InvalidField(
                f"({start}, {end}) must have 0 <= start < end <= {last}, its characters"
            )
        cuts |= {start, end}
    converted = _converted(text, cleaning)
    before, kept, _ = _pieces(converted, cleaning)
    place = -converted.index(kept)  # in `kept`, of the next part
    size = len(_utf8(before))
    sizes = {0: size}  # bytes up to each cut
    joined = ""
    for a, b in pairwise(sorted(cuts)):
        part = _converted(text[a:b], cleaning)
        joined += part
        begin = max(place, 0)
        place += len(part)
        size += len(_utf8(kept[begin : max(place, 0)]))
        sizes[b] = size
    for span in spans:
        start, end = span
        for cut in span if joined != converted else ():
            if _converted(text[:cut], cleaning) + _converted(text[cut:], cleaning) != converted:
                raise InvalidField(f"({start}, {end}) cuts characters that cleaning makes one")
        if sizes[start] == sizes[end]:
            what = f"({start}, {end}), {text[start:end]!r},"
            raise InvalidField(f"{what} has no byte left after cleaning")
    return [sizes[end] - 1 for _, end in spans]


def prompt_bytes(prompt: str, cleaning: Cleaning) -> bytes:
    """The bytes that a model reads before it continues `prompt`.

    Radford's padding at the end is left out, since the text continues; an empty prompt is the
    padding at the start.
    """
    if cleaning == "radford":
        text = clean(prompt, "radford").removeprefix(b"\n ").removesuffix(b" ")
        end = b" " if prompt[-1:].isspace() else b""
        return b"\n " + text + end
    return _utf8(prompt) or b"\n"


def normalized(text: bytes) -> bytes:
    """A text without differences in case and white space, to find near-duplicates."""
    # For ASCII this is the same, in half the time.
    if text.isascii():
        plain = text.translate(_PLAIN).strip()
        while b"  " in plain:
            plain = plain.replace(b"  ", b" ")
        return plain
    return " ".join(text.decode().split()).casefold().encode()


def order_key(seed: int, dedupe: Dedupe) -> Callable[[bytes], bytes]:
    """The function whose value, 16 bytes, orders cleaned texts in a corpus; duplicates share it.

    It is the md5 of the seed and the text, normalized first if `dedupe` is "normalized".
    """
    of_seed = hashlib.md5(f"{seed}:".encode(), usedforsecurity=False)
    is_normalized = dedupe == "normalized"

    def key(text: bytes) -> bytes:
        whole = of_seed.copy()
        whole.update(normalized(text) if is_normalized else text)
        return whole.digest()

    return key


def rating_of(value: object) -> float | None:
    """A value as a rating if it is a number or the text of one, else None."""
    if isinstance(value, str):
        value = value.strip(" \t\n\v\f\r")
        if not _NUMBER.fullmatch(value):
            return None
    elif isinstance(value, bool) or not isinstance(value, _NUMBERS):
        return None
    try:
        # Adding 0 turns -0 into 0, which is equal but has different bytes.
        rating = float(value) + 0.0
    except OverflowError:
        return None
    return rating if abs(rating) <= _LARGEST_RATING else None


# Of messages on labels that are several columns, lists or objects.
SEVERAL_LABELS = 'several labels of a text: see "Several labels" in docs/transfer.md'


def label_of(value: object) -> str | None:
    """A label as text, by one rule for every format; None if it is missing or no label.

    Numbers of equal value are one class: 1 and 1.0 are "1". Of a text white space and a single zero
    after the point go; 3.1 and 3.10 may be versions. NaN and "nan" are missing, as pandas writes.
    """
    if not isinstance(value, str | int | float | Decimal):
        return None
    if isinstance(value, Decimal) and value.is_nan():
        return None
    if isinstance(value, float | Decimal) and isfinite(value) and value == int(value):
        return str(int(value))
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    label = str(value).strip()
    lower = label.lower()
    if lower in ("true", "false"):
        return lower
    if lower in ("", "nan"):
        return None
    return label.removesuffix(".0") if _INTEGER_AS_FLOAT.fullmatch(label) else label
