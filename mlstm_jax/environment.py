"""What a process sets before JAX starts.

JAX starts with its first operation on a device, not with its import: until then the number of
virtual CPU devices and of the threads that serve them, flags and the cache can be set.
"""

import logging
import os
import sys
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from mlstm_jax import cache
from mlstm_jax.errors import UserError, first_line

if TYPE_CHECKING:
    import jax

    from mlstm_jax.config import Devices

# Fraction of a GPU's memory that a run takes; `plan` assumes the same. JAX's default is 0.75. The
# rest is left to the system and the programs' code.
MEMORY_FRACTION = 0.92
_FRACTION_NAMES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")

# JAX's settings, from its variables or a program, that would change results or end in an error
# inside of JAX, and the values that this package computes with.
_TRANSFERS = (None, "allow", "log")
_FLAGS: dict[str, tuple[object, ...]] = {
    "jax_debug_infs": (False,),
    "jax_debug_nans": (False,),
    "jax_disable_jit": (False,),
    "jax_enable_x64": (False,),
    "jax_high_dynamic_range_gumbel": (False,),
    "jax_numpy_dtype_promotion": ("standard",),
    "jax_random_seed_offset": (0,),
    "jax_threefry_partitionable": (True,),
    "jax_transfer_guard": _TRANSFERS,
    "jax_transfer_guard_device_to_host": _TRANSFERS,
    "jax_transfer_guard_host_to_device": _TRANSFERS,
}

# Excludes kernels that may sum in another order, and kernels chosen by timing at each compilation.
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"

# absl: Orbax logs every save at INFO, its thread handling at WARNING, and errors before it raises
# them. asyncio: when one of many files fails, the others report to an event loop that is closed,
# each with a traceback, and hide the one message that matters.
_LOGGERS = ("absl", "asyncio")
# Event loops that an error has closed, or that could not open (too many open files), say this when
# they are deleted.
_OF_LOOPS = ("Event loop is closed", "'_UnixSelectorEventLoop' object has no attribute '_ssock'")


def has_started() -> bool:
    """Whether JAX has started a backend, after which its settings are fixed."""
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


_started_in: int | None = None  # the process in which JAX has started


def _before_fork() -> None:
    """Note that JAX has started, in this package or in the program that uses it."""
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
            "JAX cannot run in a process that was forked after JAX had started. "
            "Load the model only in the child, or start processes with the method spawn, such as "
            'multiprocessing.get_context("spawn").'
        )


def prepare(devices: "Devices", *, deterministic: bool = False) -> None:
    """Set what JAX reads when it starts, its cache included; keep what the user has set.

    Raises UserError if JAX has already started with other settings.
    """
    if not any(name in os.environ for name in _FRACTION_NAMES):
        os.environ[_FRACTION_NAMES[0]] = str(MEMORY_FRACTION)
    if deterministic:
        if not has_started():
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DETERMINISTIC}".strip()
        elif _DETERMINISTIC not in os.environ.get("XLA_FLAGS", "").split():
            raise UserError(
                "train.deterministic is set, but JAX has started without it; set XLA_FLAGS to "
                f"{_DETERMINISTIC} before the first operation of jax."
            )
    if devices.virtual_cpu is not None:
        _make_virtual(devices.virtual_cpu)
    cache_programs()


def local_devices() -> "list[jax.Device]":
    """The devices of this process; JAX starts if it has not."""
    import jax

    require_own_jax()
    for name, allowed in _FLAGS.items():
        value = getattr(jax.config, name, allowed[0])
        if value not in allowed:
            raise UserError(
                f"JAX's setting {name} is {value}, with which mlstm_jax gives no or other "
                f"results; unset the variable {name.upper()}, or "
                f"`jax.config.update({name!r}, {allowed[0]!r})`."
            )
    try:
        return jax.local_devices()
    except (AssertionError, RuntimeError) as error:  # JAX asserts that it has such a plug-in.
        raise UserError(
            f"JAX cannot start with JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')!r} "
            f"({first_line(error)}). Install JAX for this device (mlstm-jax[cuda13]), set "
            "JAX_PLATFORMS to cpu, or unset it."
        ) from error


def _make_virtual(count: int) -> None:
    import jax

    if has_started():
        if jax.local_device_count() != count:
            raise UserError(
                f"devices.virtual_cpu is {count}, but jax has started with "
                f"{jax.local_device_count()} devices; set it before the first operation of jax."
            )
        return
    for name, value in (("JAX_PLATFORMS", "cpu"), ("JAX_NUM_CPU_DEVICES", count)):
        os.environ[name] = str(value)  # of processes that this one starts
        jax.config.update(name.lower(), value)
    # The size of XLA's thread pool on CPUs. With fewer threads than devices an all-reduce never
    # ends: each device needs its own thread, and its operations need some more.
    least = max(16, 2 * count)
    given = os.environ.get("NPROC", "")
    if not given.isdecimal() or int(given) < least:
        os.environ["NPROC"] = str(least)


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
    """Let JAX keep compiled programs (cache.py), unless it has started or has its own folder."""
    import jax

    settings: Any = jax.config  # It declares no type for its options.
    if not settings.jax_compilation_cache_dir and not has_started():
        cache.keep_programs()
