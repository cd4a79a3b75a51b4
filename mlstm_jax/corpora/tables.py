"""Find the records of CSV and TSV: delimiter, quotes, header, rows; report bad and doubtful ones.

After a bad record, reading resumes at the next line: only that record is lost.
"""

import csv
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from mlstm_jax.corpora.documents import Recipe, Reject
from mlstm_jax.corpora.records import EXCERPT, Line, RecordOrReject, reject, text_columns
from mlstm_jax.corpora.sources import Source
from mlstm_jax.errors import UserError

_BARE_RETURN = "new-line character seen in unquoted field"  # from the csv module's error message
# A longer CSV record has an unclosed quote, which must not swallow the rest of the file.
_MOST_LINES_A_RECORD = 10_000
_DELIMITERS = (",", "\t", ";", "|")
_QUOTED = re.compile('"(?:[^"]|"")*"')
_QUOTED_AFTER_SPACES = re.compile(' +"(?:[^"]|"")*"')
_SEPARATOR = re.compile(r"sep=(.)\r?\n?")  # the first line of Excel's CSV files


class _Lines:
    """The lines of a CSV file for its reader; lines can be given back and read again."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self._returned: deque[Line] = deque()
        self.taken: list[Line] = []  # by the record being read

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        if len(self.taken) >= _MOST_LINES_A_RECORD:
            raise StopIteration
        line = self._returned.popleft() if self._returned else next(self._lines)
        self.taken.append(line)
        # A line that is not text ends its record, as the end of the file would.
        if isinstance(line, Reject):
            raise StopIteration
        return line[1]

    def give_back(self, lines: list[Line]) -> None:
        self._returned.extendleft(reversed(lines))


class Table(NamedTuple):
    """How to read a CSV file."""

    source: Source
    recipe: Recipe
    delimiter: str
    quoted: bool = True  # whether a field may be in quotes

    def reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        # Strict, because an unclosed quote would otherwise silently swallow the rest of the file.
        return csv.reader(
            lines,
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE,
            strict=True,
        )

    def column(self, header: list[str], line: str) -> int:
        """The column of the text; UserError if it is not there, or a name is there twice."""
        advice = (
            f" Its first line was taken for the header, with the delimiter {self.delimiter!r}: "
            f"{line.strip()[:EXCERPT]!r}. If the file has none, add one, such as "
            f"{f'label{self.delimiter}text'!r}."
        )
        return header.index(text_columns(self.source, self.recipe, header, advice)[0])


def csv_records(
    source: Source,
    lines: Iterator[Line],
    scan: Callable[[], Iterator[Line]],
    recipe: Recipe,
) -> Iterator[RecordOrReject]:
    """Yield the rows of CSV, keyed by the names in its header, and notes on doubtful ones.

    The delimiter is that of the name (.csv, .tsv), unless a first line `sep=;` names another, or
    the header has a text column only with another. Tab-separated fields are read without quotes,
    unless the file shows that they are quoted: `scan` reads its lines from the start, any number of
    times.

    Raises UserError if the header has no text column, or twice a column that is read.
    """
    # A review may exceed the csv module's 131,072 characters; the limit applies to the process.
    csv.field_size_limit(2**31 - 1)
    usual = "," if source.kind == "csv" else "\t"
    first = next(filter(str.strip, _text_lines(scan())), "")
    named = _SEPARATOR.fullmatch(first)
    table = Table(source, recipe, named[1] if named else usual)
    if not named:
        for delimiter in (usual, *_DELIMITERS):
            if _has_text_column(table._replace(delimiter=delimiter), first):
                table = table._replace(delimiter=delimiter)
                break
        if table.delimiter != usual:
            why = f"read with the delimiter {table.delimiter!r}, which its first line has, instead"
            yield reject("another delimiter", source, "", f"{why} of {usual!r}.", is_note=True)
    if recipe.quoting:
        table = table._replace(quoted=recipe.quoting == "yes")
    elif table.delimiter == "\t":
        plain = table._replace(quoted=False)
        may_be_quoted = _has_text_column(table, first)
        if _has_text_column(plain, first) and not (may_be_quoted and _is_quoted(table, scan)):
            table = plain
    yield from _rows(table, lines)


def _text_lines(lines: Iterable[Line]) -> Iterator[str]:
    """Yield the lines that are text, without their numbers."""
    for line in lines:
        if not isinstance(line, Reject):
            yield line[1]


def _has_text_column(table: Table, line: str) -> bool:
    try:
        header = next(table.reader([line]), [])
    except csv.Error:
        return False
    return not set(map(str.strip, header)).isdisjoint(table.recipe.text_columns)


def _is_quoted(table: Table, scan: Callable[[], Iterator[Line]]) -> bool:
    """Whether the fields of a file are quoted.

    They are if every field with a quote is wholly in quotes. Otherwise they are if reading with
    quotes rejects fewer records; or rejects no more and leaves no doubtful record, while some are
    doubtful without quotes: those that a line break cuts have too few fields.
    """
    has_quotes = False
    all_quoted = True
    for line in _text_lines(scan()):
        if '"' in line:
            has_quotes = True
            fields = (field for field in line.rstrip("\r\n").split(table.delimiter) if '"' in field)
            all_quoted = all(map(_QUOTED.fullmatch, fields))
            if not all_quoted:
                break
    if all_quoted:
        return has_quotes
    plain = _rejected(table._replace(quoted=False), scan())
    if plain == (0, 0):
        return False
    rejected, doubtful = _rejected(table, scan())
    return rejected < plain[0] or (rejected == plain[0] and doubtful == 0 < plain[1])


def _rejected(table: Table, lines: Iterator[Line]) -> tuple[int, int]:
    """The number of rejects, and of doubtful records: noted, or with fewer fields than others."""
    rejected = 0
    noted = 0
    sizes: Counter[int] = Counter()  # records by their number of fields
    for row in _rows(table, lines):
        if not isinstance(row, Reject):
            sizes[len(row[1])] += 1
        elif row.is_note:
            noted += 1
        else:
            rejected += 1
    return rejected, noted + sizes.total() - sizes[max(sizes, default=0)]


def _rows(table: Table, lines: Iterator[Line]) -> Iterator[RecordOrReject]:
    """Yield the rows of a table, rejects, and notes."""
    source = table.source
    feed = _Lines(lines)
    header: list[str] = []
    needed = 0  # column of the text
    reader = table.reader(feed)
    while True:
        feed.taken.clear()
        row: list[str] = []
        bad: tuple[str, str] | None = None
        try:
            row = next(reader, [])
        except csv.Error as error:
            bad = _not_csv(error, feed.taken)
        taken = list(feed.taken)
        if not taken:
            return
        if isinstance(last := taken[-1], Reject):  # A line of bytes that are not text.
            yield last
            reader = table.reader(feed)
            if len(taken) > 1:  # A record had begun, which is lost up to here.
                kind, why = bad or ("CSV quote", "cut short by an unreadable line.")
                number, text = _numbered(taken[0])
                yield reject(kind, source, number, why, text)
            continue
        number, text = _numbered(taken[0])
        if not header:
            if bad:
                raise UserError(reject(bad[0], source, number, f"the header: {bad[1]}").message)
            if row and not _SEPARATOR.fullmatch(text):
                header = [name.strip() for name in row]
                needed = table.column(header, text)
            continue
        if row and (len(row) <= needed or any(row[len(header) :])):
            why = (
                f"{len(row)} columns where the header has {len(header)}; a field that contains the "
                "delimiter or a newline must be quoted."
            )
            bad = ("CSV columns", why)
        if table.quoted and _has_space_before_quote(table, row, taken):
            bad = ("CSV quote", "a space before a quoted field; remove it.")
        if bad:
            why = f"{bad[1]} It begins {text[:40]!r}, read with the delimiter {table.delimiter!r}."
            yield reject(bad[0], source, number, why, text)
            # A stray quote may have swallowed whole records: skip only its first line.
            feed.give_back(taken[1:])
            reader = table.reader(feed)
        elif row:
            if len(taken) > 1 and _may_join_records(table, header, row):
                place = f"lines {number:,} to {number + len(taken) - 1:,}"
                why = (
                    "a field in quotes has line breaks and delimiters; if a stray quote has joined "
                    "several records, double it, and put its field in quotes."
                )
                kind = "fields with line breaks and delimiters"
                yield reject(kind, source, place, why, text, is_note=True)
            yield number, dict(zip(header, row, strict=False))


def _has_space_before_quote(table: Table, row: list[str], taken: list[Line]) -> bool:
    """Whether a field is in quotes after spaces.

    The same text in quotes has a quote after the delimiter, and its own quotes doubled.
    """
    for field in filter(_QUOTED_AFTER_SPACES.fullmatch, row):
        lines = table.delimiter + "".join(_text_lines(taken))
        if table.delimiter + field in lines:
            return True
    return False


def _may_join_records(table: Table, header: list[str], row: list[str]) -> bool:
    """Whether a field has line breaks and as many delimiters as a record."""
    delimiters = max(1, len(header) - 1)
    return any("\n" in field and field.count(table.delimiter) >= delimiters for field in row)


def _numbered(line: Line) -> tuple[int, str]:
    assert not isinstance(line, Reject)
    return line


def _not_csv(error: csv.Error, taken: Iterable[Line]) -> tuple[str, str]:
    """The kind of the reject of some lines; what is wrong, and what to do about it."""
    if _BARE_RETURN in str(error):
        return (
            "CSV line end",
            "a carriage return without a newline, as in files of old Macs; convert the file, for "
            r"example with: tr '\r' '\n'",
        )
    if '\\"' in "".join(_text_lines(taken)):
        return (
            "CSV quote",
            f"not CSV ({error}): quotes are escaped with a backslash, as Spark and MySQL write "
            "them by default; write the file again with each quote doubled (Spark: option escape "
            "'\"').",
        )
    return (
        "CSV quote",
        f'not CSV ({error}): a quote is stray or not closed; put a field that contains a " '
        'in quotes, and double each " in it.',
    )
