"""The training loop.

Evaluation and checkpoint come before the step, so the checkpoint at step k has seen exactly k
batches. The metrics of step k−1 are fetched after step k is dispatched, so the devices never wait
for the host; every transfer is explicit, and the guard says so where one is not.
"""

import math
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import jax

from mlstm_jax import run
from mlstm_jax.config import Config, Train, resolve_batch
from mlstm_jax.data.corpus import Corpus, open_corpus
from mlstm_jax.data.stream import TrainStream, prefetch
from mlstm_jax.errors import KnownError
from mlstm_jax.evaluation import Evaluator
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.training import optimizer, parallel, schedule
from mlstm_jax.training.checkpoint import Checkpoints, Meta
from mlstm_jax.training.metrics import MetricsLog
from mlstm_jax.training.progress import ProgressLine
from mlstm_jax.training.reporter import Reporter
from mlstm_jax.training.state import init_state
from mlstm_jax.training.step import make_train_step


class Interrupted(KnownError):
    """A signal asked the run to stop; its state is in a checkpoint."""

    def __init__(self, received: signal.Signals, step: int, total: int) -> None:
        super().__init__(
            f"{received.name}: stopped at step {step} of {total} with a checkpoint; "
            "the same command goes on from there."
        )
        # To a scheduler that asked for it (SIGTERM), a stop with a checkpoint is a success.
        self.exit_code = 0 if received is signal.SIGTERM else 130


def train(config: Config, *, resume: bool = False) -> Path:
    """Train until the config's steps are done, from the newest checkpoint if there is one.

    Returns:
        The run folder.

    Raises:
        UserError: config, corpus and run folder do not fit.
        Diverged, Interrupted: as they say; the folder's checkpoints are good.
    """
    devices = parallel.local(config.devices)
    config = resolve_batch(config, devices.count)
    corpus = open_corpus(Path(config.data.corpus))
    stream = train_stream(config, corpus)
    total = total_steps(config.train, stream.steps_per_epoch)
    model = LanguageModel(config.model, config.precision, config.train.recompute_every)
    rate = schedule.learning_rate(config.optimizer, config.data.batch, total)
    adam = optimizer.build(config.optimizer, rate)
    evaluator = Evaluator(model, corpus.split("valid"), config.data.window, devices)
    train_step = devices.map(
        make_train_step(config, model, adam, rate, parallel.AXIS), donate=(0, 1)
    )

    folder = Path(config.out)
    meta = Meta(corpus=corpus.identity, cleaning=corpus.manifest.cleaning)
    state, carry = init_state(config, model, adam), model.init_carry(config.data.batch)

    with ExitStack() as stack:
        changed = stack.enter_context(run.claim(config, resume=resume))
        checkpoints = stack.enter_context(
            closing(Checkpoints(folder, config.train.keep_checkpoints))
        )
        first = checkpoints.latest() or 0
        if first:
            checkpoints.require_corpus(first, meta)
            state, carry = checkpoints.restore(first, state, carry)
        run.write_folder(config)
        state, carry = devices.replicate(state), devices.split_rows(carry)
        batches = stack.enter_context(closing(prefetch(stream.batch, range(first, total))))
        log = stack.enter_context(closing(MetricsLog(folder, first)))
        progress = stack.enter_context(ProgressLine("train", total, first))
        signals = stack.enter_context(_collect_signals())
        reporter = Reporter(config, stream, log, progress, first)
        progress.say(_summary(config, corpus, stream, devices, state.params, first, total))
        if changed:
            progress.say("changed since the run began: " + ", ".join(changed))
        if 0 < first < total:
            reporter.event(first, "resumed", changed=changed)
        pending = None
        stack.enter_context(jax.transfer_guard("disallow"))
        for step in range(first, total + 1):
            evaluate = step == total or step % config.train.eval_every == 0
            save = evaluate or step % config.train.checkpoint_every == 0 or signals
            if pending and save:
                reporter.step(step, devices.unreplicate(pending))
                pending = None
            if step > first and save:
                score = evaluator(state.params) if evaluate else None
                if score:
                    reporter.evaluation(step, score)
                rows = devices.join_rows(carry)
                bpc = score.bpc if score else None
                checkpoints.save(step, devices.unreplicate(state), rows, meta, bpc)
                reporter.restart_clock(step)
            if signals:
                reporter.event(step, "interrupted", signal=signals[0].name)
                raise Interrupted(signals[0], step, total)
            if step < total:
                state, carry, metrics = train_step(state, carry, devices.split_rows(next(batches)))
                if pending:
                    reporter.step(step, devices.unreplicate(pending))
                pending = metrics
    return folder


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


def total_steps(train: Train, steps_per_epoch: int) -> int:
    """Return the length of a run: the smaller of `steps` and what `epochs` need."""
    limits = [] if train.steps is None else [train.steps]
    if train.epochs is not None:
        limits.append(math.ceil(train.epochs * steps_per_epoch))
    return min(limits)


def _summary(
    config: Config,
    corpus: Corpus,
    stream: TrainStream,
    devices: parallel.Parallel,
    params: Parameters,
    first: int,
    total: int,
) -> str:
    """Say what is about to be trained, on what."""
    if first >= total:
        return f"{config.out} is finished: {first:,} steps. More of them: --train.steps"
    count = sum(leaf[0].size for leaf in jax.tree.leaves(params))
    data, split = config.data, corpus.manifest.splits["train"]
    start = f"resuming at step {first:,} of" if first else "training"
    lines = [
        f"{start} {total:,} steps, {stream.epoch(total):.2f} epochs: {count:,} parameters in "
        f"{config.precision.compute} on {devices.count} {devices.devices[0].platform} device(s)",
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
