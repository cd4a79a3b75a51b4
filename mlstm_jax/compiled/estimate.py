"""Estimate how long a compiled program takes on a machine, kernel by kernel.

A kernel takes the longest of three times (its products at the machine's rate, its bytes from memory
and its bytes from the cache), plus a launch. An array counts as cached if a loop reuses it at every
step and it fills at most half of the cache; the slices of a larger stack come from memory.
"""

from typing import NamedTuple

from mlstm_jax.compiled.kernels import Access, Kernel, collectives
from mlstm_jax.planning.machine import Gpu, Machine

# The fraction of the cache that one array may fill, since it shares the cache with others.
_USABLE_CACHE = 0.5
# Bandwidth of the cache relative to memory, about that of NVIDIA GPUs since Volta.
_CACHE_SPEED = 1.6
_TYPES = {"bf16": "bf16", "f16": "fp16", "tf32": "tf32", "f32": "fp32"}


class Estimate(NamedTuple):
    """The estimate for one run of a program on one device, without its collectives."""

    launches: int
    bytes: int  # read and written, by all kernels
    seconds: float  # without the cost of launches
    loops: dict[str, int]  # name of each loop → kernels of one step, in program order

    def with_launches(self, each: float) -> float:
        """Return the seconds if each launch takes `each` seconds."""
        return self.seconds + self.launches * each


def estimate(kernels: list[Kernel], machine: Machine, gpu: Gpu) -> Estimate:
    """Return the model's estimate for the kernels of a program."""
    shared = set(collectives(kernels))
    own = [one for one in kernels if one not in shared]
    loops: dict[str, int] = {}
    for one in own:
        if one.is_in_loop:
            loops[one.place] = loops.get(one.place, 0) + 1
    return Estimate(
        launches=sum(one.times for one in own),
        bytes=sum(one.times * one.bytes for one in own),
        seconds=sum(one.times * _seconds(one, machine, gpu) for one in own),
        loops=loops,
    )


def _seconds(kernel: Kernel, machine: Machine, gpu: Gpu) -> float:
    rate = machine.step_flops_per_s.get(_TYPES.get(kernel.operand_type or "", ""), 0.0)
    flops = kernel.flops / rate if rate else 0.0

    def is_cached(access: Access) -> bool:
        return kernel.is_in_loop and access.whole <= _USABLE_CACHE * gpu.l2_cache_size

    memory = sum(a.bytes for a in (*kernel.reads, *kernel.writes) if not is_cached(a))
    return max(
        flops,
        memory / machine.memory_bytes_per_s,
        kernel.bytes / (_CACHE_SPEED * machine.memory_bytes_per_s),
    )
