"""CRC-32 of what the package writes, compared when it is read back; files of checked blocks.

It detects every single flipped bit and every burst of up to 32 bits, and misses one in 2³² other
changes. What identifies a content, such as `weights.fingerprint`, is a sha256 instead.

zlib-ng computes it at 13 to 16 GB/s on one core of an AMD EPYC, Python's zlib at 3.7.
"""

import json
import os
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import fields, output
from mlstm_jax.errors import UserError
from mlstm_jax.fields import InvalidField

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32

FIELD = "crc32"
BLOCK = 1 << 20  # bytes of a file with one checksum

_THREADS = min(8, os.cpu_count() or 1)  # the first step reads a new block for each row


class Extent(NamedTuple):
    """A file up to some byte, and the CRC-32 of what is before it."""

    size: int = 0
    crc32: int = 0

    def extended(self, data: bytes) -> "Extent":
        """The extent after more bytes."""
        return Extent(self.size + len(data), crc32(data, self.crc32))


def of_array(array: Any) -> int:
    """The CRC-32 of an array's type, shape and bytes; a reader may cast to what it expects.

    A zero-dimensional array counts as one of shape [1].
    """
    array = np.ascontiguousarray(array)
    head = f"{array.dtype.name} {array.shape}".encode()
    return crc32(array.reshape(-1).view(np.uint8), crc32(head))


def of_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """The CRC-32 of each array."""
    return {name: of_array(array) for name, array in arrays.items()}


def require_arrays(what: str, actual: Mapping[str, int], sums: Mapping[str, int]) -> None:
    """Raise InvalidField, with `what` they belong to, unless arrays have these checksums."""
    wrong = [name for name in {**actual, **sums} if actual.get(name) != sums.get(name)]
    if wrong:
        raise InvalidField(f"{', '.join(wrong[:3])} of {what} does not match its checksum")


def of_json(values: Any) -> str:
    """The CRC-32 of JSON values as 8 hex digits; spaces and the order of keys are free."""
    return f"{crc32(json.dumps(values, sort_keys=True).encode()):08x}"


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the field `crc32`, computed from its other fields."""
    inner = {name: value for name, value in values.items() if name != FIELD}
    return {**inner, FIELD: of_json(inner)}


def read_json(text: str | bytes) -> dict[str, Any]:
    """The object in the text of a file, without its checksum; see `verified`."""
    return verified(fields.parse(text))


def verified(values: Any) -> dict[str, Any]:
    """The other fields of a sealed object; raise InvalidField if they have changed."""
    if not isinstance(values, Mapping):
        raise InvalidField("it is not an object with named fields")
    if FIELD not in values:
        raise InvalidField(f"it has no {FIELD}: this version did not write it, or it was edited")
    inner = dict(values)
    found = inner.pop(FIELD)
    if found != of_json(inner):
        raise InvalidField(f"its content does not match its {FIELD}: it was damaged or edited")
    return inner


def to_json(values: Mapping[str, Any]) -> str:
    """An object as the text of a file, with its checksum; `read_json` reads it."""
    return json.dumps(sealed(values), indent=2) + "\n"


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write an object with its checksum, atomically."""
    output.write_text(path, to_json(values))


class BlockSums:
    """The checksums of a file's blocks, as its bytes arrive."""

    def __init__(self) -> None:
        self._whole: list[str] = []
        self._sum = 0
        self._size = 0

    def update(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            piece = rest[: BLOCK - self._size]
            self._sum = crc32(piece, self._sum)
            self._size += len(piece)
            if self._size == BLOCK:
                self._whole.append(f"{self._sum:08x}")
                self._sum = 0
                self._size = 0
            rest = rest[len(piece) :]

    def text(self) -> str:
        """The checksums so far, each as 8 hex digits, one after the other."""
        return "".join(self._whole) + (f"{self._sum:08x}" if self._size else "")


def of_blocks(data: bytes | memoryview) -> str:
    """The checksums of the blocks of a whole file's content."""
    sums = BlockSums()
    sums.update(data)
    return sums.text()


class CheckedBytes:
    """The bytes of a file of a corpus, uint8; a slice is a copy.

    Each block is compared with its checksum when it is first read. A mapped file that becomes
    shorter, or that the disk cannot read, would end the process with a signal.
    """

    def __init__(self, path: Path, sums: str) -> None:
        """Open a file whose blocks have the checksums `sums`; InvalidField if it has others."""
        self._path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._size = os.fstat(self._file).st_size
        self._sums = [sums[at : at + 8] for at in range(0, len(sums), 8)]
        self._is_checked = np.zeros(-(-self._size // BLOCK), np.bool_)
        if len(self._sums) != len(self._is_checked):
            raise InvalidField(f"it has {self._size:,} bytes, in {len(self._sums):,} blocks")

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, where: slice) -> NDArray[np.uint8]:
        start, stop, step = where.indices(self._size)
        stop = max(start, stop)
        self._check(np.arange(start // BLOCK, -(-stop // BLOCK)))
        buffer = np.empty(stop - start, np.uint8)
        self._fill(buffer.data, start)
        return buffer[::step]

    def windows(self, start_B: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
        """`width` bytes from each start, uint8 [B, width], with zeros past the end."""
        bytes_BT = np.zeros((len(start_B), width), np.uint8)
        touched_BK = start_B[:, None] + np.append(np.arange(0, width, BLOCK), width - 1)
        self._check(np.minimum(touched_BK, self._size - 1) // BLOCK)
        flat = bytes_BT.reshape(-1).data
        for at, start in zip(range(0, len(flat), width), start_B.tolist(), strict=True):
            self._fill(flat[at : at + width][: max(0, self._size - start)], start)
        return bytes_BT

    def _check(self, blocks: NDArray[np.int64]) -> None:
        new = np.unique(blocks[~self._is_checked[blocks]]).tolist()
        if new:
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(self._check_block, new))

    def _check_block(self, number: int) -> None:
        start = number * BLOCK
        content = memoryview(bytearray(min(BLOCK, self._size - start)))
        self._fill(content, start)
        if of_blocks(content) != self._sums[number]:
            raise UserError(
                f"{self._path}: bytes {start:,} to {start + len(content):,} do not match their "
                "checksum, so the file is damaged; copy the corpus again, or run prepare again."
            )
        self._is_checked[number] = True

    def _fill(self, buffer: memoryview, start: int) -> None:
        """Read bytes from `start` until `buffer` is full."""
        while buffer:
            try:
                count = os.preadv(self._file, [buffer], start)
            except OSError as error:
                raise UserError(
                    f"{self._path} cannot be read: {error.strerror}; check the disk or the file "
                    "server."
                ) from error
            if not count:
                raise UserError(
                    f"{self._path} became shorter while it was read: it ends at byte {start:,}, "
                    f"not {self._size:,}; copy the corpus again, or run prepare again."
                )
            buffer = buffer[count:]
            start += count
