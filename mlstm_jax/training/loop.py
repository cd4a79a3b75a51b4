"""The training loop.

Evaluation and checkpoint come before the step, so the checkpoint at step k has seen exactly k
batches. The metrics of step k−1 are fetched after step k is dispatched, so the devices never wait
for the host; every transfer is explicit, and the guard says so where one is not. Every process runs
all of this and decides alike, from the same numbers; process 0 alone writes the log.
"""

import dataclasses
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import optax

from mlstm_jax import environment, run
from mlstm_jax.checkpoints.checkpoint import Checkpoints, with_sums
from mlstm_jax.config import Config, resolve_batch
from mlstm_jax.data.corpus import Corpus, open_corpus
from mlstm_jax.data.prefetch import prefetch
from mlstm_jax.distributed import consistency
from mlstm_jax.distributed.cluster import Cluster
from mlstm_jax.model.language_model import Carry, LanguageModel
from mlstm_jax.model.launch import require_gpu
from mlstm_jax.model.recurrence import Loops
from mlstm_jax.training import optimizer, parallel, schedule, signals
from mlstm_jax.training import resume as resuming
from mlstm_jax.training import start as starting
from mlstm_jax.training.announcement import announcement
from mlstm_jax.training.evaluation import Evaluator
from mlstm_jax.training.metrics import MetricsLog, NullLog
from mlstm_jax.training.phases import (
    ResolvedPhase,
    checkpoint_meta,
    resolve_phases,
    stretches,
    total_steps,
)
from mlstm_jax.training.progress import ProgressLine
from mlstm_jax.training.replicas import make_comparison
from mlstm_jax.training.reporter import Diverged, Reporter
from mlstm_jax.training.resume import ExpectedCheckpoint, ResumePoint
from mlstm_jax.training.signals import WEIGHTS, Interrupted
from mlstm_jax.training.state import TrainState
from mlstm_jax.training.step import make_train_step
from mlstm_jax.training.watchdog import Watchdog

