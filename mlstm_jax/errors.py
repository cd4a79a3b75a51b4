"""Errors whose message is all that a user needs; the command prints it, without a traceback."""

import errno
import os


class KnownError(Exception):
    """The message says what happened and what to do.

    Attributes:
        exit_code: what the command exits with.
    """

    exit_code = 1


class UserError(KnownError, ValueError):
    """A mistake in what the user gave: the message names it, where it is, and what to do."""

    exit_code = 2


class FileError(KnownError, OSError):
    """A file could not be written, or not be read back."""

    # OSError would print its numbers.
    __str__ = KnownError.__str__


class InUse(UserError):
    """Another process trains in the run folder."""


_REMEDIES = (
    ((errno.ENOSPC, errno.EDQUOT), "Free some space there"),
    ((errno.EFBIG,), "Raise the limit on the size of a file (ulimit -f)"),
    ((errno.EROFS,), "The file system is read-only: make it writable"),
    ((errno.EACCES, errno.EPERM), "Allow this user to write there"),
    ((errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP), "Name another place"),
    ((errno.EMFILE, errno.ENFILE), "Raise the limit on open files (ulimit -n)"),
    ((errno.EIO, errno.ESTALE), "See whether the disk or its server works"),
)


def remedy(error: BaseException) -> str | None:
    """Return what a user can do about a file that could not be written; None if unknown.

    Libraries wrap the system's errors, so its message counts as well as its number.
    """
    text = str(error)
    for numbers, advice in _REMEDIES:
        if getattr(error, "errno", None) in numbers or any(
            os.strerror(number) in text for number in numbers
        ):
            return advice
    return None
