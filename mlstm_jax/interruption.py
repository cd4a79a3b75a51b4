"""SIGTERM and Ctrl-C during work that is then undone: one line, and the exit code of a shell.

Libraries convert an exception raised by a signal into errors of their own, so any exception after a
signal counts as the interruption.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from mlstm_jax.errors import KnownError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KnownError):
    """A signal ended the work; the exit code is 128 plus its number, as in a shell."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(f"stopped by {received.name}; no temporary files are left.")
        self.exit_code = 128 + received


class _Received(KeyboardInterrupt):
    """A subclass of KeyboardInterrupt, because Python treats that class itself specially.

    If it leaves Python code that a C library runs (`PyRun_String`), Python records it and ends the
    process with SIGINT at exit, even if the exception was handled.
    """


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at the first signal, and Interrupted at its end."""
    received: list[signal.Signals] = []

    def stop(number: int, frame: object) -> None:
        # Once: a second signal must not interrupt the cleanup that the first started.
        if not received:
            received.append(signal.Signals(number))
            raise _Received

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # ignored in a shell's background jobs
            signal.signal(number, stop)
    try:
        yield
    except BaseException as error:
        if not received:
            raise
        raise Interrupted(received[0]) from error
    finally:
        if not received:  # otherwise the program is exiting, and no signal may disturb that
            for number, handler in before.items():
                signal.signal(number, handler)
