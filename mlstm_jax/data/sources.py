"""Sources of a corpus: files, folders, patterns, Python's documentation, TFDS data sets."""

import errno
import glob
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from mlstm_jax.errors import UserError

PYDOC = "pydoc:"
TFDS = "tfds:"

FASTA = (".fasta", ".fa", ".faa")
TEXT_SUFFIXES = (".json", ".jsonl", ".csv", ".tsv", *FASTA, ".txt")
PARQUET = ".parquet"
_GZIP_MAGIC = b"\x1f\x8b"


def find_sources(names: Sequence[str], without: Collection[Path] = ()) -> list[str]:
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
    found: dict[str, None] = {}
    for name in names:
        if is_builtin(name):
            found[name] = None
            continue
        if not name:
            raise UserError("a source is an empty string, ''; name a file, or . for this folder.")
        path = Path(name)
        status = _status(path)
        if status and _is_under(path, without):
            raise UserError(f"{name}: would be both read and written; name another --out.")
        if status and stat.S_ISDIR(status.st_mode):
            files = _files_in(path, without)
        elif glob.has_magic(name) and not status:
            files = sorted(p for p in _matches(name) if not (p.is_dir() or _is_under(p, without)))
            if not files:
                raise UserError(f"{name}: no file matches; check the pattern.")
        else:
            files = [path]
        for file in files:
            check_source(file, parquet=True)
            # DuckDB would expand a leading ~ to a home folder.
            found.setdefault(str(file.absolute() if str(file)[0] == "~" else file), None)
    # A file with two names is read once.
    return list({k if is_builtin(k) else str(Path(k).resolve()): k for k in found}.values())


def passed_over(names: Sequence[str], without: Collection[Path] = ()) -> list[Path]:
    """Return the files in named folders that are of an unknown kind, and so are not read.

    Takes the arguments of `find_sources`. Hidden and empty files are left out: they are not meant
    to be read.
    """
    folders = [Path(name) for name in names if not is_builtin(name) and Path(name).is_dir()]
    return sorted(
        path
        for folder in folders
        for path in _shown_in(folder, without)
        if not _is_known(path) and path.is_file() and path.stat().st_size
    )


def is_builtin(name: str) -> bool:
    """Return whether a source is not a file: `pydoc:` or `tfds:...`."""
    return name == PYDOC or name.startswith(TFDS)


def check_source(source: Path, *, parquet: bool = False) -> None:
    """Raise UserError unless `source` is a file of a known kind, or `pydoc:`; reads two bytes."""
    if str(source) == PYDOC:
        return
    status = _status(source)
    if not status:
        why = "is a broken link" if source.is_symlink() else "there is no such file"
        raise UserError(f"{source}: {why}; check the name.")
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"{source}: is a folder; name the files in it, such as {source}/*.json.gz")
    if not stat.S_ISREG(status.st_mode):  # Opening a pipe would wait for its writer.
        raise UserError(
            f"{source}: is a pipe, a socket or a device, not a file; write its output to a file "
            "and name that, or leave it out."
        )
    if parquet and suffix_of(source) == PARQUET:
        try:
            str(source).encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{source}: its name is not UTF-8, so DuckDB cannot open this Parquet file; "
                "rename it."
            ) from error
        return
    if suffix_of(source) not in TEXT_SUFFIXES:
        raise UserError(
            f"{source}: a file of an unknown kind ({source.suffix or 'its name has no suffix'}); "
            f"known kinds are {_known(parquet)}."
        )
    try:
        with source.open("rb") as raw:
            is_gzip = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error.strerror}") from error
    if is_gzip and not is_gzip_name(source):
        raise UserError(f"{source}: is compressed with gzip; rename it to {source.name}.gz")
    if not is_gzip and is_gzip_name(source):
        raise UserError(f"{source}: is not gzip, though its name ends in .gz; remove the .gz.")


def suffix_of(source: Path) -> str:
    """Return the suffix that shows the kind of a file, without .gz, in lower case."""
    return (Path(source.stem) if is_gzip_name(source) else source).suffix.lower()


def is_gzip_name(source: Path) -> bool:
    """Return whether a file's name ends in .gz."""
    return source.suffix.lower() == ".gz"


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
    known = [path for path in _shown_in(folder, without) if _is_known(path)]
    # Entries that are not files are not skipped silently: `check_source` reports them.
    files = sorted(path for path in known if not path.is_file() or path.stat().st_size)
    if not files:
        raise UserError(
            f"{folder}: all files of a known kind in this folder are empty, such as {min(known)}."
            if known
            else f"{folder}: this folder has no file of a known kind; known kinds are {_known()}."
        )
    return files


def _is_known(path: Path) -> bool:
    return suffix_of(path) in TEXT_SUFFIXES or path.suffix.lower() == PARQUET


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


def _known(parquet: bool = True) -> str:
    return f"{', '.join(TEXT_SUFFIXES)}, each also with .gz after it" + (
        f", and {PARQUET}" if parquet else ""
    )
