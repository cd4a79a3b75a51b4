"""Plan a run: seconds, memory, hours and cost on a machine.

An iteration is modelled as a roofline of the step plus a ring all-reduce::

    scans      = Σ layers, T steps, two directions: max(flops / rate, bytes of weights / bandwidth)
    iteration  = scans + other flops / rate + optimizer's bytes / bandwidth
               + fixed + 2 (N − 1)/N · bytes of the gradient / link

The rate is that of whole compute-bound train steps (benchmarks/train_step.py measures it), so it
includes the work of a step outside its products. The link is the slowest that N devices need:
inside a node or across nodes. docs/performance.md has the flops and bytes of a step.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mlstm_jax.config import Config, by_phase, resolve_batch
from mlstm_jax.environment import MEMORY_FRACTION
from mlstm_jax.errors import UserError
from mlstm_jax.model.language_model import VOCABULARY
from mlstm_jax.planning.machine import Machine
from mlstm_jax.training.optimizer import product_flops
from mlstm_jax.training.state import compute_bytes, memory_bytes, parameter_count

# Per parameter and update, read and written by Adam: parameter, gradient and two moments, float32.
_OPTIMIZER_BYTES = 28


class Row(NamedTuple):
    """The plan for one number of devices, and for one phase if the run has phases."""

    devices: int
    phase: int  # from 1; 0 if the run has no phases
    batch: int
    seconds_per_iteration: float
    all_reduce_seconds: float
    bytes_per_second: float
    efficiency: float  # bytes per second of each device, relative to a single device
    memory_bytes: float  # of a device
    fits: bool
    hours_per_epoch: float | None
    hours: float | None
    cost: float | None


def step_seconds(config: Config, machine: Machine, rows: int) -> float:
    """Return the seconds of a step of `rows` rows on one device, without the all-reduce."""
    rate, parts = _rate(config, machine), config.train.micro_batches
    hidden, window, width = config.model.hidden, config.data.window, compute_bytes(config)
    rows = rows // parts
    scans = other = 0.0
    for layer in range(config.model.layers):
        forward, backward, outside = config.model.products(layer)
        for weights, again in ((forward, bool(config.train.recompute_every)), (backward, False)):
            seconds = max(2 * weights * rows / rate, weights * width / machine.memory_bytes_per_s)
            scans += window * seconds * (2 if again else 1)
        other += outside
    other += 6 * VOCABULARY * hidden
    optimizer = _OPTIMIZER_BYTES * parameter_count(config) / machine.memory_bytes_per_s
    return parts * (scans + rows * window * other / rate) + optimizer


def update_seconds(config: Config, machine: Machine, devices: int) -> float:
    """Return the seconds of an update's products on each device; 0 if it has none."""
    rates = machine.step_flops_per_s
    # In float32, whose products GPUs round to TF32 by default, or in bf16.
    rate = rates.get("tf32", rates.get("fp32", 0.0))
    if config.precision.compute == "bf16":
        rate = rates.get("bf16", rate)
    return product_flops(config.optimizer, config.model, devices) / rate if rate else 0.0


def all_reduce_seconds(config: Config, machine: Machine, devices: int) -> float:
    """Return the seconds of the gradient's ring all-reduce over the devices."""
    if devices == 1:
        return 0.0
    width = compute_bytes(config) if config.precision.all_reduce == "compute" else 4
    size, links = parameter_count(config) * width, [machine.inside_node]
    if devices > machine.devices_per_node:
        links.append(machine.across_nodes)
    slowest = min(link.bytes_per_s for link in links)
    fixed = sum(link.fixed_s for link in links)
    return fixed + 2 * (devices - 1) / devices * size / slowest


def plan(
    config: Config, machine: Machine, devices: Sequence[int], corpus_bytes: float | None
) -> list[Row]:
    """Return a row for each number of devices, or for each of its phases.

    Raises:
        UserError: the machine has no rate for the config's type, or the batch cannot be divided
            among the devices.
    """
    planned = []
    for count in devices:
        for phase, here in phases(resolve_batch(config, count)):
            batch, window = here.data.batch, here.data.window
            rows = batch // count
            shared = all_reduce_seconds(here, machine, count)
            alone = step_seconds(here, machine, rows) + update_seconds(here, machine, count)
            seconds = alone + shared
            speed = batch * window / seconds
            epoch = None if corpus_bytes is None else corpus_bytes / speed / 3600
            hours = _hours(here, seconds, corpus_bytes)
            price = machine.price_per_device_hour
            memory = memory_bytes(here, rows)
            planned.append(
                Row(
                    devices=count,
                    phase=phase,
                    batch=batch,
                    seconds_per_iteration=seconds,
                    all_reduce_seconds=shared,
                    bytes_per_second=speed,
                    efficiency=alone / seconds,
                    memory_bytes=memory,
                    fits=memory <= machine.memory_bytes * MEMORY_FRACTION,
                    hours_per_epoch=epoch,
                    hours=hours,
                    cost=None if hours is None or price is None else hours * price * count,
                )
            )
    return planned


def phases(config: Config) -> Iterator[tuple[int, Config]]:
    """Return each phase of a run, from 1, as its own config; without phases, the run as phase 0."""
    return enumerate(by_phase(config), 1 if config.phases else 0)


