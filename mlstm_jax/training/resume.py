"""Where a session begins: at step 0, or at the newest checkpoint that all processes can read."""

from pathlib import Path
from typing import Any, NamedTuple

from mlstm_jax import run
from mlstm_jax.checkpoint import Checkpoints, Damaged
from mlstm_jax.config import Config
from mlstm_jax.data.stream import Origin
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import UserError
from mlstm_jax.interop.weights import Arrays, fingerprint, flatten
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.record import FOLDER, SET_ASIDE, Meta
from mlstm_jax.training import metrics, optimizer
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.phases import ResolvedPhase
from mlstm_jax.training.state import TrainState, fresh_state, state_shapes


class Snapshot(NamedTuple):
    """A run at a step: what a checkpoint contains, and where a session or a phase begins."""

    step: int
    state: TrainState  # NumPy
    carry: Any  # NumPy, this process's rows; None: the rows begin at zero
    meta: Meta  # of what it was trained on until here

    @property
    def update_bytes(self) -> int:
        """The bytes of text of each update before it."""
        return self.meta.rows["batch"] * self.meta.rows["window"]


def begin_new(
    cluster: Cluster,
    devices: Parallel,
    model: LanguageModel,
    config: Config,
    phases: list[ResolvedPhase],
) -> Snapshot:
    """Begin at step 0, with new parameters or those that `train.start_from` names.

    Raises UserError if the run must not start over, or if the path is not a run, does not fit the
    config or the corpus, or is read differently by the processes; and Damaged if its checkpoint
    cannot be read.
    """
    require_new(Path(config.out))
    arrays, start = load_start(config)
    cluster.require_equal(
        {"the fingerprint of train.start_from's parameters": start},
        "Give every process the same parameters to start from.",
    )
    tx = optimizer.build(config.optimizer, config.model, lambda count: 0.0)
    state = devices.copy_first_process(fresh_state(config, model, tx, arrays))
    return Snapshot(0, state, None, phases[0].meta(0)._replace(start=start))


def require_new(folder: Path) -> None:
    """Raise UserError if a run has lost its checkpoints, so that it must not start over.

    A run that was killed before its first checkpoint was complete, or that diverged before it,
    starts over. If metrics record later steps, or that the run was finished or resumed, it had one.
    """
    lines = metrics.read_metrics(folder / metrics.FILE)
    events = [line.get("event") for line in lines]
    if not lines or events[-1] == "diverged":
        return
    newest = max(line["step"] for line in lines)
    config = run.read_config(folder)  # of the session that wrote these metrics
    assert config is not None
    # The run goes on after its first save when that checkpoint has been read back.
    first_save = min(config.train.eval_every, config.train.checkpoint_every)
    if newest > first_save or "finished" in events or "resumed" in events:
        raise UserError(
            f"{folder} had a checkpoint, since {metrics.FILE} records {newest:,} steps. Restore "
            f"{folder / FOLDER}, or start a new run with `out`."
        )


def load_start(config: Config) -> tuple[Arrays | None, str | None]:
    """The parameters of `train.start_from`, NumPy float32 by name, and their fingerprint."""
    path = config.train.start_from
    if path is None:
        return None, None
    params = run.load_run(Path(path)).params
    return flatten(params), fingerprint(params)


