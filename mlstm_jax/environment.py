"""What a process sets before JAX starts, and what it keeps for the next one; its environment.

JAX starts with its first operation on a device, not with its import: until then the number of
virtual CPU devices and of the threads that serve them, flags and the cache can be set. The next
process on this machine reuses compiled programs, and the measured gain of bf16.
"""

import contextlib
import ctypes
import functools
import hashlib
import logging
import math
import mmap
import os
import platform
import re
import resource
import sys
import time
import warnings
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import mlstm_jax
from mlstm_jax import __version__, output, shipped
from mlstm_jax.errors import UserError

if TYPE_CHECKING:
    import jax

    from mlstm_jax.config import Devices

# Fraction of a GPU's memory that a run takes; `plan` assumes the same. JAX's default is 0.75. The
# rest is left to the system and the programs' code.
MEMORY_FRACTION = 0.92
_FRACTION_NAMES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")

_OWN_GROUPS, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_GROUP = "the limit of its control group (cgroup)"
# Address space that JAX and its threads take on two cores before they read a model; with less,
# its C++ ends the process.
_LEAST_ADDRESS_SPACE = 1.8e9

# Excludes kernels that may sum in another order, and kernels chosen by timing at each compilation.
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"

# absl: Orbax logs every save at INFO, its thread handling at WARNING, and errors before it raises
# them. asyncio: when one of many files fails, the others report to an event loop that is closed,
# each with a traceback, and hide the one message that matters.
_LOGGERS = ("absl", "asyncio")
# Event loops that an error has closed, or that could not open (too many open files), say this when
# they are deleted.
_OF_LOOPS = ("Event loop is closed", "'_UnixSelectorEventLoop' object has no attribute '_ssock'")

# The environment variable that names the folder of compiled programs.
CACHE = "MLSTM_JAX_CACHE"
_MOST_CACHED_BYTES = 1 << 30
_LEAST_CACHED_SECONDS = 0.1  # of compilation
_A100 = 8.0  # its compute capability
_LEAST_BF16_GAIN = 1.2  # of bf16, whose results are coarser
_LEAST_BF16_UNITS = 256  # with 64 or 128 the products are not most of the time


def has_started() -> bool:
    """Return whether JAX has started a backend, after which its settings are fixed."""
    if "jax" not in sys.modules:
        return False
    import jax

    name = "jax_num_cpu_devices"
    count = getattr(jax.config, name)
    try:
        jax.config.update(name, count + 1)  # Once a backend has started, JAX refuses a new number.
    except RuntimeError:
        return True
    jax.config.update(name, count)
    return False


# The process in which JAX has started.
_started_in: int | None = None


def _before_fork() -> None:
    global _started_in
    if _started_in is None and has_started():
        _started_in = os.getpid()


os.register_at_fork(before=_before_fork)


def require_own_jax() -> None:
    """Raise UserError in a forked child whose parent had started JAX.

    JAX's threads stay in the parent, so a computation in the child would never end.
    """
    if _started_in not in (None, os.getpid()):
        raise UserError(
            "this process was forked after JAX had started in its parent, whose threads it lacks. "
            "Load the model only in the child, or start processes with the method spawn, such as "
            'multiprocessing.get_context("spawn").'
        )


def set_variable(variable: str, value: str | float) -> None:
    """Set a variable that JAX reads when it is imported, in a JAX that has been imported, too."""
    os.environ[variable] = str(value)
    if "jax" in sys.modules:
        import jax

        jax.config.update(variable.lower(), value)


def prepare(devices: "Devices", *, deterministic: bool = False) -> None:
    """Set what JAX reads when it starts, its cache included; keep what the user has set.

    Args:
        devices: the config's; its number of virtual devices is used.
        deterministic: see config.Train.

    Raises:
        UserError: JAX has already started with other settings.
    """
    cache_programs()
    if not any(name in os.environ for name in _FRACTION_NAMES):
        os.environ[_FRACTION_NAMES[0]] = str(MEMORY_FRACTION)
    if deterministic:
        if not has_started():
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DETERMINISTIC}".strip()
        require_deterministic()
    if devices.virtual_cpu is not None:
        _make_virtual(devices.virtual_cpu)


