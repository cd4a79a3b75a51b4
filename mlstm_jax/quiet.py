"""What Orbax says while it works, kept from the user: each error is raised and shown once."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# absl: Orbax reports every save at INFO, its own thread's handling at WARNING, and errors before it
# raises them. asyncio: when one file of many fails, the others report to an event loop that is
# gone, each with a traceback, and bury the one message that matters.
_LOGGERS = ("absl", "asyncio")


def silence() -> Callable[[], None]:
    """Silence the reports of Orbax's threads in this process; return what undoes that."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    hook = sys.unraisablehook

    def without_closed_loops(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            hook(unraisable)

    def undo() -> None:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        sys.unraisablehook = hook

    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.unraisablehook = without_closed_loops
    return undo


@contextmanager
def quiet() -> Iterator[None]:
    """Silence them in the block, and leave the process as it was."""
    undo = silence()
    try:
        yield
    finally:
        undo()
