"""What the next process on this machine reuses: compiled programs, and how fast it multiplies."""

import contextlib
import functools
import hashlib
import math
import os
import platform
import time
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from mlstm_jax import environment, output

# The environment variable that names the folder of compiled programs.
CACHE = "MLSTM_JAX_CACHE"
_MOST_CACHED_BYTES = 1 << 30
_LEAST_CACHED_SECONDS = 0.1  # of compilation
_A100 = 8.0  # its compute capability
_LEAST_GAIN = 1.2  # of bf16, whose results are coarser
_LEAST_BF16_UNITS = 256  # with 64 or 128 the products are not most of the time


def cache_programs() -> None:
    """Let JAX keep compiled programs on disk, so that each is compiled once per machine.

    MLSTM_JAX_CACHE names the folder, by default mlstm_jax in the user's cache folder; an empty name
    turns the cache off. A program is compiled for one kind of processor, so each kind has its own
    subfolder, in case machines share a home. The function does nothing if JAX has started or
    already has a cache folder (JAX_COMPILATION_CACHE_DIR), or if other users can write to the
    folder: its programs are executed.
    """
    name = os.environ.get(CACHE)
    if name == "" or "JAX_COMPILATION_CACHE_DIR" in os.environ or environment.has_started():
        return
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = (Path(name) if name else Path(home) / "mlstm_jax").absolute() / _machine()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            return
        _remove_incomplete(folder)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder.
        return
    environment.set_variable("JAX_COMPILATION_CACHE_DIR", str(folder))
    # With a size limit JAX holds a lock while it reads and writes, so no process reads a program
    # that another has only partly written.
    for variable, value in (
        ("JAX_COMPILATION_CACHE_MAX_SIZE", _MOST_CACHED_BYTES),
        ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", _LEAST_CACHED_SECONDS),
    ):
        if variable not in os.environ:
            environment.set_variable(variable, value)


def _machine() -> str:
    """Return a name for the kind of processor, derived from the instructions it supports."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kind = "".join(sorted({line for line in lines if line.startswith(("flags", "Features"))}))
    except OSError:
        kind = platform.processor()
    flags = os.environ.get("XLA_FLAGS", "")
    return hashlib.sha256(f"{platform.machine()} {kind} {flags}".encode()).hexdigest()[:16]


def _remove_incomplete(folder: Path) -> None:
    """Remove programs that a killed process has only partly written.

    JAX writes a program and then the time of its last use. A program without a time is incomplete;
    JAX would neither read nor rewrite it.
    """
    from filelock import FileLock, Timeout

    with contextlib.suppress(Timeout), FileLock(folder / ".lockfile", timeout=10):
        for program in folder.glob("*-cache"):
            time = program.with_name(program.name.removesuffix("-cache") + "-atime")
            if not time.is_file() or not program.stat().st_size:
                program.unlink()
                time.unlink(missing_ok=True)


def fastest_compute(units: int) -> Literal["fp32", "bf16"]:
    """Return the type of the products that is fastest here for a layer of so many units."""
    return "bf16" if units >= _LEAST_BF16_UNITS and multiplies_bf16_faster() else "fp32"


@functools.cache
def multiplies_bf16_faster() -> bool:
    """Return whether this device multiplies bf16 at least 1.2 times as fast as float32.

    NVIDIA's GPUs do since the A100. On a CPU instructions and XLA decide this, so it is measured
    (64 rows of 768 units), once for a processor, XLA flags and a version: the gain is kept in the
    folder of compiled programs.
    """
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "cpu":
        return float(getattr(jax.local_devices()[0], "compute_capability", 0)) >= _A100
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    path = Path(folder or os.devnull) / f"bf16_{_machine()}_{metadata.version('jaxlib')}"
    with contextlib.suppress(OSError, ValueError):
        return float(path.read_text()) >= _LEAST_GAIN
    product = jax.jit(partial(jnp.dot, preferred_element_type=jnp.float32))
    least = dict.fromkeys(("float32", "bfloat16"), math.inf)
    for _ in range(8):  # other processes lengthen some
        for dtype in least:
            x, w = jnp.ones((64, 768), dtype), jnp.ones((768, 3072), dtype)
            product(x, w).block_until_ready()  # the first time it compiles
            started = time.perf_counter()
            product(x, w).block_until_ready()
            least[dtype] = min(least[dtype], time.perf_counter() - started)
    gain = least["float32"] / least["bfloat16"]
    with contextlib.suppress(OSError):
        output.write_text(path, f"{gain:.3f}\n")
    return gain >= _LEAST_GAIN
