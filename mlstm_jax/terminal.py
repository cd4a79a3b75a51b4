"""Output for people: safe text, standard streams, and the progress of long operations.

A character that would control the terminal is shown as an escape. Corpora, labels, file names and
generated text are untrusted. An escape sequence in them could clear the screen or set the window
title; a direction mark could reverse a message.
"""

import html
import importlib.util
import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

# C0 except tab and newline; DEL and C1; Unicode line and direction marks; lone surrogates.
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKUP = re.compile(r"[\\`*_\[\]|~]")

_SECONDS_BETWEEN_PLAIN_LINES = 10.0
SLOW_SECONDS = 2.0

# How messages spell options: as in Python, `text_column`; see `options_spelled`.
_spell_options: Callable[[str], str] = str


@contextmanager
def options_spelled(spell: Callable[[str], str]) -> Iterator[None]:
    """Spell options by `spell` in the messages of the block, in all threads."""
    global _spell_options
    before = _spell_options
    _spell_options = spell
    try:
        yield
    finally:
        _spell_options = before


def printable(text: object) -> str:
    r"""A text with escapes, such as \x1b or \u202e, but keep newlines and tabs."""
    return _STEERS.sub(lambda match: ascii(match[0])[1:-1], str(text))


def one_line(text: object) -> str:
    r"""A text with escapes, including \n and \t: for a table cell."""
    return printable(text).replace("\n", r"\n").replace("\t", r"\t")


def markdown(text: object) -> str:
    """A text for a cell of a Markdown table that any renderer shows as it is: no HTML."""
    return _MARKUP.sub(r"\\\g<0>", html.escape(one_line(text), quote=False))


def message(text: object) -> str:
    """A message with escapes and further lines indented, so that none looks like another."""
    return _spell_options(printable(text)).replace("\n", "\n  ")


def show(text: object, *, end: str = "\n") -> None:
    """Print a text with escapes to standard output, and flush."""
    print(printable(text), end=end, flush=True)


def tell(text: object, *, end: str = "\n") -> None:
    """Print a message with escapes to standard error; one that nobody gets must not end the work.

    A program may have replaced the stream by None, by a closed file, or by any object with `write`.
    """
    if sys.stderr is not None:  # print would take standard output.
        with suppress(Exception):
            print(printable(text), file=sys.stderr, end=end, flush=True)


@contextmanager
def told_if_slow(text: str, *, unless: bool = False) -> Iterator[None]:
    """Print `text` to standard error if the work within takes more than two seconds."""
    timer = threading.Timer(SLOW_SECONDS, tell, [text])
    timer.daemon = True
    if not unless:
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
        with suppress(Exception):
            sys.stderr.write("\x1b[?25h")
    flush_at_end(sys.stdout)
    flush_at_end(sys.stderr)


def flush_at_end(stream: Any) -> Exception | None:
    """Flush a stream; if it fails, return the error, and drop what Python would write at exit."""
    try:
        stream.flush()
    except Exception as error:
        with suppress(Exception):  # A program may have replaced it by an object without a file.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


def open_streams() -> None:
    """Replace standard streams that the parent has closed, so that no file gets their numbers.

    What is written to standard output then is an error, as in other programs.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            flag = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            file = os.open(os.devnull, flag)  # takes the lowest free number, the stream's own
            opened = open(file, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, opened)
            setattr(sys, f"__{name}__", opened)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.closed:
            stream.reconfigure(errors="replace")  # a character that its encoding does not have


class ProgressLine:
    """Progress of `total` steps on standard error, if `shown`; a context manager.

    `status` is shown until the first update. `of_bytes`: a step is a byte, and their rate is shown.
    """

    def __init__(
        self,
        name: str,
        total: int,
        done: int = 0,
        *,
        status: str = "compiling",
        of_bytes: bool = False,
        shown: bool = True,
    ) -> None:
        self._done = done
        self._shown = shown
        self._printed = time.monotonic()
        if not shown:
            return
        from rich import progress  # not needed for --help
        from rich.console import Console

        # Names and texts have brackets and colons.
        console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        # In a notebook, rich updates a bar in place if there are widgets.
        has_widgets = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        self._is_live = is_terminal(sys.stderr) or has_widgets
        described = progress.TextColumn("{task.description}", markup=False)
        status_column = progress.TextColumn("{task.fields[status]}", markup=False)
        counts: list[progress.ProgressColumn] = [progress.MofNCompleteColumn(), status_column]
        if of_bytes:
            counts = [progress.DownloadColumn(), progress.TransferSpeedColumn()]
        left = progress.TimeRemainingColumn()
        self._plain = [described, *counts, left]
        elapsed = progress.TimeElapsedColumn()
        bar = [described, progress.BarColumn(24), *counts, elapsed, left]
        # The speed counts from the first update: the first step includes compilation.
        self._progress = progress.Progress(
            *bar,
            progress.TextColumn("left"),
            console=console,
            disable=not self._is_live,
            speed_estimate_period=3600.0,
            get_time=lambda: time.monotonic(),
        )
        self._task = self._progress.add_task(name, total=total, completed=done, status=status)

    def __enter__(self) -> "ProgressLine":
        with self._terminal():
            if self._shown:
                self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._terminal():
            if self._shown:
                self._progress.stop()

    def advance(self, steps: int) -> None:
        """Add to the number of steps done."""
        self.update(self._done + steps)

    def update(self, step: int, status: str = "") -> None:
        """Show the number of steps done, and `status` next to it."""
        self._done = step
        if not self._shown:
            return
        with self._terminal():
            self._progress.update(self._task, completed=step, status=status)
            now = time.monotonic()
            if not self._is_live and now - self._printed >= _SECONDS_BETWEEN_PLAIN_LINES:
                self._printed = now
                (task,) = self._progress.tasks
                parts = [str(column.render(task)).strip() for column in self._plain]
                tell("  ".join(filter(None, parts)) + " left")

    def say(self, text: str) -> None:
        """Print a permanent line above the live line."""
        if not self._shown:
            return
        with self._terminal():
            if self._is_live:
                self._progress.console.print(printable(text), soft_wrap=True)
            else:
                tell(text)

    @contextmanager
    def _terminal(self) -> Iterator[None]:
        """Stop printing when the terminal cannot be written; the work continues."""
        try:
            yield
        except Exception:  # of a closed terminal, or of what has replaced the stream
            self._shown = False


def file_size(count: float) -> str:
    """Format a number of bytes in decimal units."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
