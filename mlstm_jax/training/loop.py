"""The training loop.

Evaluation and checkpoint come before the step, so the checkpoint at step k has seen exactly k
batches. The metrics of step k−1 are fetched after step k is dispatched, so the devices never wait
for the host. Every transfer is explicit; the transfer guard raises an error for any other. Every
process runs this loop and makes the same decisions, from the same numbers; only process 0 writes
the log.
"""

import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mlstm_jax.config import Config
from mlstm_jax.data.stream import prefetch
from mlstm_jax.guard import WEIGHTS, Interrupted, strongest
from mlstm_jax.model.language_model import Carry
from mlstm_jax.training import optimizer, parallel
from mlstm_jax.training.evaluation import Score
from mlstm_jax.training.phases import ResolvedPhase, checkpoint_meta
from mlstm_jax.training.reporter import Diverged, Reporter
from mlstm_jax.training.resume import Beginning
from mlstm_jax.training.session import Session, set_up
from mlstm_jax.training.state import TrainState
from mlstm_jax.training.step import make_train_step


def train(config: Config, **options: Any) -> Path:
    """Train the config's steps, from the newest complete checkpoint if one exists.

    Args:
        config: what to train, and where.
        options: see `session.set_up`.

    Returns:
        The run folder.

    Raises:
        UserError: config, corpus, run folder or processes do not fit together.
        Diverged: the run has diverged. After this and the next two errors the checkpoints in the
            run folder are intact.
        Interrupted: a signal has stopped the run.
        CheckpointFailed: a checkpoint could not be written.
    """
    with ExitStack() as stack:
        _run(set_up(stack, config, **options))
    return Path(config.out)


def _run(session: Session) -> None:
    """Train the remaining phases."""
    phases, point = session.phases, session.begin
    event: dict[str, Any] = {"event": "resumed", "changed": session.changed}
    announced = 0 < point.step < session.total
    while True:
        phase = next((phase for phase in phases if point.step < phase.last), phases[-1])
        if phase.first == point.step and not phase.continues:
            point = point._replace(carry=None)
        for note in point.notes:
            session.progress.say(note)
        with closing(session.open_log(point.step)) as log:
            reporter = Reporter(phase.config, phase.stream, log, session.progress, point)
            if announced:
                reporter.event(point.step, **event, notes=point.notes)
            try:
                state, carry = _train_phase(session, phase, point, reporter)
            except Diverged as diverged:
                # No session resumes from a diverged state.
                session.checkpoints.drop_after(diverged.since)
                rate = session.config.optimizer.learning_rate
                raise diverged.with_resume_advice(session.checkpoints.latest(), rate) from None
        if phase is phases[-1]:
            return
        following = phases[phases.index(phase) + 1]
        note = f"step {phase.last}: the next phase, {following.describe_rows()}"
        point = point._replace(
            step=phase.last,
            state=state,
            carry=carry,
            notes=[note],
            high_steps=reporter.high_steps,
            update_bytes=phase.update_bytes,
        )
        event, announced = {"event": "phase"}, True


def _train_phase(
    session: Session, phase: ResolvedPhase, point: Beginning, reporter: Reporter
) -> tuple[TrainState, Carry]:
    """Train from a checkpoint, or from the first step, to the end of a phase.

    Returns:
        The state and the carry of this process's rows, both NumPy.
    """
    config, stream, last = phase.config, phase.stream, phase.last
    devices, checkpoints, watchdog = session.devices, session.checkpoints, session.watchdog
    lr_schedule = session.lr_schedules[session.phases.index(phase)]
    tx = optimizer.build(
        config.optimizer,
        config.model,
        lr_schedule,
        update_bytes=phase.update_bytes,
        axis_name=parallel.AXIS,
        compute=config.precision.compute,
    )
    one_step = make_train_step(config, session.model, tx, lr_schedule, parallel.AXIS)
    train_step = devices.map(one_step, donate=(0, 1))
    rows = devices.rows(config.data.batch)
    carry = point.carry
    if carry is None:
        carry = jax.tree.map(lambda x: x[rows], session.model.init_carry(config.data.batch))
    state = optimizer.rescale_second_moment(
        config.optimizer, point.state, point.update_bytes, phase.update_bytes
    )
    state, carry = devices.replicate(state), devices.split_rows(carry)
    session.require_equal_replicas(point.step, state)
    stop_weights = {
        weight: devices.replicate(np.float32(weight)) for weight in (0.0, *WEIGHTS.values())
    }
    pending, stop = None, 0.0

    def report(step: int, metrics: Any) -> float:
        watchdog.beat(f"the devices compute step {step}")
        metrics = devices.unreplicate(metrics)
        reporter.step(step, metrics)
        return float(metrics.stop)

    if point.step < last:
        session.progress.say("compiling the training step")
    batches = prefetch(lambda step: stream.batch(step, rows), range(point.step, last))
    with closing(batches), jax.transfer_guard("disallow"):
        for step in range(point.step, last + 1):
            evaluate = step == last or step % config.train.eval_every == 0
            save = evaluate or step % config.train.checkpoint_every == 0 or stop
            if pending and save:
                stop, pending = report(step, pending) or stop, None
            if step > point.step and save:
                score = None
                if evaluate:
                    score = _score(session, state)
                    reporter.evaluation(step, score, is_last=step == session.total)
                watchdog.beat(f"the checkpoint of step {step} is written")
                session.require_equal_replicas(step, state)
                about = checkpoint_meta(phase, session.corpus, step)._replace(
                    start=session.begin.start,
                    high_steps=reporter.high_steps,
                    bpc=score.bpc if score else None,
                    label_loss=score.label_loss if score else None,
                    metrics=reporter.extent(),
                )
                saved = devices.unreplicate(state), devices.fetch_rows(carry)
                # Orbax makes implicit transfers to the host.
                with jax.transfer_guard("allow"):
                    checkpoints.save(step, *saved, devices.join_rows, about)
                reporter.restart_clock(step)
            if step == session.total:
                watchdog.beat(f"the checkpoint of step {step} is written")
                checkpoints.wait()  # A run is finished when its last checkpoint is complete.
                reporter.finished(step)
            if stop and step < session.total:
                which = strongest(stop)
                reporter.event(step, "interrupted", signal=which.name)
                # A scheduler that requested the stop should see it as a success.
                code = 130 if which is signal.SIGINT else config.train.sigterm_exit_code
                raise Interrupted(
                    f"{which.name}: stopped at step {step} of {session.total} with a checkpoint; "
                    "the same command resumes from there.",
                    which,
                    code,
                )
            if step < last:
                watchdog.beat(f"batch {step} is read")
                fetch_started = time.monotonic()
                batch = next(batches)
                reporter.waited(time.monotonic() - fetch_started)
                batch = devices.split_rows(batch)
                weight = WEIGHTS[session.signals[0]] if session.signals else 0.0
                state, carry, metrics = train_step(state, carry, batch, stop_weights[weight])
                if pending:
                    stop = report(step, pending)
                    checkpoints.check()
                pending = metrics
    return devices.unreplicate(state), devices.fetch_rows(carry)


def _score(session: Session, state: TrainState) -> Score:
    """Return the score of the validation split, and of its labels if the run has any."""
    watchdog = session.watchdog
    score = session.evaluator(
        state.params, lambda n: watchdog.beat(f"the devices score window {n}")
    )
    if not session.score_labels:
        return score
    watchdog.beat("the labels of the validation texts are predicted")
    with jax.transfer_guard("allow"):
        loss, accuracy = session.score_labels(session.devices.unreplicate(state.params))
    return score._replace(label_loss=loss, accuracy=accuracy)
