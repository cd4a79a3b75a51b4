"""A training session: what it needs from beginning to end, and how it is set up.

A session is one call of `train`. A run has one session, or several if it is stopped and resumed.
"""

import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optax

from mlstm_jax import environment, guard, run
from mlstm_jax.checkpoint import Checkpoints, resume_advice
from mlstm_jax.config import Config, resolve_batch
from mlstm_jax.config.text import PLACES, flatten
from mlstm_jax.data.corpus import Corpus, open_corpus
from mlstm_jax.data.stream import START
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import UserError
from mlstm_jax.model import pallas
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.terminal import ProgressLine
from mlstm_jax.training import metrics, parallel, run_folder, schedule
from mlstm_jax.training.evaluation import Evaluator
from mlstm_jax.training.metrics import MetricsLog
from mlstm_jax.training.phases import ResolvedPhase, resolve_phases, segments
from mlstm_jax.training.reporter import announcement
from mlstm_jax.training.resume import Beginning, find_beginning
from mlstm_jax.training.state import require_memory


@dataclass(frozen=True, kw_only=True)
class Session:
    """What the loop needs."""

    config: Config
    changed: list[str]  # the allowed changes of the config since the run began
    cluster: Cluster
    devices: parallel.Parallel
    watchdog: guard.Watchdog
    signals: list[signal.Signals]  # received; always empty if none is handled
    corpus: Corpus
    model: LanguageModel
    evaluator: Evaluator
    score_labels: Callable[[Parameters], tuple[float, float]] | None  # see `set_up`
    checkpoints: Checkpoints
    require_equal_replicas: Callable[[int, Any], None]
    begin: Beginning
    phases: list[ResolvedPhase]
    lr_schedules: list[optax.Schedule]  # of each phase
    progress: ProgressLine
    callbacks: Sequence[Callable[[dict[str, Any]], None]]  # of lines of metrics

    @property
    def total(self) -> int:
        """Number of steps of the run."""
        return self.phases[-1].last

    def open_log(self, step: int) -> MetricsLog:
        """Open metrics.jsonl to append after a step; only process 0 has one."""
        folder = Path(self.config.out) if self.cluster.is_first else None
        return MetricsLog(folder, step, self.callbacks)


def set_up(
    stack: ExitStack,
    config: Config,
    *,
    score_labels: Callable[[Parameters], tuple[float, float]] | None = None,
    resume: bool = False,
    reset_carry: bool = False,
    callbacks: Sequence[Callable[[dict[str, Any]], None]] = (),
    quiet: bool = False,
    owns_process: bool = False,
) -> Session:
    """Find the other processes, lock the run folder, and find where to begin.

    Args:
        stack: closes what is opened here.
        score_labels: returns the loss of the labels of validation texts, which then chooses the
            best checkpoint, and their accuracy.
        owns_process: if there is no progress for `config.train.watchdog_seconds`, or another
            process of the run is lost, the process then ends at once.

    Of all others, see `mlstm_jax.train`.
    """
    cluster = Cluster(config.distributed, Path(config.out))
    if cluster.processes > 1 and not owns_process:
        raise UserError(
            f"distributed.processes is {cluster.processes}: if one of several processes is lost, "
            "the others must end at once. Train with owns_process=True, in processes that do "
            "nothing else, or with the command `mlstm-jax train`."
        )
    stack.enter_context(environment.silence())
    stack.enter_context(cluster)
    folder = Path(config.out)
    watchdog = guard.Watchdog(
        config.train.watchdog_seconds, cluster.stop, cluster.index, resume_advice
    )
    received: list[signal.Signals] = []
    if owns_process:
        stack.enter_context(watchdog)
        received = stack.enter_context(guard.collect())
    stack.enter_context(run_folder.disk_errors(folder))
    if config.train.deterministic:
        environment.require_deterministic()
    corpus = open_corpus(Path(config.data.corpus))
    _require_one_run(cluster, config, corpus)
    devices = parallel.started(cluster, config.devices)
    config = resolve_batch(run_folder.with_run_values(config, cluster), devices.count)
    require_memory(config, devices)
    changed = run_folder.lock_together(
        stack, cluster, config, resume=resume, reset_carry=reset_carry
    )
    watchdog.folder = folder
    model = _make_model(config, devices)
    # A divergence is detected this many steps after it began.
    reach = 1 + max(config.train.divergence_steps, config.precision.max_consecutive_skips)
    checkpoints = stack.enter_context(
        closing(Checkpoints(folder, run.id_of(folder), config.train.keep_checkpoints, reach=reach))
    )
    phases = resolve_phases(config, corpus)
    begin = find_beginning(
        cluster,
        devices,
        corpus,
        model,
        checkpoints,
        config,
        phases,
        resume=resume,
        reset_carry=reset_carry,
    )
    if begin.origin != START:
        phases = resolve_phases(config, corpus, begin.origin)
    total = phases[-1].last
    same = "Give every process the same corpus and config."
    cluster.require_equal({"step": begin.step, "steps": total}, same)
    if cluster.is_first:
        begin.notes.extend(metrics.set_aside_damaged(folder))
        run_folder.write_folder(config, run_folder.inputs(corpus, begin.start))
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
        score_labels=score_labels,
        checkpoints=checkpoints,
        require_equal_replicas=parallel.make_comparison(cluster, devices),
        begin=begin,
        phases=phases,
        lr_schedules=schedule.rates(config.optimizer, segments(phases)),
        progress=progress,
        callbacks=callbacks,
    )


def _make_model(config: Config, devices: parallel.Parallel) -> LanguageModel:
    """Return the model for training, after a check that the devices can run its kernels."""
    if config.devices.kernels == "pallas":
        pallas.require_gpu(config.model.hidden, devices.compute_capability())
    loops = pallas.PALLAS if config.devices.kernels == "pallas" else None
    return LanguageModel(config.model, config.precision, config.train.recompute_every, loops)


def _require_one_run(cluster: Cluster, config: Config, corpus: Corpus) -> None:
    """Raise UserError if the processes differ in their code, config or corpus."""
    cluster.require_equal(
        {"distributed.processes": cluster.processes}, "Give every process the same number."
    )
    cluster.require_equal(
        {"the program's code": environment.code(), **environment.versions()},
        "Install the same versions for all processes.",
    )
    fields = flatten(config).items()
    cluster.require_equal(
        {name: value for name, value in fields if not name.startswith(PLACES)},
        "Give every process the same config and options.",
    )
    cluster.require_equal(
        {"the corpus's identity": corpus.identity[:12]},
        "Prepare the corpus once, and give every process a copy; `mlstm-jax inspect --verify` "
        "detects a damaged copy.",
    )
