"""The training loop.

Evaluation and checkpoint come before the step, so the checkpoint at step k has seen exactly k
batches. The metrics of step k−1 are fetched after step k is dispatched, so the devices never wait
for the host; every transfer is explicit, and the guard says so where one is not. Every process runs
all of this and decides alike, from the same numbers; process 0 alone writes the log.
"""

import dataclasses
import errno
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mlstm_jax import config as configs
from mlstm_jax import run
from mlstm_jax.config import Config, Train, resolve_batch
from mlstm_jax.data.corpus import Corpus, open_corpus
from mlstm_jax.data.stream import Origin, TrainStream, prefetch
from mlstm_jax.errors import KnownError, UserError
from mlstm_jax.evaluation import Evaluator
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.training import environment, optimizer, parallel, schedule
from mlstm_jax.training import resume as resuming
from mlstm_jax.training.checkpoint import Checkpoints, Meta
from mlstm_jax.training.cluster import Cluster
from mlstm_jax.training.metrics import MetricsLog, Silent
from mlstm_jax.training.progress import ProgressLine
from mlstm_jax.training.reporter import Diverged, Reporter
from mlstm_jax.training.resume import Found
from mlstm_jax.training.state import init_state
from mlstm_jax.training.step import make_train_step
from mlstm_jax.training.watchdog import Watchdog

# A run that still diverges at so small a part of its learning rate does so for another reason.
_LEAST_RATE_SCALE = 1 / 64

# What a process adds to the sum that tells all of a signal: one SIGINT outweighs many SIGTERMs.
_WEIGHTS = {signal.SIGTERM: 1.0, signal.SIGINT: 2.0**20}


