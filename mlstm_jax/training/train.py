"""A training session, from its set-up to its last step: one call of `train`.

A run has one session, or several if it is stopped and resumed. Every process of a run makes the
same decisions, from the same numbers; only process 0 writes the log.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from signal import Signals
from typing import Any

import jax
import numpy as np
import optax

from mlstm_jax import environment, guard
from mlstm_jax.checkpoint import Checkpoints
from mlstm_jax.config import Config, resolve_batch
from mlstm_jax.data.corpus import Corpus, open_corpus
from mlstm_jax.data.stream import START, prefetch
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import UserError, note
from mlstm_jax.guard import Watchdog
from mlstm_jax.model import kernels, pallas
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.record import resume_advice
from mlstm_jax.terminal import ProgressLine
from mlstm_jax.training import metrics, optimizer, parallel, run_folder, schedule
from mlstm_jax.training.evaluation import Evaluator, Score
from mlstm_jax.training.metrics import MetricsLog
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.phases import ResolvedPhase, resolve_phases
from mlstm_jax.training.report import Diverged, Reporter, announcement, interruption
from mlstm_jax.training.resume import Snapshot, begin_new, resume_newest
from mlstm_jax.training.state import TrainState, require_memory
from mlstm_jax.training.step import make_train_step


def train(
    config: Config,
    *,
    score_labels: Callable[[Parameters], tuple[float, float]] | None = None,
    resume: bool = False,
    reset_carry: bool = False,
    callbacks: Sequence[Callable[[dict[str, Any]], None]] = (),
    quiet: bool = False,
    owns_process: bool = False,
) -> Path:
    """Train a run from its newest complete checkpoint, or from step 0; return its folder.

    `score_labels` returns the loss of the labels of the validation texts, and their accuracy; this
    loss then chooses the best checkpoint. The other arguments are those of `mlstm_jax.train`.
    Raises UserError if config, corpus, run folder or processes do not fit together. After Diverged,
    Interrupted and CheckpointFailed the checkpoints that are left in the run folder are intact.
    """
    folder = Path(config.out)
    with ExitStack() as stack:
        # Set up: processes, text, devices, the folder that no other run may use, the model.
        cluster, watchdog, signals = _start_process(stack, config, owns_process=owns_process)
        corpus = open_corpus(Path(config.data.corpus))
        run_folder.require_one_run(cluster, config, corpus)
        devices = parallel.started(cluster, config.devices)
        config = run_folder.with_run_values(config, cluster, devices.compute_capability())
        config = resolve_batch(config, devices.count)
        require_memory(config, devices)
        changed = run_folder.lock_together(stack, cluster, config, resume=resume)
        model = _make_model(config, devices)
        phases = resolve_phases(config, corpus)

        # Find where to begin: at the newest checkpoint, or at step 0.
        checkpoints = stack.enter_context(closing(run_folder.open_checkpoints(config)))
        notes: list[str] = []
        if checkpoints.steps():
            begin, notes = resume_newest(
                cluster, devices, model, checkpoints, config, phases, reset_carry=reset_carry
            )
        else:
            begin = begin_new(cluster, devices, model, config, phases)
        # After a reset of the carry the run may have another length.
        if begin.meta.origin != START:
            phases = resolve_phases(config, corpus, begin.meta.origin)
        total = phases[-1].last
        if cluster.is_first:
            notes += metrics.set_aside_damaged(folder)
            run_folder.write_folder(config, run_folder.inputs(corpus, begin.meta.start))

        # Train the phases that are left. Only process 0 writes metrics and progress.
        log = MetricsLog(folder if cluster.is_first else None, begin.step, callbacks)
        stack.enter_context(closing(log))
        progress = ProgressLine("train", total, begin.step, quiet=quiet or not cluster.is_first)
        stack.enter_context(progress)
        progress.say(announcement(config, phases, devices, cluster, begin, changed, notes))
        if quiet and changed and begin.step >= total:
            note(f"{folder} is finished; nothing was trained with {', '.join(changed)}")
        if 0 < begin.step < total:
            log.write("event", begin.step, event="resumed", changed=changed, notes=notes)
        evaluate = _make_evaluation(config, corpus, model, devices, watchdog, score_labels)
        require_equal_replicas = parallel.make_comparison(cluster, devices)
        rates = schedule.rates(config.optimizer, phases)
        for phase, rate, following in zip(phases, rates, [*phases[1:], None], strict=True):
            if phase.last <= begin.step:
                continue
            progress.say("compiling the training step")
            try:
                begin = _train_phase(
                    phase,
                    begin,
                    rate,
                    devices,
                    model,
                    evaluate=evaluate,
                    require_equal_replicas=require_equal_replicas,
                    checkpoints=checkpoints,
                    reporter=Reporter(phase, log, progress, begin),
                    watchdog=watchdog,
                    signals=signals,
                )
            except Diverged as diverged:
                checkpoints.drop_after(diverged.last_good_step)
                diverged.advise(folder)
                raise
            if following:
                change = f"step {phase.last}: the next phase, {following.describe()}"
                progress.say(change)
                log.write("event", phase.last, event="phase", notes=[change])
        checkpoints.wait()  # A run is finished when its last checkpoint is complete.
        if begin.step == total and log.finished_at != total:
            log.write("event", total, event="finished")
    if signals:  # It came too late to stop the run; but a sweep must not begin the next one.
        raise interruption(signals[0], f"{folder} is finished.", config)
    return folder


def _train_phase(
    phase: ResolvedPhase,
    begin: Snapshot,
    rate: optax.Schedule,
    devices: Parallel,
    model: LanguageModel,
    *,
    evaluate: Callable[[TrainState], Score],
    require_equal_replicas: Callable[[int, TrainState], None],
    checkpoints: Checkpoints,
    reporter: Reporter,
    watchdog: Watchdog,
    signals: list[Signals],
) -> Snapshot:
    """Train to the end of a phase; return where the next one begins.

    The order of the loop may not change. At step k, evaluation and checkpoint come before the
    training step of batch k, which takes over the memory of state and carry: they need both first,
    and the checkpoint has seen exactly k batches. The metrics of one batch are read after the next
    batch is dispatched, so the devices wait for the host only at an evaluation or a checkpoint.
    Every transfer is explicit; the transfer guard raises an error for any other.
    """
    config = phase.config
    tx = optimizer.build(
        config.optimizer,
        config.model,
        rate,
        update_bytes=phase.update_bytes,
        axis_name=parallel.AXIS,
        compute=config.precision.compute,
    )
    train_step = make_train_step(config, model, tx, rate, parallel.AXIS)
    train_step = devices.map(train_step, donate=(0, 1))
    rows = devices.rows(config.data.batch)
    carry = begin.carry
    if carry is None or (begin.step == phase.first and not phase.continues):
        carry = jax.tree.map(lambda x: x[rows], model.init_carry(config.data.batch))
    carry = devices.split_rows(carry)
    state = optimizer.rescale_second_moment(
        config.optimizer, begin.state, begin.update_bytes, phase.update_bytes
    )
    state = devices.replicate(state)
    require_equal_replicas(begin.step, state)
    no_signal = devices.replicate(np.float32(0))
    saved = begin
    unread = None  # metrics of the last batch, on the devices
    signal_sum = 0.0  # of the signals' weights, over all devices: equal in all processes; 0: none

    def report(step: int, results: Any) -> float:
        """Report the metrics of a batch; return their sum of the signals' weights."""
        watchdog.beat(f"the devices compute step {step}")
        on_host = devices.unreplicate(results)
        reporter.step(step, on_host)
        return float(on_host.stop)

    batches = prefetch(lambda step: phase.stream.batch(step, rows), range(begin.step, phase.last))
    with closing(batches), jax.transfer_guard("disallow"):
        for step in range(begin.step, phase.last + 1):
            is_last = step == phase.last
            evaluates = is_last or step % config.train.eval_every == 0
            saves = evaluates or step % config.train.checkpoint_every == 0 or signal_sum > 0
            if saves and step > begin.step:
                signal_sum = report(step, unread)
                unread = None
                score = None
                if evaluates:
                    score = evaluate(state)
                    reporter.evaluation(step, score)
                watchdog.beat(f"the checkpoint of step {step} is written")
                require_equal_replicas(step, state)
                saved = Snapshot(
                    step,
                    devices.unreplicate(state),
                    devices.fetch_rows(carry),
                    reporter.meta(step, score),
                )
                with jax.transfer_guard("allow"):  # Orbax makes implicit ones to the host.
                    checkpoints.save(step, saved.state, saved.carry, devices.join_rows, saved.meta)
                reporter.restart_clock(step)
            if signal_sum and step < phase.total:
                raise reporter.interrupted(step, signal_sum)
            if is_last:
                break
            watchdog.beat(f"batch {step} is read")
            fetch_started = time.monotonic()
            batch = next(batches)
            reporter.waited(time.monotonic() - fetch_started)
            batch = devices.split_rows(batch)
            signal_weight = no_signal
            if signals:
                signal_weight = devices.replicate(np.float32(guard.WEIGHTS[signals[0]]))
            state, carry, results = train_step(state, carry, batch, signal_weight)
            if unread is not None:
                signal_sum = report(step, unread)
                checkpoints.check()
            unread = results
    return saved


