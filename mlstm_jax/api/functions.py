"""Functions of a config: train, sweep, plan, schedule; and to import weights."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mlstm_jax import environment, output
from mlstm_jax.api.arguments import public
from mlstm_jax.api.model import TrainedModel, load
from mlstm_jax.config import Config, load_file, resolve_batch
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.errors import UserError, extra, note, require
from mlstm_jax.fields import Between, Count, Positive, require_kind
from mlstm_jax.interop import published, weights
from mlstm_jax.planning import Plan
from mlstm_jax.planning import plan as make_plan
from mlstm_jax.planning.machine import load_machine, rate_type, with_compute, with_measured_rate
from mlstm_jax.run import write_imported
from mlstm_jax.training import phases
from mlstm_jax.training import schedule as schedules
from mlstm_jax.training import sweep as sweeps
from mlstm_jax.training.sweep import RunSummary
from mlstm_jax.training.train import train as run_train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Price = Annotated[float, Between(0, ends="[)")]
Callbacks = Sequence[Callable[[dict[str, Any]], None]]


@public
def train(
    config: Config | str | Path,
    *,
    callbacks: Callbacks = (),
    resume: bool = False,
    reset_carry: bool = False,
    show_progress: bool = True,
    owns_process: bool = False,
) -> TrainedModel:
    """Train a model, or resume a run that was stopped.

    Args:
        config: what to train; `config.out` is the run folder. Or a config file, which is executed,
            or the name of one that comes with the package, such as "small_512".
        callbacks: each is called with each line of metrics.jsonl as it is written, a dict with
            `kind` "train", "eval" or "event". An exception in a callback ends the training.
        resume: fail unless the run folder contains a run to resume.
        reset_carry: resume with another data.batch, data.window or data.shards. The hidden state of
            every stream then starts from zero, near the same place in the text.
        show_progress: on standard error.
        owns_process: set if the process does nothing else. Signals then stop the run with a
            checkpoint, and a run that hangs ends the process. Required with several processes.

    Returns:
        The best checkpoint by validation bits per character.

    Raises:
        ValueError: config, corpus and run folder do not match.
        OSError: a checkpoint could not be written.
        mlstm_jax.errors.KnownError: the run diverged or was interrupted.
    """
    callbacks = list(callbacks)
    for callback in callbacks:
        if not callable(callback):
            raise UserError(f"callbacks has {callback!r}, but each must be a function.")
    config = as_config(config)
    environment.prepare(config.devices, deterministic=config.train.deterministic)
    folder = run_train(
        config,
        callbacks=callbacks,
        resume=resume,
        reset_carry=reset_carry,
        quiet=not show_progress,
        owns_process=owns_process,
    )
    return load(folder)


def as_config(config: Config | str | Path) -> Config:
    """Return a config, or that of a file, which is executed; UserError if it has an error."""
    return load_file(config) if isinstance(config, (str, Path)) else config


@public
def sweep(
    runs: dict[tuple[str, str], Config] | str | Path,
    out: str | Path,
    *,
    table_only: bool = False,
    on_begin: Callable[[int, int, tuple[str, str]], None] = lambda number, total, key: None,
    owns_process: bool = False,
) -> list[RunSummary]:
    """Train all runs of a grid, one after the other, and return the result of each.

    Finished and diverged runs are not repeated. Runs that another process is training are skipped,
    so several processes can share a sweep. `out` gets a folder for each run, table.md with the
    validation bits per character, and table.csv with all figures.

    Args:
        runs: a dict from (row, column) to `Config`; or a Python file that sets `runs` to such a
            dict; the file is executed.
        out: folder of the tables and of the run folders, OUT/ROW/COLUMN.
        table_only: train nothing; write the tables of the existing runs.
        on_begin: called before each run with its number, the number of runs, and its key.
        owns_process: see `train`.
    """
    if isinstance(runs, (str, Path)):
        runs = sweeps.load_sweep(Path(runs))
    sweeps.require_folders(runs)
    output.require_folder(Path(out))
    if not table_only:
        sweeps.prepare(runs)
        sweeps.sweep(runs, Path(out), on_begin=on_begin, owns_process=owns_process)
    return sweeps.write_tables(runs, Path(out))


_DEVICES = [2**power for power in range(8)]


def _can_share(config: Config, count: int) -> bool:
    try:
        resolve_batch(config, count)
    except UserError:
        return False
    return True


@public
def plan(
    config: Config | str | Path,
    machine: str | Path,
    *,
    devices: Sequence[int] | None = None,
    corpus_bytes: Positive | None = None,
    rates: str | Path | None = None,
    price: _Price | None = None,
) -> Plan:
    """Estimate the time, memory and cost of a run on a machine, for several numbers of devices.

    Args:
        config: of the run, as for `train`.
        machine: a JSON description, or the name of one in the package, such as h200.
        devices: numbers of devices to plan for, on all nodes together; unset: 1, 2, 4 and so on up
            to 128, of those that can share the batch evenly.
        corpus_bytes: of the training split, such as 40e9; unset: those of data.corpus, if it
            exists.
        rates: results of `benchmarks/train_step.py --json` on such a device; the plan then uses the
            measured rate.
        price: of one device per hour; unset: the price in the description.

    Returns:
        A list with a row for each number of devices and phase, which prints itself as a table.
    """
    config = as_config(config)
    described = load_machine(Path(machine))
    config = with_compute(config, described)
    if rates is not None:
        kind = rate_type(config)
        described = with_measured_rate(described, Path(rates), kind, config.model.hidden)
    if price is not None:
        described = dataclasses.replace(described, price_per_device_hour=price)
    corpus = Path(config.data.corpus)
    if corpus_bytes is None and corpus.is_dir():
        corpus_bytes = open_corpus(corpus).manifest.splits["train"].bytes
    if devices is None:
        devices = [count for count in _DEVICES if _can_share(config, count)] or [1]
    devices = list(devices)
    for count in devices:
        require_kind("devices", count, Count)
    require(len(devices) > 0, "devices", devices, "one number or more")
    return make_plan(config, described, devices, corpus_bytes)


@public
def schedule(
    config: Config | str | Path, *, devices: Count = 1, corpus_bytes: Positive | None = None
) -> schedules.ScheduleTable:
    """Return the learning rate of a config over its run: scaling, warm-up and decay.

    It prints itself as a table, and has `updates` and their `rates`.

    Args:
        config: of the run, as for `train`.
        devices: number of devices, for a config with data.batch_per_device.
        corpus_bytes: of the training split; unset: those of data.corpus, which must then exist.
    """
    config = resolve_batch(as_config(config), devices)
    if corpus_bytes is None:
        corpus = open_corpus(Path(config.data.corpus))
        parts = phases.segments(phases.resolve_phases(config, corpus))
    else:
        parts = phases.expected_segments(config, corpus_bytes)
    return schedules.draw(config.optimizer, parts)


@public
def import_weights(
    kind: Literal["openai", "nvidia", "unirep", "mlstm"], source: str | Path, out: str | Path
) -> TrainedModel:
    """Import weights of another program, or of `TrainedModel.export`, into a run folder.

    Nothing in the files is executed.

    Args:
        kind: openai: the folder of 0.npy to 14.npy of generating-reviews-discovering-sentiment;
            nvidia: a state_dict .pt of sentiment-discovery (needs the extra "torch"); unirep: the
            folder of embed_matrix:0.npy and the others; mlstm: a .safetensors of export.
        source: the folder or file.
        out: run folder to create.
    """
    readers: dict[str, Callable[[Path], weights.ModelWeights]] = {
        "openai": published.read_openai,
        "nvidia": published.read_nvidia,
        "unirep": published.read_unirep,
        "mlstm": weights.load_weights,
    }
    imported = readers[kind](Path(source))
    write_imported(Path(out), imported)
    for one in imported.notes:
        note(one)
    return load(out)


@public
def plot_metrics(
    runs: Sequence[str | Path],
    *,
    x: Literal["step", "megabytes", "epoch", "minutes"] = "megabytes",
) -> "Figure":
    """Plot bits per character, rate, gradient, loss scale and speed of runs.

    Needs matplotlib and pandas, the extra `notebooks`.

    Args:
        runs: run folders, or folders of run folders.
        x: the quantity on the horizontal axis.
    """
    runs = list(runs)
    require(len(runs) > 0, "runs", runs, "one run folder or more")
    with extra("notebooks", "plots need matplotlib and pandas"):
        from mlstm_jax import analysis
    return analysis.plot_runs(runs, x)
