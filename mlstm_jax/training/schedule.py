"""The learning rate: its scaling with the batch, its warm-up and its decay.

The schedule counts *applied* updates n: a skipped step advances neither n nor Adam's count (Puri et
al. 2018, section VIII, whose schedule is linear decay to zero). After a warm-up of W updates the
decay covers the remaining N − W.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import optax

from mlstm_jax.config import MOST_STEPS, Optimizer
from mlstm_jax.errors import UserError

# Slanted triangular rates end at the peak divided by this (Howard and Ruder 2018, section 3.2).
_TRIANGULAR_RATIO = 32


@dataclass(frozen=True)
class Segment:
    """A part of a run with one global batch: a phase, or the whole run."""

    first: int  # the step at which it begins
    last: int  # the step at which the next one begins
    batch: int
    steps_per_epoch: float
    # Settings of the schedule that begins here; None: the schedule before it continues.
    begins: Optimizer | None = None


def peak_rate(optimizer: Optimizer, batch: int) -> float:
    """The peak rate for a global batch B: that of B0, scaled with k = B / B0 and capped."""
    k = batch / optimizer.base_batch
    factors = {"none": 1.0, "linear": k, "sqrt": math.sqrt(k), "legw": math.sqrt(k)}
    peak = optimizer.learning_rate * factors[optimizer.scaling]
    if optimizer.learning_rate_cap is not None:
        peak = min(peak, optimizer.learning_rate_cap)
    return peak


def resolve(
    optimizer: Optimizer, batch: int, steps: int, steps_per_epoch: float
) -> tuple[float, int, int]:
    """The peak rate, and the updates where warm-up and decay end, in a run of `steps` updates.

    LEGW (You et al. 2019, arXiv 1901.08256) multiplies the rate by √k and the epochs of warm-up by
    k, so the warm-up has the same number of updates at any batch.
    """
    decay = optimizer.decay_steps or steps
    warmup = optimizer.warmup_steps
    if optimizer.warmup_epochs:
        epochs = optimizer.warmup_epochs
        if optimizer.scaling == "legw":
            epochs *= batch / optimizer.base_batch
        warmup = math.ceil(min(epochs * steps_per_epoch, MOST_STEPS))
    if optimizer.schedule == "triangular" and not warmup:
        warmup = min(max(1, decay // 10), decay - 1)
    if optimizer.schedule != "constant" and warmup >= decay:
        raise UserError(
            f"the warm-up is {warmup:,} updates, but the learning rate's decay ends at {decay:,}; "
            "reduce optimizer.warmup_steps or optimizer.warmup_epochs, or train for longer."
        )
    return peak_rate(optimizer, batch), warmup, decay


def rates(optimizer: Optimizer, segments: Sequence[Segment]) -> list[optax.Schedule]:
    """The rate in each part of a run, as a function of all applied updates.

    Warm-up and decay are those of the first part of a schedule and cover all its parts; the peak
    depends on each part's batch. A schedule that begins within the run counts the updates from
    there. Where updates were skipped before, it holds its first rate for as many updates.
    """
    schedules: list[optax.Schedule] = []
    for settings, parts in _schedules(optimizer, segments):
        begin = parts[0]
        steps = parts[-1].last - begin.first
        shape = learning_rate(settings, begin.batch, steps, begin.steps_per_epoch)
        for part in parts:
            ratio = peak_rate(settings, part.batch) / peak_rate(settings, begin.batch)
            schedules.append(_shifted(shape, begin.first, ratio))
    return schedules


def _shifted(shape: optax.Schedule, first: int, ratio: float) -> optax.Schedule:
    """ratio · shape(n − first), with the first rate before `first`."""
    return lambda n: ratio * shape(jnp.maximum(n - first, 0))


def _schedules(
    optimizer: Optimizer, segments: Sequence[Segment]
) -> list[tuple[Optimizer, list[Segment]]]:
    """Each schedule of a run: its settings, and the parts of the run that follow it."""
    schedules: list[tuple[Optimizer, list[Segment]]] = []
    for segment in segments:
        if segment.begins or not schedules:
            schedules.append((segment.begins or optimizer, []))
        schedules[-1][1].append(segment)
    return schedules


def learning_rate(
    optimizer: Optimizer, batch: int, steps: int, steps_per_epoch: float = 0
) -> optax.Schedule:
    """The rate as a function of the applied updates; `steps` is the length of the run."""
    peak, warmup, decay = resolve(optimizer, batch, steps, steps_per_epoch)
    rest = decay - warmup
    match optimizer.schedule:
        case "constant":
            falling = optax.constant_schedule(peak)
        case "cosine":
            falling = optax.cosine_decay_schedule(peak, rest)
        case "polynomial":
            falling = optax.polynomial_schedule(peak, 0.0, optimizer.power, rest)
        case "triangular":
            falling = optax.linear_schedule(peak, peak / _TRIANGULAR_RATIO, rest)
        case _:
            falling = optax.linear_schedule(peak, 0.0, rest)
    if not warmup:
        return falling
    # The first update has the rate peak / W, not zero.
    rising = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([rising, falling], [warmup])


def draw(optimizer: Optimizer, segments: Sequence[Segment]) -> str:
    """A table of the rates of a run in which no update is skipped."""
    steps = segments[-1].last
    ends = [segment.last for segment in segments[:-1]]
    part_rates = rates(optimizer, segments)

    def rate(update: int) -> float:
        return float(part_rates[bisect.bisect_right(ends, update)](update))

    def epoch(update: int) -> float:
        epochs = 0.0
        for part in segments:
            epochs += max(0, min(update, part.last) - part.first) / part.steps_per_epoch
        return epochs

    # Include the end of each warm-up and the borders of the parts, however short they are.
    updates = {round(steps * tenth / 10) for tenth in range(11)}
    lines = [f"{optimizer.name}: {steps:,} updates, {epoch(steps):.2f} epochs"]
    for settings, parts in _schedules(optimizer, segments):
        begin = parts[0]
        first = begin.first
        length = parts[-1].last - first
        _, warmup, decay = resolve(settings, begin.batch, length, begin.steps_per_epoch)
        updates.add(first + warmup)
        lines.append(
            f"from update {first:,}: scaling {settings.scaling} from {settings.learning_rate:g} at "
            f"{settings.base_batch}; warm-up {warmup:,} updates; {settings.schedule} until "
            f"{first + decay:,}"
        )
        for part in parts:
            updates.add(part.first)
            lines.append(
                f"updates {part.first:,} to {part.last:,}: batch {part.batch:,}, "
                f"{part.steps_per_epoch:,.0f} updates per epoch, peak "
                f"{peak_rate(settings, part.batch):.3g}"
            )
    for name, ratio in optimizer.other_rates.items():
        lines.append(f"the rates are Adam's; {name}'s are {ratio:.4g} times as high")
    lines += ["", f"{'update':>10} {'epoch':>8} {'rate':>10}"]
    for update in sorted(updates):
        if update <= steps:
            lines.append(f"{update:>10,} {epoch(update):>8.2f} {rate(update):>10.3e}")
    return "\n".join(lines)
