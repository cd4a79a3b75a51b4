"""Sources of texts, and their formats: files, standard input, Python's documentation, TFDS."""

import codecs
import errno
import glob
import gzip
import io
import os
import re
import shutil
import stat
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, cast

from mlstm_jax.corpora.documents import TEXT_COLUMNS
from mlstm_jax.errors import UserError, first_of, note

_BUFFER = 1 << 18  # bytes that are read at once
_START = 8192  # bytes that show what a file or standard input is
_BEFORE_JSON = codecs.BOM_UTF8 + b" \t\r\n"
_GZIP = ".gz"
_COMPRESSION = 4  # bytes of text per compressed byte of reviews, at most
# Of data that are cut short or damaged.
GZIP_ERRORS: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, zlib.error)
READ_ERRORS: tuple[type[Exception], ...] = (OSError, *GZIP_ERRORS)
# What is not the text: the beginning of a file, and how to get the text.
_NO_TEXT = {
    b"PK\x03\x04": "a zip archive, such as .docx, .xlsx and .odt are; save it as text or CSV",
    b"version https://git-lfs.github.com/spec/": "a pointer of Git LFS; run `git lfs pull`",
    b"/annex/objects/": "a pointer of git-annex; run `git annex get`",
}
# Of standard input, whose name does not say it.
_NOT_PIPED = _NO_TEXT | {
    b"\x1f\x8b": "compressed with gzip; pipe it through gzip -dc",
    b"PAR1": "Parquet; name its file",
}
# The fields of a CSV header: a word, or several. As a separator, _, which \w has, would let a
# match take exponential time.
_HEADER_FIELD = re.compile(r"\s*(\"?)[^\W\d]\w*([ .-]\w+)*\1\s*")
DELIMITERS = (",", "\t", ";", "|")


class Format(NamedTuple):
    """A format of texts, of which `_records` in readers.py makes records."""

    suffix: str  # of a file, or the beginning of the name of another source
    parser: Literal["json", "jsonl", "parquet", "pydoc", "table", "text", "tfds"]
    delimiter: str = ""  # the usual one, between the fields of a table
    has_columns: bool = True  # so that a record may have a label
    has_lines: bool = True  # so that it may be compressed


PYDOC = Format("pydoc:", "pydoc", has_columns=False)
TFDS = Format("tfds:", "tfds", has_lines=False)
UNKNOWN = Format("", "text")  # of a file that is refused
_OF_FILES = (
    Format(".json", "json"),
    Format(".jsonl", "jsonl"),
    Format(".csv", "table", delimiter=","),
    Format(".tsv", "table", delimiter="\t"),
    Format(".txt", "text", has_columns=False),
    Format(".parquet", "parquet", has_lines=False),
)
FORMATS = {one.suffix: one for one in _OF_FILES}


def known_formats() -> str:
    """The suffixes of files that can be read, as help and messages list them."""
    lines = ", ".join(one.suffix for one in _OF_FILES if one.has_lines)
    others = " and ".join(one.suffix for one in _OF_FILES if not one.has_lines)
    return f"{lines}, each also with {_GZIP} after it, and {others}"


