"""Training: `_run` is the loop, read it first; `set_up` finds what it works with, and its start.

A run has one session, or several if it is stopped and resumed. Every process of a run makes the
same decisions, from the same numbers; only process 0 writes the log.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

import jax
import numpy as np

from mlstm_jax import environment, guard, host, parallel
from mlstm_jax.checkpoint import Checkpoints
from mlstm_jax.config import Config, vary
from mlstm_jax.config.resolve import Hardware, resolve
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.data.stream import Batch, prefetch
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import UserError, note
from mlstm_jax.guard import Watchdog
from mlstm_jax.model import kernels, pallas
from mlstm_jax.model.language_model import Carry, LanguageModel, Parameters
from mlstm_jax.parallel import Parallel
from mlstm_jax.terminal import ProgressLine
from mlstm_jax.training import metrics, replicas, resume, run_folder, schedule
from mlstm_jax.training.evaluation import Evaluator, Score
from mlstm_jax.training.memory import require_memory
from mlstm_jax.training.metrics import MetricsLog
from mlstm_jax.training.optimizer import require_b2
from mlstm_jax.training.report import Diverged, Reporter, interruption
from mlstm_jax.training.rows import Rows, meta_of, open_rows, total_steps
from mlstm_jax.training.state import TrainState
from mlstm_jax.training.step import TrainStep, make_train_step


@dataclass(frozen=True, kw_only=True)
class Session:
    """How a call of `train` treats its run and its process; see `mlstm_jax.train`."""

    resume: bool = False
    reset_carry: bool = False
    callbacks: Sequence[Callable[[dict[str, Any]], None]] = ()
    show_progress: bool = True
    owns_process: bool = False
    # Returns the loss of the labels of the validation texts, and their accuracy; this loss then
    # chooses the best checkpoint.
    score_labels: Callable[[Parameters], tuple[float, float]] | None = None


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What the loop of a session works with."""

    config: Config  # resolved
    devices: Parallel
    # Where the session begins. The first step takes over the memory of state and carry.
    first_step: int
    first_state: TrainState  # on the devices
    first_carry: Carry  # on the devices
    steps: int  # of the whole run
    batches: Iterator[Batch]  # this process's rows, from `first_step`
    train_step: TrainStep
    rates: schedule.Rates  # on the devices
    scorer: Evaluator  # of the validation split
    score_labels: Callable[[Parameters], tuple[float, float]] | None  # see `Session`
    cluster: Cluster
    checkpoints: Checkpoints
    reporter: Reporter
    watchdog: Watchdog
    signals: list[Signals]

    def evaluate(self, state: TrainState) -> Score:
        """Score the validation split and, if there are any, its labels."""
        score = self.scorer(state.params, lambda _: self.watchdog.beat())
        if self.score_labels is None:
            return score
        self.watchdog.beat()
        with jax.transfer_guard("allow"):
            loss, accuracy = self.score_labels(self.devices.unreplicate(state.params))
        return score._replace(label_loss=loss, accuracy=accuracy)


def train(config: Config, session: Session = Session()) -> Path:
    """Train a run from its newest complete checkpoint, or from step 0; return its folder.

    Raises UserError if config, corpus, run folder or processes do not fit together. After Diverged,
    Interrupted and CheckpointFailed the checkpoints that are left in the run folder are intact.
    """
    folder = Path(config.out)
    parallel.free_programs()
    with ExitStack() as stack:
        loop = set_up(stack, config, session)
        try:
            _run(loop)
        except Diverged as diverged:
            loop.checkpoints.drop_after(diverged.last_good_step)
            diverged.advise(folder)
            raise
        loop.checkpoints.wait()  # A run is finished when its last checkpoint is complete.
        loop.reporter.finish()
    if loop.signals:  # It came too late to stop the run; but a sweep must not begin the next one.
        raise interruption(loop.signals[0], f"{folder} is finished.", config)
    return folder


