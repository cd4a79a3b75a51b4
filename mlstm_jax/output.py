"""Files and folders to write: whether they can be, and whole or not at all.

A file or folder is written under a temporary name beside its own, and renamed at the end.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlstm_jax.errors import FileError, KnownError, UserError


def require_folder(folder: Path) -> None:
    """Raise UserError unless a folder exists or can be made, and can be written in.

    This is tried in the nearest folder that exists: permissions alone do not tell, as in /proc.
    """
    nearest = next((place for place in (folder, *folder.parents) if place.exists()), Path())
    if not nearest.is_dir():
        raise UserError(
            f"{folder}: cannot be made: {nearest} is a file; choose another folder with --out."
        )
    try:
        with tempfile.TemporaryDirectory(prefix=".mlstm-jax-", dir=nearest):
            pass
    except OSError as error:
        raise UserError(
            f"{folder}: nothing can be written in {nearest} ({error.strerror or error}); choose "
            "another folder with --out."
        ) from error


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a FileError: `path` cannot be written."""
    try:
        yield
    except KnownError:
        raise
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def atomic_file(path: Path, suffix: str = ".partial") -> Iterator[Path]:
    """Give the name of a temporary file to write, which becomes `path` if there is no error.

    Args:
        path: of the file to make or replace.
        suffix: of the temporary name; one of its own where several processes write the same file.
    """
    partial = path.with_name(f"{path.name}{suffix}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file of UTF-8, whole or not at all."""
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def atomic_directory(out: Path, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Give a temporary folder to fill, which becomes `out` if the block ends without an error.

    Args:
        out: the folder to make, or to replace as a whole.
        check: raises where `out` must not be replaced; called again at the end, since another
            process may have made it meanwhile.

    Raises:
        UserError: it cannot be written.
    """
    partial = partial_folder(out)
    aside = partial.with_name(f"{partial.name}.old")
    try:
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
    except KnownError:
        raise
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def partial_folder(out: Path) -> Path:
    """Return the name of this process's temporary folder for `out`, beside it."""
    return out.with_name(f".{out.name}.partial-{os.getpid()}")


def remove_leftovers(out: Path) -> None:
    """Remove the temporary folders for `out` of processes that were killed on this machine."""
    if not out.parent.is_dir():
        return
    pattern = re.compile(re.escape(f".{out.name}.partial-") + r"(\d+)(\.old)?")
    for folder in out.parent.iterdir():
        match = pattern.fullmatch(folder.name)
        # This process has made none yet: one of its number is of an earlier process.
        if match and (int(match[1]) == os.getpid() or not _is_alive(int(match[1]))):
            if not match[2]:
                shutil.rmtree(folder, ignore_errors=True)
            elif out.exists():
                _remove_aside(folder)
            else:  # Killed when the old folder was aside, the new not there.
                os.rename(folder, out)


def _remove_aside(aside: Path) -> None:
    """Remove an old folder, renamed first, so that no later process brings back a part of it."""
    if aside.exists():
        partial = aside.with_suffix("")
        shutil.rmtree(partial, ignore_errors=True)
        os.rename(aside, partial)
        shutil.rmtree(partial, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # no signal, only whether one could be sent
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # someone else's
    return True