def _start_process(
    stack: ExitStack, config: Config, *, owns_process: bool
) -> tuple[Cluster, Watchdog, list[Signals]]:
    """Join the other processes; if this call owns its process, watch it and receive signals."""
    folder = Path(config.out)
    cluster = Cluster(config.distributed, folder)
    if cluster.processes > 1 and not owns_process:
        raise UserError(
            f"distributed.processes is {cluster.processes}: if one of several processes is lost, "
            "the others must end at once. Train with owns_process=True, in processes that do "
            "nothing else, or with the command `mlstm-jax train`."
        )
    stack.enter_context(environment.silence())
    stack.enter_context(cluster)
    stacks = folder / f"stacks-{cluster.index}.txt"
    watchdog = Watchdog(
        config.train.watchdog_seconds, cluster.stop, stacks, lambda: resume_advice(folder)
    )
    signals: list[Signals] = []
    if owns_process:
        stack.enter_context(watchdog)
        signals = stack.enter_context(guard.collect())
    if config.train.deterministic:
        environment.require_deterministic()
    return cluster, watchdog, signals


def _make_model(config: Config, devices: Parallel) -> LanguageModel:
    """Return the model for training, after a check that the devices can run its kernels."""
    loops = None
    if config.devices.kernels == "pallas":
        is_fp8 = config.precision.recurrent == "fp8"
        pallas.require_gpu(config.model.hidden, devices.compute_capability(), fp8=is_fp8)
        loops = kernels.PALLAS
    return LanguageModel(config.model, config.precision, config.train.recompute_every, loops)


def _make_evaluation(
    config: Config,
    corpus: Corpus,
    model: LanguageModel,
    devices: Parallel,
    watchdog: Watchdog,
    score_labels: Callable[[Parameters], tuple[float, float]] | None,
) -> Callable[[TrainState], Score]:
    """The function that scores the validation split and, if there are any, its labels."""
    valid = corpus.split("valid")
    scorer = Evaluator(model, valid, config.data.window, devices)

    def evaluate(state: TrainState) -> Score:
        score = scorer(state.params, lambda n: watchdog.beat(f"the devices score window {n}"))
        if score_labels is None:
            return score
        watchdog.beat("the labels of the validation texts are predicted")
        with jax.transfer_guard("allow"):
            loss, accuracy = score_labels(devices.unreplicate(state.params))
        return score._replace(label_loss=loss, accuracy=accuracy)

    return evaluate