def _run(loop: Loop) -> None:
    """Train to the end of the run.

    The order of the loop may not change: read, step, report, evaluate, save, stop. A step takes
    over the memory of state and carry, so what needs them comes before the next one, and a
    checkpoint at step k has seen exactly k batches. The metrics of a step are read while the next
    one is computed, so the devices wait for the host only at an evaluation or a checkpoint. Every
    transfer is explicit; the transfer guard raises an error for any other.
    """
    train = loop.config.train
    devices = loop.devices
    reporter = loop.reporter
    watchdog = loop.watchdog
    state = loop.first_state
    carry = loop.first_carry
    no_signal = devices.replicate(np.float32(0))
    unread: Any = None  # metrics of the last step, on the devices
    signal_sum = 0.0  # of the signals' weights, over all devices: equal in all processes; 0: none
    step = loop.first_step
    replicas.require_equal_replicas(loop.cluster, devices, step, state)
    with jax.transfer_guard("disallow"):
        while step < loop.steps:
            watchdog.beat()
            fetch_started = time.monotonic()
            batch = next(loop.batches)
            reporter.waited(time.monotonic() - fetch_started)

            signal_weight = no_signal
            if loop.signals:
                signal_weight = devices.replicate(np.float32(guard.WEIGHTS[loop.signals[0]]))
            state, carry, metrics = loop.train_step(
                state, carry, devices.split_rows(batch), signal_weight, loop.rates
            )
            if unread is not None:  # of the step before
                signal_sum = _report(loop, step, unread)
                loop.checkpoints.check()
            unread = metrics
            step += 1

            is_last = step == loop.steps
            evaluates = is_last or step % train.eval_every == 0
            if evaluates or step % train.checkpoint_every == 0 or signal_sum > 0:
                signal_sum = _report(loop, step, unread)
                unread = None
                score = None
                if evaluates:
                    score = loop.evaluate(state)
                    reporter.evaluation(step, score)
                watchdog.beat()
                replicas.require_equal_replicas(loop.cluster, devices, step, state)
                meta = reporter.meta(step, score)
                copies = (devices.unreplicate(state), devices.fetch_rows(carry))
                with jax.transfer_guard("allow"):  # Orbax makes implicit ones to the host.
                    loop.checkpoints.save(step, *copies, devices.join_rows, meta)
                reporter.restart_clock(step)
            if signal_sum > 0 and not is_last:
                raise reporter.interrupted(step, signal_sum)


def _report(loop: Loop, step: int, metrics: Any) -> float:
    """Report the metrics of the step before `step`; return their sum of the signals' weights."""
    loop.watchdog.beat()
    on_host = loop.devices.unreplicate(metrics)
    loop.reporter.step(step, on_host)
    return float(on_host.stop)


def set_up(stack: ExitStack, config: Config, session: Session) -> Loop:
    """Check, find and open all that a session needs; `stack` closes it."""
    cluster, watchdog, signals = _start_process(stack, config, session)
    corpus = open_corpus(Path(config.data.corpus))
    run_folder.require_one_run(cluster, config, corpus)
    devices = replicas.connect_devices(cluster, config.devices)
    before = run_folder.config_of(Path(config.out))
    config = _resolve(config, before, cluster, devices)
    require_b2(config.optimizer, config.data.batch * config.data.window)
    require_memory(config, devices)
    changed = run_folder.lock_together(stack, cluster, config, before, resume=session.resume)
    model = _make_model(config, devices)

    # Find where it begins: at the newest checkpoint, or at step 0.
    identity = run_folder.id_together(cluster, Path(config.out))
    checkpoints = stack.enter_context(closing(run_folder.open_checkpoints(config, identity)))
    meta = meta_of(config, corpus)
    found, damaged = resume.newest_readable(cluster, devices, model, checkpoints, config, meta)
    if found is None:
        notes: list[str] = []
        start = resume.begin_new(cluster, devices, model, config, before, meta)
    else:
        resume.refuse_other_run(config, before, found.meta, meta)
        start, notes = resume.continue_from(found, config, meta, reset_carry=session.reset_carry)
        notes = resume.move_damaged(cluster, checkpoints, damaged, start.step) + notes
    own = devices.rows(config.data.batch)
    if start.carry is None:
        zeros = model.init_carry(config.data.batch)
        start = start._replace(carry=jax.tree.map(lambda x: x[own], zeros))
    rows = open_rows(config, corpus, start.place)
    rates = schedule.rates_of(
        config.optimizer, config.data.batch, rows.steps, rows.stream.steps_per_epoch
    )
    notes += _rise_of_rate(rows, rates, before, start.step) + _end_of_rate(rows, rates)
    scorer = Evaluator(model, corpus.split("valid"), config.data.window, devices)
    if cluster.is_first:
        notes += metrics.set_aside_damaged(Path(config.out))
        run_folder.write_folder(config, identity)

    # Only process 0 writes metrics and progress.
    folder = Path(config.out) if cluster.is_first else None
    log = stack.enter_context(closing(MetricsLog(folder, start.step, session.callbacks)))
    shown = session.show_progress and cluster.is_first
    progress = ProgressLine("train", rows.steps, start.step, shown=shown)
    reporter = Reporter(rows, log, stack.enter_context(progress), start.step, start.meta)
    reporter.begin(devices, cluster, changed, notes)
    if changed and not session.show_progress and start.step >= rows.steps:
        note(f"{config.out} is finished, so this change had no effect: {', '.join(changed)}.")
    batches = prefetch(lambda step: rows.stream.batch(step, own), range(start.step, rows.steps))
    return Loop(
        config=config,
        devices=devices,
        first_step=start.step,
        first_state=devices.replicate(start.state),
        first_carry=devices.split_rows(start.carry),
        steps=rows.steps,
        batches=stack.enter_context(closing(batches)),
        train_step=devices.map(make_train_step(config, model), donate=(0, 1)),
        rates=devices.replicate(rates),
        scorer=scorer,
        score_labels=session.score_labels,
        cluster=cluster,
        checkpoints=checkpoints,
        reporter=reporter,
        watchdog=watchdog,
        signals=signals,
    )


