"""Plan a run: seconds, memory, hours and cost on a machine.

An iteration is modelled as a roofline of the step plus a ring all-reduce::

    scans      = Σ layers, T steps, two directions: max(flops / rate, bytes of weights / bandwidth)
    iteration  = scans + other flops / rate + optimizer's bytes / bandwidth
               + fixed + 2 (N − 1)/N · bytes of the gradient / link

benchmarks/train_step.py measures the rate with whole compute-bound steps, so it includes the work
of a step outside its products. docs/performance.md has the flops and bytes of a step.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from mlstm_jax import fields, shipped
from mlstm_jax.config import Compute, Config, load_file
from mlstm_jax.config.resolve import Hardware, resolve
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.environment import MEMORY_FRACTION
from mlstm_jax.errors import UserError, require
from mlstm_jax.fields import Between, Count, Positive, public, require_kind
from mlstm_jax.model.language_model import VOCABULARY
from mlstm_jax.training.memory import compute_bytes, memory_bytes, parameter_count
from mlstm_jax.training.optimizer import product_flops

_DEVICES = [2**power for power in range(8)]


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
    # Of a training step, by the type of its products, or fp8 in the recurrent ones. It is the
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
    advice = "; `mlstm-jax configs h200` shows an example"
    with fields.named(f"{path} is not a machine description", advice):
        return fields.build(Machine, fields.parse(path.read_bytes()))


def hardware(machine: Machine, devices: int) -> Hardware:
    """So many devices of the machine; large layers are assumed, see `host.fastest_compute`."""
    fastest: Compute = "bf16" if "bf16" in machine.step_flops_per_s else "fp32"
    return Hardware(devices, fastest)


class Row(NamedTuple):
    """The plan for one number of devices.

    Attributes:
        devices: their number.
        batch: rows on all of them.
        seconds_per_iteration: of a step.
        all_reduce_seconds: of these, for the sum of gradients.
        bytes_per_second: of text, on all devices.
        efficiency: bytes per second of each device, relative to a single device.
        memory_bytes: of a device.
        fits: whether the memory suffices.
        hours_per_epoch: unset without the bytes of a corpus.
        hours: of the run.
        cost: of the run; unset without a price.
    """

    devices: int
    batch: int
    seconds_per_iteration: float
    all_reduce_seconds: float
    bytes_per_second: float
    efficiency: float
    memory_bytes: float
    fits: bool
    hours_per_epoch: float | None
    hours: float | None
    cost: float | None


class Plan(list[Row]):
    """A row for each number of devices; printed as a table."""

    def __init__(
        self, rows: Iterable[Row], config: Config, machine: Machine, corpus_bytes: float | None
    ) -> None:
        super().__init__(rows)
        self.config = config
        self.machine = machine
        self.corpus_bytes = corpus_bytes

    def __str__(self) -> str:
        config = self.config
        model = config.model
        types = str(config.precision.compute)
        if config.precision.recurrent == "fp8":
            types += " with fp8 in the recurrent products"
        lines = [
            f"{model.layers} x {model.hidden}-d, {parameter_count(config):,} parameters, windows "
            f"of {config.data.window}, {types}, on {self.machine.name}",
            f"({self.machine.source})",
            "",
            f"{'devices':>7} {'batch':>7} {'s/iteration':>11} "
            f"{'all-reduce':>10} {'MB/s':>8} {'efficiency':>10} {'GB/device':>9} "
            f"{'h/epoch':>8} {'epochs':>7} {'h/run':>8} {'cost':>10}",
        ]
        lines += map(_format_row, self)
        if self.corpus_bytes is None:
            lines.append("epochs and their hours need `corpus_bytes`, or a corpus that exists")
        if all(row.cost is None for row in self):
            lines.append("cost needs a price, and the hours of a run")
        if not all(row.fits for row in self):
            usable = self.machine.memory_bytes * MEMORY_FRACTION
            lines += [
                "",
                f"! more than the {usable / 1e9:.1f} GB that JAX uses of a device: lower "
                "`data.batch_per_device`, the model or the window, or set "
                "`train.recompute_every` (16 to 64; not with fp8).",
            ]
        return "\n".join(lines)


def step_seconds(config: Config, machine: Machine, rows: int) -> float:
    """The seconds of a step of `rows` rows on one device, without the all-reduce."""
    is_fp8 = config.precision.recurrent == "fp8"
    kind = "fp8" if is_fp8 else str(config.precision.compute)
    if kind not in machine.step_flops_per_s:
        known = ", ".join(name for name in machine.step_flops_per_s if name != "fp8")
        raise UserError(
            f"{machine.name} has no step_flops_per_s of {kind}, only of {known}; choose one of "
            "these with `precision.compute`, or measure it with benchmarks/train_step.py and write "
            "it into a copy of the description."
        )
    rate = machine.step_flops_per_s[kind]
    window = config.data.window
    micro_batches = config.train.micro_batches
    rows = rows // micro_batches
    weight_bytes = 1 if is_fp8 else compute_bytes(config)
    every = config.train.recompute_every
    recomputes = every is not None and every < window  # see stack.run_layer

    def scan(weights: int) -> float:
        reading = weights * weight_bytes / machine.memory_bytes_per_s
        return window * max(2 * weights * rows / rate, reading)

    scans = 0.0
    outside = 6 * VOCABULARY * config.model.hidden
    for layer in range(config.model.layers):
        products = config.model.products(layer)
        scans += scan(products.forward) + scan(products.backward)
        if recomputes:
            scans += scan(products.forward)
        outside += products.others
    # Per parameter, in float32: it and the moments are read and written, the gradient is read.
    bytes_moved = (12 + 8 * config.optimizer.kind.moments) * parameter_count(config)
    optimizer = bytes_moved / machine.memory_bytes_per_s
    return micro_batches * (scans + rows * window * outside / rate) + optimizer


def update_seconds(config: Config, machine: Machine, devices: int) -> float:
    """The seconds of an update's products on each device; 0 if it has none."""
    rates = machine.step_flops_per_s
    # In float32, whose products GPUs round to TF32 by default, or in bf16.
    rate = rates.get("tf32", rates.get("fp32", math.inf))
    if config.precision.compute == "bf16":
        rate = rates.get("bf16", rate)
    return product_flops(config.optimizer, config.model, devices) / rate


