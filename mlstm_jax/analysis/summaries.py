"""Settings and results of runs as tables, and a sweep by row and column."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mlstm_jax.analysis.histories import History, load_histories
from mlstm_jax.corpora.documents import rating_of
from mlstm_jax.errors import UserError

_EMPTY = pd.Series(dtype=float)
_PROGRESS = ["step", "megabytes", "minutes"]


def _last(values: pd.Series, otherwise: Any) -> Any:
    return values.iloc[-1] if len(values) else otherwise


def summary(histories: Iterable[History]) -> pd.DataFrame:
    """The main settings and results of runs.

    Args:
        histories: of the runs.

    Returns:
        A table with a row for each run, by name. Steps, MB and minutes are of the last line of
        training or evaluation, `skipped` of the last of training; the peak rate is the largest of
        these lines.

    Examples:
        >>> analysis.summary(histories)["end"].to_dict()
        {'mine': 'finished'}
    """
    names = []
    rows = []
    for history in histories:
        config = history.config
        train = history.train
        bpc = history.evaluations["bpc"]
        # The last step of a run may be between two lines of training.
        both = pd.concat([table[_PROGRESS] for table in (train, history.evaluations)])
        read = both.max().fillna(0)
        # A finished run whose steps were raised has a later event.
        end = _last(history.events["event"], "")
        names.append(history.name)
        rows.append(
            {
                "hidden": config.model.hidden,
                "batch": config.data.batch,
                "window": config.data.window,
                "precision": config.precision.compute,
                "optimizer": config.optimizer.name,
                "peak rate": train.get("learning_rate", _EMPTY).max(),
                "steps": int(read["step"]),
                "MB": read["megabytes"],
                "last BPC": _last(bpc, np.nan),
                "best BPC": bpc.min(),
                "skipped": int(_last(train.get("skipped", _EMPTY), 0)),
                "noise scale": noise_scale(history),
                "kB/s": train["kilobytes_per_second"].median(),
                "minutes": read["minutes"],
                "end": end if end in ("finished", "diverged") else "unfinished",
            }
        )
    return pd.DataFrame(rows, index=names)


def noise_scale(history: History) -> float:
    """The gradient's noise scale in rows, over the second half of the run.

    This is the mean trace over the mean signal (McCandlish et al. 2018, appendix A.1: the ratio of
    one line is biased, the ratio of the means hardly).

    Args:
        history: of the run.

    Returns:
        The scale; NaN with one device and no micro-batches.

    Examples:
        >>> analysis.noise_scale(histories[0])
        nan
    """
    half = history.train.iloc[len(history.train) // 2 :]
    signal = half.get("gradient_signal", _EMPTY).mean()
    trace = half.get("gradient_trace", _EMPTY).mean()
    return float(trace / signal) if signal > 0 and trace > 0 else float("nan")


def updates_to(history: History, bpc: float) -> float:
    """The step at which the validation BPC first reaches `bpc`; NaN if it never does.

    Args:
        history: of the run. An evaluation without a number, as after a divergence, does not count.
        bpc: the score to reach.

    Returns:
        The step, interpolated between two evaluations in the logarithm of the step.

    Examples:
        >>> analysis.updates_to(histories[0], bpc=0.1)
        nan
    """
    scores = history.evaluations.dropna(subset="bpc")
    reached = np.flatnonzero(scores["bpc"] <= bpc)
    if not len(reached):
        return float("nan")
    after = reached[0]
    if after == 0:
        return float(scores["step"].iloc[0])
    around = scores.iloc[[after, after - 1]]
    return float(np.exp(np.interp(bpc, around["bpc"], np.log(around["step"]))))


def grid(folder: Path | str) -> pd.DataFrame:
    """The last validation BPC of a sweep by row and column.

    Args:
        folder: the runs of a sweep or a study, whose names are ROW/COLUMN.

    Returns:
        The table: inf: diverged, NaN: not ended. Rows that are numbers, such as batches, are in
        numeric order.

    Raises:
        ValueError: as `load_histories` does, or no run is a ROW/COLUMN.

    Examples:
        >>> analysis.grid("rates").shape  # its only run is rates/Adam/16
        (1, 1)
    """
    cells = {}
    for history in load_histories(folder):
        row, slash, column = history.name.partition("/")
        if slash:
            last = _last(history.evaluations["bpc"], np.nan)
            scores = {"finished": last, "diverged": np.inf}
            cells[row, column] = scores.get(_last(history.events["event"], ""), np.nan)
    if not cells:
        raise UserError(f"{folder} holds no sweep: none of its runs is a ROW/COLUMN.")
    table = pd.Series(cells, dtype=float).unstack()
    return table.loc[sorted(table.index, key=lambda row: rating_of(row) or 0)]


def formatted(table: pd.DataFrame, digits: int = 3) -> pd.DataFrame:
    """A table of numbers as text: Div for inf, a dash for NaN.

    Args:
        table: of numbers, such as of `grid`.
        digits: after the decimal point.

    Returns:
        The table as strings.

    Examples:
        >>> analysis.formatted(pd.DataFrame({"Adam": [1.2345, np.inf]}))["Adam"].tolist()
        ['1.234', 'Div']
    """
    table = table.astype(float)
    text = table.map(f"{{:.{digits}f}}".format)
    return text.mask(np.isinf(table), "Div").mask(table.isna(), "–")
