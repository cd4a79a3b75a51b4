"""What a machine is to a plan: rates, sizes and links, from a JSON file.

`mlstm-jax configs` lists ready ones. The rate of a type of number may come from what
benchmarks/train_step.py measured on such a device.
"""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from mlstm_jax import fields, shipped
from mlstm_jax.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Link:
    """How a gradient travels: once a ring is full, and what it costs however short."""

    bytes_per_s: float
    fixed_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A device as XLA's compiler for GPUs must know it; the names are XLA's."""

    description: str  # such as NVIDIA H200 141GB HBM3e
    compute_capability: tuple[int, int]
    core_count: int  # streaming multiprocessors
    fpus_per_core: int
    clock_rate_ghz: float
    l2_cache_size: int  # bytes, as all sizes
    shared_memory_per_core: int
    shared_memory_per_block_optin: int
    memory_bandwidth: int  # bytes a second, as specified
    device_memory_size: int


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a plan must know of the machines; a JSON file of these fields."""

    name: str
    source: str  # where the figures come from
    devices_per_node: int
    memory_bytes: float  # of a device
    step_flops_per_s: dict[str, float]  # by type of the products
    memory_bytes_per_s: float  # of a device, as it reads its weights
    inside_node: Link
    across_nodes: Link
    price_per_device_hour: float | None = None
    gpu: Gpu | None = None  # what `plan --compile` compiles for


def load_machine(path: Path) -> Machine:
    """Read a machine's description; UserError names the file and what is wrong.

    A bare name that is no file is that of a machine that comes with the package: ``h200``.
    """
    path = shipped.find(path, "machine")
    try:
        machine = fields.build(Machine, fields.parse(path.read_bytes()))
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); `mlstm-jax configs` lists ready ones."
        ) from error
    except fields.Wrong as error:
        raise UserError(
            f"{path} is not a machine's description ({error}); `mlstm-jax configs h200` shows one."
        ) from error
    rates = [*machine.step_flops_per_s.values(), machine.memory_bytes_per_s]
    links = [machine.inside_node.bytes_per_s, machine.across_nodes.bytes_per_s]
    sizes = [machine.memory_bytes, machine.devices_per_node]
    if not all(value > 0 for value in (*rates, *links, *sizes)):  # NaN is not
        raise UserError(f"{path}: every rate, size and count must be above 0.")
    return machine


def with_measured_rate(machine: Machine, results: Path, compute: str, hidden: int) -> Machine:
    """Return the machine with the rate that benchmarks/train_step.py measured nearest to a size."""
    try:
        rows = [
            row
            for row in json.loads(results.read_text())["rows"]
            if (row["implementation"], row["what"]) == ("ours", "train_step")
            and row["dtype"] == compute
            and not row["recompute_every"]
        ]
        nearest = min(abs(math.log(row["hidden"] / hidden)) for row in rows)
        rates = [
            row["flops"] / row["median_s"]
            for row in rows
            if abs(math.log(row["hidden"] / hidden)) == nearest
        ]
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise UserError(
            f"{results} holds no train step of ours in {compute} ({type(error).__name__}: {error});"
            " make it with `python benchmarks/train_step.py --json FILE` in a clone of the project."
        ) from error
    return dataclasses.replace(
        machine,
        source=f"{machine.source}; rate of {compute} from {results.name}",
        step_flops_per_s=machine.step_flops_per_s | {compute: max(rates)},
    )
