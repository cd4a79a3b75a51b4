"""Functions to prepare a corpus, train, sweep and plan."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlstm_jax import environment
from mlstm_jax.api.arguments import as_config, at_least, public
from mlstm_jax.api.model import TrainedModel, load
from mlstm_jax.config import Config
from mlstm_jax.corpora.prepare import PrepareOptions
from mlstm_jax.corpora.prepare import prepare as run_prepare
from mlstm_jax.data.corpus import Corpus, SplitName, open_corpus
from mlstm_jax.errors import UserError, require
from mlstm_jax.planning.machine import load_machine
from mlstm_jax.planning.plan import Row
from mlstm_jax.planning.plan import plan as make_plan
from mlstm_jax.run import initial_parameters
from mlstm_jax.training import sweep as sweeps
from mlstm_jax.training.loop import train as run_train
from mlstm_jax.training.sweep import Result

Sources = str | Path | Sequence[str | Path]


@public
def prepare(
    sources: Sources | Mapping[SplitName, Sources],
    out: str | Path,
    options: PrepareOptions | None = None,
    *,
    overwrite: bool = False,
    show_progress: bool = False,
) -> Corpus:
    """Create a corpus from text files: read, clean, deduplicate, shuffle and split them.

    Args:
        sources: one or several files, folders or patterns; or a dict of them by split, to use
            existing splits.
        out: the corpus folder; it is created atomically.
        options: unset: 1000 training documents for each validation and each test document.
        overwrite: replace an existing corpus.
        show_progress: on standard error.

    Raises:
        ValueError: a source, `out` or an option cannot be used.
    """
    given = (
        {split: _names(some) for split, some in sources.items()}
        if isinstance(sources, Mapping)
        else _names(sources)
    )
    out = Path(out)
    options = options or PrepareOptions()
    run_prepare(given, out, options, overwrite=overwrite, show_progress=show_progress)
    return open_corpus(out)


def _names(sources: Sources) -> list[str]:
    return [str(sources)] if isinstance(sources, (str, Path)) else [str(one) for one in sources]


@public
def train(
    config: Config | str | Path,
    *,
    callbacks: Sequence[Callable[[dict[str, Any]], None]] = (),
    resume: bool = False,
    reset_carry: bool = False,
    show_progress: bool = True,
    owns_process: bool = False,
) -> "TrainedModel":
    """Train a model, or resume a run that was stopped.

    Args:
        config: what to train; `config.out` is the run folder. Or a config file, which is executed,
            or the name of one that comes with the package, such as "small_512".
        callbacks: each is called with each line of metrics.jsonl as it is written, a dict with
            `kind` "train", "eval" or "event". An exception in a callback ends the training.
        resume: fail unless there is a run to resume.
        reset_carry: resume with another batch, window or shards; all rows start from a zero state.
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
    for callback in callbacks:
        if not callable(callback):
            raise UserError(f"callbacks has {callback!r}, but each must be a function.")
    config = as_config(config)
    environment.prepare(config.devices, deterministic=config.train.deterministic)
    folder = run_train(
        config,
        initial=initial_parameters(config),
        resume=resume,
        reset_carry=reset_carry,
        callbacks=callbacks,
        quiet=not show_progress,
        owns_process=owns_process,
    )
    return load(folder)


@public
def sweep(
    runs: dict[tuple[str, str], Config] | str | Path,
    out: str | Path,
    *,
    on_begin: Callable[[int, int, tuple[str, str]], None] = lambda number, total, key: None,
    owns_process: bool = False,
) -> "list[Result]":
    """Train all runs of a grid, and return the result of each.

    Finished and diverged runs are not repeated. Runs that another process is training are skipped,
    so several processes can share a sweep. `out` gets a folder for each run, table.md and
    table.csv.

    Args:
        runs: a dict from (row, column) to `Config`; or a Python file that sets `runs` to such a
            dict; the file is executed.
        out: folder of the run folders.
        on_begin: called before each run with its number, the number of runs, and its key.
        owns_process: see `train`.

    Raises:
        ValueError: a folder holds a run of another config.
    """
    if isinstance(runs, (str, Path)):
        runs = sweeps.load_sweep(Path(runs))
    sweeps.prepare(runs)
    return sweeps.sweep(runs, Path(out), on_begin=on_begin, owns_process=owns_process)


@public
def plan(
    config: Config | str | Path,
    machine: str | Path,
    *,
    devices: Sequence[int] = (1, 2, 4, 8),
    corpus_bytes: float | None = None,
) -> "list[Row]":
    """Estimate the time, memory and cost of a run on a machine, for several numbers of devices.

    Args:
        config: of the run, as for `train`.
        machine: a JSON description, or the name of one in the package, such as h200.
        devices: numbers of devices, over all nodes.
        corpus_bytes: of the training split; unset: those of `config.data.corpus`, if it exists.

    Raises:
        ValueError: the description is invalid, or the batch cannot be divided among the devices.
    """
    config = as_config(config)
    for count in devices:
        at_least("devices", count, 1)
    is_size = corpus_bytes is None or 0 < corpus_bytes < math.inf
    require(is_size, "corpus_bytes", corpus_bytes, "above 0, and finite")
    if corpus_bytes is None and Path(config.data.corpus).is_dir():
        corpus_bytes = open_corpus(Path(config.data.corpus)).manifest.splits["train"].bytes
    return make_plan(config, load_machine(Path(machine)), tuple(devices), corpus_bytes)