def local_devices() -> "list[jax.Device]":
    """Return the devices of this process; JAX starts if it has not.

    Raises UserError if the machine has no device of JAX_PLATFORMS, or too little address space, or
    if XLA_FLAGS has an unknown flag.
    """
    require_own_jax()
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY and space < _LEAST_ADDRESS_SPACE:
        raise UserError(
            f"the limit on address space (ulimit -v) is {space / 1e9:.1f} GB, but JAX needs "
            f"{_LEAST_ADDRESS_SPACE / 1e9:.1f} GB before it reads a model; raise the limit."
        )
    require_known_flags()
    import jax

    try:
        return jax.local_devices()
    except (AssertionError, RuntimeError) as error:  # JAX asserts that it has such a plug-in.
        wanted = os.environ.get("JAX_PLATFORMS", "")
        why = str(error).partition("\n")[0]
        if not why or f"'{wanted}'" not in why:  # of "gpu" JAX names the last of its kinds, rocm
            why = "it has no plug-in or no device of this kind"
        raise UserError(
            f"JAX cannot start with JAX_PLATFORMS={wanted!r}: {why}. Install JAX for this device "
            "(mlstm-jax[cuda13]), set JAX_PLATFORMS to cpu, or unset it."
        ) from error


def require_known_flags() -> None:
    """Raise UserError if XLA_FLAGS has a flag unknown to jaxlib, which would end the process."""
    unknown = unknown_flags(os.environ.get("XLA_FLAGS", ""))
    if unknown:
        raise UserError(
            f"XLA_FLAGS has {', '.join(unknown)}, which jaxlib {metadata.version('jaxlib')} does "
            "not know; remove it."
        )


@functools.cache
def unknown_flags(flags: str) -> list[str]:
    """Return those XLA flags, separated by spaces, that the installed jaxlib does not know.

    jaxlib has no list of its flags, but its library contains their names.
    """
    words = [word for word in flags.split() if word.startswith("--")]
    package = find_spec("jaxlib")
    folders = (package and package.submodule_search_locations) or []
    libraries = [path for folder in folders for path in Path(folder).glob("libjax_common.*")]
    if not words or not libraries:
        return []
    unknown = []
    with (
        libraries[0].open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library,
    ):
        for word in words:
            name = word[2:].partition("=")[0]
            if library.find(f"{name}\0".encode()) < 0:
                unknown.append(word)
    return unknown


def memory_limits() -> dict[str, float]:
    """Return what limits this process's memory, in bytes by name."""
    limits = {
        "the machine's memory": float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    }
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        limits["the limit on address space (ulimit -v)"] = space
    # Of cgroups v2, whose own line has no controllers, and v1; each folder may have a limit.
    for line in _OWN_GROUPS.read_text().splitlines() if _OWN_GROUPS.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        here = _GROUPS / ("memory" if controllers else "") / path.lstrip("/") / name
        for folder in here.parents[: len(here.parts) - len(_GROUPS.parts)]:
            file = folder / name
            text = file.read_text().strip() if file.is_file() else ""
            if text.isdecimal():
                least = min(float(text), limits.get(_GROUP, math.inf))
                limits[_GROUP] = least
    return limits


def without_gpus() -> None:
    """Keep JAX from looking for GPUs if only CUDA's compiler is installed.

    The extra `gpu-compile` does not include a driver, and JAX would print a traceback without one.
    """
    is_alone = _is_installed("jax-cuda12-pjrt") and not _is_installed("nvidia-cublas-cu12")
    if is_alone and "JAX_PLATFORMS" not in os.environ:
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:  # There is no driver.
            set_variable("JAX_PLATFORMS", "cpu")


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def require_deterministic() -> None:
    """Raise UserError unless JAX has started, or will start, with deterministic kernels."""
    if _DETERMINISTIC not in os.environ.get("XLA_FLAGS", "").split():
        raise UserError(
            "train.deterministic is set, but JAX has started without it; set XLA_FLAGS to "
            f"{_DETERMINISTIC} before the first operation of jax."
        )


