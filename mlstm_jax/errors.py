"""Errors whose message is all that a user needs; the command prints it, without a traceback."""


class KnownError(Exception):
    """The message says what happened and what to do.

    Attributes:
        exit_code: what the command exits with.
    """

    exit_code = 1


class UserError(KnownError):
    """A mistake in what the user gave: the message names it, where it is, and what to do."""

    exit_code = 2
