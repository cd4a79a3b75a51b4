"""A split's bytes on disk: each block is compared with its checksum when it is first read.

They are read with `pread`, because a mapped file that becomes shorter, or that the disk cannot
read, would end the process with a signal.
"""

import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.digest import BLOCK, of_blocks
from mlstm_jax.errors import UserError

_THREADS = min(8, os.cpu_count() or 1)  # the first step reads a new block for each row


class CheckedBytes:
    """The bytes of a file, uint8; a slice, or all as an array, is a copy."""

    def __init__(self, path: Path, sums: str) -> None:
        """Open a file whose blocks have the checksums `sums`; see `digest.BlockSums`.

        Raises OSError if it cannot be opened.
        """
        self._path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._size = os.fstat(self._file).st_size
        self._sums = [sums[at : at + 8] for at in range(0, len(sums), 8)]
        self._is_checked = np.zeros(-(-self._size // BLOCK), np.bool_)
        if len(self._sums) != len(self._is_checked):
            raise OSError(f"it has {self._size:,} bytes, in {len(self._sums):,} blocks")

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, where: slice) -> NDArray[np.uint8]:
        start, stop, step = where.indices(self._size)
        return self._read(start, max(start, stop))[::step]

    def __array__(
        self, dtype: np.dtype | None = None, copy: bool | None = None
    ) -> NDArray[np.uint8]:
        return self[:].astype(dtype or np.uint8, copy=False)

    def windows(self, start_B: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
        """Return `width` bytes from each start, uint8 [B, width], with zeros past the end.

        Raises:
            UserError: a block differs from its checksum, or the file cannot be read.
        """
        bytes_BT = np.zeros((len(start_B), width), np.uint8)
        touched_BK = start_B[:, None] + np.append(np.arange(0, width, BLOCK), width - 1)
        self._check(np.minimum(touched_BK, self._size - 1) // BLOCK)
        flat = bytes_BT.reshape(-1).data
        for at, start in zip(range(0, len(flat), width), start_B.tolist(), strict=True):
            self._fill(flat[at : at + width][: max(0, self._size - start)], start)
        return bytes_BT

    def _read(self, start: int, stop: int) -> NDArray[np.uint8]:
        self._check(np.arange(start // BLOCK, -(-stop // BLOCK)))
        buffer = np.empty(stop - start, np.uint8)
        self._fill(buffer.data, start)
        return buffer

    def _check(self, blocks: NDArray[np.int64]) -> None:
        if self._is_checked[blocks].all():
            return
        new = [block for block in np.unique(blocks).tolist() if not self._is_checked[block]]
        if len(new) == 1:
            self._check_block(new[0])
            return
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
                    f"{self._path}: cannot be read: {error.strerror}; check the disk or the file "
                    "server."
                ) from error
            if not count:
                raise UserError(
                    f"{self._path}: became shorter while it was read: it ends at byte "
                    f"{start:,}, not {self._size:,}; copy the corpus again, or run prepare "
                    "again."
                )
            buffer, start = buffer[count:], start + count
