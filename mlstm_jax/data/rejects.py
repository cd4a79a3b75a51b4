"""Unreadable records: counted by kind, with the first places shown, and written to a file."""

import json
from collections import Counter
from pathlib import Path

from mlstm_jax.data.documents import Reject
from mlstm_jax.errors import UserError

_SHOWN = 3  # places of a kind
_MOST_WRITTEN = 100_000


class Rejects:
    """The rejects of one `prepare`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._kept: list[Reject] = []
        self.written = False  # True once writing begins

    def add(self, reject: Reject) -> None:
        """Count a reject, and keep it for the file."""
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
                    lines.write(json.dumps(reject._asdict(), ensure_ascii=True) + "\n")
        except OSError as error:
            raise UserError(f"{file}: cannot be written: {error.strerror or error}") from error

    def check(self, records: int, most: float, file: Path) -> None:
        """Raise UserError if the rejects exceed the fraction `most` of all `records`."""
        if len(self) > most * records:
            raise UserError(
                f"{len(self):,} of {records:,} records cannot be read, a fraction of "
                f"{len(self) / records:.2g}, which is over --max-reject-fraction {most:g}.\n"
                f"{self.describe()}\nAll are in {file}. Correct the files, or raise the "
                "fraction to skip these records."
            )

    def describe(self) -> str:
        """Return the counts and first places of each kind as text."""
        lines = []
        for kind, count in self.counts.items():
            of_kind = sorted((r for r in self._kept if r.kind == kind), key=_by_place)
            places = "; ".join(reject.place for reject in of_kind[:_SHOWN])
            more = ", ..." if count > _SHOWN else ""
            lines.append(f"  {count:,} {kind}: {places}{more}")
        return "\n".join(lines)


def check_rejects_file(file: Path) -> None:
    """Raise UserError if this file exists and `Rejects.write` did not write it."""
    try:
        with file.open(encoding="utf-8") as lines:
            first = json.loads(next(lines, "null"))
        ours = isinstance(first, dict) and set(first) == set(Reject._fields)
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError):
        ours = False
    if not ours:
        raise UserError(
            f"{file}: unreadable records would be written here, but another file exists; move it, "
            "or name another --out."
        )


def _by_place(reject: Reject) -> tuple[str, int, str]:
    file, _, number = reject.place.rpartition(" ")
    digits = number.replace(",", "")
    return (file, int(digits) if digits.isdecimal() else 0, reject.place)
