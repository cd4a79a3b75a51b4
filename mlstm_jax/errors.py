"""Errors whose message is all that a user needs: the command prints it without a traceback."""

import difflib
import errno
import inspect
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_PACKAGE = Path(__file__).parent


class KnownError(Exception):
    """An error whose message states what happened and what to do; the command ends with its code.

    It names arguments and fields as Python does: `data.batch`; cli.py spells them as options.
    """

    exit_code = 1


class UserError(KnownError, ValueError):
    """A mistake in the user's input: the message states what is wrong, where, and what to do."""

    exit_code = 2


def first_line(error: BaseException) -> str:
    """The first line of a library's message, or the type of an error without one."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def first_of(names: Sequence[str], most: int = 5) -> str:
    """The first of some names, as text."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """At most two known names that resemble a word in any case, the nearest first."""
    names = {name.casefold(): name for name in known}
    return [names[one] for one in difflib.get_close_matches(word.casefold(), names, n=2)]


def did_you_mean(names: Iterable[str], otherwise: str = ".") -> str:
    """The end of a message: "; did you mean A or B?", or without names another."""
    joined = " or ".join(names)
    return f"; did you mean {joined}?" if joined else otherwise


def require(holds: bool, name: str, value: object, rule: str) -> None:
    """Raise UserError unless the value of a field holds to its rule."""
    if not holds:
        raise UserError(f"{name} is {value!r}, but it must be {rule}.")


class Note(UserWarning):
    """What a user should know although all went well; the command prints it."""


def note(text: str) -> None:
    """Warn with a note; Python shows it as a warning, the command as a line "note: ...".

    Its place is the line of the user's program that called the package.
    """
    level = 1
    frame = inspect.currentframe()
    while frame and Path(frame.f_code.co_filename).is_relative_to(_PACKAGE):
        frame = frame.f_back
        level += 1
    try:
        warnings.warn(text, Note, stacklevel=level)
    except Note:  # A filter has made it an error.
        raise
    except Exception:  # A closed stream, for example: the work continues.
        return


@contextmanager
def extra(name: str, text: str) -> Iterator[None]:
    """Convert an ImportError in the block into a UserError: a text, and how to install an extra."""
    try:
        yield
    except ImportError as error:
        raise UserError(f"{text}: pip install 'mlstm-jax[{name}]' ({error})") from error


class FileError(KnownError, OSError):
    """A file could not be written or read back."""

    # OSError's own would print error numbers.
    __str__ = KnownError.__str__


class InUse(UserError):
    """Another process is training in the run folder."""


_REMEDIES = (
    ((errno.ENOSPC, errno.EDQUOT), "Free some space there"),
    ((errno.EFBIG,), "Raise the limit on file size (ulimit -f)"),
    ((errno.EROFS,), "The file system is read-only: make it writable"),
    ((errno.EACCES, errno.EPERM), "Allow this user to read and write there"),
    ((errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP), "Choose another path"),
    ((errno.EMFILE, errno.ENFILE), "Raise the limit on open files (ulimit -n)"),
    ((errno.EIO, errno.ESTALE), "Check the disk or the file server"),
)


def _is_one_of(error: BaseException, numbers: Sequence[int]) -> bool:
    """Whether the system raised an error; libraries keep only its message."""
    if isinstance(error, OSError) and error.errno in numbers:
        return True
    text = str(error)
    return any(os.strerror(number) in text for number in numbers)


def remedy(error: BaseException) -> str | None:
    """What a user can do about a file that could not be read or written; None if unknown."""
    for numbers, advice in _REMEDIES:
        if _is_one_of(error, numbers):
            return advice
    return None


def is_of_process(error: BaseException) -> bool:
    """Whether only this process cannot read a file, which says nothing of its content."""
    return _is_one_of(error, (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM))


def with_remedy(text: str, error: OSError) -> str:
    """A message: the text, the system's reason, and what a user can do about it."""
    text += f": {error.strerror or error}."
    if advice := remedy(error):
        text += f" {advice}."
    return text


def explained(error: Exception) -> KnownError | None:
    """An error of the system as one whose message is enough; None for any other error."""
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return KnownError(
            "out of memory (or over the limit of ulimit -v). Use a smaller batch, window, model or "
            "file, or free some memory."
        )
    if isinstance(error, OSError):
        return FileError(
            with_remedy(str(error.filename or "standard output, a file or a connection"), error)
        )
    # Libraries wrap system errors.
    advice = remedy(error)
    if str(error).startswith("Symlink loop"):  # Path.resolve, before Python 3.13
        advice = "Choose another path"
    return FileError(f"{error}. {advice}.") if advice else None
