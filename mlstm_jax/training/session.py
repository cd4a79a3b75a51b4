"""A training session: what it needs from beginning to end, and how it is set up.

A session is one call of `train`. A run has one session, or several if it is stopped and resumed.
"""

import dataclasses
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import optax

from mlstm_jax import environment, run
from mlstm_jax.checkpoints.checkpoint import Checkpoints
from mlstm_jax.config import Config, resolve_batch
from mlstm_jax.data.corpus import Corpus, open_corpus
from mlstm_jax.data.stream import Origin
from mlstm_jax.distributed import consistency
from mlstm_jax.distributed.cluster import Cluster
from mlstm_jax.errors import UserError
from mlstm_jax.model import pallas
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.progress import ProgressLine
from mlstm_jax.quiet import quiet as without_reports
from mlstm_jax.training import (
    memory,
    optimizer,
    parallel,
    resume,
    run_folder,
    schedule,
    signals,
    start,
)
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
from mlstm_jax.training.replicas import make_comparison
from mlstm_jax.training.resume import ExpectedCheckpoint, ResumePoint
from mlstm_jax.training.watchdog import Watchdog


@dataclass(frozen=True, kw_only=True)
class Session:
    """What the loop needs."""

    config: Config
    changed: list[str]  # the allowed changes of the config since the run began
    cluster: Cluster
    devices: parallel.Parallel
    watchdog: Watchdog
    signals: list[signal.Signals]  # received; always empty if none is handled
    corpus: Corpus
    model: LanguageModel
    evaluator: Evaluator
    checkpoints: Checkpoints
    require_equal_replicas: Callable[[int, Any], None]
    begin: ResumePoint
    find: Callable[[int], ResumePoint]  # where to resume, at or before a step
    start: str | None  # the fingerprint of the parameters that the run began with
    total: int  # steps
    phases: list[ResolvedPhase]
    lr_schedules: list[optax.Schedule]  # of each phase
    progress: ProgressLine
    callbacks: Sequence[Callable[[dict[str, Any]], None]]  # of lines of metrics

    def open_log(self, step: int) -> MetricsLog | NullLog:
        """Open metrics.jsonl to append after a step; only process 0 has one."""
        if not self.cluster.is_first:
            return NullLog()
        return MetricsLog(Path(self.config.out), step, self.callbacks)

    def starting_at(self, origin: Origin) -> "Session":
        """Return the session of the same run, which has returned to an earlier checkpoint."""
        phases = _starting_at(self.config, self.phases, origin)
        rates = schedule.rates(self.config.optimizer, stretches(phases))
        return dataclasses.replace(self, phases=phases, total=phases[-1].last, lr_schedules=rates)


def set_up(
    stack: ExitStack,
    config: Config,
    initial: Callable[[], Parameters] | None = None,
    *,
    resume: bool,
    reset_carry: bool,
    callbacks: Sequence[Callable[[dict[str, Any]], None]],
    quiet: bool,
    owns_process: bool,
) -> Session:
    """Find the other processes, lock the run folder, and find where to begin; see `loop.train`."""
    cluster = Cluster(config.distributed)
    if cluster.processes > 1 and not owns_process:
        raise UserError(
            f"distributed.processes is {cluster.processes}: if one of several processes is lost, "
            "the others must end at once. Train with owns_process=True, in processes that do "
            "nothing else, or with the command `mlstm-jax train`."
        )
    stack.enter_context(without_reports())
    stack.enter_context(cluster)
    folder = Path(config.out)
    watchdog = Watchdog(config.train.watchdog_seconds, cluster.stop, cluster.index)
    received: list[signal.Signals] = []
    if owns_process:
        stack.enter_context(watchdog)
        received = stack.enter_context(signals.collect())
    stack.enter_context(run_folder.disk_errors(folder))
    if config.train.deterministic:
        environment.require_deterministic()
    corpus = open_corpus(Path(config.data.corpus))
    consistency.require_one_run(cluster, config, corpus)
    devices = stack.enter_context(parallel.started(cluster, config.devices))
    config = resolve_batch(run_folder.with_positions(config), devices.count)
    memory.require_memory(config, devices)
    changed = run_folder.lock_together(
        stack, cluster, config, resume=resume, reset_carry=reset_carry
    )
    watchdog.folder = folder
    model = _make_model(config, devices)
    # A divergence is detected this many steps after it began.
    reach = 1 + max(config.train.divergence_steps, config.precision.max_consecutive_skips)
    checkpoints = stack.enter_context(
        closing(Checkpoints(folder, config.train.keep_checkpoints, reach=reach))
    )
    phases = resolve_phases(config, corpus)
    finder = _Finder(
        cluster, devices, corpus, model, checkpoints, config, phases, initial, resume, reset_carry
    )
    if finder.given:
        run.require_known_corpus(finder.given.arrays, corpus, ("train", "valid"))
    begin = finder(None)
    phases = _starting_at(config, phases, begin.origin)
    total = phases[-1].last
    cluster.require_equal(
        {"step": begin.step, "steps": total}, "Give every process the same corpus and config."
    )
    if cluster.is_first:
        run_folder.write_folder(config, environment.inputs(corpus, begin.start))
    progress = stack.enter_context(
        ProgressLine("train", total, begin.step, quiet=quiet or not cluster.is_first)
    )
    progress.say(announcement(config, phases, devices, cluster, corpus, begin))
    if changed:
        progress.say("changed since the run began: " + ", ".join(changed))
    return Session(
        config=config,
        changed=changed,
        cluster=cluster,
        devices=devices,
        watchdog=watchdog,
        signals=received,
        corpus=corpus,
        model=model,
        evaluator=Evaluator(model, corpus.split("valid"), config.data.window, devices, corpus.stop),
        checkpoints=checkpoints,
        require_equal_replicas=make_comparison(cluster, devices),
        begin=begin,
        find=finder,
        start=begin.start,
        total=total,
        phases=phases,
        lr_schedules=schedule.rates(config.optimizer, stretches(phases)),
        progress=progress,
        callbacks=callbacks,
    )


