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
from mlstm_jax.corpora.sources import DELIMITERS, STDIN, Source
from mlstm_jax.errors import UserError

_BARE_RETURN = "new-line character seen in unquoted field"  # from the csv module's error message
# A longer CSV record has an unclosed quote, which must not swallow the rest of the file.
_MOST_LINES_A_RECORD = 10_000
_QUOTED = re.compile('"(?:[^"]|"")*"')
_QUOTED_AFTER_SPACES = re.compile(' +"(?:[^"]|"")*"')
_SEPARATOR = re.compile(r"sep=(.)\r?\n?")  # the first line of Excel's CSV files
_QUOTE = "CSV quote"
_JOINED = "fields with line breaks and delimiters"
# What a second line of a header says about its columns.
_TYPES = re.compile(
    r"bool(ean)?|categor(y|ical)|char|continuous|date(time)?|discrete|(float|int)(8|16|32|64)?|"
    r"double|integer|number|numeric|object|real|str(ing)?|text|varchar",
    re.IGNORECASE,
)


class _Feed:
    """The lines of a CSV file for its reader; lines can be given back and read again."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self._returned: deque[Line] = deque()
        self.taken: list[Line] = []  # by the record being read

    def __iter__(self) -> "_Feed":
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


class CsvFormat(NamedTuple):
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
        if self.source == STDIN:
            advice += " If these are lines of text, write them to a .txt file."
        return header.index(text_columns(self.source, self.recipe, header, advice)[0])


def csv_records(
    source: Source,
    lines: Iterator[Line],
    scan: Callable[[], Iterator[Line]],
    recipe: Recipe,
) -> Iterator[RecordOrReject]:
    """Yield the rows of CSV, keyed by the names in its header, and notes on doubtful ones.

    The name (.csv, .tsv) gives the delimiter, unless a first line `sep=;` names another, or
    the header has a text column, or several columns, only with another. Tab-separated fields are
    read without quotes, unless the file shows that they are quoted: `scan` reads its lines from the
    start, any number of times.

    Raises UserError if the header has no text column, or twice a column that is read, or if another
    header follows with the same columns in another order.
    """
    # A review may exceed the csv module's 131,072 characters; the limit applies to the process.
    csv.field_size_limit(2**31 - 1)
    usual = "\t" if source.kind == "tsv" else ","
    first = next(filter(str.strip, _text_lines(scan())), "")
    named = _SEPARATOR.fullmatch(first)
    found = CsvFormat(source, recipe, named[1] if named else usual)
    if not named:
        found = _with_delimiter(found, first)
        if found.delimiter != usual and source != STDIN:
            why = f"read with the delimiter {found.delimiter!r}, which its first line has, instead"
            yield reject("another delimiter", source, "", f"{why} of {usual!r}.", is_note=True)
    if recipe.quoting:
        found = found._replace(quoted=recipe.quoting == "yes")
    elif found.delimiter == "\t":
        plain = found._replace(quoted=False)
        may_be_quoted = _has_text_column(found, first)
        if _has_text_column(plain, first) and not (may_be_quoted and _is_quoted(found, scan)):
            found = plain
    # Where every quote is as CSV wants it, no stray one can have joined records.
    joined = []
    rows = _Rows(found, lines)
    for row in rows:
        if isinstance(row, Reject) and row.kind == _JOINED:
            joined.append(row)
        else:
            yield row
    if rows.has_stray_quotes:
        yield from joined


def _with_delimiter(usual: CsvFormat, header: str) -> CsvFormat:
    """The format with the delimiter that gives the header a text column, or else most columns."""
    formats = [usual, *(usual._replace(delimiter=one) for one in DELIMITERS)]
    for one in formats:
        if _has_text_column(one, header):
            return one
    return max(formats, key=lambda one: header.count(one.delimiter))


def _text_lines(lines: Iterable[Line]) -> Iterator[str]:
    """Yield the lines that are text, without their numbers."""
    for line in lines:
        if not isinstance(line, Reject):
            yield line[1]


def _has_text_column(form: CsvFormat, line: str) -> bool:
    try:
        header = next(form.reader([line]), [])
    except csv.Error:
        return False
    return not set(map(str.strip, header)).isdisjoint(form.recipe.text_columns)


def _is_quoted(form: CsvFormat, scan: Callable[[], Iterator[Line]]) -> bool:
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
            fields = (field for field in line.rstrip("\r\n").split(form.delimiter) if '"' in field)
            all_quoted = all(map(_QUOTED.fullmatch, fields))
            if not all_quoted:
                break
    if all_quoted:
        return has_quotes
    plain = _faults(form._replace(quoted=False), scan())
    if plain == (0, 0):
        return False
    rejected, doubtful = _faults(form, scan())
    return rejected < plain[0] or (rejected == plain[0] and doubtful == 0 < plain[1])


def _faults(form: CsvFormat, lines: Iterator[Line]) -> tuple[int, int]:
    """The number of rejects, and of doubtful records: of fewer fields than others, or joined."""
    rejected = 0
    doubtful = 0
    sizes: Counter[int] = Counter()  # records by their number of fields
    for row in _Rows(form, lines):
        if not isinstance(row, Reject):
            sizes[len(row[1])] += 1
        elif row.kind == _JOINED:
            doubtful += 1
        elif not row.is_note:
            rejected += 1
    return rejected, doubtful + sizes.total() - sizes[max(sizes, default=0)]


class _Rows:
    """The rows of a table, rejects, and notes."""

    def __init__(self, form: CsvFormat, lines: Iterator[Line]) -> None:
        self._form = form
        self._feed = _Feed(lines)
        self._header: list[str] = []
        self._column = 0  # of the text
        self.has_stray_quotes = False  # in a field without quotes around it

    def __iter__(self) -> Iterator[RecordOrReject]:
        form = self._form
        feed = self._feed
        reader = form.reader(feed)
        records = 0
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
                reader = form.reader(feed)
                if len(taken) > 1:  # A record had begun, which is lost up to here.
                    kind, why = bad or (_QUOTE, "cut short by an unreadable line.")
                    yield self._reject(kind, why, taken[0])
                continue
            if not self._header:
                self._read_header(row, bad, taken[0])
                continue
            bad = bad or self._wrong(row, taken)
            if bad:
                text = _numbered(taken[0])[1]
                why = f"{bad[1]} It begins {text[:40]!r}, read with the delimiter"
                yield self._reject(bad[0], f"{why} {form.delimiter!r}.", taken[0])
                # A stray quote may have swallowed whole records: skip only its first line.
                feed.give_back(taken[1:])
                reader = form.reader(feed)
            elif row:
                records += 1
                if doubt := self._doubt(row, taken, records):
                    yield self._reject(*doubt, taken[0], is_note=True)
                    if doubt[0] != _JOINED:
                        continue
                yield _numbered(taken[0])[0], dict(zip(self._header, row, strict=False))

    def _reject(self, kind: str, why: str, line: Line, is_note: bool = False) -> Reject:
        number, text = _numbered(line)
        self.has_stray_quotes = self.has_stray_quotes or kind == _QUOTE
        return reject(kind, self._form.source, number, why, text, is_note)

    def _read_header(self, row: list[str], bad: tuple[str, str] | None, line: Line) -> None:
        text = _numbered(line)[1]
        if bad:
            raise UserError(self._reject(bad[0], f"the header: {bad[1]}", line).message)
        if row and not _SEPARATOR.fullmatch(text):
            self._header = [name.strip() for name in row]
            self._column = self._form.column(self._header, text)

    def _wrong(self, row: list[str], taken: list[Line]) -> tuple[str, str] | None:
        """The kind of a bad row, and what is wrong with it."""
        width = len(self._header)
        wrong: tuple[str, str] | None = None
        if row and (len(row) <= self._column or any(row[width:])):
            why = (
                f"{len(row)} columns where the header has {width}; a field that contains the "
                "delimiter or a newline must be quoted."
            )
            wrong = ("CSV columns", why)
        if not self._form.quoted:
            return wrong
        for field in row:
            if '"' not in field:
                continue
            # The same text in quotes has its own quotes doubled.
            quoted = field.replace('"', '""')
            if f'"{quoted}"' not in "".join(_text_lines(taken)):
                self.has_stray_quotes = True
                if _QUOTED_AFTER_SPACES.fullmatch(field):
                    wrong = (_QUOTE, "a space before a quoted field; remove it.")
        return wrong

    def _doubt(self, row: list[str], taken: list[Line], records: int) -> tuple[str, str] | None:
        """The kind of a note on a row and its text; all but _JOINED mean that it is skipped.

        Raises UserError if the row is a header with other columns.
        """
        names: list[str] = []
        if records == 1 or row[self._column].strip() in self._header:
            names = [name.strip() for name in row]
        if names == self._header:
            why = "the header again, as in files that were joined; the line was skipped."
            return "header again", why
        if len(names) > 1 and sorted(names) == sorted(self._header):
            why = (
                f"another header, {self._form.delimiter.join(names)}, whose columns have another "
                "order than in the first line; keep the files apart, or write them with the "
                "same columns."
            )
            raise UserError(self._reject("another header", why, taken[0]).message)
        if records == 1 and len(names) > 1 and all(map(_TYPES.fullmatch, names)):
            return "types", "the types of the columns, no record; the line was skipped."
        breaks = self._form.delimiter
        most = max(1, len(self._header) - 1)
        if len(taken) > 1 and any("\n" in one and one.count(breaks) >= most for one in row):
            last = _numbered(taken[0])[0] + len(taken) - 1
            why = (
                f"a field in quotes has line breaks and delimiters, up to line {last:,}, and the "
                "file has stray quotes; if one has joined several records, double it, and put its "
                "field in quotes."
            )
            return _JOINED, why
        return None


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
            _QUOTE,
            f"not CSV ({error}): quotes are escaped with a backslash, as Spark and MySQL write "
            "them by default; write the file again with each quote doubled (Spark: option escape "
            "'\"').",
        )
    return (
        _QUOTE,
        f'not CSV ({error}): a quote is stray or not closed; put a field that contains a " '
        'in quotes, and double each " in it.',
    )
