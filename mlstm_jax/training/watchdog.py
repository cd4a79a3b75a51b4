"""The watchdog: a run that stands still says where, and ends.

A collective whose other side never comes, a file system that does not answer and a deadlock all
look the same from outside: nothing happens, for ever, and the machines cost money. A process that
makes no progress for so long writes what each of its threads was doing and ends; its supervisor can
then start it again from the last checkpoint.
"""

import contextlib
import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from mlstm_jax.checkpoints import meta
from mlstm_jax.errors import KnownError


class Stuck(KnownError):
    """Nothing has happened for too long."""


class Watchdog:
    """Ends the process unless `beat` is called every `seconds`; a context manager.

    Attributes:
        folder: the run folder, once it is known.
        index: number of this process.
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
        """Say that there is progress, and what comes next."""
        self._doing, self._last = doing, time.monotonic()

    def __enter__(self) -> "Watchdog":
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(min(5.0, self._seconds / 4)):
            if time.monotonic() - self._last > self._seconds:
                self._bite()

    def _bite(self) -> None:
        where, steps = "", []
        # The process must end, whether or not its words can be written.
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
            f"The same command goes on from the checkpoint of step {steps[-1]}"
            if steps
            else "There is no checkpoint yet: the same command starts over"
        )
        self._stop(
            Stuck(
                f"no progress for {self._seconds:g} s while {self._doing}: what each thread was "
                f"doing is above{where}. {ending}. If this was no fault, raise "
                "train.watchdog_seconds."
            )
        )
