"""Sources of texts: files, folders, patterns, Python's documentation, TFDS data sets."""

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

FASTA = ("fasta", "fa", "faa")
_TEXT = ("json", "jsonl", "csv", "tsv", *FASTA, "txt")
_KINDS = (*_TEXT, "parquet")
_ADDRESS = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
_GZIP_MAGIC = b"\x1f\x8b"


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

        Standard input is "jsonl" if it begins with {, else "txt".
        """
        if self.name == "-":
            file = cast(io.BufferedReader, sys.stdin.buffer)
            start = os.pread(self.copy.fileno(), 1, 0) if self.copy else file.peek(1)
            return "jsonl" if start[:1] == b"{" else "txt"
        if not self.is_file:
            return self.name.partition(":")[0]
        suffix = (Path(self.path.stem) if self.is_gzip else self.path).suffix.lower()[1:]
        return suffix if suffix in (_TEXT if self.is_gzip else _KINDS) else ""

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
    sources: dict[Source, None] = {}
    for name in names:
        if (source := Source(name)) == STDIN:
            raise UserError("-: prepare reads files; write standard input to a file first.")
        if not source.is_file:
            sources[source] = None
            continue
        if _ADDRESS.match(name):
            raise UserError(f"{name}: addresses are not read; download the file, and name it.")
        if not name:
            raise UserError("a source is an empty string, ''; name a file, or . for this folder.")
        path = source.path
        status = _status(path)
        if status and _is_under(path, without):
            raise UserError(f"{name}: would be both read and written; name another `out`.")
        if status and stat.S_ISDIR(status.st_mode):
            files = _files_in(path, without)
        elif glob.has_magic(name) and not status:
            files = sorted(p for p in _matches(name) if not (p.is_dir() or _is_under(p, without)))
            if not files:
                raise UserError(f"{name}: no file matches; check the pattern.")
        else:
            files = [path]
        for file in files:
            check_source(Source(str(file)))
            # DuckDB would expand a leading ~ to a home folder.
            sources[Source(str(file.absolute() if str(file)[0] == "~" else file))] = None
    # A file with two names is read once.
    return list({source.place: source for source in sources}.values())


def manifest_names(sources: Sequence[Source]) -> list[str]:
    """Return the name of each source in a manifest: a file's name.

    If files in different folders have the same name, as many parent folders are put before it as
    are needed to distinguish them.
    """
    parts = [source.place for source in sources]
    depths = [1] * len(parts)
    while True:
        names = ["/".join(part[-depth:]) for part, depth in zip(parts, depths, strict=True)]
        counted = Counter(names)
        longer = [
            depth + 1 if counted[name] > 1 and depth < len(part) else depth
            for name, part, depth in zip(names, parts, depths, strict=True)
        ]
        if longer == depths:
            # Not every name is UTF-8.
            return [name.encode("utf-8", "replace").decode() for name in names]
        depths = longer


def check_source(source: Source) -> None:
    """Raise UserError unless `source` is no file, or one of a known kind; reads two bytes."""
    if source == STDIN and sys.stdin is None:
        raise UserError("-: standard input is closed; name a file.")
    if not source.is_file:
        return
    path = source.path
    status = _status(path)
    if not status:
        why = "is a broken link" if path.is_symlink() else "there is no such file"
        raise UserError(f"{source}: {why}; check the name. Texts are read from files.")
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"{source}: is a folder; name the files in it, such as {source}/*.json.gz")
    if not stat.S_ISREG(status.st_mode):  # Opening a pipe would wait for its writer.
        raise UserError(
            f"{source}: is a pipe, a socket or a device, not a file; write its output to a file "
            "and name that, or leave it out."
        )
    if source.kind == "parquet":
        try:
            source.name.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{source}: its name is not UTF-8, so DuckDB cannot open this Parquet file; "
                "rename it."
            ) from error
        return
    if source.kind not in _TEXT:
        raise UserError(
            f"{source}: a file of an unknown kind ({path.suffix or 'its name has no suffix'}); "
            f"known kinds are {_known()}."
        )
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error.strerror}") from error
    if is_gzip and not source.is_gzip:
        raise UserError(f"{source}: is compressed with gzip; rename it to {path.name}.gz")
    if not is_gzip and source.is_gzip:
        raise UserError(f"{source}: is not gzip, though its name ends in .gz; remove the .gz.")


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a path, None if nothing exists; raise UserError if it is unknown."""
    try:
        return path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise UserError(f"{path}: {error.strerror}; check the name.") from error


def _files_in(folder: Path, without: Collection[Path]) -> list[Path]:
    """Return the files to read in a named folder."""
    known = [path for path in _shown_in(folder, without) if Source(str(path)).kind in _KINDS]
    # Entries that are not files are not skipped silently: `check_source` reports them.
    files = sorted(path for path in known if not path.is_file() or path.stat().st_size)
    if not files:
        raise UserError(
            f"{folder}: all files of a known kind in this folder are empty, such as {min(known)}."
            if known
            else f"{folder}: this folder has no file of a known kind; known kinds are {_known()}."
        )
    return files


def _shown_in(folder: Path, without: Collection[Path]) -> Iterator[Path]:
    """Yield what is in a folder and its subfolders, except folders and hidden entries."""
    # As Spark does: part files may be empty, and names of other files begin with . or _.
    for inner in _folders_in(folder, "._"):
        if not _is_under(inner, without):
            for path in inner.iterdir():
                if path.name[0] not in "._" and not (path.is_dir() or _is_under(path, without)):
                    yield path


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
        place = status.st_dev, status.st_ino
        # A link may point to a folder that contains it.
        inner[:] = [] if place in seen else sorted(n for n in inner if n[0] not in hidden)
        if place not in seen:
            seen.add(place)
            yield Path(root)


def _matches(pattern: str) -> set[Path]:
    """Return what a pattern matches, as `glob.glob` does, but each folder of a ** only once."""
    parts = Path(pattern).parts
    if "**" not in parts:
        return set(map(Path, glob.glob(pattern)))
    cut = parts.index("**")
    rest = parts[cut + 1 :] or ("*",)
    return {
        match
        for top in (_matches(str(Path(*parts[:cut]))) if cut else [Path()])
        if top.is_dir()
        for folder in _folders_in(top, ".")
        for match in _matches(str(Path(glob.escape(str(folder)), *rest)))
    }


def _is_under(path: Path, folders: Collection[Path]) -> bool:
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):  # A loop of links is under no folder.
        return False
    return any(resolved == folder or folder in resolved.parents for folder in folders)


def _known() -> str:
    return f"{', '.join(f'.{kind}' for kind in _TEXT)}, each also with .gz after it, and .parquet"
