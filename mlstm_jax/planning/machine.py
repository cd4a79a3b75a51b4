"""The description of a machine for a plan: rates, sizes and links, from a JSON file.

`mlstm-jax configs` lists the files that come with the package.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlstm_jax import fields, shipped
from mlstm_jax.config import Compute, Config
from mlstm_jax.config.resolve import Hardware
from mlstm_jax.errors import UserError
from mlstm_jax.fields import Count, Positive


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link for gradients: the bandwidth of a full ring, and the fixed time of a transfer."""

    bytes_per_s: Positive
    fixed_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a plan must know about a machine; a JSON file with these fields."""

    name: str
    source: str  # where the figures come from
    devices_per_node: Count
    memory_bytes: Positive  # of a device
    # Of a training step, by type: that of the products, or fp8 in the recurrent ones. It is the
    # flops of a step, divided by its time: `flops` / `median_s` of benchmarks/train_step.py.
    step_flops_per_s: dict[str, Positive]
    memory_bytes_per_s: Positive  # of a device, when it reads its weights
    inside_node: Link
    across_nodes: Link
    price_per_device_hour: float | None = None
    # Of one large product alone, for benchmarks/gpu_program.py; a type that is missing: the step's.
    product_flops_per_s: dict[str, Positive] = field(default_factory=dict)
    # What it compiles for, by XLA's names, with description and compute_capability.
    gpu: dict[str, Any] | None = None


def load_machine(path: Path) -> Machine:
    """Read a machine's description; a UserError names the file and what is wrong.

    A bare name that is not a file, such as ``h200``, means a machine that comes with the package.
    """
    path = shipped.find(path, "machine")
    try:
        return fields.build(Machine, fields.parse(path.read_bytes()))
    except fields.InvalidField as error:
        raise UserError(
            f"{path} is not a machine description ({error}); `mlstm-jax configs h200` shows an "
            "example."
        ) from error


def hardware(machine: Machine, devices: int) -> Hardware:
    """So many devices of the machine; large layers are assumed, see `host.fastest_compute`."""
    fastest: Compute = "bf16" if "bf16" in machine.step_flops_per_s else "fp32"
    return Hardware(devices, lambda units: fastest)


def rate_type(config: Config) -> str:
    """The type whose rate a step has: fp8 with fp8 in the recurrent products, or the products'."""
    if config.precision.recurrent == "fp8":
        return "fp8"
    return str(config.precision.compute)
