"""Read the configs and metrics of runs, from their folders or from a study of results/."""

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from mlstm_jax.config import Config, from_json, load_json
from mlstm_jax.errors import UserError
from mlstm_jax.training import metrics


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
