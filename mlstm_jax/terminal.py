"""Output for people: a character that would control the terminal is shown as an escape.

Corpora, labels, file names and generated text are untrusted. An escape sequence in them could clear
the screen or set the window title; a direction mark could reverse a message.
"""

import errno
import html
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any, TextIO

from mlstm_jax.errors import FileError, with_remedy

# C0 except tab and newline; DEL and C1; Unicode line and direction marks; lone surrogates.
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKUP = re.compile(r"[\\`*_\[\]|~]")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


def printable(text: object) -> str:
    r"""Return a text with escapes, such as \x1b or \u202e, but keep newlines and tabs."""
    return _STEERS.sub(lambda match: ascii(match[0])[1:-1], str(text))


def one_line(text: object) -> str:
    r"""Return a text with escapes, including \n and \t: for a table cell."""
    return printable(text).replace("\n", r"\n").replace("\t", r"\t")


def markdown(text: object) -> str:
    """Return a text for a cell of a Markdown table that any renderer shows as it is: no HTML."""
    return _MARKUP.sub(r"\\\g<0>", html.escape(one_line(text), quote=False))


def message(text: object) -> str:
    """Return a message with escapes and further lines indented, so that none looks like another."""
    return printable(text).replace("\n", "\n  ")


def show(text: object, *, file: TextIO | None = None, end: str = "\n") -> None:
    """Print a text with escapes and flush; to standard output unless `file` is set."""
    print(printable(text), file=file, end=end, flush=True)


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
    for name, flag in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, flag)  # takes the lowest free number, which is that stream's
            stream = open(file, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        old = getattr(sys, name)
        if name == "stdin" or not isinstance(old, io.TextIOWrapper):
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


class _Printable(io.TextIOBase):
    """A stream, not a terminal, that passes on text with escapes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(printable(_COLOUR.sub("", text)))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


@contextmanager
def quoting(words: Sequence[str]) -> Iterator[None]:
    """Keep standard error printable while it may repeat these words of a command line.

    The command line parser writes there directly, with colours. Nothing changes unless one of the
    words needs escapes, so progress lines stay live.
    """
    if all(printable(word) == word for word in words):
        yield
        return
    with redirect_stderr(_Printable(sys.stderr)):
        yield
