"""Plot the curves of runs, once or repeatedly while they train."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlstm_jax.api.arguments import public
from mlstm_jax.errors import UserError, extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = ("bpc", "learning_rate", "grad_norm", "loss_scale", "kilobytes_per_second")


@public
def plot_metrics(
    runs: Sequence[str | Path],
    *,
    x: Literal["step", "megabytes", "epoch", "minutes"] = "megabytes",
    live_seconds: float = 0.0,
    on_draw: "Callable[[Figure], None] | None" = None,
) -> "Figure":
    """Plot bits per character, rate, gradient, loss scale and speed of runs.

    Needs matplotlib and pandas, the extra `notebooks`.

    Args:
        runs: run folders, or folders of run folders.
        x: the quantity on the horizontal axis.
        live_seconds: redraw every 5 s for this many seconds; a notebook updates the figure.
        on_draw: called with the figure after each drawing, instead of showing it.

    Raises:
        ValueError: a folder holds no run.
    """
    folders = [str(run) for run in runs]
    if not folders:
        raise UserError("runs is empty; give at least one run folder.")
    with extra("notebooks", "plots need matplotlib and pandas"):
        import matplotlib.pyplot as plt
        import pandas as _  # noqa: F401

    figure, axes = plt.subplots(len(PANELS), 1, figsize=(8, 2.4 * len(PANELS)), sharex=True)
    plt.close(figure)  # otherwise a notebook would show it twice
    shown, until = None, time.monotonic() + live_seconds
    while True:
        _draw(axes, folders, x)
        if on_draw:
            on_draw(figure)
        elif live_seconds:
            shown = _show(figure, shown)
        if time.monotonic() >= until:
            return figure
        time.sleep(min(5.0, max(0.1, until - time.monotonic())))


def _draw(axes: Sequence[Any], folders: list[str], x: str) -> None:
    from mlstm_jax import analysis

    histories = analysis.load_histories(*folders)
    for panel, name in zip(axes, PANELS, strict=True):
        panel.clear()
        analysis.plot(panel, histories, x, name)
        if name == "bpc":
            analysis.plot(
                panel,
                histories,
                x,
                name,
                kind="evaluations",
                label=lambda one: "_",
                style=lambda one: {"ls": "", "marker": "o", "ms": 3},
            )
            panel.set_ylim(analysis.limits(histories, name))
            panel.plot([], [], "o", ms=3, color="0.5", label="validation")
            panel.legend(fontsize=8)


def _show(figure: "Figure", shown: Any) -> Any:
    """Show a figure in a notebook, in place of the one before."""
    try:
        from IPython.display import display
    except ImportError:
        return None
    if shown is None:
        return display(figure, display_id=True)
    shown.update(figure)
    return shown
