"""SIGINT, SIGTERM and SIGHUP: recorded in one process, shared by all, handled between steps."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mlstm_jax.errors import KnownError
from mlstm_jax.terminal import show

# A device adds its signal's weight to a sum that all devices see: one SIGINT outweighs a million
# SIGTERMs, and one SIGTERM a million SIGHUPs.
WEIGHTS = {signal.SIGHUP: 1.0, signal.SIGTERM: 2.0**20, signal.SIGINT: 2.0**40}


class Interrupted(KnownError):
    """A signal asked the run to stop; its state is in a checkpoint."""

    def __init__(self, received: signal.Signals, step: int, total: int, exit_code: int) -> None:
        super().__init__(
            f"{received.name}: stopped at step {step} of {total} with a checkpoint; "
            "the same command resumes from there."
        )
        self.exit_code = exit_code


def received(total: float) -> signal.Signals:
    """Return the strongest signal in a sum of weights."""
    return max(WEIGHTS, key=lambda number: WEIGHTS[number] if WEIGHTS[number] <= total else 0.0)


@contextmanager
def collect() -> Iterator[list[signal.Signals]]:
    """Record the signals in a list, so that the loop can stop between two steps.

    A second signal has its previous effect. If SIGHUP is ignored, as under nohup, it stays ignored.
    A note on standard error confirms the first at once, even in a long step or a compilation.
    """
    received: list[signal.Signals] = []
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # Python runs handlers between two of its instructions, but writes to this pipe immediately.
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_confirm, args=(reading,), daemon=True).start()
    before = {number: signal.getsignal(number) for number in WEIGHTS}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: object) -> None:
        received.append(signal.Signals(number))
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield received
    finally:
        restore()
        signal.set_wakeup_fd(wakeup)
        os.close(writing)


def _confirm(reading: int) -> None:
    """Print a note for the first signal that arrives; end when the pipe is closed."""
    with open(reading, "rb", buffering=0) as pipe:
        while number := pipe.read(1):
            if number[0] in WEIGHTS:
                name = signal.Signals(number[0]).name
                with contextlib.suppress(OSError):  # The terminal may be closed.
                    show(f"{name}: stopping with a checkpoint after this step", file=sys.stderr)
                return