# A run that still diverges at so small a part of its learning rate does so for another reason.
_LEAST_RATE_SCALE = 1 / 64


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What a run needs from its beginning to its end."""

    cluster: Cluster
    devices: parallel.Parallel
    watchdog: Watchdog
    signals: list[signal.Signals]
    corpus: Corpus
    model: LanguageModel
    evaluator: Evaluator
    checkpoints: Checkpoints
    require_equal_replicas: Callable[[int, Any], None]
    start: str | None  # the fingerprint of train.start_from's parameters
    total: int
    phases: list[ResolvedPhase]
    lr_schedules: list[optax.Schedule]  # of each phase


def train(config: Config, *, resume: bool = False, reset_carry: bool = False) -> Path:
    """Train until the config's steps are done, from the newest whole checkpoint if there is one.

    Args:
        config: what to train, and where.
        resume: fail unless there is a run to go on with.
        reset_carry: go on with other rows (batch, window, shards), the state of each from zero.

    Returns:
        The run folder.

    Raises:
        UserError: config, corpus, run folder or processes do not fit.
        Diverged, Interrupted, CheckpointFailed: as they say; the folder's checkpoints are good.
    """
    folder = Path(config.out)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(config.distributed))
        watchdog = stack.enter_context(
            Watchdog(config.train.watchdog_seconds, cluster.stop, cluster.index)
        )
        received = stack.enter_context(signals.collect())
        stack.enter_context(run.disk_errors(folder))
        if config.train.deterministic:
            environment.require_deterministic()
        corpus = open_corpus(Path(config.data.corpus), verify=config.train.verify_corpus)
        consistency.require_one_run(cluster, config, corpus)
        devices = stack.enter_context(parallel.started(cluster, config.devices))
        config = resolve_batch(config, devices.count)
        changed = consistency.lock_run_folder(
            stack, cluster, config, resume=resume, reset_carry=reset_carry
        )
        watchdog.folder = folder
        model = _make_model(config, devices)
        # A divergence is found so many steps after it began.
        reach = max(config.train.divergence_steps, config.precision.max_consecutive_skips)
        checkpoints = stack.enter_context(
            closing(Checkpoints(folder, config.train.keep_checkpoints, reach=reach))
        )
        phases = resolve_phases(config, corpus)
        tx = optimizer.build(config.optimizer, lambda count: 0.0)
        given, notes = starting.load_start(cluster, config, required=not checkpoints.steps())

        def at(step: int) -> ExpectedCheckpoint:
            phase = next((phase for phase in phases if step <= phase.last), phases[-1])
            batch = phase.config.data.batch
            shapes = jax.eval_shape(lambda: model.init_carry(batch))
            about = checkpoint_meta(phase, corpus, step)._replace(start=given and given.fingerprint)
            return ExpectedCheckpoint(phase.stream, about, shapes, bool(config.phases))

        def find(newest: int | None = None) -> ResumePoint:
            """Return where to begin; the state before the first step if nowhere else."""
            found = resuming.find(
                cluster,
                checkpoints,
                devices,
                starting.state_shapes(config, model, tx),
                at,
                newest=newest,
                reset_carry=reset_carry,
            )
            if found is not None:
                return found
            if newest is None:
                resuming.require_new(folder, config, resume=resume)
            # Found missing when there still were checkpoints, it is needed now.
            start = given or starting.load_start(cluster, config, required=True)[0]
            fresh = starting.fresh_state(config, model, tx, start)
            return ResumePoint(
                0, devices.of_first_process(fresh), None, phases[0].stream.origin, []
            )

        found = find()
        found = found._replace(notes=[*notes, *found.notes])
        start = given.fingerprint if given else found.start
        if not config.phases:
            stream = phases[0].stream
            stream.origin = found.origin
            total = total_steps(config.train, stream.steps_per_epoch, stream.position(0))
            phases = [dataclasses.replace(phases[0], last=total)]
        total = phases[-1].last
        cluster.require_equal(
            {"step": found.step, "steps": total}, "The same corpus and config give the same steps."
        )
        if cluster.is_first:
            run.write_folder(config, environment.inputs(corpus, start))
        training = _Run(
            cluster=cluster,
            devices=devices,
            watchdog=watchdog,
            signals=received,
            corpus=corpus,
            model=model,
            evaluator=Evaluator(
                model, corpus.split("valid"), config.data.window, devices, corpus.stop
            ),
            checkpoints=checkpoints,
            require_equal_replicas=make_comparison(cluster, devices),
            start=start,
            total=total,
            phases=phases,
            lr_schedules=schedule.rates(config.optimizer, stretches(phases)),
        )
        progress = stack.enter_context(
            ProgressLine("train", total, found.step, quiet=not cluster.is_first)
        )
        progress.say(announcement(config, phases, devices, cluster, corpus, found))
        if changed:
            progress.say("changed since the run began: " + ", ".join(changed))
        event: dict[str, Any] = {"event": "resumed", "changed": changed}
        announced = 0 < found.step < total
        while True:
            phase = next((phase for phase in phases if found.step < phase.last), phases[-1])
            if phase.first == found.step and phase is not phases[0]:
                found = found._replace(carry=phase.begin(found.carry))
            for note in found.notes:
                progress.say(note)
            with closing(MetricsLog(folder, found.step) if cluster.is_first else NullLog()) as log:
                reporter = Reporter(phase.config, phase.stream, log, progress, found)
                if announced:
                    reporter.event(found.step, **event, notes=found.notes)
                try:
                    state, carry = _train_phase(training, phase, found, reporter)
                except Diverged as diverged:
                    found, event = _roll_back(config, checkpoints, diverged, found, find)
                    announced = True
                    continue
            if phase is phases[-1]:
                return folder
            following = phases[phases.index(phase) + 1]
            note = f"step {phase.last}: the next phase, {following.describe_carry()}"
            found, announced = (
                ResumePoint(phase.last, state, carry, phase.stream.origin, [note]),
                True,
            )
            event = {"event": "phase"}


def _make_model(config: Config, devices: parallel.Parallel) -> LanguageModel:
    """Return the model as it is trained, after a check that the devices run its kernels."""
    loops: Loops | None = None
    if config.devices.kernels == "pallas":
        require_gpu(config.model.hidden, devices.compute_capability())
        loops = "pallas"
    return LanguageModel(config.model, config.precision, config.train.recompute_every, loops)


def _roll_back(
    config: Config,
    checkpoints: Checkpoints,
    diverged: Diverged,
    began: ResumePoint,
    find: Callable[[int], ResumePoint],
) -> tuple[ResumePoint, dict[str, Any]]:
    """Return where a run that has diverged goes on, and the event; raise it again if nowhere.

    What it has diverged in is deleted, so that a later session does not go on from that.
    """
    scale = float(began.state.rate_scale) * config.train.rollback_factor
    if config.train.on_divergence == "stop" or scale < _LEAST_RATE_SCALE:
        checkpoints.drop_after(diverged.since)
        raise diverged.going_on_from(checkpoints.latest())
    found = find(diverged.since)
    scale = min(scale, float(found.state.rate_scale) * config.train.rollback_factor)
    note = (
        f"diverged at step {diverged.step}: {diverged.reason}. Back to step {found.step}, with the "
        f"learning rate times {scale:g}"
    )
    state = found.state._replace(rate_scale=cast(jax.Array, np.float32(scale)))
    event = {"event": "rolled_back", "diverged_at": diverged.step, "rate_scale": scale}
    return found._replace(state=state, notes=[*found.notes, note]), event


def _train_phase(
    training: _Run, phase: ResolvedPhase, found: ResumePoint, reporter: Reporter
) -> tuple[TrainState, Carry]:
    """Train from a checkpoint, or the beginning, to the end of a phase.

    Returns:
        The state and the carry of this process's rows, both NumPy.
    """
    config, stream, last = phase.config, phase.stream, phase.last
    devices, checkpoints, watchdog = training.devices, training.checkpoints, training.watchdog
    lr_schedule = training.lr_schedules[training.phases.index(phase)]
    tx = optimizer.build(
        config.optimizer,
        lr_schedule,
        update_bytes=config.data.batch * config.data.window,
        axis_name=parallel.AXIS,
        compute=config.precision.compute,
    )
    one_step = make_train_step(config, training.model, tx, lr_schedule, parallel.AXIS)
    train_step = devices.map(one_step, donate=(0, 1))
    rows = devices.rows(config.data.batch)
    carry = found.carry
    if carry is None:
        carry = jax.tree.map(lambda x: x[rows], training.model.init_carry(config.data.batch))
    state, carry = devices.replicate(found.state), devices.split_rows(carry)
    training.require_equal_replicas(found.step, state)
    asked = {weight: devices.replicate(np.float32(weight)) for weight in (0.0, *WEIGHTS.values())}
    pending, stop = None, 0.0

    def report(step: int, metrics: Any) -> float:
        watchdog.beat(f"the devices take step {step}")
        metrics = devices.unreplicate(metrics)
        reporter.step(step, metrics)
        return float(metrics.stop)

    batches = prefetch(lambda step: stream.batch(step, rows), range(found.step, last))
    with closing(batches), jax.transfer_guard("disallow"):
        for step in range(found.step, last + 1):
            evaluate = step == last or step % config.train.eval_every == 0
            save = evaluate or step % config.train.checkpoint_every == 0 or stop
            if pending and save:
                stop, pending = report(step, pending) or stop, None
            if step > found.step and save:
                score = None
                if evaluate:
                    score = training.evaluator(
                        state.params, lambda n: watchdog.beat(f"the devices score window {n}")
                    )
                    reporter.evaluation(step, score)
                watchdog.beat(f"the checkpoint of step {step} is written")
                training.require_equal_replicas(step, state)
                about = checkpoint_meta(phase, training.corpus, step)._replace(
                    start=training.start,
                    high_steps=reporter.high_steps,
                    bpc=score.bpc if score else None,
                )
                saved = devices.join_rows(with_sums(devices.fetch_rows(carry)))
                # Orbax copies to the host in its own way.
                with jax.transfer_guard("allow"):
                    checkpoints.save(step, devices.unreplicate(state), saved, about)
                reporter.restart_clock(step)
            if step == training.total:
                reporter.finished(step)
            if stop and step < training.total:
                which = signals.received(stop)
                reporter.event(step, "interrupted", signal=which.name)
                # To a scheduler that asked for it, a stop with a checkpoint is a success.
                code = 130 if which is signal.SIGINT else config.train.sigterm_exit_code
                raise Interrupted(which, step, training.total, code)
            if step < last:
                watchdog.beat(f"batch {step} is read")
                asked_at = time.monotonic()
                batch = next(batches)
                reporter.waited(time.monotonic() - asked_at)
                batch = devices.split_rows(batch)
                weight = WEIGHTS[training.signals[0]] if training.signals else 0.0
                state, carry, metrics = train_step(state, carry, batch, asked[weight])
                if pending:
                    stop = report(step, pending)
                    checkpoints.check()
                pending = metrics
    return devices.unreplicate(state), devices.fetch_rows(carry)
