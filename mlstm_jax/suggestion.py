"""Suggestions for a mistyped or shortened name of a field, option or command."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """Return at most two known names that resemble a word in any case, the nearest first."""
    names = {name.casefold(): name for name in known}
    return [names[one] for one in difflib.get_close_matches(word.casefold(), names, n=2)]


def of_short(word: str, options: Iterable[str]) -> list[str]:
    """Return at most two options that a shortened one may stand for, the shortest first.

    The word may be the initials or the beginning of the last part of a dotted option:
    ``lr`` stands for ``optimizer.learning-rate``.
    """
    found = []
    for option in options:
        last = option.rpartition(".")[2]
        initials = "".join(part[0] for part in last.split("-"))
        if word and (word == initials or (len(word) > 1 and last.startswith(word))):
            found.append(option)
    return sorted(found, key=len)[:2]


def question(names: Iterable[str]) -> str:
    """Return the end of a message: "; did you mean A or B?", or an empty string."""
    joined = " or ".join(names)
    return f"; did you mean {joined}?" if joined else ""