class Interrupted(KnownError):
    """A signal asked the run to stop; its state is in a checkpoint."""

    def __init__(self, received: signal.Signals, step: int, total: int, exit_code: int) -> None:
        super().__init__(
            f"{received.name}: stopped at step {step} of {total} with a checkpoint; "
            "the same command goes on from there."
        )
        self.exit_code = exit_code


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What stays the same while a run is trained, from one divergence to the next."""

    config: Config
    devices: parallel.Parallel
    stream: TrainStream
    total: int
    model: LanguageModel
    evaluator: Evaluator
    train_step: Callable[..., Any]
    checkpoints: Checkpoints
    watchdog: Watchdog
    signals: list[signal.Signals]
    corpus: Corpus


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
        watchdog = stack.enter_context(Watchdog(config.train.watchdog_seconds, cluster.stop))
        signals = stack.enter_context(_collect_signals())
        stack.enter_context(_disk_errors(folder))
        corpus = open_corpus(Path(config.data.corpus))
        _require_one_run(cluster, config, corpus)
        devices = stack.enter_context(parallel.started(cluster, config.devices))
        config = resolve_batch(config, devices.count)
        changed = _claim(stack, cluster, config, resume=resume, reset_carry=reset_carry)
        watchdog.stacks = folder / f"stacks-{cluster.index}.txt"

        stream = train_stream(config, corpus)
        model = LanguageModel(config.model, config.precision, config.train.recompute_every)
        evaluator = Evaluator(model, corpus.split("valid"), config.data.window, devices)
        checkpoints = stack.enter_context(
            closing(Checkpoints(folder, config.train.keep_checkpoints))
        )

        def find(newest: int | None = None) -> Found:
            """Return where to begin; the state before the first step if nowhere else."""
            adam = optimizer.build(config.optimizer, lambda count: 0.0)
            fresh = init_state(config, model, adam)
            found = resuming.find(
                cluster,
                checkpoints,
                devices,
                stream,
                _meta(config, corpus, stream, 0),
                fresh,
                jax.eval_shape(lambda: model.init_carry(config.data.batch)),
                newest=newest,
                reset_carry=reset_carry,
            )
            return found or Found(0, fresh, None, Origin(), [])

        found = find()
        stream.origin = found.origin
        total = total_steps(config.train, stream.steps_per_epoch, stream.position(0))
        cluster.require_equal(
            {"step": found.step, "steps": total}, "The same corpus and config give the same steps."
        )
        if cluster.is_first:
            run.write_folder(config)
        rate = schedule.learning_rate(
            config.optimizer, config.data.batch, total, stream.steps_per_epoch
        )
        adam = optimizer.build(config.optimizer, rate)
        step = make_train_step(config, model, adam, rate, parallel.AXIS)
        training = _Run(
            config=config,
            devices=devices,
            stream=stream,
            total=total,
            model=model,
            evaluator=evaluator,
            train_step=devices.map(step, donate=(0, 1)),
            checkpoints=checkpoints,
            watchdog=watchdog,
            signals=signals,
            corpus=corpus,
        )
        progress = stack.enter_context(
            ProgressLine("train", total, found.step, quiet=not cluster.is_first)
        )
        progress.say(_summary(training, cluster, found.state.params, found.step))
        if changed:
            progress.say("changed since the run began: " + ", ".join(changed))
        event: dict[str, Any] | None = None
        if 0 < found.step < total:
            event = {"event": "resumed", "changed": changed}
        while True:
            for note in found.notes:
                progress.say(note)
            with closing(MetricsLog(folder, found.step) if cluster.is_first else Silent()) as log:
                reporter = Reporter(config, stream, log, progress, found.step)
                if event:
                    reporter.event(found.step, **event, notes=found.notes)
                try:
                    _train_from(training, found, reporter)
                    break
                except Diverged as diverged:
                    scale = float(found.state.rate_scale) * config.train.rollback_factor
                    if config.train.on_divergence == "stop" or scale < _LEAST_RATE_SCALE:
                        raise
                    failed = diverged
            found = find(newest=failed.since)
            scale = min(scale, float(found.state.rate_scale) * config.train.rollback_factor)
            state = found.state._replace(rate_scale=jnp.float32(scale))
            note = (
                f"diverged at step {failed.step}: {failed.reason}. Back to step {found.step}, with "
                f"the learning rate times {scale:g}"
            )
            found = found._replace(state=state, notes=[*found.notes, note])
            event = {"event": "rolled_back", "diverged_at": failed.step, "rate_scale": scale}
    return folder


def _train_from(training: _Run, found: Found, reporter: Reporter) -> None:
    """Train from a checkpoint, or the beginning, to the end."""
    config, devices, stream = training.config, training.devices, training.stream
    total, checkpoints, watchdog = training.total, training.checkpoints, training.watchdog
    rows = devices.rows(config.data.batch)
    carry = found.carry
    if carry is None:
        carry = jax.tree.map(lambda x: x[rows], training.model.init_carry(config.data.batch))
    state, carry = devices.replicate(found.state), devices.split_rows(carry)
    asked = {weight: devices.replicate(np.float32(weight)) for weight in (0.0, *_WEIGHTS.values())}
    pending, stop = None, 0.0

    def report(step: int, metrics: Any) -> float:
        watchdog.beat(f"the devices take step {step}")
        metrics = devices.unreplicate(metrics)
        reporter.step(step, metrics)
        return float(metrics.stop)

    batches = prefetch(lambda step: stream.batch(step, rows), range(found.step, total))
    with closing(batches), jax.transfer_guard("disallow"):
        for step in range(found.step, total + 1):
            evaluate = step == total or step % config.train.eval_every == 0
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
                meta = _meta(config, training.corpus, stream, step)
                bpc = score.bpc if score else None
                checkpoints.save(
                    step, devices.unreplicate(state), devices.join_rows(carry), meta, bpc
                )
                reporter.restart_clock(step)
            if step == total:
                reporter.finished(step)
            if stop and step < total:
                received = signal.SIGINT if stop >= _WEIGHTS[signal.SIGINT] else signal.SIGTERM
                reporter.event(step, "interrupted", signal=received.name)
                # To a scheduler that asked for it, a stop with a checkpoint is a success.
                code = 130 if received is signal.SIGINT else config.train.sigterm_exit_code
                raise Interrupted(received, step, total, code)
            if step < total:
                watchdog.beat(f"batch {step} is read")
                batch = devices.split_rows(next(batches))
                weight = _WEIGHTS[training.signals[0]] if training.signals else 0.0
                state, carry, metrics = training.train_step(state, carry, batch, asked[weight])
                if pending:
                    stop = report(step, pending)
                    checkpoints.check()
                pending = metrics


def train_stream(config: Config, corpus: Corpus) -> TrainStream:
    """Return the training rows of a config."""
    data = config.data
    return TrainStream(
        corpus.split("train"),
        batch=data.batch,
        window=data.window,
        shards=data.shards,
        shuffle=data.shuffle_shards,
        seed=data.seed,
    )


def total_steps(train: Train, steps_per_epoch: int, ahead: int = 0) -> int:
    """Return the length of a run: the smaller of `steps` and what `epochs` need.

    `ahead` is by how many windows the stream is ahead of the step, after a change of rows.
    """
    limits = [] if train.steps is None else [train.steps]
    if train.epochs is not None:
        limits.append(math.ceil(train.epochs * steps_per_epoch) - ahead)
    return min(limits)


def _meta(config: Config, corpus: Corpus, stream: TrainStream, step: int) -> Meta:
    """Return what a checkpoint at `step` is trained on."""
    rows = dataclasses.asdict(config.data)
    del rows["corpus"], rows["batch_per_device"]
    return Meta(
        corpus=corpus.identity,
        cleaning=corpus.manifest.cleaning,
        rows=rows,
        origin=stream.origin,
        epoch=stream.epoch(step),
        bytes_seen=stream.bytes_seen(step),
    )


def _require_one_run(cluster: Cluster, config: Config, corpus: Corpus) -> None:
    """Raise UserError where a process has other code, another config or another corpus."""
    cluster.require_equal(
        {"the program's code": environment.code(), **environment.versions()},
        "Install the same on all.",
    )
    fields = configs.flatten(config).items()
    cluster.require_equal(
        {name: value for name, value in fields if not name.startswith(configs.PLACES)},
        "Give every process the same config and options.",
    )
    cluster.require_equal(
        {"the corpus's identity": corpus.identity[:12]},
        "Prepare it once, and give every process a copy of that; `mlstm-jax inspect --verify` "
        "finds a damaged one.",
    )


def _claim(
    stack: ExitStack, cluster: Cluster, config: Config, *, resume: bool, reset_carry: bool
) -> list[str]:
    """Let process 0 hold the run folder, and the others see that it is the same; see run.claim."""
    changed: list[str] | None = None
    if cluster.is_first:
        claimed = run.claim(config, resume=resume, reset_carry=reset_carry)
        changed = stack.enter_context(claimed)
    changed = cluster.gather(changed)[0]
    kept = run.read_config(Path(config.out))
    seen = "none" if kept is None else configs.to_json(kept)
    if any(other != seen for other in cluster.gather(seen)):
        raise UserError(
            f"the run folder {config.out} is not the same for all processes; it must lie on a file "
            "system that they share."
        )
    return changed or []


def _summary(training: _Run, cluster: Cluster, params: Parameters, first: int) -> str:
    """Say what is about to be trained, on what."""
    config, stream, total = training.config, training.stream, training.total
    if first >= total:
        return f"{config.out} is finished: {first:,} steps. More of them: --train.steps"
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    data, split = config.data, training.corpus.manifest.splits["train"]
    start = f"resuming at step {first:,} of" if first else "training"
    devices = f"{training.devices.count} {training.devices.devices[0].platform} device(s)"
    if cluster.processes > 1:
        devices += f" of {cluster.processes} processes"
    lines = [
        f"{start} {total:,} steps, {stream.epoch(total):.2f} epochs: {count:,} parameters in "
        f"{config.precision.compute} on {devices}",
        f"{data.batch} rows x {data.window} bytes a step, from {split.bytes:,} bytes in "
        f"{stream.shards:,} shards; run folder {config.out}",
    ]
    if stream.shards < stream.wanted_shards:
        lines.append(
            f"the corpus is too small for {stream.wanted_shards:,} shards: {stream.shards:,} used"
        )
    if stream.dropped > 0.1:
        lines.append(
            f"{stream.dropped:.0%} of the text is in tails that an epoch leaves out; a smaller "
            "data.batch or data.window uses more of it"
        )
    return "\n".join(lines)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Say what a full disk means to a run."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            raise
        raise KnownError(
            f"could not write to {error.filename or folder} ({error.strerror}). The checkpoints in "
            f"{folder} are whole; free some space, and the same command goes on from the last."
        ) from error


@contextmanager
def _collect_signals() -> Iterator[list[signal.Signals]]:
    """Note SIGINT and SIGTERM in a list, for the loop to stop between two steps.

    A second one acts as it would have without this: nobody is held against their will.
    """
    received: list[signal.Signals] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: object) -> None:
        received.append(signal.Signals(number))
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield received
    finally:
        restore()