def all_reduce_seconds(config: Config, machine: Machine, devices: int) -> float:
    """The seconds of the gradient's ring all-reduce over the devices."""
    if devices == 1:
        return 0.0
    width = 4
    if config.precision.all_reduce == "compute":
        width = compute_bytes(config)
    slowest = machine.inside_node.bytes_per_s
    fixed = machine.inside_node.fixed_s
    if devices > machine.devices_per_node:
        slowest = min(slowest, machine.across_nodes.bytes_per_s)
        fixed += machine.across_nodes.fixed_s
    return fixed + 2 * (devices - 1) / devices * parameter_count(config) * width / slowest


@public
def plan(
    config: Config | str | Path,
    machine: Machine | str | Path,
    devices: Sequence[int] | None = None,
    corpus_bytes: Positive | None = None,
    *,
    price: Annotated[float, Between(0, ends="[)")] | None = None,
) -> Plan:
    """Estimate the time, memory and cost of a run on a machine, for several numbers of devices.

    Args:
        config: of the run, as for `train`.
        machine: a JSON description, or the name of one in the package, such as h200.
        devices: numbers of devices to plan for, on all nodes together; unset: 1, 2, 4 and so on up
            to 128, if they can share the batch evenly.
        corpus_bytes: of the training split, unpacked, such as 40e9; unset: the size of
            data.corpus, if it exists.
        price: of one device per hour; unset: the price in the description.

    Returns:
        A list with a row for each number of devices, which prints itself as a table.

    Raises:
        ValueError: the machine has no rate for the config's type, or the devices cannot share the
            batch evenly.

    Examples:
        >>> rows = mlstm.plan("amazon_4096", "h200", [1, 8], corpus_bytes=40e9)
        >>> [row.devices for row in rows]
        [1, 8]
    """
    if not isinstance(machine, Machine):
        machine = load_machine(Path(machine))
    config = load_file(config)
    if price is not None:
        machine = dataclasses.replace(machine, price_per_device_hour=price)
    corpus = Path(config.data.corpus)
    if corpus_bytes is None and corpus.is_dir():
        corpus_bytes = open_corpus(corpus).manifest.splits["train"].bytes
    if devices is None:
        devices = [count for count in _DEVICES if _can_share(config, machine, count)]
        devices = devices or [1]  # whose error says what is wrong
    devices = list(devices)
    for count in devices:
        require_kind("devices", count, Count)
    require(len(devices) > 0, "devices", devices, "one number or more")
    planned = []
    alone = _plan_row(resolve(config, hardware(machine, 1)), machine, 1, corpus_bytes)
    for count in devices:
        resolved = resolve(config, hardware(machine, count))
        row = _plan_row(resolved, machine, count, corpus_bytes)
        efficiency = row.bytes_per_second / (count * alone.bytes_per_second)
        planned.append(row._replace(efficiency=efficiency))
    return Plan(planned, resolved, machine, corpus_bytes)


