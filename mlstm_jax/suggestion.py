"""What a mistyped or shortened name may stand for: a field, an option, a command."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """Return at most two known names that resemble a word, the nearest first."""
    return difflib.get_close_matches(word, list(known), n=2)


def of_short(word: str, options: Iterable[str]) -> list[str]:
    """Return at most two options that a shortened one may stand for.

    The last part of a dotted option may be its initials or begin with the word:
    ``lr`` is that of ``optimizer.learning-rate``.
    """
    found = []
    for option in options:
        last = option.rpartition(".")[2]
        initials = "".join(part[0] for part in last.split("-"))
        if word and (word == initials or (len(word) > 1 and last.startswith(word))):
            found.append(option)
    return sorted(found, key=len)[:2]


def question(names: Iterable[str]) -> str:
    """Return what a message ends with: "; did you mean A or B?", or nothing."""
    joined = " or ".join(names)
    return f"; did you mean {joined}?" if joined else ""
