"""SIGINT, SIGTERM and SIGHUP: recorded in one process, shared by all, handled between steps."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from mlstm_jax.errors import KnownError

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
    """
    received: list[signal.Signals] = []
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
