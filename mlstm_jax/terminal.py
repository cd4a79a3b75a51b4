"""Output for people: safe text, standard streams, and the progress of long operations.

A character that would control the terminal is shown as an escape. Corpora, labels, file names and
generated text are untrusted. An escape sequence in them could clear the screen or set the window
title; a direction mark could reverse a message.
"""

import errno
import html
import importlib.util
import io
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mlstm_jax.errors import FileError, with_remedy

if TYPE_CHECKING:
    from rich.progress import Progress

# C0 except tab and newline; DEL and C1; Unicode line and direction marks; lone surrogates.
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKUP = re.compile(r"[\\`*_\[\]|~]")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")

_SECONDS_BETWEEN_PLAIN_LINES = 10.0
SLOW_SECONDS = 2.0


def printable(text: object) -> str:
    r"""Return a text with escapes, such as \x1b or \u202e, but keep newlines and tabs."""
    return _STEERS.sub(lambda match: ascii(match[0])[1:-1], str(text))


def uncoloured(text: str) -> str:
    """Return a library's coloured text without colours, and with escapes."""
    return printable(_COLOUR.sub("", text))


def one_line(text: object) -> str:
    r"""Return a text with escapes, including \n and \t: for a table cell."""
    return printable(text).replace("\n", r"\n").replace("\t", r"\t")


def markdown(text: object) -> str:
    """Return a text for a cell of a Markdown table that any renderer shows as it is: no HTML."""
    return _MARKUP.sub(r"\\\g<0>", html.escape(one_line(text), quote=False))


def message(text: object) -> str:
    """Return a message with escapes and further lines indented, so that none looks like another."""
    return printable(text).replace("\n", "\n  ")


def show(text: object, *, end: str = "\n") -> None:
    """Print a text with escapes to standard output, and flush."""
    print(printable(text), end=end, flush=True)


def tell(text: object) -> None:
    """Print a message with escapes to standard error, whatever that is; see `write_error`."""
    write_error(f"{printable(text)}\n")


def write_error(text: str) -> None:
    """Write a text as it is to standard error; a message that nobody gets must not end the work.

    A program may have replaced the stream by None, by a closed file, or by any object with `write`.
    """
    if sys.stderr is None:  # print would take standard output.
        return
    with suppress(Exception):
        print(text, file=sys.stderr, end="", flush=True)


@contextmanager
def told_if_slow(text: str, *, unless: bool = False) -> Iterator[None]:
    """Print `text` to standard error if the work within takes more than two seconds."""
    if unless:
        yield
        return
    timer = threading.Timer(SLOW_SECONDS, tell, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def is_terminal(stream: Any) -> bool:
    """Whether a standard stream, or what has replaced it, is a terminal."""
    with suppress(Exception):
        return bool(stream.isatty())
    return False


def leave() -> None:
    """Show the cursor, which a progress line may have hidden, and flush the standard streams."""
    if is_terminal(sys.stderr):
        write_error("\x1b[?25h")
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


class _Output(io.FileIO):
    """Standard output, whose errors name it, or standard error, which loses what it cannot write.

    A message that nobody gets must not end the work.
    """

    def __init__(self, number: int, *, of_messages: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self._of_messages = of_messages

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self._of_messages:
                return len(data)
            if error.errno in (errno.EIO, errno.EPIPE):  # The terminal or the pipe is closed.
                raise
            raise FileError(with_remedy("standard output: cannot be written", error)) from error


def open_streams() -> None:
    """Make the standard streams safe to write to.

    A stream that the parent has closed is replaced, so that no file gets its number. What is
    written to standard output then is an error, as in other programs. A character that the
    encoding of a stream does not have becomes a question mark.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            flag = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            file = os.open(os.devnull, flag)  # takes the lowest free number, which is that stream's
            stream = open(file, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        old = getattr(sys, name)
        if name == "stdin" or not isinstance(old, io.TextIOWrapper) or old.closed:
            continue
        if old is getattr(sys, f"__{name}__"):
            raw = _Output(old.fileno(), of_messages=name == "stderr")
            new = io.TextIOWrapper(
                raw if old.write_through else io.BufferedWriter(raw),
                encoding=old.encoding,
                line_buffering=old.line_buffering,
                write_through=old.write_through,
            )
            setattr(sys, name, new)
        getattr(sys, name).reconfigure(errors="replace")


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
        self._name = name
        self._total = total
        self._done = done
        self._quiet = quiet
        self._of_bytes = of_bytes
        # The first step includes compilation, so the estimate starts at the first update.
        self._first: int | None = None
        self._started = 0.0
        self._printed = time.monotonic()
        self._live: Progress | None = None
        if quiet:
            return
        from rich.console import Console  # not needed for --help

        # Names and texts have brackets and colons.
        shown = Console(stderr=True, markup=False, emoji=False, highlight=False)
        # In a notebook, rich updates a bar in place if there are widgets.
        has_widgets = shown.is_jupyter and importlib.util.find_spec("ipywidgets")
        if is_terminal(sys.stderr) or has_widgets:
            from rich import progress

            self._live = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(bar_width=24),
                progress.TextColumn("{task.fields[count]}"),
                progress.TextColumn("{task.fields[status]}", markup=False),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(elapsed_when_finished=False),
                progress.TextColumn("left"),
                console=shown,
            )
            self._task = self._live.add_task(
                name, total=total, completed=done, count=self._count(), status=status
            )

    def __enter__(self) -> "ProgressLine":
        with self._terminal():
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
            if self._first is None:
                self._first = step
                self._started = now
            speed = 0.0
            if step > self._first and now > self._started:
                speed = (step - self._first) / (now - self._started)
            if self._of_bytes and speed:
                status = rate(speed)
            if self._live:
                self._live.update(self._task, completed=step, count=self._count(), status=status)
            elif now - self._printed >= _SECONDS_BETWEEN_PLAIN_LINES:
                self._printed = now
                line = f"{self._name} {self._count()}  {status}"
                if speed:
                    line += f"  {timedelta(seconds=round((self._total - step) / speed))} left"
                tell(line)

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
                self._live.console.print(printable(text), soft_wrap=True)
            elif not self._quiet:
                tell(text)

    @contextmanager
    def _terminal(self) -> Iterator[None]:
        """Stop printing when the terminal cannot be written; the work continues."""
        try:
            yield
        except Exception:  # of a closed terminal, or of what has replaced the stream
            self._live = None
            self._quiet = True


def rate(bytes_per_second: float) -> str:
    """Format a rate in decimal units."""
    return f"{file_size(bytes_per_second)}/s"


def file_size(count: float) -> str:
    """Format a number of bytes in decimal units."""
    size, unit = _unit(count)
    digits = 0 if unit == "B" else 1
    return f"{count / size:.{digits}f} {unit}"


def _unit(count: float) -> tuple[float, str]:
    """Return the largest decimal unit of bytes that is not above `count`."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return size, unit
    return 1.0, "B"
