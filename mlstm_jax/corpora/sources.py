"""Sources of texts: files, folders, patterns, Python's documentation, TFDS data sets."""

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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from mlstm_jax.corpora.documents import TEXT_COLUMNS
from mlstm_jax.errors import UserError, note

PYDOC = "pydoc:"
TFDS = "tfds:"

_TEXT = ("json", "jsonl", "csv", "tsv", "txt")
_KINDS = (*_TEXT, "parquet")
_MOST_SHOWN = 5  # names of files
_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
_BUFFER = 1 << 18  # bytes that are read at once
_START = 8192  # bytes that show what a file or standard input is
_BEFORE_JSON = codecs.BOM_UTF8 + b" \t\r\n"
# What programs leave in place of a large file: the beginning of its text, and how to get the file.
_POINTERS = {
    b"version https://git-lfs.github.com/spec/": "a pointer of Git LFS; run `git lfs pull`",
    b"/annex/objects/": "a pointer of git-annex; run `git annex get`",
}
# The fields of a CSV header: a word, or several.
_HEADER_FIELD = re.compile(r"\s*(\"?)[^\W\d]\w*([ _.-]\w+)*\1\s*")
DELIMITERS = (",", "\t", ";", "|")


class Compression(NamedTuple):
    """A kind of compressed files of lines: how it is named, recognised and read, and how it fails.

    A reader must fail on a file that is cut short, where zstandard's ends without an error, and on
    other bytes behind the data, which lzma's ignores: whoever adds these must check for both.
    """

    name: str
    suffix: str
    magic: bytes  # the first bytes of a file
    open: Callable[[BinaryIO], BinaryIO]
    errors: tuple[type[Exception], ...]  # of data that are cut short or damaged
    behind: str  # the beginning of the error on other bytes behind whole data


GZIP = Compression(
    name="gzip",
    suffix=".gz",
    magic=b"\x1f\x8b",
    open=cast(Callable[[BinaryIO], BinaryIO], gzip.open),
    errors=(EOFError, gzip.BadGzipFile, zlib.error),
    behind="Not a gzipped file",
)
COMPRESSIONS = (GZIP,)
COMPRESSION_ERRORS: tuple[type[Exception], ...] = tuple(
    error for kind in COMPRESSIONS for error in kind.errors
)
READ_ERRORS: tuple[type[Exception], ...] = (OSError, *COMPRESSION_ERRORS)


