"""Where a run begins or goes on: from the newest whole checkpoint, agreed on by all processes."""

from collections.abc import Callable
from typing import Any, NamedTuple

from mlstm_jax.data.stream import Origin, TrainStream
from mlstm_jax.errors import UserError
from mlstm_jax.training.checkpoint import Checkpoints, Damaged, Meta
from mlstm_jax.training.cluster import Cluster
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.state import TrainState


class Found(NamedTuple):
    """A checkpoint to go on from."""

    step: int
    state: TrainState  # NumPy
    carry: Any  # NumPy, this process's rows; None: the rows are others now, and begin at zero
    origin: Origin
    notes: list[str]  # what a person should know


def find(
    cluster: Cluster,
    checkpoints: Checkpoints,
    devices: Parallel,
    state: TrainState,
    rows_at: Callable[[int], tuple[TrainStream, Meta, Any]],
    *,
    newest: int | None = None,
    reset_carry: bool = False,
) -> Found | None:
    """Return the newest checkpoint that every process can read, or None where there is none.

    Newer ones are deleted: they are damaged, or the run has diverged in them.

    Args:
        state: the shapes of the state.
        rows_at: what the run trains on now at a step: stream, meta, and the shapes of the carry of
            all rows.
        newest: do not look at later steps.
        reset_carry: accept one whose rows were others.

    Raises:
        UserError: none of several can be read; or it was trained on another corpus, or rows.
    """
    cluster.require_equal(
        {"checkpoints": checkpoints.steps()},
        "The run folder must lie on a file system that all processes share.",
    )
    notes: list[str] = []
    for step in reversed(checkpoints.steps()):
        if newest is not None and step > newest:
            continue
        try:
            stream, meta, carry = rows_at(step)
            before, problem = checkpoints.meta(step), None
            same_rows = before.rows == meta.rows
            _require_fit(before, meta, reset_carry=reset_carry)
            shapes = devices.abstract_rows(carry) if same_rows else None
            restored, rows = checkpoints.restore(step, state, shapes)
        except Damaged as error:
            problem = str(error)
        problems = [one for one in cluster.gather(problem) if one]
        if problems:
            notes.append(problems[0])
            continue
        checkpoints.drop_after(step)
        if notes:
            notes.append(f"going on from step {step}, the newest whole one")
        if same_rows:
            return Found(step, restored, devices.own_rows(rows), before.origin, notes)
        position = round(before.epoch * stream.steps_per_epoch)
        origin = Origin(step, position, before.bytes_seen)
        notes.append(
            f"the carry is reset at step {step}: the rows were {_describe(before.rows)}, and are "
            f"{_describe(meta.rows)}; they begin {before.epoch:.2f} epochs into the text"
        )
        return Found(step, restored, None, origin, notes)
    if notes:
        raise UserError(
            "; ".join(notes) + ". No other is there to go on from; restore one from a copy, or "
            "start a new run with --out."
        )
    return None


def _require_fit(before: Meta, now: Meta, *, reset_carry: bool) -> None:
    if (before.corpus, before.cleaning) != (now.corpus, now.cleaning):
        raise UserError(
            f"the run was trained on another corpus: identity {before.corpus[:12]}…, cleaning "
            f"{before.cleaning}; this one has {now.corpus[:12]}…, {now.cleaning}. Name the first "
            "corpus with --data.corpus, or start a new run with --out."
        )
    if before.rows != now.rows and not reset_carry:
        raise UserError(
            f"the checkpoint's rows are {_describe(before.rows)}, not {_describe(now.rows)}; use "
            "the same, or go on with the carry reset, --reset-carry."
        )


def _describe(rows: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in rows.items())
