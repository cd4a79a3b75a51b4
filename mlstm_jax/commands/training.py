"""Commands that train or show what training would do: train, sweep, plan, schedule."""

import dataclasses
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from mlstm_jax import config as configs
from mlstm_jax import environment, output, quickstart
from mlstm_jax.commands import models
from mlstm_jax.config import text as config_text
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.distributed.process_info import process_info
from mlstm_jax.errors import UserError, require
from mlstm_jax.planning import compile as compiling
from mlstm_jax.planning import plan as planning
from mlstm_jax.planning.machine import load_machine, with_measured_rate
from mlstm_jax.progress import ProgressLine
from mlstm_jax.run import initial_parameters
from mlstm_jax.terminal import show
from mlstm_jax.training import phases
from mlstm_jax.training import schedule as schedules
from mlstm_jax.training import sweep as sweeps
from mlstm_jax.training.loop import train as run_train


def train(arguments: Sequence[str], program: str) -> None:
    """Train a model or resume an unfinished run; without a config, train the quickstart."""
    config, resume, reset_carry = config_text.parse(arguments, quickstart.config, program)
    environment.prepare(config.devices, deterministic=config.train.deterministic)
    is_quickstart = config.data.corpus == quickstart.config.data.corpus
    if is_quickstart and not resume:
        quickstart.prepare_corpus()
    this = process_info(config.distributed, os.environ)
    run = run_train(
        config,
        initial=initial_parameters(config),
        resume=resume,
        reset_carry=reset_carry,
        owns_process=True,
    )
    if this.processes > 1:
        if this.index == 0:
            show(f"\ndone; see the results with `mlstm-jax report {run}`")
        return
    models.report(run)
    if is_quickstart:
        show("\n" + quickstart.next_steps(run))


def sweep(
    spec: Annotated[Path, Positional, arg(metavar="SPEC")],
    out: Path,
    table_only: bool = False,
) -> None:
    """Train all runs of a specification, one after the other, and write their tables.

    You can stop a sweep at any time and resume it with the same command. Runs that are finished or
    have diverged are not repeated. The same command in a second terminal, or on another machine
    that sees the same files, takes the runs that the first has not begun. OUT/table.md has the
    validation BPC of each run, OUT/table.csv all figures.

    Args:
        spec: Python file that sets `runs = {(ROW, COLUMN): Config(...)}`, or the name of a sweep
            that `mlstm-jax configs` lists.
        out: folder of the tables and of the run folders, OUT/ROW/COLUMN.
        table_only: train nothing; write the tables of the existing runs.
    """
    runs = sweeps.load_sweep(spec)
    if not table_only:
        sweeps.prepare(runs)
    output.require_folder(out)
    if not table_only:

        def on_begin(number: int, total: int, key: tuple[str, str]) -> None:
            show(f"\n{number} of {total}: {key[0]} / {key[1]}", file=sys.stderr)

        sweeps.sweep(runs, out, on_begin=on_begin, owns_process=True)
    show(sweeps.write_tables(runs, out))
    show(f"all figures: {out / 'table.csv'}")