def _start_process(
    stack: ExitStack, config: Config, session: Session
) -> tuple[Cluster, Watchdog, list[Signals]]:
    """Join the other processes; if this call owns its process, watch it and receive signals."""
    cluster = Cluster(config.distributed, Path(config.out))
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


def _rise_of_rate(rows: Rows, rates: schedule.Rates, before: Config | None, step: int) -> list[str]:
    """A note if changes of `before`, a run's config, more than double the rate at `step`."""
    config = rows.config
    if before is None or step == 0:
        return []
    if vary(before, data__corpus=config.data.corpus).data != config.data:
        return []
    per_epoch = rows.stream.steps_per_epoch
    steps = total_steps(before.train, per_epoch, rows.stream.position(0))
    earlier = schedule.rates_of(before.optimizer, before.data.batch, steps, per_epoch)
    if (before.optimizer, earlier) == (config.optimizer, rates):
        return []
    was = float(schedule.learning_rate(before.optimizer, earlier, step - 1))
    now = float(schedule.learning_rate(config.optimizer, rates, step - 1))
    if now <= 2 * was:
        return []
    return [f"with these changes the learning rate rises from {was:.2g} to {now:.2g}"]


def _end_of_rate(rows: Rows, rates: schedule.Rates) -> list[str]:
    """A note if the learning rate is zero in the last updates of the run."""
    end = int(rates.decay)
    if end >= rows.steps or schedule.learning_rate(rows.config.optimizer, rates, end) > 0:
        return []
    return [
        f"the learning rate is 0 after {end:,} of {rows.steps:,} updates; raise or unset "
        "optimizer.decay_steps"
    ]


def _resolve(config: Config, before: Config | None, cluster: Cluster, devices: Parallel) -> Config:
    """The config with its unset fields set, by the hardware of process 0.

    A run that resumes keeps what it started from, which may be left out.
    """
    if before and config.train.start_from is None:
        start = before.train
        config = vary(
            config, train__start_from=start.start_from, train__start_optimizer=start.start_optimizer
        )
    fastest = config.precision.compute or (before and before.precision.compute)
    if fastest is None:  # It may have to be measured.
        fastest = host.fastest_compute(config.model.hidden)
    fastest, capability = cluster.gather([fastest, devices.compute_capability()])[0]
    hardware = Hardware(devices.count, fastest, tuple(capability) if capability else None)
    return resolve(config, hardware, before)


def _make_model(config: Config, devices: Parallel) -> LanguageModel:
    """The model for training, after a check that the devices can run its kernels."""
    loops = None
    if config.devices.kernels == "pallas":
        is_fp8 = config.precision.recurrent == "fp8"
        pallas.require_gpu(config.model.hidden, devices.compute_capability(), fp8=is_fp8)
        loops = kernels.PALLAS
    return LanguageModel(config.model, config.precision.types, config.train.recompute_every, loops)
