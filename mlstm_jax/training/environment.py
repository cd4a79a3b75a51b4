"""The process before JAX starts, and what it turned out to be.

It stands alone because it must be imported before jax: how many virtual devices the CPU has, and
how many threads serve them, is decided when jax is imported.
"""

import hashlib
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import mlstm_jax
from mlstm_jax import __version__
from mlstm_jax.config import Devices
from mlstm_jax.data.corpus import Corpus
from mlstm_jax.errors import UserError

FILE = "environment.json"


# Of a GPU's memory, what a run takes; `plan` counts with it. JAX alone takes 0.75. The rest is left
# to the system and the programs' code.
MEMORY_FRACTION = 0.92
_FRACTION_NAMES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")

# No kernel whose sums may be taken in another order, and none chosen by trial at each compilation.
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


def prepare(devices: Devices, *, deterministic: bool = False) -> None:
    """Set the variables that JAX reads when it starts, for a run; what the user has set stays.

    Args:
        devices: how many virtual ones, if any.
        deterministic: see config.Train.

    Raises:
        UserError: JAX has started, without what is asked for.
    """
    if not any(name in os.environ for name in _FRACTION_NAMES):
        os.environ[_FRACTION_NAMES[0]] = str(MEMORY_FRACTION)
    if deterministic:
        if "jax" not in sys.modules:
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DETERMINISTIC}".strip()
        require_deterministic()
    if devices.virtual_cpu is not None:
        _make_virtual(devices.virtual_cpu)


def require_deterministic() -> None:
    """Raise UserError unless JAX has started, or will, with kernels that repeat to the bit."""
    if _DETERMINISTIC not in os.environ.get("XLA_FLAGS", "").split():
        raise UserError(
            "train.deterministic is set, but JAX has started without it; set XLA_FLAGS to "
            f"{_DETERMINISTIC} before jax is imported."
        )


def _make_virtual(count: int) -> None:
    if "jax" in sys.modules:
        import jax

        if jax.local_device_count() != count:
            raise UserError(
                f"devices.virtual_cpu is {count}, but jax has started with "
                f"{jax.local_device_count()} devices; set it before jax is imported."
            )
        return
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_NUM_CPU_DEVICES"] = str(count)
    # The size of XLA's thread pool on CPUs. With fewer threads than devices an all-reduce waits
    # for ever: each device needs a thread of its own, and some for the work beneath.
    os.environ.setdefault("NPROC", str(max(16, 2 * count)))


def versions() -> dict[str, str]:
    """Return the versions of what computes."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    # The package itself may be run from a checkout, without being installed.
    return {"mlstm-jax": __version__} | {name: metadata.version(name) for name in names}


def code() -> str:
    """Return a sha256 of the package's own source, by which processes know that theirs is one."""
    sources = Path(mlstm_jax.__file__).parent.rglob("*.py")
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()[:12]


def describe() -> dict[str, Any]:
    """Return versions, flags and devices, for environment.json; nothing that names the machine."""
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


def inputs(corpus: Corpus, start: str | None) -> dict[str, str | None]:
    """Return the fingerprints of a run's corpus, and of the parameters that it starts from.

    The config names both by their places, and at a place there may be something else one day.
    """
    return {"corpus": corpus.identity, "start_from": start}


def inputs_of(folder: Path) -> dict[str, str | None]:
    """Return those of the last session in a run folder; none where they are not known."""
    try:
        found = json.loads((folder / FILE).read_text())["inputs"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
