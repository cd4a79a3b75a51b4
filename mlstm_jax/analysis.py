"""Tables and curves of runs, used by the notebooks for the project's runs or your own.

The runs of a study in results/ are one file, runs.jsonl.gz: a line for each, an object with `run`
(its name), `config`, `environment` and `metrics` (the lines of metrics.jsonl).

Needs pandas and matplotlib (the extra `notebooks`), which training does not need. A table is a
pandas DataFrame; a curve is drawn on axes that the caller creates. The examples assume:

>>> import numpy as np
>>> import pandas as pd
>>> from mlstm_jax import analysis
>>> histories = analysis.load_histories("runs/mine")
"""

import gzip
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from mlstm_jax.config import Config, from_json, load_json
from mlstm_jax.corpora.documents import rating_of
from mlstm_jax.errors import UserError
from mlstm_jax.training import metrics

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
_LABELS |= {name: metric.label for name, metric in metrics.METRICS.items()}
_EMPTY = pd.Series(dtype=float)


class History(NamedTuple):
    """The name, config and metrics of a run folder.

    Attributes:
        name: its path below the folder that was read.
        config: the run's.
        train: a row for each such line of metrics.jsonl, with its fields as columns, and megabytes,
            minutes and kilobytes_per_second.
        evaluations: the same of evaluations.
        events: step and event.
    """

    name: str
    config: Config
    train: pd.DataFrame
    evaluations: pd.DataFrame
    events: pd.DataFrame


def load_histories(*folders: Path | str) -> list[History]:
    """Read every run of `folders`, sorted by path; a run's name is its path below its folder.

    Args:
        folders: each holds runs in or below it, or is a study with a runs.jsonl.gz.

    Returns:
        A history for each run.

    Raises:
        ValueError: a folder holds no run, or a run cannot be read.

    Examples:
        >>> analysis.load_histories("runs/mine")[0].name
        'mine'
    """
    histories: list[History] = []
    for folder in map(Path, folders):
        study = folder / "runs.jsonl.gz"
        histories += _load_study(study) if study.is_file() else _load_folder(folder)
    return histories


def _load_folder(folder: Path) -> Iterator[History]:
    for run in metrics.runs_in(folder):
        name = run.resolve().name if run == folder else str(run.relative_to(folder))
        path = run / "config.json"
        if not path.is_file():
            raise UserError(f"{run} has no config.json, so it is not a complete run folder.")
        yield _history(name, load_json(path), metrics.read_metrics(run / metrics.FILE))


def _load_study(path: Path) -> Iterator[History]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            run = json.loads(line)
            if not {"run", "config", "metrics"} <= run.keys():
                raise UserError(f"{path}: a line has no run, config or metrics; name another.")
            config = from_json(json.dumps(run["config"]), path)
            yield _history(run["run"], config, run["metrics"])


def _history(name: str, config: Config, lines: list[dict[str, Any]]) -> History:
    kinds = metrics.by_kind(lines)
    events = pd.DataFrame(kinds["event"], columns=["step", "event"])
    return History(name, config, _table(kinds["train"]), _table(kinds["eval"]), events)


def _table(lines: list[dict[str, Any]]) -> pd.DataFrame:
    # Lines of a run differ if it went on with another number of devices.
    columns = dict.fromkeys(["step", "epoch", "bytes_seen", "bpc", "seconds", "bytes_per_second"])
    columns.update(dict.fromkeys(itertools.chain(*lines)))
    columns.pop("kind", None)
    # Null in the file is NaN here: a line with only skipped updates has no mean.
    table = pd.DataFrame(lines, columns=list(columns)).astype(float).astype({"step": int})
    table["megabytes"] = table["bytes_seen"] / 1e6
    table["minutes"] = table["seconds"] / 60
    table["kilobytes_per_second"] = table["bytes_per_second"] / 1e3
    return table


def _last(values: pd.Series, otherwise: Any) -> Any:
    return values.iloc[-1] if len(values) else otherwise


def summary(histories: Iterable[History]) -> pd.DataFrame:
    """The main settings and results of runs.

    Args:
        histories: of the runs.

    Returns:
        A table with a row for each run, by name.

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
                "steps": int(_last(train["step"], 0)),
                "MB": _last(train["megabytes"], 0.0),
                "last BPC": _last(bpc, np.nan),
                "best BPC": bpc.min(),
                "skipped": int(_last(train.get("skipped", _EMPTY), 0)),
                "noise scale": noise_scale(history),
                "kB/s": train["kilobytes_per_second"].median(),
                "minutes": _last(train["minutes"], 0.0),
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
    text = table.map(f"{{:.{digits}f}}".format)
    return text.mask(np.isinf(table), "Div").mask(table.isna(), "–")


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

    That, the drop from 8 bits, would make the rest too small to read.

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
