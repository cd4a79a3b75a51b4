"""Find texts that a model or a classifier has learned from: accuracy on them is too high.

Texts are the same if they are equal apart from case, white space and the line breaks of HTML; this
counts texts that a model has learned from. They are alike if they differ only in these, in
punctuation and in Unicode's forms of a character (NFKC); this chooses held-out texts and folds, and
compares the sets of a user.
"""

import functools
import math
import unicodedata
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import shipped
from mlstm_jax.corpora.documents import clean, order_key
from mlstm_jax.errors import note
from mlstm_jax.loaded import Loaded
from mlstm_jax.options import Cleaning

# Fewer of the texts may be equal by chance, or change the accuracy by less than its standard error.
_LEAST = 0.001
_LEAST_OF_ROOT = 0.1

# What texts are, in `sentence`.
_HIGH = "so their accuracy looks better than it is"
READ = f"in the model's own training data with their ratings, {_HIGH}"
FITTED = f"among the texts that the classifier was fitted to, {_HIGH}"
FITTED_BEFORE = f"among the texts that the model's own classifier was fitted to, {_HIGH}"
REPEATED = f"also among the training texts, apart from case, space and punctuation, {_HIGH}"

Digests = NDArray[np.uint32]

_key = order_key(0, "normalized")


def digests(texts: Sequence[str], cleaning: Cleaning) -> Digests:
    """Return a digest of each text, [texts]; texts that are the same have the same one.

    It is four bytes of the md5 by which `prepare` finds duplicates. Two texts have one digest by
    chance: with n digests a text meets one of them with a probability of n / 2^32, for the texts
    that the pretrained model has read 1 in 126,000.
    """
    return np.array([digest_of(clean(text, cleaning)) for text in texts], np.uint32)


def digest_of(cleaned: bytes) -> int:
    return int.from_bytes(_key(_without_breaks(cleaned))[:4], "big")


def _without_breaks(cleaned: bytes) -> bytes:
    """Many people remove the line breaks of HTML from IMDB's reviews."""
    return cleaned.replace(b"<br />", b" ").replace(b"<BR />", b" ")


class Keys(NamedTuple):
    """What texts are compared by."""

    same_N: Digests
    letters: list[str]  # of each text, without what those that are alike may differ in

    def select(self, is_chosen_N: NDArray[np.bool_]) -> "Keys":
        return Keys(self.same_N[is_chosen_N], list(compress(self.letters, is_chosen_N)))


def keys_of(texts: Sequence[str], cleaning: Cleaning) -> Keys:
    """Clean each text once, and return what it is compared by."""
    same = []
    letters = []
    for text in texts:
        cleaned = clean(text, cleaning)
        digest = digest_of(cleaned)
        plain = _without_breaks(cleaned).decode()
        plain = unicodedata.normalize("NFKC", plain).casefold()
        left_out = {ord(c): None for c in set(plain) if unicodedata.category(c)[0] in "CPZ"}
        same.append(digest)
        letters.append(plain.translate(left_out) or str(digest))  # such as "!!!"
    return Keys(np.array(same, np.uint32), letters)


def alike(sets: Sequence[Keys]) -> list[Digests]:
    """Return for each set the digests, [texts]; texts that are alike share the least of theirs."""
    least: dict[str, int] = {}
    for keys in sets:
        for letters, digest in zip(keys.letters, keys.same_N.tolist(), strict=True):
            least[letters] = min(digest, least.get(letters, digest))
    return [np.array([least[one] for one in keys.letters], np.uint32) for keys in sets]


def read_with_ratings(loaded: Loaded) -> Digests:
    """Digests of the texts that a pretrained model has read so, or a run that began with one."""
    path = shipped.rated_texts(loaded.fingerprint) or shipped.rated_texts(loaded.first_start)
    return np.zeros(0, np.uint32) if path is None else _read(path)


@functools.cache
def _read(path: Path) -> Digests:
    """Read a file of the package, which does not change."""
    return np.sort(np.load(path, allow_pickle=False))


def is_among(texts: Digests, known: Digests) -> NDArray[np.bool_]:
    """Whether each digest is known; `np.isin` sorts all known ones each time."""
    if not known.size:
        return np.zeros(len(texts), np.bool_)
    place_N = np.searchsorted(known, texts)
    is_known_N: NDArray[np.bool_] = known[np.minimum(place_N, len(known) - 1)] == texts
    return is_known_N


def sentence(
    finding: str, count: int, total: int, *, name: str = "", first: int | None = None
) -> str:
    """Say what some of the texts are, with the name of all, and the number of the first of them."""
    of_all = f"of the {total:,} texts of {name}" if name else f"of {total:,} texts"
    place = "" if first is None else f", the first number {first:,},"
    verb = "is" if count == 1 else "are"
    return f"{count:,} {of_all}{place} {verb} {finding}."


def is_negligible(count: int, total: int) -> bool:
    """Whether so few of the texts are known that their accuracy is as good as it was."""
    return count < max(_LEAST * total, _LEAST_OF_ROOT * math.sqrt(total), 1)


def note_among(name: str, texts: Digests, known: Digests, finding: str) -> list[str]:
    """Note how many of the texts are among the known, which are sorted; return the note, if any."""
    count = int(is_among(texts, known).sum())
    if is_negligible(count, len(texts)):
        return []
    text = sentence(finding, count, len(texts), name=name)
    note(text)
    return [text]
