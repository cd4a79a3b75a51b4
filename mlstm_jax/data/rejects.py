"""Unreadable records: counted by kind, with the first places shown, and written to a file."""

import json
from collections import Counter
from pathlib import Path

from mlstm_jax.data.documents import Reject
from mlstm_jax.errors import UserError

_SHOWN = 3  # places of a kind
_MOST_WRITTEN = 100_000
_WRITTEN = ("kind", "place", "message", "excerpt")


class Rejects:
    """The rejects and the notes of one reading."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._kept: list[Reject] = []
        self._noted: Counter[str] = Counter()
        self._notes: list[Reject] = []
        self.written = False  # True once writing begins

    def add(self, reject: Reject) -> None:
        """Count a reject, and keep it for the file; or keep a note."""
        if reject.is_note:
            self._noted[reject.kind] += 1
            if self._noted[reject.kind] <= _MOST_WRITTEN:
                self._notes.append(reject)
            return
        self._counts[reject.kind] += 1
        if len(self._kept) < _MOST_WRITTEN:
            self._kept.append(reject)

    def __len__(self) -> int:
        return self._counts.total()

    @property
    def counts(self) -> dict[str, int]:
        """The number of rejects of each kind."""
        return dict(sorted(self._counts.items()))

    def write(self, file: Path) -> None:
        """Write the rejects as JSON lines, or remove the file that an earlier `prepare` left."""
        if not self._counts:
            file.unlink(missing_ok=True)
            return
        self.written = True
        try:
            with file.open("w", encoding="utf-8") as lines:
                for reject in sorted(self._kept, key=_by_place):
                    values = {name: getattr(reject, name) for name in _WRITTEN}
                    lines.write(json.dumps(values, ensure_ascii=True) + "\n")
        except OSError as error:
            raise UserError(f"{file}: cannot be written: {error.strerror or error}") from error

    def check(self, records: int, most: float, file: Path | None = None) -> None:
        """Raise UserError if the rejects exceed the fraction `most` of all `records`."""
        if len(self) <= most * records:
            return
        option, advice = "", f"The first: {min(self._kept, key=_by_place).message}"
        if file:
            option = "--max-reject-fraction "
            advice += (
                f"\nAll are in {file}. Correct the files, or raise the fraction to skip these "
            )
            advice += "records."
            if any(kind.startswith("CSV") for kind in self._counts):
                advice += " If quotes have no meaning in the files, add --quoting no."
        raise UserError(
            f"{len(self):,} of {records:,} records cannot be read, a fraction of "
            f"{len(self) / records:.2g}, which is over {option}{most:g}.\n"
            f"{self.describe()}\n{advice}"
        )

    def describe(self) -> str:
        """Return the counts and first places of each kind as text."""
        return "\n".join(
            f"  {count:,} {kind}: {_places([r for r in self._kept if r.kind == kind], count)}"
            for kind, count in self.counts.items()
        )

    def notes(self) -> list[str]:
        """Return a note of each kind: the first, and how many more there are."""
        texts = []
        for kind, count in sorted(self._noted.items()):
            notes = [one for one in self._notes if one.kind == kind]
            more = f" {count:,} {kind}: {_places(notes, count)}" if count > 1 else ""
            texts.append(min(notes, key=_by_place).message + more)
        return texts


def check_rejects_file(file: Path) -> None:
    """Raise UserError if this file exists and `Rejects.write` did not write it."""
    try:
        with file.open(encoding="utf-8") as lines:
            first = json.loads(next(lines, "null"))
        ours = isinstance(first, dict) and set(first) == set(_WRITTEN)
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError):
        ours = False
    if not ours:
        raise UserError(
            f"{file}: unreadable records would be written here, but another file exists; move it, "
            "or name another --out."
        )


def _places(rejects: list[Reject], count: int) -> str:
    """Return the first places of `count` rejects of a kind."""
    first = sorted(rejects, key=_by_place)[:_SHOWN]
    return "; ".join(one.place for one in first) + (", ..." if count > _SHOWN else "")


def _by_place(reject: Reject) -> tuple[str, int, str]:
    file, _, number = reject.place.rpartition(" ")
    digits = number.replace(",", "")
    return (file, int(digits) if digits.isdecimal() else 0, reject.place)
