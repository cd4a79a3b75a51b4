"""Compressed files of lines: how a kind is named, recognised and read, and how it fails."""

import gzip
import io
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple, cast

BUFFER = 1 << 18  # bytes that are read at once


class Compression(NamedTuple):
    """A kind of compressed files of lines: how it is named, recognised and read, and how it fails.

    A reader must fail on a file that is cut short, where zstandard's ends without an error, and on
    other bytes behind the data, which lzma's ignores: whoever adds these must check for both.
    """

    name: str
    suffix: str
    magic: bytes  # the first bytes of a file
    open: Callable[[BinaryIO], BinaryIO]
    errors: tuple[type[Exception], ...]  # of data that are cut short or damaged
    behind: str  # the beginning of the error on other bytes behind whole data


GZIP = Compression(
    name="gzip",
    suffix=".gz",
    magic=b"\x1f\x8b",
    open=cast(Callable[[BinaryIO], BinaryIO], gzip.open),
    errors=(EOFError, gzip.BadGzipFile, zlib.error),
    behind="Not a gzipped file",
)
COMPRESSIONS = (GZIP,)
COMPRESSION_ERRORS: tuple[type[Exception], ...] = tuple(
    error for kind in COMPRESSIONS for error in kind.errors
)
READ_ERRORS: tuple[type[Exception], ...] = (OSError, *COMPRESSION_ERRORS)


class Unpacked(io.RawIOBase):
    """The data of a compressed file, which end before other bytes; `behind` is the error on these.

    Raised at once, it would take with it a last line without its end.
    """

    def __init__(self, kind: Compression, raw: BinaryIO) -> None:
        self._kind = kind
        self._stream = cast(io.BufferedIOBase, kind.open(raw))
        self.behind: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.behind:
            return 0
        try:
            data = self._stream.read1(len(buffer))
        except self._kind.errors as error:
            if not str(error).startswith(self._kind.behind):
                raise
            self.behind = error
            return 0
        buffer[: len(data)] = data
        return len(data)