def plan(arguments: Sequence[str], program: str) -> None:
    """Estimate the time, memory and cost of a config on a machine."""
    default, rest = config_text.take_file(arguments, quickstart.config)

    @dataclass(frozen=True, kw_only=True)
    class Arguments:
        config: Annotated[configs.Config, arg(name="")] = default
        # JSON description of the machine, or a name that `mlstm-jax configs` lists, such as h200.
        machine: Path
        # Numbers of devices to plan for, on all nodes together.
        gpus: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
        # Bytes of the training split, such as 40e9; unset: those of data.corpus, if it exists.
        corpus_bytes: float | None = None
        # Results of `benchmarks/train_step.py --json` on such a device; the plan then uses the
        # measured rate.
        rates: Path | None = None
        # Price of one device per hour; unset: the price in the description.
        price: float | None = None
        # Also compile the training step for the machine's GPU, which need not be present, and show
        # its memory as XLA counts it. This takes about 10 s for each of --gpus and needs the extra
        # "gpu-compile".
        compile: bool = False
        # Also write the plan to this file, as JSON.
        json: Path | None = None
        # Replace that file if it exists.
        overwrite: bool = False

    given = tyro.cli(
        Arguments,
        args=rest,
        prog=program,
        description="Estimate the seconds per iteration, bytes per second, memory, hours and cost "
        "of a config on one to many devices, from a roofline of the step and a ring all-reduce. "
        "CONFIG (`mlstm-jax plan CONFIG`), a file or a name that `mlstm-jax configs` lists, sets "
        "the fields of the run, and the options override them, as with train.",
    )
    if given.json:
        output.require_file(given.json, overwrite=given.overwrite, option="--json")
    _require_bytes(given.corpus_bytes)
    price = given.price
    require(price is None or 0 <= price < math.inf, "--price", price, "at least 0, and finite")
    config, machine = given.config, load_machine(given.machine)
    if given.rates:
        machine = with_measured_rate(
            machine, given.rates, config.precision.compute, config.model.hidden
        )
    if given.price is not None:
        machine = dataclasses.replace(machine, price_per_device_hour=given.price)
    if not given.gpus or min(given.gpus) < 1:
        raise UserError(f"--gpus is {given.gpus}, but every number must be at least 1.")
    corpus_bytes = given.corpus_bytes
    folder = Path(config.data.corpus)
    if corpus_bytes is None and folder.is_dir():
        corpus_bytes = open_corpus(folder).manifest.splits["train"].bytes
    rows = planning.plan(config, machine, list(given.gpus), corpus_bytes)
    if given.compile:
        compiling.require()
        with ProgressLine("compile", len(rows)) as progress:
            rows = compiling.with_compiled_memory(
                rows, config, machine, lambda done: progress.update(done, "programs")
            )
    made = {"machine": machine.name, "rows": planning.as_json(rows)}
    show(planning.format_plan(config, machine, rows, corpus_bytes))
    if given.json:
        with output.write_errors(given.json):
            output.write_text(given.json, json.dumps(made, indent=2) + "\n")


def _require_bytes(count: float | None) -> None:
    rule = "above 0, and finite"
    require(count is None or 0 < count < math.inf, "--corpus-bytes", count, rule)


def schedule(arguments: Sequence[str], program: str) -> None:
    """Show the learning rate of a config over its run, as a table or a plot."""
    default, rest = config_text.take_file(arguments, quickstart.config)

    @dataclass(frozen=True, kw_only=True)
    class Arguments:
        config: Annotated[configs.Config, arg(name="")] = default
        # Number of devices, for a config with data.batch_per_device.
        gpus: int = 1
        # Bytes of the training split; unset: those of data.corpus, which must then exist.
        corpus_bytes: float | None = None
        # Instead, show the optimizer's settings that docs/large_batches.md recommends for this
        # batch, window, model and number of updates, as options of `train`.
        recommend: bool = False
        # Also plot it to this .png, .svg or .pdf file (needs the extra "plot").
        plot: Path | None = None
        # Replace that file if it exists.
        overwrite: bool = False

    given = tyro.cli(
        Arguments,
        args=rest,
        prog=program,
        description="Show the learning rate of a config over its run: scaling, warm-up and decay. "
        "CONFIG (`mlstm-jax schedule CONFIG`), a file or a name that `mlstm-jax configs` lists, "
        "sets the fields, and the options override them, as with train.",
    )
    if given.plot:
        output.require_file(given.plot, overwrite=given.overwrite, option="--plot")
    require(given.gpus >= 1, "--gpus", given.gpus, "at least 1")
    _require_bytes(given.corpus_bytes)
    config = configs.resolve_batch(given.config, given.gpus)
    if given.corpus_bytes is None:
        made = phases.resolve_phases(config, open_corpus(Path(config.data.corpus)))
        segments = phases.segments(made)
    else:
        segments = phases.expected_segments(config, given.corpus_bytes)
    if given.recommend:
        show(planning.recommend(config, segments))
        return
    drawn = schedules.draw(config.optimizer, segments)
    show(drawn.text)
    if given.plot:
        schedules.plot(drawn, given.plot)
        show(f"plotted: {given.plot}")
