"""Where a session begins: at step 0, or at the newest checkpoint that all processes can read."""

import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from mlstm_jax import run
from mlstm_jax.arrays import fingerprint, flatten
from mlstm_jax.checkpoint import Checkpoints, Damaged
from mlstm_jax.config import Config, Optimizer, differing, require_function
from mlstm_jax.data.stream import Place
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import UserError, require
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.parallel import Parallel
from mlstm_jax.record import FOLDER, SET_ASIDE, Meta
from mlstm_jax.terminal import tell
from mlstm_jax.training import metrics
from mlstm_jax.training.state import TrainState, fresh_state, state_shapes


class Snapshot(NamedTuple):
    """A run at a step: what a checkpoint contains, and where a session begins."""

    step: int
    state: TrainState  # NumPy
    carry: Any  # NumPy, this process's rows; None: the rows begin at zero
    meta: Meta  # of what it was trained on until here

    @property
    def place(self) -> Place:
        """Where its rows are in the text."""
        return Place(self.step, self.meta.epoch, self.meta.bytes_seen)


class Start(NamedTuple):
    """What `train.start_from` gives a new run."""

    params: Parameters  # NumPy float32
    first_start: str | None  # a sha256 of the parameters from which these come, if any
    opt_state: Any = None  # NumPy; None: the parameters alone
    meta: Meta | None = None  # of the run, with its optimizer's state


def begin_new(
    cluster: Cluster,
    devices: Parallel,
    model: LanguageModel,
    config: Config,
    before: Config | None,
    meta: Meta,
) -> Snapshot:
    """Begin at step 0, with new parameters or those that `train.start_from` names.

    `before` is the config of a run in the folder, which ended before its first checkpoint.
    Raises UserError if the run must not start over, or if that path is not a run, does not fit, or
    is read differently by the processes; and Damaged if its checkpoint cannot be read.
    """
    lost = require_new(Path(config.out), before)
    if lost and cluster.is_first:
        tell(
            f"{config.out} ended at step {lost:,}, before its first checkpoint, and starts over; "
            "`train.checkpoint_every` sets when it saves"
        )
    start = load_start(config)
    print_of = fingerprint(start.params) if start else None
    cluster.require_equal(
        {"the fingerprint of train.start_from's parameters": print_of},
        "Give every process the same parameters to start from.",
    )
    first = (start.first_start or print_of) if start else None
    meta = meta._replace(start=print_of, first_start=first)
    state = fresh_state(config, model, flatten(start.params) if start else None)
    if start and start.meta:
        # The learning rate begins anew; Adam's own count goes on.
        opt_state = _changed(
            start.opt_state,
            optax.ScaleByScheduleState,
            lambda part: part._replace(count=np.zeros_like(part.count)),
        )
        state = state._replace(opt_state=opt_state)
        state = rescale_second_moment(
            config.optimizer, state, start.meta.update_bytes, meta.update_bytes
        )
        if start.meta.corpus == meta.corpus:
            meta = meta._replace(epoch=start.meta.epoch, bytes_seen=start.meta.bytes_seen)
    return Snapshot(0, devices.copy_first_process(state), None, meta)


def require_new(folder: Path, before: Config | None) -> int:
    """The step at which a run, with the config `before`, ended before its first checkpoint, or 0.

    Raises UserError if it must not start over, because it has lost its checkpoints. It had one if
    its metrics go on after the step of its first checkpoint, or record that it was finished or
    resumed, and it did not diverge.
    """
    lines = metrics.read_metrics(folder / metrics.FILE)
    events = [line.get("event") for line in lines]
    if before is None or not lines or events[-1] == "diverged":
        return 0
    newest = max(line["step"] for line in lines)
    # The first checkpoint is read back before the next step: later steps mean that it existed.
    first_save = min(before.train.eval_every, before.train.checkpoint_every)
    if newest > first_save or "finished" in events or "resumed" in events:
        raise UserError(
            f"the checkpoints of {folder} are missing, although {metrics.FILE} records {newest:,} "
            f"steps. Restore {folder / FOLDER}, or start a new run with `out`."
        )
    return newest


def load_start(config: Config) -> Start | None:
    """What `train.start_from` names: its best checkpoint, or its newest with its optimizer."""
    if config.train.start_from is None:
        return None
    path = Path(config.train.start_from)
    if not config.train.start_optimizer:
        begun = run.load_run(path)
        return Start(begun.params, begun.first_start)
    other = run.load_run(path, "latest")
    require(not other.imported, "train.start_optimizer", True, f"false: {path} has only parameters")
    for name in ("name", "muon_decoder"):
        theirs = getattr(other.config.optimizer, name)
        ours = getattr(config.optimizer, name)
        require(ours == theirs, f"optimizer.{name}", ours, f"{theirs}, as in {path}")
    with closing(Checkpoints(other.folder, run.id_of(other.folder), read_only=True)) as checkpoints:
        state, _ = checkpoints.restore(other.step, state_shapes(other.config), None)
        meta = checkpoints.meta(other.step)
        return Start(state.params, other.first_start, state.opt_state, meta)


