"""Whether NumPy or JAX reads: chosen when a model is loaded, and again for the texts of a call.

NumPy reads at once, and JAX takes seconds to start; but then it is faster with a GPU, or where the
processor multiplies bf16 (docs/without_jax.md).
"""

import contextlib
import os
from importlib.util import find_spec
from pathlib import Path

from mlstm_jax.options import ReadingCompute, ReadingLibrary
from mlstm_jax.transfer.features import TextFile

# Bytes of texts that JAX reads in less time, its start included, where the processor multiplies
# bf16: 3 to 5 CPU seconds to start, and then some half of NumPy's time.
_WORTH_JAX = 100_000
_BF16 = ("amx_bf16", "avx512_bf16")  # of a processor's flags
_GPU_FILES = ("/dev/nvidiactl", "/dev/kfd")


def begins_with_numpy(checkpoint: str, compute: ReadingCompute, library: ReadingLibrary) -> bool:
    """Whether NumPy is to read a model with these arguments of `load`, if NumPy can."""
    is_possible = compute in ("auto", "fp32", "int8") and checkpoint in ("best", "latest")
    if not is_possible or library == "jax":
        return False
    is_asked = library == "numpy" or compute == "int8"
    return is_asked or not _has_gpu()


def is_worth_jax(texts: list[str] | TextFile, at_most: int | None) -> bool:
    """Whether JAX, with its start, takes less time than NumPy for texts, or for their ends.

    `at_most`: how many bytes of each text are read; unset: all.
    """
    if isinstance(texts, TextFile):
        count = texts.count
        size = texts.size
    else:
        count = len(texts)
        size = sum(map(len, texts))
    if at_most is not None:
        size = min(size, at_most * count)
    return size >= _WORTH_JAX and _multiplies_bf16()


def _has_gpu() -> bool:
    """Whether JAX would use a GPU, without its import."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms == "cpu" or not any(map(os.path.exists, _GPU_FILES)):
        return False
    return find_spec("jax_plugins") is not None


def _multiplies_bf16() -> bool:
    with contextlib.suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        return any(name in flags for name in _BF16)
    return False
