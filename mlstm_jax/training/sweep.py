"""Sweeps: several runs that answer one question, for example batch by learning rate, and a table.

A specification is a Python file that sets ``runs``: a dict from (row, column), the labels of the
table, to a `Config`. A run whose ``train.start_from`` is the ``out`` of one run before it starts
from that run's folder.
"""

import csv
import itertools
import os
import statistics
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from mlstm_jax import config as configs
from mlstm_jax import environment, output, shipped
from mlstm_jax.arrays import fingerprint
from mlstm_jax.config import Config, differences, differing, run_python
from mlstm_jax.config.resolve import Hardware, resolve
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.errors import InUse, UserError, note, require
from mlstm_jax.fields import public
from mlstm_jax.launcher import process_info
from mlstm_jax.record import newest_record
from mlstm_jax.run import read_config
from mlstm_jax.terminal import markdown, message, tell
from mlstm_jax.training import metrics
from mlstm_jax.training.report import Diverged
from mlstm_jax.training.resume import load_start
from mlstm_jax.training.train import Session, train

Runs = dict[tuple[str, str], Config]


def load_sweep(path: Path) -> Runs:
    """Run a specification, a file or a sweep of the package such as puri_fig5; return its ``runs``.

    Raises UserError if there is no such file, or it sets no runs.
    """
    path = shipped.find(path, "sweep")
    runs = run_python(path, "sweep").get("runs")
    if not isinstance(runs, dict) or not runs:
        raise UserError(
            f"{path} sets no `runs = {{(ROW, COLUMN): Config(...)}}`; see `mlstm-jax configs "
            "puri_fig5`."
        )
    return runs


def in_folders(runs: Runs, out: Path) -> Runs:
    """The runs with their folders, OUT/ROW/COLUMN."""
    placed = {}
    folders: dict[str | None, str] = {}  # of the runs so far, by the `out` of their config
    for key, config in runs.items():
        fits = isinstance(config, Config) and isinstance(key, tuple) and len(key) == 2
        fits = fits and all(map(_names_folder, key))
        require(fits, "a key of `runs`", key, "(ROW, COLUMN), of a Config; each names a folder")
        folder = str(out / key[0] / key[1])
        start = config.train.start_from
        if sum(other.out == start for other in runs.values()) == 1:
            start = folders.get(start, start)
        folders[config.out] = folder
        placed[key] = configs.vary(config, out=folder, train__start_from=start)
    return placed


def _names_folder(label: Any) -> bool:
    return isinstance(label, str) and label.strip(".") != "" and "/" not in label


def prepare(runs: Runs) -> None:
    """Set what JAX reads when it starts, as the runs need it; see `environment.prepare`."""
    numbers = []
    for key, config in runs.items():
        _, processes = process_info(config.distributed, os.environ)
        if processes > 1:  # JAX connects processes only once.
            raise UserError(
                f"the run {' / '.join(key)} would have {processes} processes, but a sweep trains "
                "each run in one; set `distributed.processes` to 1 in its config (several `sweep` "
                "commands share the work), or train this run with `mlstm-jax train`."
            )
        numbers.append(config.devices.virtual_cpu)
    rule = "the same number in all runs: one process trains them all"
    require(len(set(numbers)) < 2, "devices.virtual_cpu", numbers, rule)
    for config in runs.values():
        environment.prepare(config.devices, deterministic=config.train.deterministic)


class RunSummary(NamedTuple):
    """The figures of one run: a line of table.csv.

    Attributes:
        row: of the grid.
        column: of the grid.
        status: done, diverged, unfinished or not begun.
        batch: None before a run with data.batch_per_device begins.
        optimizer: its name.
        steps: updates that were made.
        epochs: read.
        peak_rate: the largest in the lines of metrics.
        bpc: of the last validation.
        best_bpc: of all validations.
        noise_scale: in rows, the mean over the second half of the lines of each line's own
            estimate, a biased one; `analysis.noise_scale` divides the means instead.
        bytes_per_second: the median of the lines.
        seconds: of training.
    """

    row: str
    column: str
    status: str
    batch: int | None
    optimizer: str
    steps: int
    epochs: float | None
    peak_rate: float | None
    bpc: float | None
    best_bpc: float | None
    noise_scale: float | None
    bytes_per_second: float | None
    seconds: float | None


