"""Compressed files of lines: how each kind is named, recognised and read, and how it fails.

A reader must fail on a file that is cut short. zstandard's ends there without an error, so whoever
adds it must compare the end of the file with its frame.
"""

import gzip
import zlib
from collections.abc import Callable
from typing import BinaryIO, NamedTuple, cast


class Compression(NamedTuple):
    """A kind of compressed file."""

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
ERRORS = tuple(error for kind in COMPRESSIONS for error in kind.errors)
