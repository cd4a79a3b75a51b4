"""Sources of texts: files, folders, patterns, Python's documentation, TFDS data sets."""

import codecs
import errno
import glob
import io
import os
import re
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, cast

from mlstm_jax.errors import UserError

PYDOC = "pydoc:"
TFDS = "tfds:"

_TEXT = ("json", "jsonl", "csv", "tsv", "txt")
_KINDS = (*_TEXT, "parquet")
_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
_GZIP_MAGIC = b"\x1f\x8b"
_START = 100  # bytes of standard input that show its kind
_BEFORE_JSON = codecs.BOM_UTF8 + b" \t\r\n"


@dataclass(frozen=True)
class Source:
    """A file, `pydoc:`, `tfds:NAME[/CONFIG]:SPLIT`, or `-`, standard input."""

    name: str  # the path of a file
    copy: BinaryIO | None = field(default=None, compare=False)  # of standard input

    def __str__(self) -> str:
        return self.name

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
    def is_gzip(self) -> bool:
        """Whether the name ends in .gz."""
        return self.path.suffix.lower() == ".gz"

    @property
    def kind(self) -> str:
        """A known suffix of a file, without its dot and .gz, else ""; or "pydoc" or "tfds".

        Standard input is "jsonl" if it begins with {, after any byte order mark and white space,
        else "txt".
        """
        if self.name == "-":
            if self.copy:
                start = os.pread(self.copy.fileno(), _START, 0)
            else:
                start = cast(io.BufferedReader, sys.stdin.buffer).peek(1)
            return "jsonl" if start.lstrip(_BEFORE_JSON).startswith(b"{") else "txt"
        if not self.is_file:
            return self.name.partition(":")[0]
        path = self.path
        known: Collection[str] = _KINDS
        if self.is_gzip:
            path = path.with_suffix("")
            known = _TEXT
        suffix = path.suffix.lower()[1:]
        return suffix if suffix in known else ""

    @property
    def size(self) -> int:
        """The bytes of a file on disk; otherwise 0."""
        return self.path.stat().st_size if self.is_file else 0

    def open(self) -> BinaryIO:
        """Open the file, or standard input."""
        if self.copy:
            self.copy.seek(0)
            return os.fdopen(os.dup(self.copy.fileno()), "rb")
        return sys.stdin.buffer if self.name == "-" else self.path.open("rb")

    def repeatable(self) -> "Source":
        """Return a source to read many times: standard input as a `copy`, which is to be closed."""
        if self.name != "-":
            return self
        copy = tempfile.TemporaryFile()  # noqa: SIM115
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        return replace(self, copy=cast(BinaryIO, copy))


STDIN = Source("-")


def find_sources(names: Sequence[str], without: Collection[Path] = ()) -> list[Source]:
    """Return the named sources, each once, with folders and patterns expanded.

    Args:
        names: files, folders (their files of a known kind, at any depth, except empty files and
            names that begin with a dot or an underscore), patterns such as ``reviews/*.json.gz``,
            `pydoc:`, `tfds:NAME[/CONFIG]:SPLIT`. Links to folders are followed, each folder once.
        without: absolute paths of files and folders to skip in folders and patterns.

    Raises:
        UserError: a file does not exist or is of an unknown kind, a folder or pattern has no file,
            or something in it should be read and cannot be.
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
    found = []
    for file in files:
        if str(file)[0] == "~":  # DuckDB would expand it to a home folder.
            file = file.absolute()
        found.append(str(file))
    return found


def manifest_names(sources: Sequence[Source]) -> list[str]:
    """The name of each source in a manifest: a file's name.

    If files in different folders have the same name, as many parent folders are put before it as
    are needed to distinguish them.
    """
    parts = [source.place for source in sources]
    depths = [1] * len(parts)
    while True:
        names = ["/".join(part[-depth:]) for part, depth in zip(parts, depths, strict=True)]
        counts = Counter(names)
        before = list(depths)
        for number, name in enumerate(names):
            if counts[name] > 1 and depths[number] < len(parts[number]):
                depths[number] += 1
        if depths == before:
            # Not every name is UTF-8.
            return [name.encode("utf-8", "replace").decode() for name in names]


def check_source(source: Source) -> None:
    """Raise UserError if `source` is a file of an unknown kind; reads two bytes."""
    if wrong := _unusable(source):
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
        why = "is a broken link" if path.is_symlink() else "there is no such file"
        return f"{why}; check the name. Texts are read from files."
    if stat.S_ISDIR(status.st_mode):
        return f"is a folder; name the files in it, such as {source}/*.json.gz"
    if not stat.S_ISREG(status.st_mode):  # Opening a pipe would wait for its writer.
        return (
            "is a pipe, a socket or a device, not a file; write its output to a file and name "
            "that, or leave it out."
        )
    if source.kind == "parquet":
        if source.name.encode(errors="ignore").decode() == source.name:
            return None
        return "its name is not UTF-8, so DuckDB cannot open this Parquet file; rename it."
    if not source.kind:
        suffix = path.suffix or "its name has no suffix"
        return f"a file of an unknown kind ({suffix}); known kinds are {_known()}."
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if is_gzip and not source.is_gzip:
        return f"is compressed with gzip; rename it to {path.name}.gz"
    if source.is_gzip and not is_gzip:
        return "is not gzip, though its name ends in .gz; remove the .gz."
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
    """The files to read in a named folder and its subfolders.

    As in Spark, part files may be empty, and names of other files begin with . or _. Entries that
    are no files are not skipped silently: `check_source` reports them.
    """
    files: list[Path] = []
    empty: list[Path] = []
    for inner in _folders_in(folder, "._"):
        for path in inner.iterdir():
            is_known = path.name[0] not in "._" and Source(str(path)).kind in _KINDS
            if not is_known or path.is_dir() or _is_under(path, without):
                continue
            if path.is_file() and not path.stat().st_size:
                empty.append(path)
            else:
                files.append(path)
    if not files:
        why = f"this folder has no file of a known kind; known kinds are {_known()}."
        if empty:
            why = f"all files of a known kind in this folder are empty, such as {min(empty)}."
        raise UserError(f"{folder}: {why}")
    return sorted(files)


def _folders_in(folder: Path, hidden: str) -> Iterator[Path]:
    """Yield a folder and its subfolders, including links to folders, each once.

    Skips subfolders whose name begins with a character of `hidden`.
    """
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
    return f"{', '.join(f'.{kind}' for kind in _TEXT)}, each also with .gz after it, and .parquet"
