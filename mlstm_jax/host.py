"""This host: its limits, versions and devices."""

import functools
import hashlib
import math
import os
import platform
import resource
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import mlstm_jax
from mlstm_jax import __version__, shipped
from mlstm_jax.cache import Cache, cache_folder

_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_GROUP = "the limit of its control group (cgroup)"
_LEAST_BF16_GAIN = 1.2  # of bf16, whose results are coarser
_LEAST_BF16_UNITS = 256  # with 64 or 128 the products are not most of the time


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
