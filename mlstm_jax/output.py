"""Write files and folders: check that this is possible, and write all or nothing.

A file or folder is written under a temporary name next to its own, and renamed at the end.
"""

import errno
import fcntl
import glob
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from mlstm_jax.errors import FileError, KnownError, UserError, with_remedy

# Orbax takes [...], * and ? in a path for a pattern; it and TensorBoard need UTF-8.
_PLAIN_PATH = re.compile(r"[\w ./+=,@~-]*", re.ASCII)
_OPEN_FILES = "/proc/self/fd"  # of Linux
# In a temporary folder: its process's lock, and the folder that the new one replaces.
_LOCK = "lock"
_OLD = "old"
# What locking raises on a file system without locks.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


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


def take_lock(file: IO[Any]) -> None:
    """Lock a file until it is closed, which the system does when the process ends.

    Raises BlockingIOError if another process has the lock, or has removed the file since it was
    opened; and OSError if the file system refuses locks.
    """
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        is_there = os.path.samestat(os.fstat(file.fileno()), os.stat(file.name))
    except FileNotFoundError:
        is_there = False
    if not is_there:
        raise BlockingIOError(errno.EAGAIN, "another process has removed it")


def _is_locked_here(file: IO[Any]) -> bool:
    """Lock a file; False if another process has the lock. Where none can be had, all are free."""
    try:
        take_lock(file)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def atomic_file(path: Path, suffix: str = ".partial") -> Iterator[Path]:
    """Yield the name of a temporary file to write; it becomes `path` if there is no error.

    UserError if another process is writing `path`, unless each has a `suffix` of its own.
    """
    partial = path.with_name(f"{path.name}{suffix}")
    # A file of its own: on SMB, what is locked cannot be written by another handle.
    lock = path.with_name(f"{path.name}.lock{suffix}")
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            if not _is_locked_here(file):
                raise UserError(
                    f"another process is writing {path}; wait for it, or choose another name."
                )
            try:
                yield partial
                os.replace(partial, path)
            finally:
                for left in (partial, lock):
                    with suppress(OSError):
                        left.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, completely or not at all."""
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def atomic_directory(out: Path, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield a temporary folder to fill; it becomes `out` if the block ends without an error.

    An existing folder is replaced as a whole, unless `check`, called at the end, raises an error.
    """
    with write_errors(out), temporary_folder(out) as temporary:
        new = temporary / "new"
        new.mkdir()
        yield new
        check()
        if out.exists():
            os.rename(out, temporary / _OLD)
        os.rename(new, out)


@contextmanager
def temporary_folder(out: Path) -> Iterator[Path]:
    """Yield a new folder next to `out`, locked by this process, and removed at the end."""
    remove_leftovers(out)
    while True:
        folder = out.with_name(f".{out.name}.partial-{secrets.token_hex(4)}")
        folder.mkdir(parents=True)
        lock = (folder / _LOCK).open("w")
        if _is_locked_here(lock):
            break
        lock.close()  # Another process has taken it for a leftover.
    try:
        with lock:
            yield folder
    finally:
        try:
            _remove_temporary(folder, out)
        finally:  # where Ctrl-C has interrupted it
            _remove_temporary(folder, out)


def remove_leftovers(out: Path) -> None:
    """Remove the temporary folders for `out` that killed processes have left.

    On a file system without locks they stay, but for an old folder that is to be restored.
    """
    for lock in out.parent.glob(f"{glob.escape(f'.{out.name}')}.partial-*/{_LOCK}"):
        with suppress(OSError), lock.open("a") as file:  # It may be another user's, or gone.
            try:
                take_lock(file)
            except BlockingIOError:
                continue
            except OSError:
                _restore(lock.parent, out)
            else:
                _remove_temporary(lock.parent, out)


def _remove_temporary(folder: Path, out: Path) -> None:
    """Remove a temporary folder; restore the old folder in it if no new one has replaced it."""
    _restore(folder, out)
    with suppress(FileNotFoundError):
        # Under another name, no later process restores what is left of a removed one.
        os.rename(folder / _OLD, folder / "replaced")
    shutil.rmtree(folder, ignore_errors=True)


def _restore(folder: Path, out: Path) -> None:
    """Restore the old folder from a temporary one, if there is one, and no new one replaced it."""
    if not out.exists():
        with suppress(FileNotFoundError):
            os.rename(folder / _OLD, out)


@contextmanager
def plain_path(folder: Path) -> Iterator[Path]:
    """Yield a path of a folder that any library takes as it is.

    Its own, or that of the open folder: a link elsewhere might be removed while a run trains.
    Without /proc, as on macOS, it is its own, and some libraries fail.
    """
    path = os.path.abspath(folder)
    if _PLAIN_PATH.fullmatch(path) or not os.path.isdir(_OPEN_FILES):
        yield Path(path)
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(_OPEN_FILES, str(handle))
    finally:
        os.close(handle)
