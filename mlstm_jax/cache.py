"""The cache of compiled programs, and of what was measured once, in files with a checksum.

JAX's own files have none where `zstandard` is installed: a flipped bit in a program changed its
results, or killed the process.
"""

import hashlib
import os
import platform
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlstm_jax import output
from mlstm_jax.errors import UserError

# The environment variable that names the folder of what is kept.
CACHE = "MLSTM_JAX_CACHE"
_MOST_BYTES = 1 << 30
_CHECKSUM_BYTES = 32
_LEAST_COMPILE_TIME = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"  # of what is kept


class Cache:
    """The entries of a folder, at most 1 GB; what was not used for longest is removed first.

    Processes may share the folder. One that cannot be written keeps nothing, which is no error.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder  # JAX logs the folder of a cache by this name

    def get(self, key: str) -> bytes | None:
        """The bytes of an entry; None: there is none, or it was damaged, and has been removed."""
        path = self._path / key
        with suppress(OSError):
            content = path.read_bytes()
            value = content[_CHECKSUM_BYTES:]
            if content[:_CHECKSUM_BYTES] == _checksum(key, value):
                os.utime(path)
                return value
            path.unlink()
        return None

    def put(self, key: str, value: bytes) -> None:
        """Write an entry, completely or not at all."""
        suffix = f".{os.getpid()}-{threading.get_ident()}"
        with suppress(OSError, UserError):  # UserError: another process writes it.
            self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make_room(len(value) + _CHECKSUM_BYTES)
            with output.atomic_file(self._path / key, suffix) as partial:
                partial.write_bytes(_checksum(key, value) + value)

    def _make_room(self, size: int) -> None:
        """Remove the oldest files, also what killed processes left, until `size` bytes fit."""
        files = []
        for entry in os.scandir(self._path):
            with suppress(OSError):  # Another process may have removed it.
                status = entry.stat()
                files.append((status.st_mtime, status.st_size, entry.path))
                size += status.st_size
        for _, length, path in sorted(files):
            if size <= _MOST_BYTES:
                return
            with suppress(OSError):
                os.unlink(path)
            size -= length


def _checksum(key: str, value: bytes) -> bytes:
    """The sha256 of an entry under its name: a file under another name is damaged, too."""
    return hashlib.sha256(key.encode() + b"\0" + value).digest()


def cache_folder() -> Path | None:
    """The folder for this processor and XLA's flags; None: there is no cache.

    An empty name turns the cache off. So does a folder to which other users can write: what it has
    is executed.
    """
    name = os.environ.get(CACHE)
    if name == "":
        return None
    with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home folder.
        if not name:
            name = f"{os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'}/mlstm_jax"
        place = Path(name).absolute() / _processor()
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = place.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return place
    return None


def _processor() -> str:
    """A name for the processor's kind, by its instructions, and XLA's flags."""
    kind = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kind = "".join(sorted({line for line in lines if line.startswith(("flags", "Features"))}))
    text = f"{platform.machine()} {kind} {os.environ.get('XLA_FLAGS', '')}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def keep_programs() -> None:
    """Let JAX keep its compiled programs here; JAX must not have started."""
    place = cache_folder()
    if place is None:
        return
    import jax
    from jax._src import compilation_cache  # JAX has no public name for a cache of one's own.

    # JAX compresses by what is installed, and its key says zlib where Python, since 3.14, has zstd.
    is_zlib = compilation_cache.compress_executable(b"").startswith(b"x")
    place /= "zlib" if is_zlib else "zstd"
    jax.config.update("jax_compilation_cache_dir", str(place))
    if _LEAST_COMPILE_TIME not in os.environ:
        jax.config.update(_LEAST_COMPILE_TIME.lower(), 0.1)
    programs: Any = Cache(place)  # It has the methods of JAX's CacheInterface.
    compilation_cache._cache = programs
    compilation_cache._cache_initialized = True
