"""The loop of training: read it first.

`set_up` in session.py finds what it works with, and where it begins.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mlstm_jax import guard
from mlstm_jax.config import Config
from mlstm_jax.training import parallel
from mlstm_jax.training.report import Diverged, interruption
from mlstm_jax.training.resume import Snapshot
from mlstm_jax.training.session import Loop, Session, set_up


def train(config: Config, session: Session = Session()) -> Path:  # noqa: B008 - it is frozen
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
    state, carry = loop.state_and_carry()
    no_signal = devices.replicate(np.float32(0))
    unread: Any = None  # metrics of the last step, on the devices
    signal_sum = 0.0  # of the signals' weights, over all devices: equal in all processes; 0: none
    step = loop.start.step
    loop.require_equal_replicas(step, state)
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
                loop.require_equal_replicas(step, state)
                meta = reporter.meta(step, score)
                loop.save(
                    Snapshot(step, devices.unreplicate(state), devices.fetch_rows(carry), meta)
                )
                reporter.restart_clock(step)
            if signal_sum > 0 and not is_last:
                raise reporter.interrupted(step, signal_sum)


def _report(loop: Loop, step: int, metrics: Any) -> float:
    """Report the metrics of the step before `step`; return their sum of the signals' weights."""
    loop.watchdog.beat()
    on_host = loop.devices.unreplicate(metrics)
    loop.reporter.step(step, on_host)
    return float(on_host.stop)
