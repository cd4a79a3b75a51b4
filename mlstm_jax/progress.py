"""Progress of a long operation: a live line in a terminal, plain lines in a log file."""

import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from mlstm_jax.terminal import printable, show

_SECONDS_BETWEEN_PLAIN_LINES = 10.0


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that prints brackets and colons as they are: names and texts have them."""
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


class ProgressLine:
    """Progress of `total` steps on standard error, unless `quiet`; a context manager.

    `status` is shown until the first update.
    """

    def __init__(
        self,
        name: str,
        total: int,
        done: int = 0,
        *,
        status: str = "compiling",
        quiet: bool = False,
    ) -> None:
        self._name, self._total, self._quiet = name, total, quiet
        self._console = console(stderr=True)
        # The first step includes compilation, so the estimate starts at the first update.
        self._since: tuple[int, float] | None = None
        self._printed = time.monotonic()
        self._live: Progress | None = None
        if not quiet and (sys.stderr.isatty() or _draws_in_notebook(self._console)):
            self._live = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[status]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(elapsed_when_finished=False),
                console=self._console,
            )
            self._task = self._live.add_task(name, total=total, completed=done, status=status)

    def __enter__(self) -> "ProgressLine":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._terminal():
            if self._live:
                self._live.stop()

    def update(self, step: int, status: str) -> None:
        """Show the number of steps done, and `status` next to it."""
        with self._terminal():
            if self._live:
                self._live.update(self._task, completed=step, status=status)
                return
            now = time.monotonic()
            self._since = self._since or (step, now)
            if not self._quiet and now - self._printed >= _SECONDS_BETWEEN_PLAIN_LINES:
                self._printed = now
                first, started = self._since
                left = ""
                if step > first:
                    seconds = (now - started) / (step - first) * (self._total - step)
                    left = f"  {_clock(seconds)} left"
                show(f"{self._name} {step}/{self._total}  {status}{left}", file=sys.stderr)

    def say(self, text: str) -> None:
        """Print a permanent line above the live line."""
        with self._terminal():
            if self._live:
                self._console.print(printable(text), soft_wrap=True)
            elif not self._quiet:
                show(text, file=sys.stderr)

    @contextmanager
    def _terminal(self) -> Iterator[None]:
        """Stop printing when the terminal is closed; the work continues."""
        try:
            yield
        except OSError:
            self._live, self._quiet = None, True


def _draws_in_notebook(console: Console) -> bool:
    """Return whether this is a notebook with widgets, where rich can update a bar in place."""
    return console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def rate(bytes_per_second: float) -> str:
    """Format a rate in decimal units."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_per_second >= size:
            return f"{bytes_per_second / size:.1f} {unit}/s"
    return f"{bytes_per_second:.0f} B/s"
