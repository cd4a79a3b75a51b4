"""The watchdog: it reports where a run is stuck, and ends it.

A collective that a process never joins, a file system that does not answer and a deadlock look the
same from outside: nothing happens, forever, and the machines cost money. A process without progress
for the given time writes the stack of each of its threads and ends; its supervisor can then restart
it from the last checkpoint.
"""

import contextlib
import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mlstm_jax.checkpoints import meta
from mlstm_jax.errors import KnownError


class Stuck(KnownError):
    """The run has made no progress for too long."""


class Watchdog:
    """Ends the process unless `beat` is called every `seconds`; a context manager.

    Time in which the process is suspended (SIGSTOP, SIGTSTP) does not count.

    Attributes:
        folder: the run folder, once it is known.
        index: index of this process.
    """

    def __init__(
        self, seconds: float, stop: Callable[[BaseException], None], index: int = 0
    ) -> None:
        self.folder: Path | None = None
        self.index = index
        self._seconds, self._stop = seconds, stop
        self._done = threading.Event()
        self.beat("starting")

    def beat(self, doing: str) -> None:
        """Record progress, and what the run does next."""
        self._doing, self._last = doing, time.monotonic()

    def __enter__(self) -> "Watchdog":
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()

    def _watch(self) -> None:
        pause = min(5.0, self._seconds / 4)
        awake = time.monotonic()
        while not self._done.wait(pause):
            before, awake = awake, time.monotonic()
            # This thread, too, has not run: the process was suspended, by Ctrl-Z or a scheduler.
            if awake - before > 2 * pause:
                self._last += awake - before - pause
            if awake - self._last > self._seconds:
                self._bite()

    def _bite(self) -> None:
        where, steps = "", []
        # The process must end even if the stacks cannot be written.
        with contextlib.suppress(OSError, ValueError):
            faulthandler.dump_traceback(sys.stderr)
        if self.folder:
            stacks = self.folder / f"stacks-{self.index}.txt"
            with contextlib.suppress(OSError):
                steps = meta.steps_in(self.folder)
                with stacks.open("w") as file:
                    faulthandler.dump_traceback(file)
                where = f" (also in {stacks})"
        ending = (
            f"The same command resumes from the checkpoint of step {steps[-1]}"
            if steps
            else "There is no checkpoint yet: the same command starts over"
        )
        self._stop(
            Stuck(
                f"no progress for {self._seconds:g} s while {self._doing}; the stack of each "
                f"thread is above{where}. {ending}. If the run was only slow, increase "
                "train.watchdog_seconds."
            )
        )
