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

    `status` is shown until the first update. `of_bytes`: a step is a byte that is read.
    """

    def __init__(
        self,
        name: str,
        total: int,
        done: int = 0,
        *,
        status: str = "compiling",
        of_bytes: bool = False,
        quiet: bool = False,
    ) -> None:
        self._name, self._total, self._done, self._quiet = name, total, done, quiet
        self._of_bytes = of_bytes
        self._console = console(stderr=True)
        # The first step includes compilation, so the estimate starts at the first update.
        self._since: tuple[int, float] | None = None
        self._printed = time.monotonic()
        self._live: Progress | None = None
        if not quiet and (sys.stderr.isatty() or _draws_in_notebook(self._console)):
            self._live = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[count]}"),
                TextColumn("{task.fields[status]}", markup=False),
                TimeElapsedColumn(),
                TimeRemainingColumn(elapsed_when_finished=False),
                TextColumn("left"),
                console=self._console,
            )
            self._task = self._live.add_task(
                name, total=total, completed=done, count=self._count(), status=status
            )

    def __enter__(self) -> "ProgressLine":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._terminal():
            if self._live:
                self._live.stop()

    def advance(self, steps: int) -> None:
        """Add to the number of steps done."""
        self.update(self._done + steps)

    def update(self, step: int, status: str = "") -> None:
        """Show the number of steps done, and `status` next to it; of bytes, their rate."""
        self._done = step
        if self._quiet:
            return
        with self._terminal():
            now = time.monotonic()
            first, started = self._since = self._since or (step, now)
            speed = (step - first) / (now - started) if step > first and now > started else 0.0
            if self._of_bytes and speed:
                status = rate(speed)
            if self._live:
                self._live.update(self._task, completed=step, count=self._count(), status=status)
            elif now - self._printed >= _SECONDS_BETWEEN_PLAIN_LINES:
                self._printed = now
                left = f"  {_clock((self._total - step) / speed)} left" if speed else ""
                show(f"{self._name} {self._count()}  {status}{left}", file=sys.stderr)

    def _count(self) -> str:
        """Return the number of steps done, of all: 300/600, or 1.2/45.6 MB."""
        if not self._of_bytes:
            return f"{self._done}/{self._total}"
        size, unit = _unit(self._total)
        return f"{self._done / size:.1f}/{self._total / size:.1f} {unit}"

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
    size, unit = _unit(bytes_per_second)
    return f"{bytes_per_second / size:.{0 if unit == 'B' else 1}f} {unit}/s"


def _unit(count: float) -> tuple[float, str]:
    """Return the largest decimal unit of bytes that is not above `count`."""
    units = (1e9, "GB"), (1e6, "MB"), (1e3, "kB")
    return next(((size, unit) for size, unit in units if count >= size), (1.0, "B"))
