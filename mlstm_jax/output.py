"""Write files and folders: check that this is possible, and write all or nothing.

A file or folder is written under a temporary name next to its own, and renamed at the end.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlstm_jax.errors import FileError, KnownError, UserError, with_remedy

# Orbax takes [...], * and ? in a path for a pattern; it and TensorBoard need UTF-8.
_PLAIN_PATH = re.compile(r"[\w ./+=,@~-]*", re.ASCII)
_PLACES_OF_LINKS = ("/tmp", "/var/tmp")


def require_folder(folder: Path, name: str = "out") -> None:
    """Raise UserError unless a folder is writable or can be created."""
    nearest = folder
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    why = "is a file" if nearest.exists() else "is a link that leads nowhere"
    try:
        if nearest.is_dir():
            why = "cannot be written"
            # Permissions alone do not show it, as in /proc. The file has no name, where the system
            # can: nothing is left whenever the process ends.
            with tempfile.TemporaryFile(dir=nearest):
                return
    except OSError as error:
        why += f" ({error.strerror or error})"
    raise UserError(
        f"{folder} cannot be created, because {nearest} {why}; choose another folder with `{name}`."
    )


def require_file(
    path: Path | None, source: Path | None = None, *, overwrite: bool = False, name: str = "out"
) -> None:
    """Raise UserError unless a file can be written, or replaced, but never the input `source`."""
    if path is None:
        return
    if not os.path.lexists(path):
        require_folder(path.parent, name)
        return
    if not path.is_file():
        raise UserError(f"`{name}` {path} exists, and is not a file; choose another name.")
    if source and source.exists() and path.samefile(source):
        raise UserError(f"`{name}` {path} is the input, which would be lost; choose another file.")
    if not overwrite:
        raise UserError(
            f"`{name}` {path} exists; choose another file, or replace it with `overwrite=True`."
        )


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Convert an OSError from the block into a FileError: `path` cannot be written."""
    try:
        yield
    except KnownError:
        raise
    except OSError as error:
        raise FileError(with_remedy(f"{path} cannot be written", error)) from error


@contextmanager
def read_errors(what: object) -> Iterator[None]:
    """Convert an OSError from the block into a FileError, unless there is no such file."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, KnownError):
        raise
    except OSError as error:
        raise FileError(with_remedy(f"{what} cannot be read", error)) from error


@contextmanager
def atomic_file(path: Path, suffix: str = ".partial") -> Iterator[Path]:
    """Yield the name of a temporary file to write; it becomes `path` if there is no error.

    If several processes write one file, each needs a `suffix` of its own.
    """
    partial = path.with_name(f"{path.name}{suffix}")
    try:
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, completely or not at all."""
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def atomic_directory(out: Path, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield a temporary folder to fill; it becomes `out` if the block ends without an error.

    An existing folder is replaced as a whole, unless `check`, called at the end, raises an error.
    """
    partial = partial_folder(out)
    aside = partial.with_name(f"{partial.name}.old")
    try:
        with write_errors(out):
            partial.mkdir(parents=True)
            yield partial
            check()
            try:
                if out.exists():
                    os.rename(out, aside)
                os.rename(partial, out)
            finally:
                if aside.exists() and not out.exists():
                    os.rename(aside, out)
            _remove_aside(aside)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def partial_folder(out: Path) -> Path:
    """The name of this process's temporary folder for `out`, next to it."""
    return out.with_name(f".{out.name}.partial-{os.getpid()}")


def remove_leftovers(out: Path) -> None:
    """Remove the temporary folders for `out` that killed processes left on this machine."""
    if not out.parent.is_dir():
        return
    pattern = re.compile(re.escape(f".{out.name}.partial-") + r"(\d+)(\.old)?")
    for folder in out.parent.iterdir():
        match = pattern.fullmatch(folder.name)
        # This process has created none yet: one with its pid is from an earlier process.
        if match and (int(match[1]) == os.getpid() or not _is_alive(int(match[1]))):
            if not match[2]:
                shutil.rmtree(folder, ignore_errors=True)
            elif out.exists():
                _remove_aside(folder)
            else:  # Killed between the two renames: restore the old folder.
                os.rename(folder, out)


def _remove_aside(aside: Path) -> None:
    """Rename and remove an old folder, so that no later process restores a part of it."""
    if aside.exists():
        partial = aside.with_suffix("")
        shutil.rmtree(partial, ignore_errors=True)
        os.rename(aside, partial)
        shutil.rmtree(partial, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing, only checks whether it could
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # another user's process
    return True


@contextmanager
def plain_path(folder: Path) -> Iterator[Path]:
    """Yield a path of a folder that any library takes as it is: its own, or a temporary link."""
    path = os.path.abspath(folder)
    if _PLAIN_PATH.fullmatch(path):
        yield Path(path)
        return
    place = tempfile.gettempdir()
    if not _PLAIN_PATH.fullmatch(place):
        place = next(other for other in _PLACES_OF_LINKS if os.access(other, os.W_OK))
    with tempfile.TemporaryDirectory(prefix="mlstm-jax-", dir=place) as temporary:
        link = Path(temporary, "run")
        link.symlink_to(path)
        yield link