def _make_virtual(count: int) -> None:
    if has_started():
        import jax

        if jax.local_device_count() != count:
            raise UserError(
                f"devices.virtual_cpu is {count}, but jax has started with "
                f"{jax.local_device_count()} devices; set it before the first operation of jax."
            )
        return
    set_variable("JAX_PLATFORMS", "cpu")
    set_variable("JAX_NUM_CPU_DEVICES", count)
    # The size of XLA's thread pool on CPUs. With fewer threads than devices an all-reduce never
    # ends: each device needs its own thread, and its operations need some more.
    least = max(16, 2 * count)
    given = os.environ.get("NPROC", "")
    if not given.isdecimal() or int(given) < least:
        os.environ["NPROC"] = str(least)


def versions() -> dict[str, str]:
    """Return the versions of this package and of the packages that compute."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    # The package itself may be run from a checkout, without being installed.
    return {"mlstm-jax": __version__} | {name: metadata.version(name) for name in names}


def code() -> str:
    """Return a sha256 of the package's source, with which processes check that theirs is equal."""
    sources = sorted(Path(mlstm_jax.__file__).parent.rglob("*.py"))
    # A wheel has the configs inside the package, a clone next to it; the code is the same.
    code = [path for path in sources if shipped.folder() not in path.parents]
    return hashlib.sha256(b"".join(path.read_bytes() for path in code)).hexdigest()[:12]


def describe_environment() -> dict[str, Any]:
    """Return versions, flags and devices for environment.json, without the machine's name."""
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


def silence() -> ExitStack:
    """Silence the logging of Orbax's threads in this process; closing the result undoes it."""
    undo = ExitStack()
    hook = sys.unraisablehook

    def without_closed_loops(unraisable: Any) -> None:
        if str(unraisable.exc_value) not in _OF_LOOPS:
            hook(unraisable)

    for logger in map(logging.getLogger, _LOGGERS):
        undo.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
    undo.callback(setattr, sys, "unraisablehook", hook)
    sys.unraisablehook = without_closed_loops
    undo.callback(setattr, warnings, "filters", warnings.filters[:])
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    return undo


def cache_programs() -> None:
    """Let JAX keep compiled programs on disk, so that each is compiled once per machine.

    MLSTM_JAX_CACHE names the folder, by default mlstm_jax in the user's cache folder; an empty name
    turns the cache off. A program is compiled for one kind of processor, so each kind has its own
    subfolder, in case machines share a home. The function does nothing if JAX has started or
    already has a cache folder (JAX_COMPILATION_CACHE_DIR), or if other users can write to the
    folder: its programs are executed.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or _jax_cache() or has_started():
        return
    folder = _cache_folder()
    if folder is None:
        return
    set_variable("JAX_COMPILATION_CACHE_DIR", str(folder))
    # With a size limit JAX holds a lock while it reads and writes, so no process reads a program
    # that another has only partly written.
    for variable, value in (
        ("JAX_COMPILATION_CACHE_MAX_SIZE", _MOST_CACHED_BYTES),
        ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", _LEAST_CACHED_SECONDS),
    ):
        if variable not in os.environ:
            set_variable(variable, value)


def _jax_cache() -> str | None:
    """Return the cache folder that JAX has; None: it has none yet."""
    if "jax" not in sys.modules:
        return os.environ.get("JAX_COMPILATION_CACHE_DIR")
    import jax

    settings: Any = jax.config  # It declares no type for its options.
    return settings.jax_compilation_cache_dir


def _cache_folder() -> Path | None:
    """Return the folder of MLSTM_JAX_CACHE for this kind of processor; None: there is no cache."""
    name = os.environ.get(CACHE)
    if name == "":
        return None
    try:
        if not name:
            name = f"{os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'}/mlstm_jax"
        folder = Path(name).absolute() / _machine()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            return None
        _remove_incomplete(folder)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder.
        return None
    return folder


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
            used = program.with_name(program.name.removesuffix("-cache") + "-atime")
            if not used.is_file() or not program.stat().st_size:
                program.unlink()
                used.unlink(missing_ok=True)


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
        # Of an NVIDIA GPU; AMD's are called gfx942.
        capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
        return bool(re.fullmatch(r"\d+\.\d+", capability)) and float(capability) >= _A100
    folder = _jax_cache() or _cache_folder()  # also where JAX had started before the cache
    path = Path(folder or os.devnull) / f"bf16_{_machine()}_{metadata.version('jaxlib')}"
    with contextlib.suppress(OSError, ValueError):
        return float(path.read_text()) >= _LEAST_BF16_GAIN
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
    return gain >= _LEAST_BF16_GAIN
