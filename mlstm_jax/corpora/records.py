"""Find the records in lines of text: JSON, lines, paragraphs; report and count bad ones."""

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from mlstm_jax import output
from mlstm_jax.corpora.documents import Recipe, Record, Reject
from mlstm_jax.corpora.sources import Source
from mlstm_jax.errors import UserError, did_you_mean, nearest
from mlstm_jax.options import Unit

EXCERPT = 80  # characters
MAX_REJECT_FRACTION = 0.001
_SHOWN = 3  # places of a kind
_MOST_WRITTEN = 100_000  # of a kind
_WRITTEN = Reject._fields[:4]  # kind, place, message, excerpt
_BEGINNING = b'{"kind": "'

# A line with its number and line end.
Line = tuple[int, str] | Reject
# A record and its line number, or its place in words.
RecordOrReject = tuple[int | str, Record] | Reject


def reject(
    kind: str, source: Source, where: int | str, why: str, excerpt: str = "", is_note: bool = False
) -> Reject:
    """A reject, or a note, on a line of a source, on a place in words, or on all of it: ""."""
    line = f"line {where:,}" if isinstance(where, int) else where
    place = f"{source}, {line}" if line else f"{source}"
    return Reject(kind, place, f"{place}: {why}", excerpt.strip()[:EXCERPT], is_note)


def no_column(
    source: Source, wanted: Sequence[str], columns: Sequence[str], option: str = "`text_column`"
) -> str:
    """The message about a table without any of the wanted columns."""
    return (
        f"{source}: no column {' or '.join(wanted)}; its columns are {', '.join(columns)}. Name "
        f"the right one with {option}{alike(wanted, columns)}"
    )


def alike(wanted: Sequence[str], columns: Sequence[str]) -> str:
    """The end of a message: the columns whose names resemble the wanted ones."""
    near: dict[str, None] = {}
    for name in wanted:
        near |= dict.fromkeys(nearest(name, columns))
    return did_you_mean(near)


def text_columns(
    source: Source, recipe: Recipe, names: Sequence[str], advice: str = ""
) -> list[str]:
    """The columns of a table that may hold the text, by preference; UserError if none does."""
    for name in recipe.columns:
        if names.count(name) > 1:
            raise UserError(
                f"{source} has {names.count(name)} columns named {name}; rename all but one."
            )
    found = [name for name in recipe.text_columns if name in names]
    if not found:
        raise UserError(no_column(source, recipe.text_columns, names) + advice)
    return found


def text_records(
    lines: Iterable[Line], document: Unit, text_column: str
) -> Iterator[RecordOrReject]:
    """Yield the lines, the paragraphs or the whole of a text, and rejects."""
    parts: list[str] = []
    for line in lines:
        if isinstance(line, Reject):
            yield line
            continue
        number, text = line
        is_blank = not text.strip()
        if document == "file" or not is_blank:
            parts.append(text)
        ends = document == "line" or (document == "paragraph" and is_blank)
        if parts and ends:
            yield number, {text_column: "".join(parts).rstrip("\r\n")}
            parts = []
    text = "".join(parts)
    if text.strip():
        yield "", {text_column: text if document == "file" else text.rstrip("\r\n")}


class _Repeating(dict[str, object]):
    """A JSON object in which fields occur more than once."""

    fields: frozenset[str]


def _object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    names = [name for name, _ in pairs]
    repeating = _Repeating(value)
    repeating.fields = frozenset(name for name in value if names.count(name) > 1)
    return repeating


# Made once: `json.loads` would make one for every record.
_COLONS = re.compile(r'"\s*:')
_FAST_DECODER = json.JSONDecoder()
_DECODER = json.JSONDecoder(object_pairs_hook=_object_of)


def json_records(
    source: Source, lines: Iterator[Line], fields: Sequence[str], may_be_array: bool
) -> Iterator[RecordOrReject]:
    """Yield the objects of JSON lines, or of one array that spans the whole file.

    An object that has one of `fields` twice is rejected: it is unknown which one is meant. A string
    in the array is the first of them, a text.
    """
    for line in lines:
        if isinstance(line, Reject):
            yield line
            continue
        number, raw = line
        if flat := _flat_object(raw):
            may_be_array = False
            yield number, flat
            continue
        text = raw.strip()
        if not text:
            continue
        if may_be_array and text.startswith("["):
            rest = [raw]
            for other in lines:
                if isinstance(other, Reject):
                    yield other
                else:
                    rest.append(other[1])
            array = _json(source, number, "".join(rest))
            if isinstance(array, Reject):
                yield array
                return
            assert isinstance(array, list)
            for index, record in enumerate(array, 1):
                if isinstance(record, str):
                    record = {fields[0]: record}
                yield _object(source, f"element {index:,} of its array", record, fields)
            return
        may_be_array = False
        value = _json(source, number, text)
        yield value if isinstance(value, Reject) else _object(source, number, value, fields)


def _flat_object(line: str) -> Record | None:
    """The object of a line, in half the time, if it shows at once that no field is there twice."""
    if not line.startswith("{"):
        return None
    try:
        value, end = _FAST_DECODER.raw_decode(line)
    except (ValueError, RecursionError):
        return None
    # A colon follows each field; a text may have colons, too, but few behind a quote.
    if len(value) != line.count(":") and len(value) != len(_COLONS.findall(line)):
        return None
    return None if line[end:].strip() else value


def _json(source: Source, line: int, text: str) -> object:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError):
            line += error.lineno - 1
        why = f"not JSON ({error}): {text[:40]!r}; a record is one JSON object on one line."
        return reject("not JSON", source, line, why, text)


def _object(
    source: Source, where: int | str, value: object, fields: Collection[str]
) -> RecordOrReject:
    if isinstance(value, _Repeating) and (twice := value.fields.intersection(fields)):
        why = f"its field {min(twice)} occurs more than once; keep only the correct one."
        return reject("field twice", source, where, why, as_json(value))
    if isinstance(value, dict):
        return where, value
    excerpt = as_json(value)
    why = f"{excerpt[:40]} is not a record; a record is a JSON object, such as"
    return reject("not a JSON object", source, where, f'{why} {{"text": "..."}}', excerpt)


def as_json(value: object) -> str:
    """A value of a record as JSON, for a message."""
    try:
        return json.dumps(value, default=str)
    except RecursionError:  # Before Python 3.12 writing it may need more of the stack than reading.
        return "[[..."


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
