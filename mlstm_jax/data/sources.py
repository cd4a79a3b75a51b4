"""What a corpus is made from: files, folders, patterns, Python's documentation, TFDS data sets."""

import glob
from collections.abc import Collection, Sequence
from pathlib import Path

from mlstm_jax.errors import UserError

PYDOC = "pydoc:"
TFDS = "tfds:"

TEXT_SUFFIXES = (".json", ".jsonl", ".csv", ".tsv", ".txt")
PARQUET = ".parquet"
_GZIP_MAGIC = b"\x1f\x8b"


def find_sources(names: Sequence[str], without: Collection[Path] = ()) -> list[str]:
    """Return the sources that are named, each once: what is in folders, and what patterns match.

    Args:
        names: files, folders (what is in them, at any depth, of a known kind; not what is empty,
            nor what begins with a dot or an underscore), patterns such as ``reviews/*.json.gz``,
            `pydoc:`, `tfds:NAME[/CONFIG]:SPLIT`.
        without: absolute paths of files and folders to pass over in folders and patterns.

    Raises:
        UserError: there is no such file, it is of an unknown kind, a folder or pattern has none.
    """
    found: dict[str, None] = {}
    for name in names:
        if is_builtin(name):
            found[name] = None
            continue
        path = Path(name)
        if _is_under(path, without):
            raise UserError(f"{name}: would be read and written at once; name another --out.")
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if _is_wanted(p, path, without))
            if not files:
                raise UserError(
                    f"{name}: this folder has no file of a known kind; known are {_known()}."
                )
        elif glob.has_magic(name) and not path.exists():
            matches = map(Path, glob.glob(name, recursive=True))
            files = sorted(p for p in matches if p.is_file() and not _is_under(p, without))
            if not files:
                raise UserError(f"{name}: no file is named so; check the pattern.")
        else:
            files = [path]
        for file in files:
            check_source(file, parquet=True)
            found.setdefault(str(file), None)
    # A file that two names lead to is read once.
    return list({k if is_builtin(k) else str(Path(k).resolve()): k for k in found}.values())


def passed_over(names: Sequence[str], without: Collection[Path] = ()) -> list[Path]:
    """Return the files in named folders that are of no known kind, and so are not read.

    Takes what `find_sources` takes. What is hidden or empty was not meant to be read.
    """
    folders = [Path(name) for name in names if not is_builtin(name) and Path(name).is_dir()]
    return sorted(
        path
        for folder in folders
        for path in folder.rglob("*")
        if not _is_known(path) and _is_shown(path, folder, without)
    )


def is_builtin(name: str) -> bool:
    """Return whether a source is not a file: `pydoc:` or `tfds:...`."""
    return name == PYDOC or name.startswith(TFDS)


def check_source(source: Path, *, parquet: bool = False) -> None:
    """Raise UserError unless `source` is a file of a known kind, or `pydoc:`; reads two bytes."""
    if str(source) == PYDOC:
        return
    try:
        source.stat()
    except OSError as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise UserError(f"{source}: {why}; check the name.") from error
    if source.is_dir():
        raise UserError(f"{source}: is a folder; name the files in it, such as {source}/*.json.gz")
    if parquet and suffix_of(source) == PARQUET:
        return
    if suffix_of(source) not in TEXT_SUFFIXES:
        raise UserError(
            f"{source}: a file of an unknown kind ({source.suffix or 'its name has no suffix'}); "
            f"known are {_known(parquet)}."
        )
    try:
        with source.open("rb") as raw:
            is_gzip = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error.strerror}") from error
    if is_gzip and not is_gzip_name(source):
        raise UserError(f"{source}: is compressed by gzip; rename it to {source.name}.gz")
    if not is_gzip and is_gzip_name(source):
        raise UserError(f"{source}: is not gzip, though its name ends in .gz; take the .gz off.")


def suffix_of(source: Path) -> str:
    """Return the suffix that says what is in a file, without .gz, in small letters."""
    return (Path(source.stem) if is_gzip_name(source) else source).suffix.lower()


def is_gzip_name(source: Path) -> bool:
    """Return whether a file's name says that it is compressed."""
    return source.suffix.lower() == ".gz"


def _is_wanted(path: Path, folder: Path, without: Collection[Path]) -> bool:
    """Return whether to read a file of a folder that was named."""
    return _is_known(path) and _is_shown(path, folder, without)


def _is_known(path: Path) -> bool:
    return suffix_of(path) in TEXT_SUFFIXES or path.suffix.lower() == PARQUET


def _is_shown(path: Path, folder: Path, without: Collection[Path]) -> bool:
    """Return whether a path of a folder is a file with something in it, and not hidden."""
    # As Spark has it: part files may be empty, and other files are marked so.
    hidden = any(part[0] in "._" for part in path.relative_to(folder).parts)
    if hidden or not path.is_file() or _is_under(path, without):
        return False
    return path.stat().st_size > 0


def _is_under(path: Path, folders: Collection[Path]) -> bool:
    resolved = path.resolve()
    return any(resolved == folder or folder in resolved.parents for folder in folders)


def _known(parquet: bool = True) -> str:
    return f"{', '.join(TEXT_SUFFIXES)}, each also with .gz after it" + (
        f", and {PARQUET}" if parquet else ""
    )