class _Unpacked(gzip.GzipFile):
    readinto = gzip.GzipFile.readinto1  # gives what comes before damage


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
    def is_compressed(self) -> bool:
        return self.path.suffix.lower() == _GZIP

    @property
    def format(self) -> Format:
        """The format of a file by its suffix, of a copy by its beginning."""
        if self.copy:
            return _format_of(os.pread(self.copy.fileno(), _START, 0))
        if self.name == "-":
            return UNKNOWN
        if not self.is_file:
            return PYDOC if self.name == PYDOC.suffix else TFDS
        path = self.path.with_suffix("") if self.is_compressed else self.path
        found = FORMATS.get(path.suffix.lower(), UNKNOWN)
        if self.is_compressed and not found.has_lines:
            return UNKNOWN
        return found

    @property
    def size(self) -> int:
        """The bytes of a file on disk; otherwise 0."""
        return self.path.stat().st_size if self.is_file else 0

    @contextmanager
    def open(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """Open the file, or the copy; yield it, and its data unpacked."""
        path = Path(self.copy.name) if self.copy else self.path  # a copy with a place of its own
        with path.open("rb", _BUFFER) as raw:
            if self.is_compressed:
                yield raw, cast(BinaryIO, io.BufferedReader(_Unpacked(fileobj=raw), _BUFFER))
            else:
                yield raw, raw

    def repeatable(self) -> "Source":
        """A source to read many times: standard input as a `copy`, which is to be closed."""
        if self.name != "-":
            return self
        copy = tempfile.NamedTemporaryFile()  # noqa: SIM115
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        start = os.pread(copy.fileno(), _START, 0)
        for beginning, what in _NOT_PIPED.items():
            if start.startswith(beginning):
                copy.close()
                raise UserError(f"{self}: it is not a text, but {what}.")
        return replace(self, copy=cast(BinaryIO, copy))


STDIN = Source("-")


def _format_of(start: bytes) -> Format:
    """The format of a text by its beginning: an array of JSON, JSON lines, CSV by its header."""
    text = start.lstrip(_BEFORE_JSON)
    suffixes = {b"{": ".jsonl", b"[": ".json"}
    if text[:1] in suffixes:
        return FORMATS[suffixes[text[:1]]]
    header, *others = text.decode(errors="replace").splitlines() or [""]
    if header.startswith("sep=") and len(header) == len("sep=,"):  # as Excel writes it
        return FORMATS[".csv"]
    for delimiter in DELIMITERS:
        fields = header.split(delimiter)
        is_header = len(fields) > 1 and all(map(_HEADER_FIELD.fullmatch, fields))
        if is_header and (not others or delimiter in others[0]):
            return FORMATS[".csv"]
    return FORMATS[".csv" if header in TEXT_COLUMNS else ".txt"]


def manifest_names(sources: Sequence[Source]) -> list[str]:
    """The name of each source in a manifest: a file's name, and folders only where it repeats."""
    names = [source.place[-1] for source in sources]
    depth = 1
    while len(set(names)) < len(names):
        depth += 1
        times = Counter(names)
        for number, source in enumerate(sources):
            if times[names[number]] > 1:
                names[number] = "/".join(source.place[-depth:])
    return [name.encode("utf-8", "replace").decode() for name in names]  # not every one is UTF-8


def check_source(source: Source, *, or_stdin: bool = False) -> None:
    """Raise UserError if `source` is a file of an unknown format; reads its beginning.

    `or_stdin` is of commands that also read `-`: the message then says how to pass a text itself.
    """
    wrong = _unusable(source, source.path) if source.is_file else None
    if not wrong:
        return
    if or_stdin and not source.path.exists():
        wrong += " To pass a text itself, pipe it: echo TEXT | mlstm-jax classify sentiment -"
    raise UserError(f"{source}: {wrong}")


def _unusable(source: Source, path: Path) -> str | None:
    """Say why a file cannot be read, and what to do; None if it can."""
    status = status_of(path)
    if not status:
        why = "it is a broken link" if path.is_symlink() else "there is no such file"
        return f"{why}; check the name."
    if not stat.S_ISREG(status.st_mode):  # Opening a pipe would wait for its writer.
        return "it is a folder, a pipe, a socket or a device, not a file; name a file."
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
    for beginning, what in _NO_TEXT.items():
        if start.startswith(beginning):
            return f"it is not a text, but {what}."
    if start.startswith(b"\x1f\x8b") and source.format.has_lines and not source.is_compressed:
        return f"it is compressed with gzip; rename it to {path.name}{_GZIP}"
    return None


def text_size(sources: Iterable[Source]) -> int:
    """About how many bytes of text the sources have."""
    size = 0
    for source in sources:
        is_compressed = source.is_compressed or not source.format.has_lines
        size += source.size * (_COMPRESSION if is_compressed else 1)
    return size


def status_of(path: Path) -> os.stat_result | None:
    """The status of a path, None if nothing exists; UserError if the system refuses it."""
    try:
        return path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise UserError(f"{path}: {error.strerror}; check the name.") from error


def find_sources(names: Sequence[str], without: Collection[Path] = ()) -> list[Source]:
    """The named sources, each once, with folders and patterns expanded (docs/files.md).

    Files and folders `without` are left out of these; their paths are absolute.
    """
    sources: dict[tuple[str, ...], Source] = {}
    for name in names:
        for file in _files_of(name, without):
            found = Source(file)
            check_source(found)
            sources[found.place] = found  # a file with two names is read once
    return list(sources.values())


def _files_of(name: str, without: Collection[Path]) -> list[str]:
    """The files of a named file, folder or pattern; another source as it is."""
    if name in ("-", ""):
        raise UserError(f"{name!r} names no file; write standard input to one first.")
    if not Source(name).is_file:
        return [name]
    path = Path(name)
    status = status_of(path)
    if status and _is_under(path, without):
        raise UserError(f"{name}: it would be both read and written; name another `out`.")
    files = [path]
    if status and stat.S_ISDIR(status.st_mode):
        files = _files_in(path, without)
    elif glob.has_magic(name) and not status:
        files = []
        for match in sorted(_matches(name)):
            if not (match.is_dir() or _is_under(match, without)):
                files.append(match)
        if not files:
            raise UserError(f"{name}: no file matches; check the pattern.")
    return list(map(str, files))


def _files_in(folder: Path, without: Collection[Path]) -> list[Path]:
    """The files to read in a folder; entries that are no files, for errors. As in Spark."""
    files: list[Path] = []
    unknown: list[Path] = []
    for inner in _folders_in(folder, "._"):
        for path in inner.iterdir():
            if path.name[0] in "._" or path.is_dir() or _is_under(path, without):
                continue
            if Source(str(path)).format not in FORMATS.values():
                unknown.append(path)
            elif not path.is_file() or path.stat().st_size:
                files.append(path)
    if not files:
        raise UserError(
            f"{folder}: this folder has no file of a known kind that is not empty; known kinds "
            f"are {known_formats()}."
        )
    if unknown:
        shown = first_of([path.name for path in sorted(unknown)])
        note(
            f"{folder}: {len(unknown):,} of its files were left out, because their kinds are "
            f"unknown: {shown}. Known kinds are {known_formats()}."
        )
    return sorted(files)


def _folders_in(folder: Path, hidden: str) -> Iterator[Path]:
    """Yield a folder and its subfolders, also links, each once; none whose name begins `hidden`."""
    seen: set[tuple[int, int]] = set()

    def stop(error: OSError) -> None:
        raise UserError(
            f"{error.filename}: this folder cannot be read: {error.strerror}; grant access, or "
            "name the files to read."
        ) from error

    for root, inner, _ in os.walk(folder, followlinks=True, onerror=stop):
        status = os.stat(root)
        place = (status.st_dev, status.st_ino)
        if place in seen:  # A link may point to a folder that contains it.
            inner.clear()
            continue
        seen.add(place)
        inner[:] = sorted(name for name in inner if name[0] not in hidden)
        yield Path(root)


def _matches(pattern: str) -> set[Path]:
    """What a pattern matches, as `glob.glob` does, but each folder of a ** only once."""
    parts = Path(pattern).parts
    if "**" not in parts:
        return set(map(Path, glob.glob(pattern)))
    cut = parts.index("**")
    rest = parts[cut + 1 :] or ("*",)
    tops = _matches(str(Path(*parts[:cut]))) if cut else {Path()}
    found: set[Path] = set()
    for top in filter(Path.is_dir, tops):
        for folder in _folders_in(top, "."):
            found |= _matches(str(Path(glob.escape(str(folder)), *rest)))
    return found


def _is_under(path: Path, folders: Collection[Path]) -> bool:
    real = Path(os.path.realpath(path))  # unlike `resolve`, also of a loop of links
    return any(real.is_relative_to(folder) for folder in folders)
