"""What guards a process: signals, and a watchdog.

`interruptible` is for work that is undone when a signal ends it. `collect` is for training, which
stops between two steps, with a checkpoint. A `Watchdog` ends a run that is stuck, and shows where.
"""

import _thread
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from mlstm_jax.errors import KnownError
from mlstm_jax.terminal import tell

# A device adds its signal's weight to a sum that all devices see: one SIGINT outweighs a million
# SIGTERMs, and one SIGTERM a million SIGHUPs.
WEIGHTS = {signal.SIGHUP: 1.0, signal.SIGTERM: 2.0**20, signal.SIGINT: 2.0**40}

# A second signal within this time must not interrupt the cleanup that the first started.
_SECONDS_OF_CLEANUP = 1.0
_SECONDS_TO_LEAVE_A_CALLBACK = 0.05
_MOST_SECONDS = 1e9  # of a timer of faulthandler


class Interrupted(KnownError):
    """A signal ended the work; by default the exit code is a shell's, 128 plus its number."""

    def __init__(self, text: str, number: signal.Signals, exit_code: int | None = None) -> None:
        super().__init__(text)
        self.exit_code = 128 + number if exit_code is None else exit_code


class _Received(KeyboardInterrupt):
    """Not KeyboardInterrupt itself, with which Python ends a process at exit where C runs it."""


def _handle(
    signals: Iterable[signal.Signals], handler: Callable[[int, Any], None]
) -> Callable[[], None]:
    """Set a handler of signals; return the function that sets the previous ones."""
    before = {number: signal.signal(number, handler) for number in signals}

    def restore() -> None:
        for number, previous in before.items():
            signal.signal(number, previous)

    return restore


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


@contextmanager
def interruptible(note: Callable[[], str] = str) -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at a signal, and Interrupted at its end.

    In a thread, no signal is received. `note` returns what more to say at the end.

    Libraries convert an exception raised by a signal into errors of their own, so any exception
    after a signal counts as the interruption. A callback of the interpreter, such as the garbage
    collector's, cannot raise: the signal then arrives once more after it.
    """
    received: list[signal.Signals] = []
    raised = -_SECONDS_OF_CLEANUP

    def stop(number: int, frame: object) -> None:
        nonlocal raised
        now = time.monotonic()
        if getattr(frame, "f_code", None) is repeat_ignored.__code__:
            repeat()
        elif now - raised >= _SECONDS_OF_CLEANUP:
            raised = now
            received.append(signal.Signals(number))
            raise _Received(number)

    def repeat_ignored(unraisable: Any) -> None:
        nonlocal raised
        if not isinstance(unraisable.exc_value, _Received):
            hook(unraisable)
            return
        raised = -_SECONDS_OF_CLEANUP
        repeat()

    def repeat() -> None:
        # Unlike Thread.start(), this does not wait here, where the signal could not be raised.
        _thread.start_new_thread(interrupt, ())

    def interrupt() -> None:
        time.sleep(_SECONDS_TO_LEAVE_A_CALLBACK)
        # Unlike _thread.interrupt_main(), this also ends a sleep.
        signal.pthread_kill(main_thread, received[0])

    hook = sys.unraisablehook
    in_main = threading.current_thread() is threading.main_thread()
    main_thread = threading.get_ident()  # where no signal is received, it is not used
    # A shell's background jobs ignore signals.
    restore = _handle([one for one in WEIGHTS if in_main and not _is_ignored(one)], stop)
    sys.unraisablehook = repeat_ignored
    try:
        yield
    except BaseException as error:
        if not received:
            raise
        parts = [f"interrupted by {received[0].name}", note()]
        raise Interrupted("; ".join(filter(None, parts)) + ".", received[0]) from error
    finally:
        if sys.unraisablehook is repeat_ignored:
            sys.unraisablehook = hook
        if not received:  # otherwise the program is exiting
            restore()


def strongest(total: float) -> signal.Signals:
    """The strongest signal in a sum of weights."""
    return max((one for one in WEIGHTS if total >= WEIGHTS[one]), key=WEIGHTS.__getitem__)


@contextmanager
def collect() -> Iterator[list[signal.Signals]]:
    """Record SIGINT, SIGTERM and SIGHUP in a list, so that the loop can stop between two steps.

    A note on standard error confirms the first; a second signal has its previous effect. If SIGHUP
    is ignored, as under nohup, it stays ignored.
    """
    received: list[signal.Signals] = []

    def record(number: int, _: object) -> None:
        received.append(signal.Signals(number))
        restore()
        tell(f"{received[0].name}: stopping with a checkpoint, within three steps")

    restore = _handle(
        [one for one in WEIGHTS if one is not signal.SIGHUP or not _is_ignored(one)], record
    )
    try:
        yield received
    finally:
        restore()


class Watchdog:
    """Ends the process unless `beat` is called every `seconds`; a context manager.

    Python writes the stack of each thread to standard error, and ends the process with exit code 1:
    the other processes notice that it is lost. Outside of its context it does nothing.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = min(seconds, _MOST_SECONDS)
        self._file: int | None = None

    def beat(self) -> None:
        if self._file is not None:
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=self._file)

    def __enter__(self) -> "Watchdog":
        self._file = os.open(os.devnull, os.O_WRONLY)
        with contextlib.suppress(Exception):  # Standard error may be closed, or have no file.
            os.dup2(sys.__stderr__.fileno(), self._file, inheritable=False)  # type: ignore[union-attr]
        self.beat()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._file is not None
        faulthandler.cancel_dump_traceback_later()
        os.close(self._file)
        self._file = None
