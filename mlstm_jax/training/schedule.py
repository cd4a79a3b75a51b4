"""The learning rate: its scaling with the batch, its warm-up and its decay.

All is counted in *applied* updates n: a skipped step advances neither n nor Adam's count (Puri et
al. 2018, section VIII, whose schedule is linear decay to zero). After a warm-up of W updates the
decay runs over the N − W that are left.
"""

import math
from pathlib import Path
from typing import NamedTuple

import optax

from mlstm_jax.config import Optimizer
from mlstm_jax.errors import UserError

# Slanted triangular rates end at this part of the peak (Howard and Ruder 2018, section 3.2).
_TRIANGULAR_RATIO = 32


class Plan(NamedTuple):
    """What the rules make of a config and a batch."""

    peak: float  # the largest rate
    warmup: int  # updates until it
    decay: int  # the update at which the decay ends


def resolve(optimizer: Optimizer, batch: int, steps: int, steps_per_epoch: int) -> Plan:
    """Return the peak rate and the warm-up of a global batch, in a run of `steps` updates.

    The scalings grow the rate with k = B / B0. LEGW (You et al. 2019, arXiv 1901.08256) grows it by
    √k and the warm-up, in epochs, by k: so the warm-up has the same number of updates at any batch.
    """
    k = batch / optimizer.base_batch
    factors = {"none": 1.0, "linear": k, "sqrt": math.sqrt(k), "legw": math.sqrt(k)}
    peak = optimizer.learning_rate * factors[optimizer.scaling]
    if optimizer.learning_rate_cap is not None:
        peak = min(peak, optimizer.learning_rate_cap)
    decay = optimizer.decay_steps or steps
    warmup = optimizer.warmup_steps
    if optimizer.warmup_epochs:
        epochs = optimizer.warmup_epochs * (k if optimizer.scaling == "legw" else 1)
        warmup = math.ceil(epochs * steps_per_epoch)
    if optimizer.schedule == "triangular" and not warmup:
        warmup = max(1, decay // 10)
    if optimizer.schedule != "constant" and warmup >= decay:
        raise UserError(
            f"the warm-up is {warmup:,} updates, but the learning rate's decay ends at {decay:,}; "
            "shorten optimizer.warmup_steps or optimizer.warmup_epochs, or train for longer."
        )
    return Plan(peak, warmup, decay)


def learning_rate(
    optimizer: Optimizer, batch: int, steps: int, steps_per_epoch: int = 0
) -> optax.Schedule:
    """Return the rate as a function of the applied updates; `steps` is the length of the run."""
    peak, warmup, decay = resolve(optimizer, batch, steps, steps_per_epoch)
    left = decay - warmup
    match optimizer.schedule:
        case "constant":
            falling = optax.constant_schedule(peak)
        case "cosine":
            falling = optax.cosine_decay_schedule(peak, left)
        case "polynomial":
            falling = optax.polynomial_schedule(peak, 0.0, optimizer.power, left)
        case "triangular":
            falling = optax.linear_schedule(peak, peak / _TRIANGULAR_RATIO, left)
        case _:
            falling = optax.linear_schedule(peak, 0.0, left)
    if not warmup:
        return falling
    # The first update counts: its rate is peak / W, not zero.
    rising = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([rising, falling], [warmup])


class Drawn(NamedTuple):
    """A resolved schedule, to look at."""

    text: str
    updates: list[int]
    rates: list[float]


def draw(optimizer: Optimizer, batch: int, steps: int, steps_per_epoch: int) -> Drawn:
    """Return the rates of a run of `steps` updates, none of them skipped."""
    plan = resolve(optimizer, batch, steps, steps_per_epoch)
    rate = learning_rate(optimizer, batch, steps, steps_per_epoch)
    # The warm-up's end is seen, however short it is.
    points = {round(steps * part / 400) for part in range(401)} | {0, plan.warmup, steps}
    updates = sorted(point for point in points if point <= steps)
    rates = [float(rate(update)) for update in updates]
    head = (
        f"{optimizer.name}, batch {batch:,}: {steps:,} updates, {steps / steps_per_epoch:.2f} "
        f"epochs of {steps_per_epoch:,}\n"
        f"scaling {optimizer.scaling} from {optimizer.learning_rate:g} at {optimizer.base_batch}: "
        f"peak {plan.peak:.3g}; warm-up {plan.warmup:,} updates; {optimizer.schedule} until "
        f"{plan.decay:,}\n\n{'update':>10} {'epoch':>8} {'rate':>10}"
    )
    shown = sorted({*(round(steps * part / 10) for part in range(11)), min(plan.warmup, steps)})
    lines = [f"{n:>10,} {n / steps_per_epoch:>8.2f} {float(rate(n)):>10.3e}" for n in shown]
    return Drawn("\n".join([head, *lines]), updates, rates)


def plot(drawn: Drawn, path: Path) -> None:
    """Draw a schedule into a picture; UserError where matplotlib is missing or cannot."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "--plot needs matplotlib: pip install -e '.[plot]', or leave it out."
        ) from error
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(drawn.updates, drawn.rates)
    axes.set(xlabel="applied updates", ylabel="learning rate", title=drawn.text.splitlines()[1])
    axes.title.set_fontsize(9)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UserError(f"--plot {path}: {error}") from error