def require_same_run(config: Config, *, with_content: bool = True) -> None:
    """Raise UserError if the folder has a run of another config, corpus or initial parameters.

    The config has only the paths of the last two, and the content at a path may have changed; it is
    read `with_content`.
    """
    run_folder = Path(config.out)
    trained = read_config(run_folder)
    if trained is None:
        return
    # A run saves its batch, not the rows of a device.
    devices = 1
    if config.data.batch_per_device is not None:
        devices = max(1, trained.data.batch // config.data.batch_per_device)
    resolved = resolve(config, Hardware(devices), trained)
    different = list(itertools.chain(*differences(trained, resolved)))
    before = newest_record(run_folder)
    if with_content and before and not different:
        start = load_start(resolved)
        print_of = fingerprint(start.params) if start else None
        corpus = open_corpus(Path(config.data.corpus)).identity
        then = {"corpus": before.meta.corpus, "start_from": before.meta.start}
        now = {"corpus": corpus, "start_from": print_of}
        for name, old, new in differing(then, now):
            different.append(f"fingerprint of {name}: {str(old)[:12]}… → {str(new)[:12]}…")
    if different:
        raise UserError(
            f"{run_folder} contains a run with another config ({'; '.join(different)}); use "
            "another `out`, or remove the folder."
        )


@public
def sweep(
    runs: Runs | str | Path,
    out: str | Path,
    *,
    table_only: bool = False,
    owns_process: bool = False,
) -> list[RunSummary]:
    """Train all runs of a grid, one after the other, and return the result of each.

    Finished and diverged runs are not repeated. Runs that another process is training are skipped,
    so several processes can share a sweep. `out` gets a folder for each run, table.md with the
    validation bits per character, and table.csv with all figures; they are written after each run.

    Args:
        runs: a dict from (row, column) to `Config`; or a Python file that sets `runs` to such a
            dict; the file is executed.
        out: folder of the tables and of the run folders, OUT/ROW/COLUMN.
        table_only: train nothing; write the tables of the existing runs. A note names those of
            another config.
        owns_process: see `train`.

    Returns:
        The figures of each run, in the order of `runs`.

    Raises:
        ValueError: a config or a folder cannot be used.

    Examples:
        >>> config = mlstm.vary(mlstm.load("runs/mine").config, train__steps=2)
        >>> [run.status for run in mlstm.sweep({("16 units", "Adam"): config}, "sweeps/mine")]
        ['done']
    """
    out = Path(out)
    if isinstance(runs, (str, Path)):
        runs = load_sweep(Path(runs))
    runs = in_folders(runs, out)
    output.require_folder(out)
    if not table_only:
        prepare(runs)
    for config in runs.values():
        try:
            require_same_run(config, with_content=not table_only)
        except UserError as error:
            if not table_only:
                raise
            note(f"the tables have the figures of {config.out}, but {error}")
    elsewhere: list[str] = []
    for number, (key, config) in enumerate(runs.items(), 1):
        if table_only or result(key, config).status in ("done", "diverged"):
            continue
        name = " / ".join(key)
        tell(f"\n{number} of {len(runs)}: {name}")
        if not _train(config, runs, owns_process=owns_process):
            elsewhere.append(name)
        write_tables(runs, out)
    if elsewhere:
        tell(f"\nleft to other processes: {', '.join(elsewhere)}")
    return write_tables(runs, out)


def _train(config: Config, runs: Runs, *, owns_process: bool) -> bool:
    """Train a run until it is done or diverges; False, and say why, if others have to go on."""
    for before, other in runs.items():
        is_start = other.out == config.train.start_from
        if is_start and result(before, other).status != "done":
            tell(f"it starts from {' / '.join(before)}, which is not done")
            return False
    try:
        train(config, Session(owns_process=owns_process))
    except Diverged as error:  # a divergence is a result, and the run is not repeated
        tell(f"diverged: {message(error.reason)}")
    except InUse as error:
        tell(message(str(error)))
        return False
    return True


def write_tables(runs: Runs, out: Path) -> list[RunSummary]:
    """Write table.csv and table.md of the existing results; return the results."""
    results = [result(key, config) for key, config in runs.items()]
    suffix = f".{uuid.uuid4().hex}.partial"  # Another process may write them at the same time.
    with (
        output.atomic_file(out / "table.csv", suffix) as partial,
        partial.open("w", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(RunSummary._fields)
        writer.writerows(results)
    with output.atomic_file(out / "table.md", suffix) as partial:
        partial.write_text(as_markdown(results), encoding="utf-8")
    return results


def result(key: tuple[str, str], planned: Config) -> RunSummary:
    """The result of a run, from its files; `planned` is its config, used before it begins."""
    run_folder = Path(planned.out)
    lines = metrics.read_metrics(run_folder / metrics.FILE)
    kinds = metrics.by_kind(lines)
    train = kinds["train"]
    scores = _values(kinds["eval"], "bpc")
    events = ["", *_values(kinds["event"], "event")]
    config = read_config(run_folder)
    status = "not begun"
    if config:
        # A finished run whose steps were raised has a later event.
        ends = {"finished": "done", "diverged": "diverged"}
        status = ends.get(events[-1], "unfinished")
    noise = _values(train[len(train) // 2 :], "noise_scale")
    speeds = _values(train, "bytes_per_second")
    epochs = _values(lines, "epoch")
    config = config or planned
    batch = None if config.data.batch_per_device else config.data.batch
    return RunSummary(
        row=key[0],
        column=key[1],
        status=status,
        batch=batch,
        optimizer=config.optimizer.name,
        steps=lines[-1]["step"] if lines else 0,
        epochs=epochs[-1] if epochs else None,
        peak_rate=max(_values(train, "learning_rate"), default=None),
        bpc=kinds["eval"][-1]["bpc"] if scores and status == "done" else None,
        best_bpc=min(scores, default=None),
        noise_scale=statistics.fmean(noise) if noise else None,
        bytes_per_second=statistics.median_high(speeds) if speeds else None,
        seconds=max(_values(lines, "seconds"), default=None),
    )


def _values(lines: list[dict[str, Any]], name: str) -> list[Any]:
    """The values of a field in those lines that have it."""
    return [line[name] for line in lines if line.get(name) is not None]


def as_markdown(results: list[RunSummary]) -> str:
    """Validation BPC by row and column, as in Puri et al. 2018, fig. 5; Div: diverged."""
    cells: dict[str, dict[str, str]] = {}
    columns = dict.fromkeys(run.column for run in results)
    for run in results:
        cell = "…"
        if run.status == "diverged":
            cell = "Div"
        elif run.bpc is not None:
            cell = f"{run.bpc:.3f}"
        cells.setdefault(run.row, {})[run.column] = cell
    titles = " | ".join(map(markdown, columns))
    lines = [f"| | {titles} |", "|---" * (len(columns) + 1) + "|"]
    for row, by_column in cells.items():
        values = " | ".join(by_column.get(column, "") for column in columns)
        lines.append(f"| {markdown(row)} | {values} |")
    return "\n".join(lines) + "\n"
