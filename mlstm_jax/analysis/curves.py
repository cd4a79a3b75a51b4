"""Curves of runs: one column of their metrics against another."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from mlstm_jax.analysis.histories import History, load_histories
from mlstm_jax.training.tally import METRICS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Columns of a table of metrics, and their labels on an axis.
_LABELS = {
    "step": "steps",
    "megabytes": "megabytes read",
    "epoch": "epochs",
    "minutes": "minutes",
    "bpc": "bits per character",
    "noise_scale": "noise scale, rows",
    "kilobytes_per_second": "kB/s",
}
_LABELS |= {name: metric.label for name, metric in METRICS.items()}


def smooth(values: pd.Series, span: float) -> pd.Series:
    """The moving mean of `span` values around each, so that a curve does not lag behind its data.

    Args:
        values: [N]; NaN counts as missing.
        span: how many values; at both ends fewer.

    Returns:
        The means, [N].

    Examples:
        >>> analysis.smooth(pd.Series([1.0, 2.0, 6.0, 4.0, 5.0]), 3).tolist()
        [1.5, 3.0, 4.0, 5.0, 4.5]
    """
    return values.rolling(max(1, round(span)), center=True, min_periods=1).mean()


def plot(
    axes: Any,
    histories: Iterable[History],
    x: str,
    y: str,
    *,
    kind: str = "train",
    span: float = 1,
    label: Callable[[History], str] = lambda history: history.name,
    style: Callable[[History], dict[str, Any]] = lambda history: {},
) -> None:
    """Plot one column of every run against another.

    Args:
        axes: matplotlib axes.
        histories: of the runs; one without the column `y` is left out.
        x: the column on the horizontal axis, such as step or megabytes.
        y: the column to draw, such as bpc.
        kind: train, or evaluations.
        span: of `smooth`, in lines.
        label: the name of a run in the legend; "_" omits it.
        style: further arguments of `axes.plot` for a run.

    Raises:
        KeyError: a run has no column `x`.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> figure, axes = plt.subplots()
        >>> analysis.plot(axes, histories, "megabytes", "bpc", span=3)
        >>> axes.get_ylabel()
        'bits per character'
    """
    for history in histories:
        table = getattr(history, kind)
        if y in table and len(table):
            look = {"lw": 1.2, "label": label(history)} | style(history)
            axes.plot(table[x], smooth(table[y], span), **look)
    axes.set(xlabel=_LABELS.get(x, x), ylabel=_LABELS.get(y, y))
    axes.grid(alpha=0.3)


def limits(histories: Iterable[History], y: str) -> tuple[float, float] | None:
    """The limits of an axis that shows the column `y` of all runs after their first tenth.

    The first tenth, a drop from 8 bits, would make the rest too small to read.

    Args:
        histories: of the runs.
        y: the column.

    Returns:
        The lower and the upper limit. None if no run has values; `axes.set_ylim(None)` then keeps
        matplotlib's own limits.

    Examples:
        >>> low, high = analysis.limits(histories, "bpc")
    """
    parts = [np.zeros(0)]
    for history in histories:
        later = history.train.iloc[len(history.train) // 10 :]
        parts += [table[y] for table in (later, history.evaluations) if y in table]
    values = np.concatenate(parts)
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low = float(values.min())
    high = float(values.max())
    margin = 0.05 * (high - low) or 0.1
    return low - margin, high + margin


def plot_runs(
    runs: Sequence[str | Path], x: Literal["step", "megabytes", "epoch", "minutes"]
) -> "Figure":
    """Plot bits per character, rate, gradient, speed and, of runs in fp16, the loss scale.

    Args:
        runs: folders, as of `load_histories`.
        x: the column on the horizontal axis.

    Returns:
        A figure with a panel for each.

    Raises:
        ValueError: as `load_histories` does.

    Examples:
        >>> len(analysis.plot_runs(["runs/mine"], "step").axes)
        4
    """
    import matplotlib.pyplot as plt

    histories = load_histories(*runs)
    names = ["bpc", "learning_rate", "grad_norm", "kilobytes_per_second"]
    if any(history.config.precision.compute == "fp16" for history in histories):
        names.append("loss_scale")
    size = (8, 2.4 * len(names))
    figure, axes = plt.subplots(len(names), 1, figsize=size, sharex=True, layout="constrained")
    plt.close(figure)  # otherwise a notebook would show it twice
    color_of = {id(history): f"C{number}" for number, history in enumerate(histories)}

    def line(history: History) -> dict[str, Any]:
        return {"color": color_of[id(history)]}

    def dots(history: History) -> dict[str, Any]:
        return line(history) | {"ls": "", "marker": "o", "ms": 3, "label": "_"}

    for panel, name in zip(axes, names, strict=True):
        plot(panel, histories, x, name, style=line)
    plot(axes[0], histories, x, "bpc", kind="evaluations", style=dots)
    for panel in axes[:-1]:
        panel.set_xlabel("")
    axes[0].set_ylim(limits(histories, "bpc"))
    axes[0].plot([], [], "o", ms=3, color="0.5", label="validation")
    axes[0].legend(fontsize=8)
    return figure
