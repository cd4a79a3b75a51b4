"""Where a run begins or resumes: at the newest complete checkpoint that all processes can read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mlstm_jax import run
from mlstm_jax.checkpoints.checkpoint import SET_ASIDE, Checkpoints, Damaged
from mlstm_jax.checkpoints.meta import FOLDER, Meta
from mlstm_jax.data.stream import Origin, TrainStream
from mlstm_jax.distributed.cluster import Cluster
from mlstm_jax.errors import UserError
from mlstm_jax.training import metrics
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.state import TrainState


class ResumePoint(NamedTuple):
    """A checkpoint to resume from."""

    step: int
    state: TrainState  # NumPy
    carry: Any  # NumPy, this process's rows; None: the rows have changed and begin at zero
    origin: Origin
    notes: list[str]  # for the user
    high_steps: int = 0  # see Meta
    start: str | None = None  # see Meta
    update_bytes: int | None = None  # bytes of text of the updates before it, if known


class ExpectedCheckpoint(NamedTuple):
    """What a run trains on at a step, according to its present config."""

    stream: TrainStream
    meta: Meta
    carry: Any  # the shapes of the carry of all rows
    is_phase: bool  # if so, the config and not the checkpoint determines where the run reads
    start_from: str | None = None  # train.start_from
    is_same_path: bool = False  # whether the run's last session named it, too


def find(
    cluster: Cluster,
    checkpoints: Checkpoints,
    devices: Parallel,
    state: TrainState,
    at: Callable[[int], ExpectedCheckpoint],
    *,
    newest: int | None = None,
    reset_carry: bool = False,
) -> ResumePoint | None:
    """Return the newest checkpoint that every process can read, or None if there is none.

    Newer ones that cannot be read are set aside. Those after `newest` are deleted.

    Args:
        state: the shapes of the state.
        at: returns what the run now trains on at a step.
        newest: the last step before the run diverged; ignore later checkpoints.
        reset_carry: accept a checkpoint with other rows.

    Raises:
        UserError: checkpoints exist, but none can be read; or the run was trained on another
            corpus, from other parameters, or on other rows.
    """
    cluster.require_equal(
        {"checkpoints": checkpoints.steps()},
        "The run folder must be on a file system that all processes share.",
    )
    notes: list[str] = []
    damaged: list[int] = []
    for step in reversed(checkpoints.steps()):
        if newest is not None and step > newest:
            continue
        try:
            here = at(step)
            before, problem = checkpoints.meta(step), None
            same_rows = _fits(before, here, reset_carry=reset_carry)
            shapes = devices.abstract_rows(here.carry) if same_rows else None
            restored, rows = checkpoints.restore(step, state, shapes)
        except Damaged as error:
            problem = str(error)
        problems = [one for one in cluster.gather(problem) if one]
        if problems:
            notes.append(problems[0])
            damaged.append(step)
            continue
        if newest is not None:
            checkpoints.drop_after(newest)
        if damaged:
            folder = _set_aside(cluster, checkpoints, damaged)
            notes.append(
                f"resuming from step {step}, the newest complete checkpoint; unreadable ones are "
                f"kept in {folder}"
            )
        about = (before.high_steps, before.start, _update_bytes(before))
        if same_rows:
            return ResumePoint(step, restored, devices.own_rows(rows), before.origin, notes, *about)
        position = round(before.epoch * here.stream.steps_per_epoch)
        origin = Origin(step, position, before.bytes_seen)
        epoch = here.meta.epoch if here.is_phase else before.epoch
        notes.append(
            f"the carry is reset at step {step}: the rows were {_describe(before.rows)} and are now"
            f" {_describe(here.meta.rows)}; they begin {epoch:.2f} epochs into the text"
        )
        return ResumePoint(step, restored, None, origin, notes, *about)
    if notes:
        raise UserError(
            "; ".join(notes) + ". There is no other checkpoint to resume from; restore one from a "
            "copy, or start a new run with --out."
        )
    if newest is not None:
        checkpoints.drop_after(newest)
    return None


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
            + f". Restore {folder / FOLDER}, or start a new run with --out"
            + ("." if lost else ", or restart this one without --resume.")
        )


def _set_aside(cluster: Cluster, checkpoints: Checkpoints, steps: list[int]) -> Path:
    """Move checkpoints aside for all processes; return the folder that they are in."""
    checkpoints.close()
    if cluster.is_first:
        checkpoints.set_aside(steps)
    cluster.gather(None)  # The others read the folder again after the move.
    checkpoints.open()
    return checkpoints.folder / SET_ASIDE


def _fits(before: Meta, here: ExpectedCheckpoint, *, reset_carry: bool) -> bool:
    """Return whether the rows are the same; raise UserError if the run cannot resume."""
    now = here.meta
    if (before.corpus, before.cleaning) != (now.corpus, now.cleaning):
        raise UserError(
            f"the run was trained on another corpus: identity {before.corpus[:12]}…, cleaning "
            f"{before.cleaning}; this one has {now.corpus[:12]}…, {now.cleaning}. Name the original"
            " corpus with --data.corpus, or start a new run with --out."
        )
    _require_start(before.start, here)
    if before.rows != now.rows:
        if not reset_carry:
            raise UserError(
                f"the checkpoint's rows are {_describe(before.rows)}, not {_describe(now.rows)}; "
                "use the same rows, or reset the carry with --reset-carry."
            )
        return False
    # Without phases the checkpoint's origin is the run's, unless its rows continued earlier rows.
    is_compared = here.is_phase or before.origin.places is not None
    if is_compared and before.origin != now.origin:
        if not reset_carry:
            raise UserError(
                f"the phases before the checkpoint have changed, or an earlier version began this "
                f"phase differently: the run had read {before.epoch:.3f} epochs of the text, and "
                f"would resume at {now.epoch:.3f} from other places in it. Undo the change, or "
                "reset the carry with --reset-carry."
            )
        return False
    return True


def _update_bytes(before: Meta) -> int | None:
    batch, window = before.rows.get("batch"), before.rows.get("window")
    return batch * window if batch and window else None


def _require_start(before: str | None, here: ExpectedCheckpoint) -> None:
    """Raise UserError if train.start_from does not name what the run started from.

    The run at that path may have trained further since: then the same path is enough.
    """
    now = here.meta.start
    if here.start_from is not None and before is None:
        raise UserError(
            f"train.start_from is {here.start_from}, but the run did not start from other "
            "parameters. Leave --train.start-from out to resume it, or start a new run with --out."
        )
    if now is not None and before != now and not here.is_same_path:
        raise UserError(
            f"the run started from other parameters (fingerprint {str(before)[:12]}…) than those "
            f"that train.start_from names now ({now[:12]}…). Leave --train.start-from out to "
            "resume the run, or start a new one with --out."
        )


def _describe(rows: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in rows.items())
