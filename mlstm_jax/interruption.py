"""SIGTERM and Ctrl-C during work that is then undone: one line, and the exit code of a shell.

Libraries convert an exception raised by a signal into errors of their own, so any exception after a
signal counts as the interruption.
"""

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mlstm_jax.errors import KnownError

# A second signal within this time must not interrupt the cleanup that the first started.
_SECONDS_OF_CLEANUP = 1.0
_SECONDS_TO_LEAVE_A_CALLBACK = 0.05


class Interrupted(KnownError):
    """A signal ended the work; the exit code is 128 plus its number, as in a shell."""

    def __init__(self, received: signal.Signals, note: str = "") -> None:
        super().__init__(f"interrupted by {received.name}" + (f"; {note}." if note else "."))
        self.exit_code = 128 + received


class _Received(KeyboardInterrupt):
    """A subclass of KeyboardInterrupt, because Python treats that class itself specially.

    If it leaves Python code that a C library runs (`PyRun_String`), Python records it and ends the
    process with SIGINT at exit, even if the exception was handled.
    """


@contextmanager
def interruptible(*signals: signal.Signals, note: Callable[[], str] = str) -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at a signal, and Interrupted at its end.

    An interpreter's callback (of the garbage collector, a weak reference, `__del__`) cannot raise:
    Python ignores the exception there. The signal then arrives once more after the callback.

    Args:
        signals: those to receive, unless they are ignored. In a thread, there are none.
        note: returns what more to say at the end.
    """
    received: list[signal.Signals] = []
    raised = -_SECONDS_OF_CLEANUP

    def stop(number: int, frame: object) -> None:
        nonlocal raised
        now = time.monotonic()
        if now - raised >= _SECONDS_OF_CLEANUP:
            raised = now
            received.append(signal.Signals(number))
            raise _Received

    def repeat_ignored(unraisable: Any) -> None:
        nonlocal raised
        if not isinstance(unraisable.exc_value, _Received):
            hook(unraisable)
            return
        raised = -_SECONDS_OF_CLEANUP
        later = threading.Timer(
            _SECONDS_TO_LEAVE_A_CALLBACK, _thread.interrupt_main, (received[0],)
        )
        later.daemon = True
        later.start()

    hook = sys.unraisablehook
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in signals if in_main}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # ignored in a shell's background jobs
            signal.signal(number, stop)
    sys.unraisablehook = repeat_ignored
    try:
        yield
    except BaseException as error:
        if not received:
            raise
        raise Interrupted(received[0], note()) from error
    finally:
        if sys.unraisablehook is repeat_ignored:
            sys.unraisablehook = hook
        if not received:  # otherwise the program is exiting
            for number, handler in before.items():
                signal.signal(number, handler)