def _changed(opt_state: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """The state of an optimizer with its parts of a kind changed."""

    def is_kind(part: Any) -> bool:
        return isinstance(part, kind)

    def changed(part: Any) -> Any:
        return change(part) if is_kind(part) else part

    return jax.tree.map(changed, opt_state, is_leaf=is_kind)


def newest_readable(
    cluster: Cluster,
    devices: Parallel,
    model: LanguageModel,
    checkpoints: Checkpoints,
    config: Config,
    expected: Meta,
) -> tuple[Snapshot | None, dict[int, str]]:
    """The newest checkpoint that every process can read, and what is wrong with later ones.

    Its carry is read if its rows are the `expected` ones. UserError: all are damaged, or of another
    model.
    """
    shapes = state_shapes(config)
    rows = devices.abstract_rows(model.init_carry(config.data.batch))
    damaged: dict[int, str] = {}
    for step in reversed(checkpoints.steps()):
        problem = None
        try:
            meta = checkpoints.meta(step)
            require_function(meta.function, config, f"the checkpoint of step {step}")
            has_same_rows = meta.rows == expected.rows
            state, carry = checkpoints.restore(step, shapes, rows if has_same_rows else None)
        except Damaged as error:
            problem = str(error)
        problems = [text for text in cluster.gather(problem) if text]
        if not problems:
            carry = devices.own_rows(carry) if has_same_rows else None
            return Snapshot(step, state, carry, meta), damaged
        damaged[step] = problems[0]
    if damaged:
        raise UserError(
            f"{'; '.join(damaged.values())}. There is no other checkpoint to resume from; restore "
            "one from a copy, or start a new run with `out`."
        )
    return None, {}


def refuse_other_run(config: Config, before: Config | None, saved: Meta, expected: Meta) -> None:
    """Raise UserError if a checkpoint is of another corpus, or began elsewhere.

    `before` is the config of the run so far. The run that `train.start_from` names may have trained
    further since: the same path is enough.
    """
    if (saved.corpus, saved.cleaning) != (expected.corpus, expected.cleaning):
        raise UserError(
            f"the run was trained on another corpus: identity {saved.corpus[:12]}…, cleaning "
            f"{saved.cleaning}; this one has {expected.corpus[:12]}…, {expected.cleaning}. Name "
            "the original corpus with `data.corpus`, or start a new run with `out`."
        )
    path = config.train.start_from
    if path is None or (before and before.train.start_from == path):
        return
    start = load_start(config)
    assert start is not None
    now = fingerprint(start.params)
    if now != saved.start:
        began = f"fingerprint {saved.start[:12]}…" if saved.start else "new ones"
        raise UserError(
            f"`train.start_from`: the run began with other parameters ({began}) than {path} has "
            f"now (fingerprint {now[:12]}…). Leave `train.start_from` out to resume the run, or "
            "start a new one with `out`."
        )


def continue_from(
    found: Snapshot, config: Config, expected: Meta, *, reset_carry: bool
) -> tuple[Snapshot, list[str]]:
    """Where a run goes on, and a note if its rows begin anew, near the same place in the text."""
    if found.meta.rows == expected.rows:
        return found, []
    rows = differing(found.meta.rows, expected.rows)
    changes = ", ".join(f"data.{name}: {old} → {new}" for name, old, new in rows)
    if not reset_carry:
        raise UserError(
            f"the run cannot resume with other rows ({changes}). Undo the change, or reset the "
            "carry with `reset_carry`."
        )
    state = rescale_second_moment(
        config.optimizer, found.state, found.meta.update_bytes, expected.update_bytes
    )
    note = (
        f"the carry is reset at step {found.step}, for other rows ({changes}); they begin "
        f"{found.meta.epoch:.2f} epochs into the text"
    )
    return found._replace(state=state, carry=None), [note]


def move_damaged(
    cluster: Cluster, checkpoints: Checkpoints, damaged: dict[int, str], step: int
) -> list[str]:
    """Move the damaged checkpoints after `step` away; return notes for the user."""
    if not damaged:
        return []
    checkpoints.close()
    if cluster.is_first:
        checkpoints.set_aside(list(damaged))
    cluster.barrier()
    checkpoints.open()
    return [
        *damaged.values(),
        f"resuming from step {step}, the newest complete checkpoint; unreadable "
        f"ones are kept in {checkpoints.folder / SET_ASIDE}",
    ]


def rescale_second_moment(
    optimizer: Optimizer, state: TrainState, before: int, now: int
) -> TrainState:
    """Adapt a state, NumPy, whose updates had `before` bytes of text and will have `now`.

    With `b2_half_life`, β2 then changes. Adam divides its second moment by 1 − β2ⁿ, as if all n
    updates had had the new β2; the moment is scaled here, so that the quotient is what it was.
    """
    if optimizer.b2_half_life is None or before == now:
        return state
    # ln β2; β2 itself may round to 0 or 1.
    log_old = -math.log(2) * (before / optimizer.b2_half_life)
    log_new = -math.log(2) * (now / optimizer.b2_half_life)

    def adapt(part: optax.ScaleByAdamState) -> Any:
        if part.count == 0:
            return part
        count = int(part.count)
        ratio = np.float32(math.expm1(count * log_new) / math.expm1(count * log_old))
        return part._replace(nu=jax.tree.map(lambda nu: nu * ratio, part.nu))

    return state._replace(opt_state=_changed(state.opt_state, optax.ScaleByAdamState, adapt))
