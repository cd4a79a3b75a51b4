"""Silence Orbax's logging: errors are raised and shown once anyway."""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# absl: Orbax logs every save at INFO, its thread handling at WARNING, and errors before it raises
# them. asyncio: when one of many files fails, the others report to an event loop that is closed,
# each with a traceback, and hide the one message that matters.
_LOGGERS = ("absl", "asyncio")
# Event loops that an error has closed, or that could not open (too many open files), say this when
# they are deleted.
_OF_LOOPS = ("Event loop is closed", "'_UnixSelectorEventLoop' object has no attribute '_ssock'")


def silence() -> Callable[[], None]:
    """Silence the logging of Orbax's threads in this process; return a function that undoes it."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    hook, filters = sys.unraisablehook, warnings.filters[:]

    def without_closed_loops(unraisable: Any) -> None:
        if str(unraisable.exc_value) not in _OF_LOOPS:
            hook(unraisable)

    def undo() -> None:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        sys.unraisablehook = hook
        warnings.filters = filters

    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.unraisablehook = without_closed_loops
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    return undo


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the logging inside the block, then restore the process."""
    undo = silence()
    try:
        yield
    finally:
        undo()
