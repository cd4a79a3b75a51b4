"""Sources of texts: files, standard input, Python's documentation, TFDS data sets."""

import codecs
import errno
import io
import os
import re
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, cast

from mlstm_jax.corpora.compression import BUFFER, COMPRESSIONS, Compression, Unpacked
from mlstm_jax.corpora.documents import TEXT_COLUMNS
from mlstm_jax.corpora.formats import FORMATS, PYDOC, TFDS, UNKNOWN, Format, known_formats
from mlstm_jax.errors import UserError

_START = 8192  # bytes that show what a file or standard input is
_BEFORE_JSON = codecs.BOM_UTF8 + b" \t\r\n"
# What is not the text: the beginning of a file, and how to get the text.
_POINTERS = {
    b"PK\x03\x04": "a zip archive, such as .docx, .xlsx and .odt are; save it as text or CSV",
    b"version https://git-lfs.github.com/spec/": "a pointer of Git LFS; run `git lfs pull`",
    b"/annex/objects/": "a pointer of git-annex; run `git annex get`",
}
# The fields of a CSV header: a word, or several.
_HEADER_FIELD = re.compile(r"\s*(\"?)[^\W\d]\w*([ _.-]\w+)*\1\s*")
DELIMITERS = (",", "\t", ";", "|")


