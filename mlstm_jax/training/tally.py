"""The numbers of a training step, each declared once, in `METRICS`, and their tally.

A tally sums them up since the last line of metrics, on the device and in the checkpoint: a kill
before the line is complete changes nothing.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

BITS_PER_NAT = 1 / math.log(2)

# Float32 scalars by the names of `METRICS`, and the numbers of `_COUNTS`.
Tally = dict[str, jax.Array]


class Metric(NamedTuple):
    """A number of a training step."""

    label: str  # of an axis
    # Over the updates of a line that had a loss: the mean; or the last step's.
    reduction: Literal["mean", "last"] = "mean"
    per: str = "updates"  # which of `_COUNTS` a mean is divided by
    number: type[float] = float  # or int, in the line
    shown: str = ""  # how the line of progress shows it, unless it is 0; "": not at all


METRICS = {
    "loss": Metric("nats per byte"),
    "grad_norm": Metric("norm of the gradient"),
    "gradient_signal": Metric("‖true gradient‖²"),  # see step.py
    "gradient_trace": Metric("trace of the covariance of a row's gradient"),
    "label_loss": Metric("loss of the labels", per="labels", shown="label loss {:.3f}"),
    "learning_rate": Metric("learning rate", "last"),
    "loss_scale": Metric("loss scale", "last"),
    "skipped": Metric("updates skipped", "last", number=int, shown="{} skipped"),
}
# Labels are counted per byte.
_COUNTS = {"updates": jnp.int32, "labels": jnp.float32}


def empty_tally() -> Tally:
    """The tally at the beginning of a line."""
    tally = {name: jnp.zeros((), dtype) for name, dtype in _COUNTS.items()}
    return tally | {name: jnp.float32(0) for name in METRICS}


def add_to_tally(tally: Tally, values: Tally, *, has_loss: jax.Array) -> Tally:
    """Add the values of a step; without a loss it counts only for the last values."""
    added = {}
    for name, before in tally.items():
        added[name] = values[name]
        if name not in METRICS or METRICS[name].reduction == "mean":
            added[name] = jnp.where(has_loss, before + values[name], before)
    return added


def line_of(tally: Mapping[str, Any], *, labels: bool) -> dict[str, float]:
    """The fields of a line, from a tally on the host; a mean of nothing is NaN."""
    line = {}
    for name, metric in METRICS.items():
        if metric.per == "labels" and not labels:
            continue
        value = tally[name].item()
        if metric.reduction == "mean":
            value /= tally[metric.per].item() or math.nan
        line[name] = metric.number(value)
    line["bpc"] = line["loss"] * BITS_PER_NAT
    line["noise_scale"] = math.nan  # in rows; the estimates may be too noisy to give one
    if line["gradient_signal"] > 0 and line["gradient_trace"] > 0:
        line["noise_scale"] = line["gradient_trace"] / line["gradient_signal"]
    return line


def shown_of(line: Mapping[str, float]) -> list[str]:
    """What the line of progress shows."""
    parts = [f"bpc {line['bpc']:.3f}"]
    for name, metric in METRICS.items():
        value = line.get(name, 0)
        if metric.shown and value and not math.isnan(value):
            parts.append(metric.shown.format(value))
    return parts
