r"""What a document is: a text with its rating, its bytes in a corpus, and its place in the order.

A document is a review, a line, a paragraph or a file: what is deduplicated, shuffled and never cut
by a split. Cleaning follows Radford et al. 2017 and Puri et al. 2018. The order and what
counts as a duplicate depend on content and seed alone, so any engine computes the same.
"""

import hashlib
import html
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

Cleaning = Literal["radford", "none", "protein"]
Unit = Literal["line", "paragraph", "file"]
Dedupe = Literal["exact", "normalized", "none"]

TEXT_FIELDS = ("text", "reviewText", "review_body", "sentence", "content")
RATING_FIELDS = ("rating", "overall", "star_rating", "stars")

STOP = 3  # ETX, the stop of a sequence in UniRep; a corpus does not hold it

# What SQL and Python take alike; "nan", "1_000" and full-width digits would not be.
NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
LARGEST_RATING = 3.4e38  # of float32, in which a corpus keeps them
_NUMBER = re.compile(NUMBER)

# The number of a character, but longer than Python reads; it is of no character.
_LONG_REFERENCE = re.compile("&#[0-9]{4301,};?")

Record = Mapping[str, object]
# Cleaned bytes, and the rating: NaN for none.
Written = tuple[bytes, float]


class Document(NamedTuple):
    """A text, perhaps blank, and the rating and the label that came with it."""

    text: str
    rating: float | None
    label: str | None = None  # where a field of labels was named


class Reject(NamedTuple):
    """What stands where a document should, and cannot be read as one."""

    kind: str  # a few words, the same for all of a kind
    place: str  # file, and line where it is known
    message: str  # place, reason and advice
    excerpt: str = ""  # how it begins


class Recipe(NamedTuple):
    """How records become documents: the same for every engine."""

    text_field: str | None = None
    rating_field: str | None = None
    document: Unit | None = None
    cleaning: Cleaning = "radford"
    dedupe: Dedupe = "normalized"
    seed: int = 0

    @property
    def text_fields(self) -> tuple[str, ...]:
        """The fields of which the first that is not null is the text."""
        return (self.text_field,) if self.text_field is not None else TEXT_FIELDS

    @property
    def rating_fields(self) -> tuple[str, ...]:
        """The same for the rating."""
        return (self.rating_field,) if self.rating_field is not None else RATING_FIELDS


def clean(text: str, cleaning: Cleaning) -> bytes:
    r"""Return a document's bytes in the corpus, empty if nothing but padding would be left.

    "radford": HTML-unescape, newlines to spaces, strip, "\n " in front, " " behind. "none": the
    text as it is and "\n". "protein": STX, the start of a sequence in UniRep, and the sequence in
    capitals without white space. All are UTF-8; a lone surrogate, which has none, becomes "?".
    """
    if cleaning == "radford":
        text = html.unescape(_LONG_REFERENCE.sub("\ufffd", text))
        text = text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ").strip()
        padded = f"\n {text} "
    elif cleaning == "protein":
        padded = "\x02" + "".join(text.split()).upper()
    else:
        padded = f"{text}\n"
    return padded.encode("utf-8", errors="replace") if text.strip() else b""


def normalized(text: str) -> str:
    """Return a text without what near-duplicates differ in: case and white space."""
    return " ".join(text.split()).casefold()


def order_key(text: bytes, seed: int, dedupe: Dedupe) -> str:
    """Return what orders the documents of a corpus, as hex; duplicates have the same.

    It is md5 of the seed and the cleaned text, which is normalized first where `dedupe` says so.
    """
    if dedupe == "normalized":
        text = normalized(text.decode()).encode()
    return hashlib.md5(f"{seed}:".encode() + text, usedforsecurity=False).hexdigest()


def kept(copies: list[Written], seed: int, dedupe: Dedupe) -> list[Written]:
    """Return which of the documents of one `order_key` are kept, in their order.

    All of them without deduplication; else the first by the md5 of its own text, with the lowest
    rating that this text has.
    """
    if len(copies) > 1:
        copies = sorted(
            copies, key=lambda d: (order_key(d[0], seed, "exact"), d[0], math.isnan(d[1]), d[1])
        )
    return copies if dedupe == "none" else copies[:1]


def in_order(documents: Iterable[Written], seed: int, dedupe: Dedupe) -> Iterator[Written]:
    """Yield the documents to keep in their order; all are in memory."""
    keyed = sorted((order_key(text, seed, dedupe), text, rating) for text, rating in documents)
    for _, copies in groupby(keyed, key=itemgetter(0)):
        yield from kept([(text, rating) for _, text, rating in copies], seed, dedupe)


def first(record: Record, fields: tuple[str, ...]) -> object:
    """Return the value of the first of `fields` that is not null."""
    return next((record[name] for name in fields if record.get(name) is not None), None)


def rating_of(value: object) -> float | None:
    """Return the rating that a value is, or None: a number, or a text that is one."""
    if isinstance(value, str):
        value = value.strip(" \t\n\v\f\r")
        if not _NUMBER.fullmatch(value):
            return None
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        # Plus 0 makes -0 a 0, which is equal to it but not the same bytes.
        rating = float(value) + 0.0
    except OverflowError:
        return None
    return rating if abs(rating) <= LARGEST_RATING else None


def label_of(value: object) -> str | None:
    """Return a label as text: 1, 1.0 and "1" are one."""
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int | float) else None