def _can_share(config: Config, machine: Machine, count: int) -> bool:
    try:
        resolve(config, hardware(machine, count))
    except UserError:
        return False
    return True


def _plan_row(config: Config, machine: Machine, devices: int, corpus_bytes: float | None) -> Row:
    """The plan for some devices, with the efficiency of one."""
    batch = config.data.batch
    rows = batch // devices
    all_reduce = all_reduce_seconds(config, machine, devices)
    own = step_seconds(config, machine, rows) + update_seconds(config, machine, devices)
    seconds = own + all_reduce
    speed = batch * config.data.window / seconds
    hours_per_epoch = None
    steps = math.inf
    if corpus_bytes is not None:
        hours_per_epoch = corpus_bytes / speed / 3600
        if config.train.epochs is not None:
            steps = config.train.epochs * corpus_bytes / (batch * config.data.window)
    if config.train.steps is not None:
        steps = min(steps, config.train.steps)
    hours = None
    cost = None
    if steps < math.inf:
        hours = steps * seconds / 3600
        if machine.price_per_device_hour is not None:
            cost = hours * machine.price_per_device_hour * devices
    memory = memory_bytes(config, rows)
    return Row(
        devices=devices,
        batch=batch,
        seconds_per_iteration=seconds,
        all_reduce_seconds=all_reduce,
        bytes_per_second=speed,
        efficiency=1.0,
        memory_bytes=memory,
        fits=memory <= machine.memory_bytes * MEMORY_FRACTION,
        hours_per_epoch=hours_per_epoch,
        hours=hours,
        cost=cost,
    )


def _format_row(row: Row) -> str:
    epochs = None
    if row.hours and row.hours_per_epoch:
        # The run may end by its steps before its epochs.
        epochs = row.hours / row.hours_per_epoch
    fits = " " if row.fits else "!"
    return (
        f"{row.devices:>7} {row.batch:>7} "
        f"{_digits(row.seconds_per_iteration):>11} {_digits(row.all_reduce_seconds):>10} "
        f"{_digits(row.bytes_per_second / 1e6):>8} {row.efficiency:>10.2f} "
        f"{row.memory_bytes / 1e9:>8.1f}{fits} "
        f"{_optional(row.hours_per_epoch, '.2f'):>8} {_optional(epochs, '.2f'):>7} "
        f"{_optional(row.hours, '.2f'):>8} {_optional(row.cost, ',.0f'):>10}"
    ).rstrip()


def _optional(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)


def _digits(value: float) -> str:
    return f"{value:.3f}" if value >= 0.01 else f"{value:.2g}"
