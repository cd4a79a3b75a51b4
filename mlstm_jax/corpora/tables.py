"""Find the records of tables such as CSV: delimiter, quotes, header, rows; report doubtful ones.

After a bad record, reading resumes at the next line: only that record is lost.
"""

import csv
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from mlstm_jax.corpora.documents import Recipe
from mlstm_jax.corpora.records import Line, RecordOrReject, text_columns
from mlstm_jax.corpora.rejects import EXCERPT, Reject, rejected
from mlstm_jax.corpora.sources import DELIMITERS, STDIN, Source
from mlstm_jax.errors import UserError

_BARE_RETURN = "new-line character seen in unquoted field"  # from the csv module's error message
# A longer CSV record has an unclosed quote, which must not swallow the rest of the file.
_MOST_LINES_A_RECORD = 10_000
_QUOTED_AFTER_SPACES = re.compile(' +"(?:[^"]|"")*"')
_SEPARATOR = re.compile(r"sep=(.)\r?\n?")  # the first line of Excel's CSV files
_QUOTE = "CSV quote"
_COLUMNS = "CSV columns"
_JOINED = "fields with line breaks and delimiters"
# What a second line of a header says about its columns.
_TYPES = re.compile(
    r"bool(ean)?|categor(y|ical)|char|continuous|date(time)?|discrete|(float|int)(8|16|32|64)?|"
    r"double|integer|number|numeric|object|real|str(ing)?|text|varchar(\(\d+\))?",
    re.IGNORECASE,
)

# A kind of reject or note; what is wrong, and what to do.
Finding = tuple[str, str]


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

    def has_text_column(self, header: str) -> bool:
        try:
            names = next(self.reader([header]), [])
        except csv.Error:
            return False
        return not set(map(str.strip, names)).isdisjoint(self.recipe.text_columns)


def csv_records(
    source: Source, recipe: Recipe, lines: Iterator[Line], scan: Callable[[], Iterator[Line]]
) -> Iterator[RecordOrReject]:
    """Yield the rows of CSV, keyed by the names in its header, and notes on doubtful ones.

    `scan` reads the lines of the file from the start, any number of times.
    """
    # A review may exceed the csv module's 131,072 characters; the limit applies to the process.
    csv.field_size_limit(2**31 - 1)
    usual = CsvFormat(source, recipe, source.format.delimiter)
    lines_of_text = (line[1] for line in scan() if not isinstance(line, Reject))
    first = next(filter(str.strip, lines_of_text), "")
    named = _SEPARATOR.fullmatch(first)
    if recipe.delimiter:
        form = usual._replace(delimiter=recipe.delimiter)
    elif named:
        form = usual._replace(delimiter=named[1])
    else:
        form = _with_delimiter(usual, first)
        if form != usual and source != STDIN:
            why = f"its first line has the delimiter {form.delimiter!r}, so it is used, not "
            why += f"{usual.delimiter!r}."
            yield rejected("another delimiter", source, "", why, is_note=True)
    if recipe.quoting:
        form = form._replace(quoted=recipe.quoting == "yes")
    elif form.delimiter == "\t":
        form = form._replace(quoted=_is_quoted(form, first, scan()))
    # Where every quote is as CSV wants it, no stray one can have joined records.
    joined = []
    rows = _Rows(form, lines)
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
    most = max(formats, key=lambda one: header.count(one.delimiter))
    for one in formats:
        if one.has_text_column(header):
            return one
    return most


def _is_quoted(form: CsvFormat, header: str, lines: Iterator[Line]) -> bool:
    """Whether fields separated by tabs are quoted, where a quote may be a character."""
    unquoted = form._replace(quoted=False)
    if form.has_text_column(header) != unquoted.has_text_column(header):
        return form.has_text_column(header)
    is_sound = True
    rows = _Rows(form, lines)
    for row in rows:
        if rows.has_doubled_quotes:
            return True
        if isinstance(row, Reject):
            is_sound = is_sound and row.kind not in (_QUOTE, _COLUMNS, _JOINED)
        else:
            is_sound = is_sound and len(row[1]) == len(set(rows.header))
    return is_sound and not rows.has_stray_quotes


