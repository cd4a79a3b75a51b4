"""The bytes of a file of a corpus, each block of which is checked when it is first read."""

import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.digest import BLOCK, of_blocks
from mlstm_jax.errors import UserError
from mlstm_jax.fields import InvalidField

_THREADS = min(8, os.cpu_count() or 1)  # the first step reads a new block for each row


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
