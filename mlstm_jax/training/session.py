"""All that a session needs before its first step: `set_up` finds, checks and opens it.

A run has one session, or several if it is stopped and resumed. Every process of a run makes the
same decisions, from the same numbers; only process 0 writes the log.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

import jax

from mlstm_jax import environment, guard, host
from mlstm_jax.checkpoint import Checkpoints
from mlstm_jax.config import Config, vary
from mlstm_jax.config.resolve import Hardware, resolve
from mlstm_jax.data.corpus import Corpus, open_corpus, open_corpus_of
from mlstm_jax.data.stream import Batch, prefetch
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import UserError, note
from mlstm_jax.guard import Watchdog
from mlstm_jax.model import kernels, pallas
from mlstm_jax.model.language_model import Carry, LanguageModel, Parameters
from mlstm_jax.terminal import ProgressLine
from mlstm_jax.training import metrics, parallel, run_folder, schedule
from mlstm_jax.training.evaluation import Evaluator, Score
from mlstm_jax.training.metrics import MetricsLog
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.report import Reporter, announcement
from mlstm_jax.training.resume import (
    Snapshot,
    begin_new,
    newest_readable,
    refuse_other_run,
    set_aside,
    start_from,
)
from mlstm_jax.training.rows import Rows, meta_of, open_rows, total_steps
from mlstm_jax.training.state import TrainState, require_memory
from mlstm_jax.training.step import TrainStep, make_train_step


@dataclass(frozen=True, kw_only=True)
class Session:
    """How a call of `train` treats its run and its process; see `mlstm_jax.train`."""

    resume: bool = False
    reset_carry: bool = False
    callbacks: Sequence[Callable[[dict[str, Any]], None]] = ()
    quiet: bool = False
    owns_process: bool = False
    # Returns the loss of the labels of the validation texts, and their accuracy; this loss then
    # chooses the best checkpoint.
    score_labels: Callable[[Parameters], tuple[float, float]] | None = None


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What the loop of a session works with; arrays of steps are on the devices."""

    config: Config  # resolved
    devices: Parallel
    model: LanguageModel
    start: Snapshot
    steps: int  # of the whole run
    batches: Iterator[Batch]  # this process's rows, from the step of `start`
    train_step: TrainStep
    rates: schedule.Rates
    scorer: Evaluator  # of the validation split
    score_labels: Callable[[Parameters], tuple[float, float]] | None  # see `Session`
    require_equal_replicas: Callable[[int, TrainState], None]
    checkpoints: Checkpoints
    reporter: Reporter
    watchdog: Watchdog
    signals: list[Signals]

    def state_and_carry(self) -> tuple[TrainState, Carry]:
        """The state and the carry of `start`, on the devices; without a carry, zeros."""
        carry = self.start.carry
        if carry is None:
            own = self.devices.rows(self.config.data.batch)
            zeros = self.model.init_carry(self.config.data.batch)
            carry = jax.tree.map(lambda x: x[own], zeros)
        return self.devices.replicate(self.start.state), self.devices.split_rows(carry)

    def evaluate(self, state: TrainState) -> Score:
        """Score the validation split and, if there are any, its labels."""
        score = self.scorer(state.params, lambda _: self.watchdog.beat())
        if self.score_labels is None:
            return score
        self.watchdog.beat()
        with jax.transfer_guard("allow"):
            loss, accuracy = self.score_labels(self.devices.unreplicate(state.params))
        return score._replace(label_loss=loss, accuracy=accuracy)

    def save(self, snapshot: Snapshot) -> None:
        """Start to write a checkpoint."""
        with jax.transfer_guard("allow"):  # Orbax makes implicit ones to the host.
            self.checkpoints.save(
                snapshot.step, snapshot.state, snapshot.carry, self.devices.join_rows, snapshot.meta
            )