def _starting_at(
    config: Config, phases: list[ResolvedPhase], origin: Origin
) -> list[ResolvedPhase]:
    """Return the phases of a run that reads from an origin, on which its length may depend."""
    if config.phases:
        return phases
    stream = phases[0].stream
    stream.origin = origin
    total = total_steps(config.train, stream.steps_per_epoch, stream.position(0))
    return [dataclasses.replace(phases[0], last=total)]


def _make_model(config: Config, devices: parallel.Parallel) -> LanguageModel:
    """Return the model for training, after a check that the devices can run its kernels."""
    if config.devices.kernels == "pallas":
        pallas.require_gpu(config.model.hidden, devices.compute_capability())
    loops = pallas.PALLAS if config.devices.kernels == "pallas" else None
    return LanguageModel(config.model, config.precision, config.train.recompute_every, loops)


@dataclass
class _Finder:
    """Finds where a session begins, and where it resumes after a divergence."""

    cluster: Cluster
    devices: parallel.Parallel
    corpus: Corpus
    model: LanguageModel
    checkpoints: Checkpoints
    config: Config
    phases: list[ResolvedPhase]
    initial: Callable[[], Parameters] | None
    resume: bool
    reset_carry: bool

    def __post_init__(self) -> None:
        self._tx = optimizer.build(self.config.optimizer, self.config.model, lambda count: 0.0)
        self.given, self._notes = start.load_start(
            self.cluster, self.config, self.initial, required=not self.checkpoints.steps()
        )
        before = run.read_config(Path(self.config.out))
        path = self.config.train.start_from
        self._is_same_path = before is not None and before.train.start_from == path

    def __call__(self, newest: int | None) -> ResumePoint:
        """Return the newest checkpoint, at most `newest`, or the state before the first step."""
        if not self.config.phases:
            # A checkpoint tells where the run reads on; the session may have begun after it.
            self.phases[0].stream.origin = Origin()
        found = resume.find(
            self.cluster,
            self.checkpoints,
            self.devices,
            start.state_shapes(self.config, self.model, self._tx),
            self._expected,
            newest=newest,
            reset_carry=self.reset_carry,
        )
        if found is None:
            if newest is None:
                resume.require_new(Path(self.config.out), resume=self.resume)
            # Loading may have failed earlier, when checkpoints existed and it was not needed.
            given = (
                self.given
                or start.load_start(self.cluster, self.config, self.initial, required=True)[0]
            )
            fresh = start.fresh_state(self.config, self.model, self._tx, given)
            state = self.devices.of_first_process(fresh)
            found = ResumePoint(0, state, None, Origin(), [], start=given and given.fingerprint)
        if newest is None:
            self._start = found.start
            found = found._replace(notes=[*self._notes, *self._changed(found), *found.notes])
        elif found.start != self._start:
            raise UserError(
                "the run must return to its first step, but train.start_from, "
                f"{self.config.train.start_from}, does not give the parameters that it started "
                "from; name these, or start a new run with --out."
            )
        return found

    def _changed(self, found: ResumePoint) -> list[str]:
        """Return a note if train.start_from has other parameters than the run started from."""
        if self.given is None or self.given.fingerprint == found.start:
            return []
        path = self.config.train.start_from
        return [f"{path} has changed since the run started from it; the run's checkpoints have not"]

    def _expected(self, step: int) -> ExpectedCheckpoint:
        """Return what a checkpoint of a step must have been trained on."""
        phase = next((one for one in self.phases if step <= one.last), self.phases[-1])
        batch = phase.config.data.batch
        shapes = jax.eval_shape(lambda: self.model.init_carry(batch))
        about = checkpoint_meta(phase, self.corpus, step)
        about = about._replace(start=self.given and self.given.fingerprint)
        return ExpectedCheckpoint(
            *(phase.stream, about, shapes, bool(self.config.phases)),
            *(self.config.train.start_from, self._is_same_path),
        )
