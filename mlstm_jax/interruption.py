"""SIGTERM and Ctrl-C during work that is undone then: one line, and the exit code of a shell.

Libraries turn an exception that a signal has raised into errors of their own, so whatever is raised
after a signal counts as the interruption.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from mlstm_jax.errors import KnownError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KnownError):
    """A signal ended the work; 128 and its number is the exit code, as in a shell."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(f"stopped by {received.name}; no temporary files are left.")
        self.exit_code = 128 + received


class _Received(KeyboardInterrupt):
    """KeyboardInterrupt, but not that class itself.

    Where a C library runs Python code (`PyRun_String`) and that class comes out, Python notes it,
    and ends the process by SIGINT in the end, whatever became of the exception.
    """


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at the first signal, and Interrupted at its end."""
    received: list[signal.Signals] = []

    def stop(number: int, frame: object) -> None:
        # Once: a second signal must not end the tidying up that the first began.
        if not received:
            received.append(signal.Signals(number))
            raise _Received

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as of a shell's background jobs
            signal.signal(number, stop)
    try:
        yield
    except BaseException as error:
        if not received:
            raise
        raise Interrupted(received[0]) from error
    finally:
        if not received:  # else the program is about to end, and no signal may disturb that
            for number, handler in before.items():
                signal.signal(number, handler)