def set_up(stack: ExitStack, config: Config, session: Session) -> Loop:
    """Check, find and open all that a session needs; `stack` closes it."""
    cluster, watchdog, signals = _start_process(stack, config, session)
    corpus = _open_corpus(config)
    run_folder.require_one_run(cluster, config, corpus)
    devices = parallel.connect_devices(cluster, config.devices)
    config = _resolve(config, cluster, devices)
    require_memory(config, devices)
    changed = run_folder.lock_together(stack, cluster, config, resume=session.resume)
    model = _make_model(config, devices)

    # Find where it begins: at the newest checkpoint, or at step 0.
    checkpoints = stack.enter_context(closing(run_folder.open_checkpoints(config)))
    meta = meta_of(config, corpus)
    found = newest_readable(cluster, devices, model, checkpoints, config, meta)
    if found is None:
        notes: list[str] = []
        start = begin_new(cluster, devices, model, config, meta)
    else:
        refuse_other_run(config, found.snapshot.meta, meta)
        start, notes = start_from(found.snapshot, config, meta, reset_carry=session.reset_carry)
        notes = set_aside(cluster, checkpoints, found) + notes
    rows = open_rows(config, corpus, start.place)
    rates = _rates(config, rows)
    scorer = Evaluator(model, corpus.split("valid"), config.data.window, devices)
    notes += _rise_of_rate(rows, rates, start.step)
    identity = None
    if cluster.is_first:
        notes += metrics.set_aside_damaged(Path(config.out))
        identity = run_folder.write_folder(config)
    checkpoints.run = cluster.gather(identity)[0]

    # Only process 0 writes metrics and progress.
    folder = Path(config.out) if cluster.is_first else None
    log = stack.enter_context(closing(MetricsLog(folder, start.step, session.callbacks)))
    is_quiet = session.quiet or not cluster.is_first
    progress = ProgressLine("train", rows.steps, start.step, quiet=is_quiet)
    reporter = Reporter(rows, log, stack.enter_context(progress), start)
    reporter.begin(announcement(rows, devices, cluster, start), changed, notes)
    if session.quiet and changed and start.step >= rows.steps:
        note(f"{config.out} is finished, so this change had no effect: {', '.join(changed)}.")
    own = devices.rows(config.data.batch)
    batches = prefetch(lambda step: rows.stream.batch(step, own), range(start.step, rows.steps))
    return Loop(
        config=config,
        devices=devices,
        model=model,
        start=start,
        steps=rows.steps,
        batches=stack.enter_context(closing(batches)),
        train_step=devices.map(make_train_step(config, model), donate=(0, 1)),
        rates=devices.replicate(rates),
        scorer=scorer,
        score_labels=session.score_labels,
        require_equal_replicas=parallel.make_comparison(cluster, devices),
        checkpoints=checkpoints,
        reporter=reporter,
        watchdog=watchdog,
        signals=signals,
    )


def _start_process(
    stack: ExitStack, config: Config, session: Session
) -> tuple[Cluster, Watchdog, list[Signals]]:
    """Join the other processes; if this call owns its process, watch it and receive signals."""
    folder = Path(config.out)
    cluster = Cluster(config.distributed, folder)
    if cluster.processes > 1 and not session.owns_process:
        raise UserError(
            f"distributed.processes is {cluster.processes}: if one of several processes is lost, "
            "the others must end at once. Train with owns_process=True, in processes that do "
            "nothing else, or with the command `mlstm-jax train`."
        )
    stack.enter_context(environment.silence())
    stack.enter_context(cluster)
    watchdog = Watchdog(config.train.watchdog_seconds)
    signals: list[Signals] = []
    if session.owns_process:
        stack.enter_context(watchdog)
        signals = stack.enter_context(guard.collect())
    return cluster, watchdog, signals


def _open_corpus(config: Config) -> Corpus:
    folder = Path(config.out)
    path = Path(config.data.corpus)
    before = run_folder.config_of(folder)
    if before and before.data.corpus == config.data.corpus:
        return open_corpus_of(folder, path, "data.corpus")
    return open_corpus(path)


def _rates(config: Config, rows: Rows) -> schedule.Rates:
    """The schedule of a config in a run with these rows."""
    per_epoch = rows.stream.steps_per_epoch
    steps = total_steps(config.train, per_epoch, rows.stream.position(0))
    return schedule.resolve(config.optimizer, config.data.batch, steps, per_epoch)


def _rise_of_rate(rows: Rows, rates: schedule.Rates, step: int) -> list[str]:
    """A note if changes of a run's config more than double the learning rate at `step`."""
    config = rows.config
    before = run_folder.config_of(Path(config.out))
    if not before or not step or vary(before, data__corpus=config.data.corpus).data != config.data:
        return []
    earlier = _rates(before, rows)
    if (before.optimizer, earlier) == (config.optimizer, rates):
        return []
    was = float(schedule.learning_rate(before.optimizer, earlier, step - 1))
    now = float(schedule.learning_rate(config.optimizer, rates, step - 1))
    if now <= 2 * was:
        return []
    return [f"with these changes the learning rate rises from {was:.2g} to {now:.2g}"]


def _resolve(config: Config, cluster: Cluster, devices: Parallel) -> Config:
    """The config with its unset fields set, as process 0 does."""
    hardware = Hardware(devices.count, host.fastest_compute, devices.compute_capability())
    config = resolve(config, hardware, run_folder.config_of(Path(config.out)))
    fastest = cluster.gather([config.precision.compute, config.devices.kernels])[0]
    return vary(config, precision__compute=fastest[0], devices__kernels=fastest[1])


def _make_model(config: Config, devices: Parallel) -> LanguageModel:
    """The model for training, after a check that the devices can run its kernels."""
    loops = None
    if config.devices.kernels == "pallas":
        is_fp8 = config.precision.recurrent == "fp8"
        pallas.require_gpu(config.model.hidden, devices.compute_capability(), fp8=is_fp8)
        loops = kernels.PALLAS
    return LanguageModel(config.model, config.precision, config.train.recompute_every, loops)