class _Unpacked(io.RawIOBase):
    """The data of a compressed file, which end before other bytes; `behind` is the error on these.

    Raised at once, it would take with it a last line without its end.
    """

    def __init__(self, kind: Compression, raw: BinaryIO) -> None:
        self._kind = kind
        self._stream = cast(io.BufferedIOBase, kind.open(raw))
        self.behind: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.behind:
            return 0
        try:
            data = self._stream.read1(len(buffer))
        except self._kind.errors as error:
            if not str(error).startswith(self._kind.behind):
                raise
            self.behind = error
            return 0
        buffer[: len(data)] = data
        return len(data)


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
        return self.name not in (PYDOC, "-") and not self.name.startswith(TFDS)

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
    def kind(self) -> str:
        """A known suffix of a file, without its dot and .gz, else ""; or "pydoc" or "tfds".

        The kind of standard input is found from its beginning.
        """
        if self.name == "-":
            if self.copy:
                return _kind_of(os.pread(self.copy.fileno(), _START, 0))
            return _kind_of(cast(io.BufferedReader, sys.stdin.buffer).peek(1))
        if not self.is_file:
            return self.name.partition(":")[0]
        path = self.path
        known: Collection[str] = _KINDS
        if self.compression:
            path = path.with_suffix("")
            known = _TEXT
        suffix = path.suffix.lower()[1:]
        return suffix if suffix in known else ""

    @property
    def size(self) -> int:
        """The bytes of a file on disk; otherwise 0."""
        return self.path.stat().st_size if self.is_file else 0

    @contextmanager
    def open(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """Open the file, or standard input; yield it, and its data unpacked."""
        path = Path(self.copy.name) if self.copy else self.path  # a copy with a place of its own
        is_stream = self.name == "-" and not self.copy
        with sys.stdin.buffer if is_stream else path.open("rb", _BUFFER) as raw:
            if not self.compression:
                yield raw, raw
                return
            unpacked = _Unpacked(self.compression, raw)
            yield raw, cast(BinaryIO, io.BufferedReader(unpacked, _BUFFER))
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


def _kind_of(start: bytes) -> str:
    """The kind of a text by its beginning: json for an array, jsonl, csv with a header, or txt."""
    text = start.lstrip(_BEFORE_JSON)
    kinds = {b"{": "jsonl", b"[": "json"}
    if text[:1] in kinds:
        return kinds[text[:1]]
    header, *others = text.decode(errors="replace").splitlines() or [""]
    for delimiter in DELIMITERS:
        fields = header.split(delimiter)
        is_header = len(fields) > 1 and all(map(_HEADER_FIELD.fullmatch, fields))
        if is_header and (not others or delimiter in others[0]):
            return "csv"
    return "csv" if header in TEXT_COLUMNS else "txt"


def find_sources(names: Sequence[str], without: Collection[Path] = ()) -> list[Source]:
    """Return the named sources, each once, with folders and patterns expanded.

    Args:
        names: files, folders (their files of a known kind, at any depth, except empty files and
            names that begin with a dot or an underscore), patterns such as ``reviews/*.json.gz``,
            `pydoc:`, `tfds:NAME[/CONFIG]:SPLIT`. Links to folders are followed, each folder once.
        without: absolute paths of files and folders to skip in folders and patterns.
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
    if name != "-" and not Source(name).is_file:
        return [name]
    path = Path(name)
    is_path = name and not _URL.match(name)
    status = _status(path) if is_path else None
    is_output = status and _is_under(path, without)
    for is_wrong, why in (
        (name == "-", "prepare reads files; write standard input to a file first."),
        (name and not is_path, "addresses are not read; download the file, and name it."),
        (not name, "names no file; name one, or . for this folder."),
        (is_output, "would be both read and written; name another `out`."),
    ):
        if is_wrong:
            raise UserError(f"{name or repr(name)}: {why}")
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
    """Raise UserError if `source` is a file of an unknown kind; reads its beginning.

    `or_stdin`: its user may also name standard input.
    """
    if wrong := _unusable(source):
        if or_stdin and source.is_file and not source.path.exists():
            wrong += " Standard input is read with -."
        raise UserError(f"{source}: {wrong}")


def _unusable(source: Source) -> str | None:
    """Say why a source cannot be read, and what to do; None if it can."""
    if source == STDIN and sys.stdin is None:
        return "standard input is closed; name a file."
    if not source.is_file:
        return None
    path = source.path
    status = _status(path)
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
    if not source.kind:
        suffix = path.suffix or "its name has no suffix"
        return f"it is of an unknown kind ({suffix}); known kinds are {_known()}."
    try:
        with path.open("rb") as raw:
            start = raw.read(_START)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    for beginning, what in _POINTERS.items():
        if start.startswith(beginning):
            return f"it is not the file, but {what}."
    if source.kind == "parquet":
        if source.name.encode(errors="ignore").decode() == source.name:
            return None
        return "its name is not UTF-8, so DuckDB cannot open this Parquet file; rename it."
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


def _status(path: Path) -> os.stat_result | None:
    """The status of a path, None if nothing exists; UserError if the system refuses it."""
    try:
        return path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise UserError(f"{path}: {error.strerror}; check the name.") from error


def _files_in(folder: Path, without: Collection[Path]) -> list[Path]:
    """The files to read in a folder and its subfolders; entries that are no files, for errors.

    As in Spark, part files may be empty, and names of other files begin with . or _.
    """
    files: list[Path] = []
    empty: list[Path] = []
    unknown: list[Path] = []
    for inner in _folders_in(folder, "._"):
        for path in inner.iterdir():
            if path.name[0] in "._" or path.is_dir() or _is_under(path, without):
                continue
            if Source(str(path)).kind not in _KINDS:
                unknown.append(path)
            elif path.is_file() and not path.stat().st_size:
                empty.append(path)
            else:
                files.append(path)
    if not files:
        why = f"this folder has no file of a known kind; known kinds are {_known()}."
        if empty:
            why = f"all files of a known kind in this folder are empty, such as {min(empty)}."
        raise UserError(f"{folder}: {why}")
    if unknown:
        shown = ", ".join(path.name for path in sorted(unknown)[:_MOST_SHOWN])
        more = ", ..." if len(unknown) > _MOST_SHOWN else ""
        note(
            f"{folder}: {len(unknown):,} of its files were left out, because their kinds are "
            f"unknown: {shown}{more}. Known kinds are {_known()}."
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
    """Return what a pattern matches, as `glob.glob` does, but each folder of a ** only once."""
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
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):  # A loop of links is under no folder.
        return False
    return any(resolved == folder or folder in resolved.parents for folder in folders)


def _known() -> str:
    kinds = ", ".join(f".{kind}" for kind in _TEXT)
    compressed = " or ".join(kind.suffix for kind in COMPRESSIONS)
    return f"{kinds}, each also with {compressed} after it, and .parquet"
