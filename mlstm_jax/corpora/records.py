"""Find the records in lines of text: JSON, lines, paragraphs; report bad ones."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from mlstm_jax.corpora.documents import Recipe, Record
from mlstm_jax.corpora.rejects import Reject, rejected
from mlstm_jax.corpora.sources import Source
from mlstm_jax.errors import UserError, did_you_mean, nearest
from mlstm_jax.options import Unit

# A line with its number and line end.
Line = tuple[int, str] | Reject
# A record and its line number, or its place in words.
RecordOrReject = tuple[int | str, Record] | Reject


def no_column(
    source: Source, wanted: Sequence[str], columns: Sequence[str], option: str = "`text_column`"
) -> str:
    """The message about a table without any of the wanted columns."""
    return (
        f"{source}: no column {' or '.join(wanted)}; its columns are {', '.join(columns)}. Name "
        f"the right one with {option}{similar_columns(wanted, columns)}"
    )


def similar_columns(wanted: Sequence[str], columns: Sequence[str]) -> str:
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
        return rejected("not JSON", source, line, why, text)


def _object(
    source: Source, where: int | str, value: object, fields: Collection[str]
) -> RecordOrReject:
    if isinstance(value, _Repeating) and (twice := value.fields.intersection(fields)):
        why = f"its field {min(twice)} occurs more than once; keep only the correct one."
        return rejected("field twice", source, where, why, as_json(value))
    if isinstance(value, dict):
        return where, value
    excerpt = as_json(value)
    why = f"{excerpt[:40]} is not a record; a record is a JSON object, such as"
    return rejected("not a JSON object", source, where, f'{why} {{"text": "..."}}', excerpt)


def as_json(value: object) -> str:
    """A value of a record as JSON, for a message."""
    try:
        return json.dumps(value, default=str)
    except RecursionError:  # Before Python 3.12 writing it may need more of the stack than reading.
        return "[[..."