class _Rows:
    """The rows of a table, rejects, and notes."""

    def __init__(self, form: CsvFormat, lines: Iterator[Line]) -> None:
        self._form = form
        self._lines = lines
        self._returned: deque[Line] = deque()  # lines to read again
        self._taken: list[tuple[int, str]] = []  # the lines of the record
        self._unreadable: Reject | None = None  # the line that ended it, as a file's end would
        self.header: list[str] = []
        self._folded: list[str] = []  # without case
        self._column = 0  # of the text
        self.has_stray_quotes = False  # in a field without quotes around it
        self.has_doubled_quotes = False  # in a field in quotes

    def __iter__(self) -> Iterator[RecordOrReject]:
        records = 0
        reader = self._reader()
        while True:
            self._taken = []
            self._unreadable = None
            row: list[str] = []
            wrong: Finding | None = None
            try:
                row = next(reader, [])
            except csv.Error as error:
                wrong = _not_csv(error)
            if self._unreadable:
                yield self._unreadable
                if wrong:  # A record had begun, which is lost up to here.
                    yield self._reject(*wrong)
                reader = self._reader()
            elif not self._taken:
                return
            elif not self.header:
                self._read_header(row, wrong)
            elif wrong := wrong or self._wrong(row):
                kind, why = wrong
                begins = f"It begins {self._taken[0][1][:40]!r}, read with the delimiter"
                yield self._reject(kind, f"{why} {begins} {self._form.delimiter!r}.")
                # A stray quote may have swallowed whole records: skip only its first line.
                self._returned.extendleft(reversed(self._taken[1:]))
                reader = self._reader()
            elif row:
                records += 1
                doubt = self._doubt(row, records)
                if doubt:
                    yield self._reject(*doubt, is_note=True)
                if not doubt or doubt[0] == _JOINED:
                    yield self._taken[0][0], dict(zip(self.header, row, strict=False))

    def _reader(self) -> Iterator[list[str]]:
        return self._form.reader(iter(self._next_line, None))

    def _next_line(self) -> str | None:
        """The next line of the record; None where it must end."""
        if len(self._taken) >= _MOST_LINES_A_RECORD:
            return None
        line = self._returned.popleft() if self._returned else next(self._lines, None)
        if line is None or isinstance(line, Reject):
            self._unreadable = line
            return None
        self._taken.append(line)
        return line[1]

    def _reject(self, kind: str, why: str, is_note: bool = False) -> Reject:
        number, text = self._taken[0]
        self.has_stray_quotes = self.has_stray_quotes or kind == _QUOTE
        return rejected(kind, self._form.source, number, why, text, is_note)

    def _read_header(self, row: list[str], wrong: Finding | None) -> None:
        text = self._taken[0][1]
        if wrong:
            raise UserError(self._reject(wrong[0], f"the header: {wrong[1]}").message)
        if not row or _SEPARATOR.fullmatch(text):
            return
        form = self._form
        advice = (
            f" Its first line was taken for the header, with the delimiter {form.delimiter!r}: "
            f"{text.strip()[:EXCERPT]!r}. If the file has none, add one, such as "
            f"{f'label{form.delimiter}text'!r}."
        )
        if form.source == STDIN:
            advice += " If these are lines of text, write them to a .txt file."
        self.header = [name.strip() for name in row]
        self._folded = [name.casefold() for name in self.header]
        self._known = set(filter(None, self._folded))
        found = text_columns(form.source, form.recipe, self.header, advice)
        self._column = self.header.index(found[0])

    def _wrong(self, row: list[str]) -> Finding | None:
        """What makes a row a reject."""
        for field in row:
            if not self._form.quoted or '"' not in field:
                continue
            doubled = field.replace('"', '""')
            if f'"{doubled}"' in "".join(line for _, line in self._taken):
                self.has_doubled_quotes = True
                continue
            self.has_stray_quotes = True
            if _QUOTED_AFTER_SPACES.fullmatch(field):
                return _QUOTE, "a space before a quoted field; remove it."
        width = len(self.header)
        if row and (len(row) <= self._column or any(row[width:])):
            why = f"{len(row)} columns where the header has {width}; a field that contains the"
            return _COLUMNS, f"{why} delimiter or a newline must be quoted."
        return None

    def _doubt(self, row: list[str], records: int) -> Finding | None:
        """What is noted on a row; with all but _JOINED it is skipped."""
        header = self.header
        delimiter = self._form.delimiter
        is_named = row[self._column].strip().casefold() in self._known
        if records == 1 or is_named:
            names = [name.strip() for name in row]
            folded = [name.casefold() for name in names]
            if names == header or (len(names) > 1 and folded == self._folded):
                why = "the header again, as in files that were joined; the line was skipped."
                return "header again", why
            if is_named and len(self._known.intersection(folded)) > 1:
                why = f"a header unlike the first, {delimiter.join(names)}; keep the files apart."
                raise UserError(self._reject("another header", why).message)
            if records == 1 and len(names) > 1 and all(map(_TYPES.fullmatch, names)):
                return "types", "the types of the columns, no record; the line was skipped."
        taken = self._taken
        most = max(1, len(header) - 1)
        if len(taken) > 1 and any("\n" in one and one.count(delimiter) >= most for one in row):
            why = (
                f"a field in quotes has line breaks and delimiters, up to line {taken[-1][0]:,}, "
                "and the file has stray quotes; if one has joined several records, double it, and "
                "put its field in quotes."
            )
            return _JOINED, why
        return None


def _not_csv(error: csv.Error) -> Finding:
    if _BARE_RETURN in str(error):
        why = "a carriage return without a newline, as in files of old Macs; convert the file, for"
        return "CSV line end", rf"{why} example with: tr '\r' '\n'"
    why = (
        'a quote is stray or not closed; put a field that contains a " in quotes, and double each '
        "\" in it, which a backslash does not replace (Spark: option escape '\"')."
    )
    return _QUOTE, f"not CSV ({error}): {why}"
