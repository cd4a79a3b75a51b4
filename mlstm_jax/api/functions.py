"""Corpora, training, sweeps and plans as functions."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlstm_jax.api.arguments import public
from mlstm_jax.config import Config
from mlstm_jax.data.corpus import Corpus, SplitName, open_corpus
from mlstm_jax.data.prepare import PrepareOptions
from mlstm_jax.data.prepare import prepare as run_prepare
from mlstm_jax.errors import UserError

if TYPE_CHECKING:
    from mlstm_jax.api.model import TrainedModel
    from mlstm_jax.planning.plan import Row
    from mlstm_jax.training.sweep import Result, Runs

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
    """Make a corpus of files of text: read, cleaned, deduplicated, shuffled, split.

    Args:
        sources: one or several files, folders or patterns; or those of each split, which are then
            kept as they are.
        out: the corpus folder; it appears whole or not at all.
        options: unset: 1000 documents of training for one of validation and one of test.
        overwrite: replace the corpus that is there.
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
    run_prepare(
        given, out, options or PrepareOptions(), overwrite=overwrite, progress=show_progress
    )
    return open_corpus(out)


def _names(sources: Sources) -> list[str]:
    return [str(sources)] if isinstance(sources, (str, Path)) else [str(one) for one in sources]


@public
def train(
    config: Config,
    *,
    callbacks: Sequence[Callable[[dict[str, Any]], None]] = (),
    resume: bool = False,
    reset_carry: bool = False,
    show_progress: bool = True,
    owns_process: bool = False,
) -> "TrainedModel":
    """Train a model, or go on with a run that was stopped.

    Args:
        config: what to train, and where: `config.out` is the run folder.
        callbacks: called with each line of metrics.jsonl as it is written, a dict with `kind`
            "train", "eval" or "event". An error in one ends the training.
        resume: fail unless there is a run to go on with.
        reset_carry: go on with other rows (batch, window, shards), the state of each from zero.
        show_progress: on standard error.
        owns_process: the process does nothing else: signals stop the run with a checkpoint, and a
            run that stands still ends the process. Needed with several processes.

    Returns:
        The best checkpoint by validation bits per character.

    Raises:
        ValueError: config, corpus and run folder do not fit.
        OSError: a checkpoint could not be written.
        mlstm_jax.errors.KnownError: the run has diverged, or was interrupted.
    """
    from mlstm_jax.api.model import load
    from mlstm_jax.run import initial_parameters
    from mlstm_jax.training.loop import train as run_train

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
    runs: "Runs | str | Path",
    out: str | Path,
    *,
    on_begin: Callable[[int, int, tuple[str, str]], None] = lambda number, total, key: None,
    owns_process: bool = False,
) -> "list[Result]":
    """Train all runs of a grid, and return what became of each.

    What is finished or has diverged is not run again, and what another process trains is left to
    it: several processes may share a sweep. `out` gets a run folder each, table.md and table.csv.

    Args:
        runs: a dict from (row, column) to `Config`; or a Python file that sets `runs` to one,
            which is run.
        out: folder of the run folders.
        on_begin: called before each run with its number, their number, and its key.
        owns_process: see `train`.

    Raises:
        ValueError: a folder holds a run of another config.
    """
    from mlstm_jax.training import sweep as sweeps

    if isinstance(runs, (str, Path)):
        runs = sweeps.load_sweep(Path(runs))
    return sweeps.sweep(runs, Path(out), on_begin=on_begin, owns_process=owns_process)


@public
def plan(
    config: Config,
    machine: str | Path,
    *,
    devices: Sequence[int] = (1, 2, 4, 8),
    corpus_bytes: float | None = None,
) -> "list[Row]":
    """Return how long a config takes on numbers of devices of a machine, and what it needs.

    Args:
        config: of the run.
        machine: JSON description, or the name of one that ships, such as h200.
        devices: numbers of devices, over all nodes.
        corpus_bytes: of the training split; unset: those of `config.data.corpus`, if it is there.

    Raises:
        ValueError: the description is none, or the batch cannot be shared out.
    """
    from mlstm_jax.planning.machine import load_machine
    from mlstm_jax.planning.plan import plan as make_plan

    if any(count < 1 for count in devices):
        raise UserError(f"devices is {tuple(devices)}, but each must be at least 1.")
    if corpus_bytes is None and Path(config.data.corpus).is_dir():
        corpus_bytes = open_corpus(Path(config.data.corpus)).manifest.splits["train"].bytes
    return make_plan(config, load_machine(Path(machine)), tuple(devices), corpus_bytes)
