"""This host: its limits, versions and devices, and what it keeps for the next process.

Kept are compiled programs, and the gain of bf16, in files with a checksum. JAX's own files have
none where `zstandard` is installed: a flipped bit in a program changed its results, or killed the
process.
"""

import functools
import hashlib
import math
import os
import platform
import resource
import threading
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import mlstm_jax
from mlstm_jax import __version__, output, shipped

# The environment variable that names the folder of what is kept.
CACHE = "MLSTM_JAX_CACHE"
_MOST_BYTES = 1 << 30
_CHECKSUM_BYTES = 32
_LEAST_COMPILE_TIME = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"  # of what is kept

_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_GROUP = "the limit of its control group (cgroup)"
_LEAST_BF16_GAIN = 1.2  # of bf16, whose results are coarser
_LEAST_BF16_UNITS = 256  # with 64 or 128 the products are not most of the time


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
        with suppress(OSError):
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


def memory_limits() -> dict[str, float]:
    """What limits this process's memory, in bytes by name."""
    limits = {
        "the machine's memory": float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    }
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        limits["the limit on address space (ulimit -v)"] = space
    groups = _OWN_GROUPS.read_text() if _OWN_GROUPS.is_file() else ""
    for line in groups.splitlines():
        if not line.startswith("0::/"):  # of cgroups v1
            continue
        own = _GROUPS / line.removeprefix("0::/")
        for folder in (own, *own.parents):  # each may have a limit
            file = folder / "memory.max"
            if file.is_file() and file.read_text().strip().isdecimal():
                limits[_GROUP] = min(float(file.read_text()), limits.get(_GROUP, math.inf))
    return limits


def versions() -> dict[str, str]:
    """The versions of this package and of the packages that compute."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    # The package itself may be run from a checkout, without being installed.
    return {"mlstm-jax": __version__} | {name: metadata.version(name) for name in names}


def code() -> str:
    """A sha256 of the package's source, used to compare processes."""
    sources = sorted(Path(mlstm_jax.__file__).parent.rglob("*.py"))
    # A wheel has the configs inside the package, a clone next to it; the code is the same.
    code = [path for path in sources if shipped.folder() not in path.parents]
    return hashlib.sha256(b"".join(path.read_bytes() for path in code)).hexdigest()[:12]


def describe_environment() -> dict[str, Any]:
    """Versions, flags and devices for environment.json, without the machine's name."""
    import jax

    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_cores": os.cpu_count(),
        "versions": versions(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "platform": jax.default_backend(),
        "devices": [device.device_kind for device in jax.local_devices()],
        "processes": jax.process_count(),
        "devices_of_all_processes": jax.device_count(),
    }


def fastest_compute(units: int) -> Literal["fp32", "bf16"]:
    """The type of the products that is fastest here for a layer of `units` units."""
    return "bf16" if units >= _LEAST_BF16_UNITS and multiplies_bf16_faster() else "fp32"


@functools.cache
def multiplies_bf16_faster() -> bool:
    """Whether this device multiplies bf16 at least 1.2 times as fast as float32.

    NVIDIA's GPUs do since the A100. On a CPU instructions and XLA decide this, so it is measured
    once (64 rows of 768 units), and the gain is kept.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from mlstm_jax.model.ops import AMPERE, gpu_capability

    if jax.default_backend() != "cpu":
        return (gpu_capability(jax.local_devices()[0]) or (0, 0)) >= AMPERE
    kept = Cache(cache_folder() or Path(os.devnull))
    key = f"bf16_{metadata.version('jaxlib')}"
    known = kept.get(key)
    if known:
        return float(known) >= _LEAST_BF16_GAIN
    product = jax.jit(functools.partial(jnp.dot, preferred_element_type=jnp.float32))
    least = dict.fromkeys(("float32", "bfloat16"), math.inf)
    for _ in range(8):  # other processes lengthen some
        for dtype in least:
            # NumPy's: an operation of jnp outside a program would compile one of its own.
            x = jax.device_put(np.ones((64, 768), jnp.dtype(dtype)))
            w = jax.device_put(np.ones((768, 3072), jnp.dtype(dtype)))
            product(x, w).block_until_ready()  # the first time it compiles
            started = time.perf_counter()
            product(x, w).block_until_ready()
            least[dtype] = min(least[dtype], time.perf_counter() - started)
    gain = least["float32"] / least["bfloat16"]
    kept.put(key, f"{gain:.3f}".encode())
    return gain >= _LEAST_BF16_GAIN
