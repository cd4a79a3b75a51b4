"""Where a run begins: from a seed, from the parameters of another run, or at a checkpoint.

A session begins at the newest complete checkpoint that all processes can read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mlstm_jax import run
from mlstm_jax.checkpoint import FOLDER, SET_ASIDE, Checkpoints, Damaged, Meta
from mlstm_jax.config import Config
from mlstm_jax.data.corpus import Corpus
from mlstm_jax.data.stream import Origin
from mlstm_jax.distributed.cluster import Cluster
from mlstm_jax.errors import KnownError, UserError
from mlstm_jax.interop.weights import Arrays, fingerprint, flatten
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.training import metrics, optimizer
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.phases import ResolvedPhase, checkpoint_meta
from mlstm_jax.training.state import TrainState, fresh_state, state_shapes


class ResumePoint(NamedTuple):
    """Where a session begins."""

    step: int
    state: TrainState  # NumPy
    carry: Any  # NumPy, this process's rows; None: the rows begin at zero
    origin: Origin
    notes: list[str]  # for the user
    high_steps: int = 0  # see Meta
    start: str | None = None  # see Meta
    update_bytes: int | None = None  # bytes of text of each update before it, if any


def load_start(
    cluster: Cluster, config: Config, *, required: bool
) -> tuple[Arrays | None, str | None, list[str]]:
    """Return the parameters that `train.start_from` names, their fingerprint, and notes.

    Raises:
        UserError: the path is not a run, or the processes read different parameters.
        Damaged: the checkpoint cannot be read.
    """
    arrays, sha256, notes, path = None, None, [], config.train.start_from
    if path is not None:
        try:
            params = run.load_run(Path(path)).params
            arrays, sha256 = flatten(params), fingerprint(params)
        except KnownError as error:  # missing or damaged
            if required:
                raise
            notes.append(f"the parameters of train.start_from cannot be compared: {error}")
    cluster.require_equal(
        {"the fingerprint of train.start_from's parameters": sha256},
        "Give every process the same parameters to start from.",
    )
    return arrays, sha256, notes


@dataclass
class ResumeFinder:
    """Finds where a session begins.

    Attributes:
        given: the parameters that `train.start_from` names now, by name, NumPy float32, if they
            are known.
    """

    cluster: Cluster
    devices: Parallel
    corpus: Corpus
    model: LanguageModel
    checkpoints: Checkpoints
    config: Config
    phases: list[ResolvedPhase]
    resume: bool
    reset_carry: bool  # accept a checkpoint with other rows

    def __post_init__(self) -> None:
        self._tx = optimizer.build(self.config.optimizer, self.config.model, lambda count: 0.0)
        # A run with checkpoints does not need them.
        self.given, self._fingerprint, self._notes = load_start(
            self.cluster, self.config, required=not self.checkpoints.steps()
        )
        before = run.read_config(Path(self.config.out))
        path = self.config.train.start_from
        self._is_same_path = before is not None and before.train.start_from == path

    def find(self) -> ResumePoint:
        """Return the newest checkpoint that every process can read, or the first step's state.

        Newer checkpoints that cannot be read are set aside.

        Raises:
            UserError: checkpoints exist, but none can be read; or the run was trained on another
                corpus, from other parameters, or on other rows.
        """
        point = self._newest_checkpoint()
        if point is None:
            require_new(Path(self.config.out), resume=self.resume)
            fresh = fresh_state(self.config, self.model, self._tx, self.given)
            state = self.devices.of_first_process(fresh)
            point = ResumePoint(0, state, None, Origin(), [], start=self._fingerprint)
        changed = []
        if self._fingerprint not in (None, point.start):
            changed = [
                f"{self.config.train.start_from} has changed since the run started from it; the "
                "run's checkpoints have not"
            ]
        return point._replace(notes=[*self._notes, *changed, *point.notes])

    def _newest_checkpoint(self) -> ResumePoint | None:
        checkpoints, shapes = self.checkpoints, state_shapes(self.config, self.model, self._tx)
        self.cluster.require_equal(
            {"checkpoints": checkpoints.steps()},
            "The run folder must be on a file system that all processes share.",
        )
        notes: list[str] = []
        damaged: list[int] = []
        for step in reversed(checkpoints.steps()):
            phase = next((part for part in self.phases if step <= part.last), self.phases[-1])
            now = checkpoint_meta(phase, self.corpus, step)._replace(start=self._fingerprint)
            try:
                before, problem = checkpoints.meta(step), None
                same_rows = self._has_same_rows(before, now)
                zero = self.model.init_carry(phase.config.data.batch)
                carry = self.devices.abstract_rows(zero) if same_rows else None
                restored, rows = checkpoints.restore(step, shapes, carry)
            except Damaged as error:
                problem = str(error)
            problems = [text for text in self.cluster.gather(problem) if text]
            if problems:
                notes.append(problems[0])
                damaged.append(step)
                continue
            if damaged:
                folder = self._set_aside(damaged)
                notes.append(
                    f"resuming from step {step}, the newest complete checkpoint; unreadable ones "
                    f"are kept in {folder}"
                )
            update_bytes = before.rows["batch"] * before.rows["window"]
            point = ResumePoint(
                *(step, restored, None, before.origin, notes),
                *(before.high_steps, before.start, update_bytes),
            )
            if same_rows:
                return point._replace(carry=self.devices.own_rows(rows))
            epoch = now.epoch if self.config.phases else before.epoch
            notes.append(
                f"the carry is reset at step {step}: the rows were {_describe(before.rows)} and "
                f"are now {_describe(now.rows)}; they begin {epoch:.2f} epochs into the text"
            )
            return point._replace(origin=Origin(step, before.epoch, before.bytes_seen))
        if notes:
            raise UserError(
                "; ".join(notes) + ". There is no other checkpoint to resume from; restore one "
                "from a copy, or start a new run with `out`."
            )
        return None

    def _set_aside(self, steps: list[int]) -> Path:
        """Move checkpoints aside for all processes; return the folder that they are in."""
        self.checkpoints.close()
        if self.cluster.is_first:
            self.checkpoints.set_aside(steps)
        self.cluster.gather(None)  # The others read the folder again after the move.
        self.checkpoints.open()
        return self.checkpoints.folder / SET_ASIDE

    def _has_same_rows(self, before: Meta, now: Meta) -> bool:
        """Return whether the rows are the same; raise UserError if the run cannot resume."""
        if (before.corpus, before.cleaning) != (now.corpus, now.cleaning):
            raise UserError(
                f"the run was trained on another corpus: identity {before.corpus[:12]}…, cleaning "
                f"{before.cleaning}; this one has {now.corpus[:12]}…, {now.cleaning}. Name the "
                "original corpus with `data.corpus`, or start a new run with `out`."
            )
        self._require_start(before.start, now.start)
        problem = None
        if before.rows != now.rows:
            problem = (
                f"the checkpoint's rows are {_describe(before.rows)}, not {_describe(now.rows)}; "
                "use the same rows, or reset the carry with `reset_carry`."
            )
        elif self.config.phases and before.origin != now.origin:
            problem = (
                "the phases before the checkpoint have changed: the run had read "
                f"{before.epoch:.3f} epochs of the text, and would resume at {now.epoch:.3f} from "
                "other places in it. Undo the change, or reset the carry with `reset_carry`."
            )
        if problem and not self.reset_carry:
            raise UserError(problem)
        return problem is None

    def _require_start(self, before: str | None, now: str | None) -> None:
        """Raise UserError if train.start_from does not name what the run started from.

        The run at that path may have trained further since: then the same path is enough.
        """
        path = self.config.train.start_from
        if path is not None and before is None:
            raise UserError(
                f"train.start_from is {path}, but the run did not start from other parameters. "
                "Leave `train.start_from` out to resume it, or start a new run with `out`."
            )
        if now is not None and before != now and not self._is_same_path:
            raise UserError(
                f"the run started from other parameters (fingerprint {str(before)[:12]}…) than "
                f"those that train.start_from names now ({now[:12]}…). Leave `train.start_from` "
                "out to resume the run, or start a new one with `out`."
            )


def require_new(folder: Path, *, resume: bool) -> None:
    """Raise UserError if a run without a checkpoint must not start from its first step.

    A run that was killed before its first checkpoint was complete, or that diverged before it,
    starts over. A run whose metrics record more steps had a checkpoint and has lost it.
    """
    lines = metrics.read_metrics(folder / "metrics.jsonl")
    newest = max((line["step"] for line in lines), default=0)
    config = run.read_config(folder)  # of the session that wrote these metrics
    assert config is not None
    train = config.train
    saved = {n * every for n in (1, 2) for every in (train.eval_every, train.checkpoint_every)}
    # A save begins after the previous one has ended.
    lost = newest > sorted(saved)[1] and lines[-1].get("event") != "diverged"
    if resume or lost:
        raise UserError(
            f"{folder} has no checkpoint to resume from"
            + (f", although metrics.jsonl records {newest:,} steps" if newest else "")
            + f". Restore {folder / FOLDER}, or start a new run with `out`"
            + ("." if lost else ", or restart this one without `resume`.")
        )


def _describe(rows: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in rows.items())
