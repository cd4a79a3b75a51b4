"""The description of a machine for a plan: rates, sizes and links, from a JSON file.

`mlstm-jax configs` lists the files that come with the package. The rate of a numeric type may come
from a measurement with benchmarks/train_step.py on such a device.
"""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from mlstm_jax import fields, shipped
from mlstm_jax.config import Compute, Config, vary
from mlstm_jax.errors import UserError
from mlstm_jax.fields import Count, Positive


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link for gradients: the bandwidth of a full ring, and the fixed time of a transfer."""

    bytes_per_s: Positive
    fixed_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """What XLA's compiler for GPUs must know about a device; the names are XLA's."""

    description: str  # such as NVIDIA H200 141GB HBM3e
    compute_capability: tuple[int, int]
    core_count: int  # streaming multiprocessors
    fpus_per_core: int
    clock_rate_ghz: float
    l2_cache_size: int  # bytes, like all sizes
    shared_memory_per_core: int
    shared_memory_per_block_optin: int
    memory_bandwidth: int  # bytes per second, as specified
    device_memory_size: int


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a plan must know about a machine; a JSON file with these fields."""

    name: str
    source: str  # where the figures come from
    devices_per_node: Count
    memory_bytes: Positive  # of a device
    step_flops_per_s: dict[str, Positive]  # by type of the products
    memory_bytes_per_s: Positive  # of a device, when it reads its weights
    inside_node: Link
    across_nodes: Link
    price_per_device_hour: float | None = None
    gpu: Gpu | None = None  # what benchmarks/gpu_program.py compiles for


def load_machine(path: Path) -> Machine:
    """Read a machine's description; a UserError names the file and what is wrong.

    A bare name that is not a file, such as ``h200``, means a machine that comes with the package.
    """
    path = shipped.find(path, "machine")
    try:
        return fields.build(Machine, fields.parse(path.read_bytes()))
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); `mlstm-jax configs` lists the machines "
            "that come with the package."
        ) from error
    except fields.InvalidField as error:
        raise UserError(
            f"{path} is not a machine description ({error}); `mlstm-jax configs h200` shows an "
            "example."
        ) from error


def with_compute(config: Config, machine: Machine) -> Config:
    """Set the compute type that `train` chooses on the machine, if the config has none.

    Large layers are assumed, see `host.fastest_compute`.
    """
    if config.precision.compute is not None:
        return config
    fastest: Compute = "bf16" if "bf16" in machine.step_flops_per_s else "fp32"
    return vary(config, precision__compute=fastest)


def with_measured_rate(machine: Machine, results: Path, compute: str, hidden: int) -> Machine:
    """Take the rate that train_step.py measured at the nearest hidden size."""
    measured: list[tuple[float, float]] = []  # −distance of the hidden size, rate
    try:
        for row in json.loads(results.read_text())["rows"]:
            kind = (row["implementation"], row["what"], row["dtype"])
            if kind == ("ours", "train_step", compute) and not row["recompute_every"]:
                distance = abs(math.log(row["hidden"] / hidden))
                measured.append((-distance, row["flops"] / row["median_s"]))
        _, rate = max(measured)
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise UserError(
            f'{results} has no train step of "ours" in {compute} ({type(error).__name__}: {error});'
            " measure it with `python benchmarks/train_step.py --json FILE` in a clone of the "
            "project."
        ) from error
    return dataclasses.replace(
        machine,
        source=f"{machine.source}; rate of {compute} from {results.name}",
        step_flops_per_s=machine.step_flops_per_s | {compute: rate},
    )