@dataclass(frozen=True)
class Source:
    """A file, `pydoc:`, `tfds:NAME[/CONFIG]:SPLIT`, or `-`, standard input."""

    name: str  # the path of a file
    copy: BinaryIO | None = field(default=None, compare=False)  # of standard input

    def __str__(self) -> str:
        return "standard input" if self.name == "-" else self.name

    @property
    def is_file(self) -> bool:
        """Whether it names a file, which may not exist."""
        return self.name not in (PYDOC.suffix, "-") and not self.name.startswith(TFDS.suffix)

    @property
    def path(self) -> Path:
        return Path(self.name)

    @property
    def place(self) -> tuple[str, ...]:
        """The parts of a file's path without links; otherwise the name."""
        return self.path.resolve().parts if self.is_file else (self.name,)

    @property
    def compression(self) -> Compression | None:
        """The compression that the suffix of a file's name tells."""
        suffix = self.path.suffix.lower()
        return next((kind for kind in COMPRESSIONS if kind.suffix == suffix), None)

    @property
    def format(self) -> Format:
        """The format of a file by its suffix, or of another source.

        The format of standard input is found from its beginning.
        """
        if self.name == "-":
            if self.copy:
                return _format_of(os.pread(self.copy.fileno(), _START, 0))
            return _format_of(cast(io.BufferedReader, sys.stdin.buffer).peek(1))
        if not self.is_file:
            return PYDOC if self.name == PYDOC.suffix else TFDS
        path = self.path.with_suffix("") if self.compression else self.path
        found = FORMATS.get(path.suffix.lower(), UNKNOWN)
        return found if found.has_lines or not self.compression else UNKNOWN

    @property
    def size(self) -> int:
        """The bytes of a file on disk; otherwise 0."""
        return self.path.stat().st_size if self.is_file else 0

    @contextmanager
    def open(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """Open the file, or standard input; yield it, and its data unpacked."""
        path = Path(self.copy.name) if self.copy else self.path  # a copy with a place of its own
        is_stream = self.name == "-" and not self.copy
        with sys.stdin.buffer if is_stream else path.open("rb", BUFFER) as raw:
            if not self.compression:
                yield raw, raw
                return
            unpacked = Unpacked(self.compression, raw)
            yield raw, cast(BinaryIO, io.BufferedReader(unpacked, BUFFER))
            if unpacked.behind:
                raise unpacked.behind

    def repeatable(self) -> "Source":
        """Return a source to read many times: standard input as a `copy`, which is to be closed."""
        if self.name != "-":
            return self
        copy = tempfile.NamedTemporaryFile()  # noqa: SIM115
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        return replace(self, copy=cast(BinaryIO, copy))


STDIN = Source("-")


def _format_of(start: bytes) -> Format:
    """The format of a text by its beginning: an array of JSON, JSON lines, CSV by its header."""
    text = start.lstrip(_BEFORE_JSON)
    suffixes = {b"{": ".jsonl", b"[": ".json"}
    if text[:1] in suffixes:
        return FORMATS[suffixes[text[:1]]]
    header, *others = text.decode(errors="replace").splitlines() or [""]
    for delimiter in DELIMITERS:
        fields = header.split(delimiter)
        is_header = len(fields) > 1 and all(map(_HEADER_FIELD.fullmatch, fields))
        if is_header and (not others or delimiter in others[0]):
            return FORMATS[".csv"]
    return FORMATS[".csv" if header in TEXT_COLUMNS else ".txt"]


def manifest_names(sources: Sequence[Source]) -> list[str]:
    """The name of each source in a manifest: a file's name.

    If files in different folders have the same name, as many parent folders are put before it as
    are needed to distinguish them.
    """
    ends: Counter[tuple[str, ...]] = Counter()
    for source in sources:
        parts = source.place
        ends.update(parts[-depth:] for depth in range(1, len(parts) + 1))
    names = []
    for source in sources:
        parts = source.place
        alone = (depth for depth in range(1, len(parts)) if ends[parts[-depth:]] == 1)
        name = "/".join(parts[-next(alone, len(parts)) :])
        names.append(name.encode("utf-8", "replace").decode())  # not every name is UTF-8
    return names


def check_source(source: Source, *, or_stdin: bool = False) -> None:
    """Raise UserError if `source` is a file of an unknown format; reads its beginning.

    `or_stdin`: its user may also name standard input, or take a text itself for a source.
    """
    if wrong := _unusable(source):
        if or_stdin and source.is_file and not source.path.exists():
            wrong += " To pass a text itself, pipe it: echo TEXT | mlstm-jax classify sentiment -"
        raise UserError(f"{source}: {wrong}")


def _unusable(source: Source) -> str | None:
    """Say why a source cannot be read, and what to do; None if it can."""
    if source == STDIN and sys.stdin is None:
        return "standard input is closed; name a file."
    if not source.is_file:
        return None
    path = source.path
    status = status_of(path)
    if not status:
        why = "it is a broken link" if path.is_symlink() else "there is no such file"
        return f"{why}; check the name."
    if stat.S_ISDIR(status.st_mode):
        return f"it is a folder; name the files in it, such as {source}/*.json.gz"
    if not stat.S_ISREG(status.st_mode):  # Opening a pipe would wait for its writer.
        return (
            "it is a pipe, a socket or a device, not a file; write its output to a file and name "
            "that, or leave it out."
        )
    if source.format == UNKNOWN:
        suffix = path.suffix or "its name has no suffix"
        return (
            f"it is of an unknown kind ({suffix}); known kinds are {known_formats()}. Save it as "
            "one of these, a text as .txt."
        )
    try:
        with path.open("rb") as raw:
            start = raw.read(_START)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    for beginning, what in _POINTERS.items():
        if start.startswith(beginning):
            return f"it is not a text, but {what}."
    if not source.format.has_lines:
        if source.name.encode(errors="ignore").decode() == source.name:
            return None
        return "its name is not UTF-8, so its reader, DuckDB, cannot open it; rename it."
    named = source.compression
    for kind in COMPRESSIONS:
        if start.startswith(kind.magic) and named != kind:
            return f"it is compressed with {kind.name}; rename it to {path.name}{kind.suffix}"
    if named and not start.startswith(named.magic):
        return (
            f"it is not {named.name}, though its name ends in {named.suffix}; remove the "
            f"{named.suffix}."
        )
    return None


def status_of(path: Path) -> os.stat_result | None:
    """The status of a path, None if nothing exists; UserError if the system refuses it."""
    try:
        return path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise UserError(f"{path}: {error.strerror}; check the name.") from error
