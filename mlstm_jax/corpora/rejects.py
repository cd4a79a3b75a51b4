"""Records that cannot be read: what is known of each, their counts, and the file that lists them.

A reject may also be a note, on a record that was read: both have a kind, a place and a message.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from mlstm_jax import output
from mlstm_jax.corpora.sources import Source
from mlstm_jax.errors import UserError

EXCERPT = 80  # characters
MAX_REJECT_FRACTION = 0.001
_SHOWN = 3  # places of a kind
_MOST_WRITTEN = 100_000  # of a kind
_BEGINNING = b'{"kind": "'


class Reject(NamedTuple):
    """A note on a record if `is_note`; otherwise a record that cannot be read as a document."""

    kind: str  # a few words that name the kind
    place: str  # file, and line if known
    message: str  # place, reason and advice
    excerpt: str = ""  # its beginning
    is_note: bool = False


_WRITTEN = Reject._fields[:4]  # kind, place, message, excerpt


def rejected(
    kind: str, source: Source, where: int | str, why: str, excerpt: str = "", is_note: bool = False
) -> Reject:
    """A reject, or a note, on a line of a source, on a place in words, or on all of it: ""."""
    line = f"line {where:,}" if isinstance(where, int) else where
    place = f"{source}, {line}" if line else f"{source}"
    return Reject(kind, place, f"{place}: {why}", excerpt.strip()[:EXCERPT], is_note)


class Rejects:
    """The rejects and the notes of one reading: how many of each kind, and the first ones."""

    def __init__(self, file: Path | None = None) -> None:
        """Begin without any; `file` is where `prepare` writes them."""
        self._file = file
        self.counts: Counter[str] = Counter()  # of rejects, by kind
        self._noted: Counter[str] = Counter()
        self._kept: list[Reject] = []  # of both, the first of each kind

    def add(self, reject: Reject) -> None:
        counts = self._noted if reject.is_note else self.counts
        counts[reject.kind] += 1
        if counts[reject.kind] <= _MOST_WRITTEN:
            self._kept.append(reject)

    def __len__(self) -> int:
        return self.counts.total()

    def _in_order(self, *kinds: str) -> list[Reject]:
        """Those of some kinds, sorted by source; of each they come in the order of its lines."""
        return sorted((one for one in self._kept if one.kind in kinds), key=_source_of)

    def write(self) -> None:
        """Write the rejects as JSON lines, or remove the file that an earlier `prepare` left."""
        assert self._file
        if not self.counts:
            self._file.unlink(missing_ok=True)
            return
        with output.atomic_file(self._file) as partial, partial.open("w", encoding="utf-8") as file:
            for reject in self._in_order(*self.counts):
                values = dict(zip(_WRITTEN, reject, strict=False))
                file.write(json.dumps(values) + "\n")

    def check(self, records: int, most: float) -> None:
        """Write the rejects and raise UserError if they exceed a fraction of all `records`."""
        if len(self) <= most * records:
            return
        option = ""
        advice = f"The first: {self._in_order(*self.counts)[0].message}"
        if self._file:
            self.write()
            option = "`max_reject_fraction` "
            advice += f"\nAll are in {self._file}. Correct the files, or raise the fraction to skip"
            advice += " these records."
            if any("CSV" in kind for kind in self.counts):
                advice += " If quotes have no meaning in the files, add `quoting` no."
        raise UserError(
            f"{len(self):,} of {records:,} records cannot be read, a fraction of "
            f"{len(self) / records:.2g}, which is over {option}{most:g}.\n"
            f"{self.describe()}\n{advice}"
        )

    def describe(self) -> str:
        """The counts and first places of each kind, as text."""
        lines = [f"  {self._places(kind, count)}" for kind, count in sorted(self.counts.items())]
        return "\n".join(lines)

    def notes(self) -> list[str]:
        """A note of each kind: the first, and how many more there are."""
        texts = []
        for kind, count in sorted(self._noted.items()):
            text = self._in_order(kind)[0].message
            if count > 1:
                text += f" {self._places(kind, count)}"
            texts.append(text)
        return texts

    def _places(self, kind: str, count: int) -> str:
        """How many of a kind there are, and where the first are."""
        places = "; ".join(reject.place for reject in self._in_order(kind)[:_SHOWN])
        if count > _SHOWN:
            places += ", ..."
        return f"{count:,} {kind}: {places}"


def check_rejects_file(file: Path) -> None:
    """Raise UserError if this file exists and `Rejects.write` did not write it."""
    is_ours = False
    if os.path.isfile(file):
        with file.open("rb") as lines:
            is_ours = lines.read(len(_BEGINNING)) == _BEGINNING
    if os.path.exists(file) and not is_ours:
        raise UserError(
            f"{file}: unreadable records would be written here, but another file exists; move it, "
            "or name another `out`."
        )


def _source_of(reject: Reject) -> str:
    source, _, place = reject.place.rpartition(", ")
    return source or place
