"""Find the sources that names, folders and patterns stand for."""

import glob
import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from mlstm_jax.corpora.formats import FORMATS, known_formats
from mlstm_jax.corpora.sources import Source, check_source, status_of
from mlstm_jax.errors import UserError, first_of, note

_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")


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
    status = status_of(path) if is_path else None
    is_output = status and _is_under(path, without)
    for is_wrong, why in (
        (name == "-", "prepare reads files; write standard input to a file first."),
        (name and not is_path, "addresses are not read; download the file, and name it."),
        (not name, "this name is empty; name a file, or . for this folder."),
        (is_output, "it would be both read and written; name another `out`."),
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
            if Source(str(path)).format not in FORMATS.values():
                unknown.append(path)
            elif path.is_file() and not path.stat().st_size:
                empty.append(path)
            else:
                files.append(path)
    if not files:
        why = f"this folder has no file of a known kind; known kinds are {known_formats()}."
        if empty:
            why = f"all files of a known kind in this folder are empty, such as {min(empty)}."
        raise UserError(f"{folder}: {why}")
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