def _hours(config: Config, seconds: float, corpus_bytes: float | None) -> float | None:
    """Return the length of the run, or None where it depends on an unknown corpus."""
    train, each = config.train, config.data.batch * config.data.window
    limits = [] if train.steps is None else [float(train.steps)]
    if train.epochs is not None and corpus_bytes is not None:
        limits.append(train.epochs * corpus_bytes / each)
    return min(limits) * seconds / 3600 if limits else None


def _rate(config: Config, machine: Machine) -> float:
    compute = config.precision.compute
    if compute not in machine.step_flops_per_s:
        known = ", ".join(machine.step_flops_per_s)
        raise UserError(
            f"{machine.name} has no step_flops_per_s of {compute}, only of {known}; choose one of "
            "these with `precision.compute`, or measure it with benchmarks/train_step.py and give "
            "the results with `rates`."
        )
    return machine.step_flops_per_s[compute]


def format_plan(
    config: Config, machine: Machine, rows: list[Row], corpus_bytes: float | None
) -> str:
    """Return the plan as a table, with advice if it does not fit into memory."""
    config = resolve_batch(config, rows[0].devices)  # also sets a Transformer's positions
    model, phases = config.model, config.phases
    windows = ", ".join(str(phase.window) for phase in phases) or config.data.window
    lines = [
        f"{model.layers} x {model.hidden}-d, {parameter_count(config):,} parameters, windows of "
        f"{windows}, {config.precision.compute}, on {machine.name}",
        f"({machine.source})",
        "",
        f"{'devices':>7} {'phase ' if phases else ''}{'batch':>7} {'s/iteration':>11} "
        f"{'all-reduce':>10} {'MB/s':>8} {'efficiency':>10} {'GB/device':>9} "
        f"{'h/epoch':>8} {'epochs':>7} {'h/run':>8} {'cost':>10}",
    ]
    for number, row in enumerate(rows, 1):
        # The run may end by its steps before its epochs.
        epochs = row.hours / row.hours_per_epoch if row.hours and row.hours_per_epoch else None
        cells = [
            f"{row.devices:>7}",
            *([f"{row.phase:>5}"] if phases else []),
            f"{row.batch:>7}",
            f"{_digits(row.seconds_per_iteration):>11}",
            f"{_digits(row.all_reduce_seconds):>10}",
            f"{_digits(row.bytes_per_second / 1e6):>8}",
            f"{row.efficiency:>10.2f}",
            f"{row.memory_bytes / 1e9:>8.1f}{' ' if row.fits else '!'}",
            *(
                f"{'' if value is None else format(value, form):>{width}}"
                for value, form, width in (
                    (row.hours_per_epoch, ".2f", 8),
                    (epochs, ".2f", 7),
                    (row.hours, ".2f", 8),
                    (row.cost, ",.0f", 10),
                )
            ),
        ]
        lines.append(" ".join(cells).rstrip())
        if phases and row.phase == len(phases):
            lines.append(_sum_of_phases(rows[number - len(phases) : number]))
    steps, epochs = config.train.steps, config.train.epochs
    times = [(row.hours, row.hours_per_epoch) for row in rows]
    is_cut = any(run and one and run < 0.999 * (epochs or 0) * one for run, one in times)
    if is_cut and steps and not phases:
        lines.append(f"`train.steps` {steps:,} ends a run of fewer than {epochs:g} epochs")
    if corpus_bytes is None and not phases:
        lines.append("epochs and their hours need `corpus_bytes`, or a corpus that exists")
    if all(row.cost is None for row in rows):
        lines.append("cost needs `price`, and the hours of a run")
    too_large = [row for row in rows if not row.fits]
    if too_large:
        lines += ["", _advice(config, machine, too_large[0])]
    return "\n".join(lines)


def _sum_of_phases(rows: list[Row]) -> str:
    hours = sum(row.hours or 0.0 for row in rows)
    costs = [row.cost for row in rows if row.cost is not None]
    return f"{rows[0].devices:>7} all phases: {hours:.2f} hours" + (
        f", cost {sum(costs):,.0f}" if costs else ""
    )


def _digits(value: float) -> str:
    """Format a number with three decimals, or with two significant digits if it is below 0.01."""
    return f"{value:.3f}" if value >= 0.01 else f"{value:.2g}"


def _advice(config: Config, machine: Machine, row: Row) -> str:
    """Return advice on how to make a plan fit into memory."""
    rows = row.batch // row.devices
    limit = machine.memory_bytes * MEMORY_FRACTION
    config = dict(phases(config))[row.phase]
    text = (
        f"! {row.memory_bytes / 1e9:.1f} GB do not fit into the {machine.memory_bytes / 1e9:.0f} "
        f"GB of a device ({MEMORY_FRACTION:.0%} usable)"
    )
    ways = []
    if config.train.recompute_every is None:
        every = max(1, round(math.sqrt(config.data.window)))
        train = dataclasses.replace(config.train, recompute_every=every)
        recomputed = memory_bytes(dataclasses.replace(config, train=train), rows)
        if recomputed <= limit:
            ways.append(f"`train.recompute_every` {every} needs {recomputed / 1e9:.1f} GB")
    parts = config.train.micro_batches
    for fewer in range(rows - parts, 0, -parts):
        if memory_bytes(config, fewer) <= limit:
            how = (
                f"a batch of {fewer * row.devices} in phase {row.phase}"
                if row.phase
                else f"`data.batch_per_device` {fewer}"
            )
            ways.append(f"{fewer} rows on each device fit ({how})")
            break
    return text + (": " + "; or ".join(ways) if ways else "; take a smaller model or window") + "."