def resume_newest(
    cluster: Cluster,
    devices: Parallel,
    model: LanguageModel,
    checkpoints: Checkpoints,
    config: Config,
    phases: list[ResolvedPhase],
    *,
    reset_carry: bool,
) -> tuple[Snapshot, list[str]]:
    """Begin at the newest checkpoint that every process can read; set aside those after it.

    Also returns notes for the user. With `reset_carry` the checkpoint may have other rows. Raises
    UserError if none can be read, or if the run was trained on another corpus, from other
    parameters, or on other rows.
    """
    tx = optimizer.build(config.optimizer, config.model, lambda count: 0.0)
    shapes = state_shapes(config, model, tx)
    damaged: dict[int, str] = {}
    for step in reversed(checkpoints.steps()):
        phase = next((phase for phase in phases if step <= phase.last), phases[-1])
        expected = phase.meta(step)
        problem = None
        try:
            saved = checkpoints.meta(step)
            difference = _difference(saved, expected, has_phases=bool(config.phases))
            rows = None
            if difference is None:
                rows = devices.abstract_rows(model.init_carry(phase.config.data.batch))
            state, carry = checkpoints.restore(step, shapes, rows)
        except Damaged as error:
            problem = str(error)
        problems = [text for text in cluster.gather(problem) if text]
        if not problems:
            break
        damaged[step] = problems[0]
    else:
        raise UserError(
            f"{'; '.join(damaged.values())}. There is no other checkpoint to resume from; restore "
            "one from a copy, or start a new run with `out`."
        )
    _require_same_run(config, saved, expected)
    if difference and not reset_carry:
        raise UserError(difference)
    notes = list(damaged.values())
    if damaged:
        checkpoints.close()
        if cluster.is_first:
            checkpoints.set_aside(list(damaged))
        cluster.barrier()
        checkpoints.open()
        notes.append(
            f"resuming from step {step}, the newest complete checkpoint; unreadable ones are "
            f"kept in {checkpoints.folder / SET_ASIDE}"
        )
    if difference:
        epoch = saved.epoch
        if config.phases:
            epoch = expected.epoch
        notes.append(
            f"the carry is reset at step {step}, for other rows{_changes(saved, expected)}; they "
            f"begin {epoch:.2f} epochs into the text"
        )
        saved = saved._replace(origin=Origin(step, saved.epoch, saved.bytes_seen))
    return Snapshot(step, state, devices.own_rows(carry), saved), notes


def _difference(saved: Meta, expected: Meta, *, has_phases: bool) -> str | None:
    """How the rows of a checkpoint differ from the rows of the config; None: they do not.

    In a run without phases, the rows began where the checkpoint says.
    """
    if saved.rows != expected.rows:
        return (
            f"the run cannot resume with other rows{_changes(saved, expected)}. Undo the change, "
            "or reset the carry with `reset_carry`."
        )
    if has_phases and saved.origin != expected.origin:
        return (
            f"the phases before the checkpoint have changed: the run had read {saved.epoch:.3f} "
            f"epochs of the text, and would resume at {expected.epoch:.3f} from other places in "
            "it. Undo the change, or reset the carry with `reset_carry`."
        )
    return None


def _changes(saved: Meta, expected: Meta) -> str:
    """Name the fields by which rows differ, as " (data.batch: 8 → 4)"."""
    changes = []
    for name in dict.fromkeys([*saved.rows, *expected.rows]):
        before = saved.rows.get(name)
        after = expected.rows.get(name)
        if before != after:
            changes.append(f"data.{name}: {before} → {after}")
    return f" ({', '.join(changes)})" if changes else ""


def _require_same_run(config: Config, saved: Meta, expected: Meta) -> None:
    """Raise UserError if a checkpoint is of another corpus, or began from other parameters.

    The run that `train.start_from` names may have trained further since: the same path is enough.
    """
    if (saved.corpus, saved.cleaning) != (expected.corpus, expected.cleaning):
        raise UserError(
            f"the run was trained on another corpus: identity {saved.corpus[:12]}…, cleaning "
            f"{saved.cleaning}; this one has {expected.corpus[:12]}…, {expected.cleaning}. Name "
            "the original corpus with `data.corpus`, or start a new run with `out`."
        )
    path = config.train.start_from
    before = run.read_config(Path(config.out))
    if path is None or (before and before.train.start_from == path):
        return
    _, now = load_start(config)
    if now != saved.start:
        began = "new ones"
        if saved.start is not None:
            began = f"fingerprint {saved.start[:12]}…"
        raise UserError(
            f"train.start_from: the run began with other parameters ({began}) than {path} has now "
            f"(fingerprint {str(now)[:12]}…). Leave `train.start_from` out to resume the run, or "
            "start a new one with `out`."
        )
