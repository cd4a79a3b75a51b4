"""Where a session begins: at the newest complete checkpoint that all processes can read.

A run without checkpoints begins at step 0, from a seed or from the parameters of another run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlstm_jax import run
from mlstm_jax.checkpoint import Checkpoints, Damaged
from mlstm_jax.config import Config
from mlstm_jax.data.corpus import Corpus
from mlstm_jax.data.stream import START, Origin
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import KnownError, UserError
from mlstm_jax.interop.weights import Arrays, fingerprint, flatten
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.record import FOLDER, SET_ASIDE, Meta
from mlstm_jax.training import metrics, optimizer
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.phases import ResolvedPhase
from mlstm_jax.training.state import TrainState, fresh_state, state_shapes


class Beginning(NamedTuple):
    """Where a session or a phase begins."""

    step: int
    state: TrainState  # NumPy
    carry: Any  # NumPy, this process's rows; None: the rows begin at zero
    origin: Origin  # of the rows of a run without phases
    notes: list[str]  # for the user
    start: str | None  # see Meta
    high_steps: int = 0  # see Meta
    update_bytes: int | None = None  # bytes of text of each update before it, if any


class Start(NamedTuple):
    """The parameters that `train.start_from` names now."""

    arrays: Arrays | None = None  # by name, NumPy float32, if they are known
    fingerprint: str | None = None
    notes: Sequence[str] = ()


def load_start(cluster: Cluster, config: Config, *, required: bool) -> Start:
    """Load the parameters that `train.start_from` names.

    Raises:
        UserError: the path is not a run, or the processes read different parameters.
        Damaged: the checkpoint cannot be read.
    """
    start = Start()
    path = config.train.start_from
    if path is not None:
        try:
            params = run.load_run(Path(path)).params
            start = Start(flatten(params), fingerprint(params))
        except KnownError as error:  # missing or damaged
            if required:
                raise
            note = f"the parameters of train.start_from cannot be compared: {error}"
            start = Start(notes=[note])
    cluster.require_equal(
        {"the fingerprint of train.start_from's parameters": start.fingerprint},
        "Give every process the same parameters to start from.",
    )
    return start


def find_beginning(
    cluster: Cluster,
    devices: Parallel,
    corpus: Corpus,
    model: LanguageModel,
    checkpoints: Checkpoints,
    config: Config,
    phases: list[ResolvedPhase],
    *,
    reset_carry: bool,
) -> Beginning:
    """Return the newest checkpoint that every process can read, or the state of step 0.

    Newer checkpoints that cannot be read are set aside.

    Args:
        reset_carry: accept a checkpoint with other rows.

    Raises:
        UserError: checkpoints exist, but none can be read; or the run was trained on another
            corpus, from other parameters, or on other rows.
    """
    # A run with checkpoints does not need the parameters that it started from.
    start = load_start(cluster, config, required=not checkpoints.steps())
    if start.arrays is not None:
        run.require_known_corpus(start.arrays, corpus, ("train", "valid"))
    tx = optimizer.build(config.optimizer, config.model, lambda count: 0.0)
    shapes = state_shapes(config, model, tx)
    damaged: dict[int, str] = {}  # what is wrong with a checkpoint, by step
    for step in reversed(checkpoints.steps()):
        phase = _phase_at(phases, step)
        expected = phase.meta(step)
        problem = None
        try:
            saved = checkpoints.meta(step)
            _require_corpus(saved, expected)
            _require_start(config, saved.start, start.fingerprint)
            difference = _difference(saved, expected, has_phases=bool(config.phases))
            if difference and not reset_carry:
                raise UserError(difference)
            zero = model.init_carry(phase.config.data.batch)
            rows = None if difference else devices.abstract_rows(zero)
            state, carry = checkpoints.restore(step, shapes, rows)
        except Damaged as error:
            problem = str(error)
        problems = [text for text in cluster.gather(problem) if text]
        if problems:
            damaged[step] = problems[0]
            continue
        notes = list(start.notes)
        if start.fingerprint not in (None, saved.start):
            notes.append(
                f"{config.train.start_from} has changed since the run started from it; the run's "
                "checkpoints have not"
            )
        if damaged:
            checkpoints.close()
            if cluster.is_first:
                checkpoints.set_aside([*damaged])
            cluster.gather(None)  # All read the folder again after the move.
            checkpoints.open()
            notes.extend(damaged.values())
            notes.append(
                f"resuming from step {step}, the newest complete checkpoint; unreadable ones are "
                f"kept in {checkpoints.folder / SET_ASIDE}"
            )
        origin = saved.origin
        if difference:
            origin = Origin(step, saved.epoch, saved.bytes_seen)
            epoch = expected.epoch if config.phases else saved.epoch
            notes.append(
                f"the carry is reset at step {step}: the rows were {_describe(saved.rows)} and "
                f"are now {_describe(expected.rows)}; they begin {epoch:.2f} epochs into the text"
            )
        return Beginning(
            step=step,
            state=state,
            carry=None if difference else devices.own_rows(carry),
            origin=origin,
            notes=notes,
            start=saved.start,
            high_steps=saved.high_steps,
            update_bytes=saved.rows["batch"] * saved.rows["window"],
        )
    if damaged:
        raise UserError(
            "; ".join(damaged.values())
            + ". There is no other checkpoint to resume from; restore one from a "
            "copy, or start a new run with `out`."
        )
    fresh = devices.copy_first_process(fresh_state(config, model, tx, start.arrays))
    return Beginning(
        step=0,
        state=fresh,
        carry=None,
        origin=START,
        notes=list(start.notes),
        start=start.fingerprint,
    )


def _phase_at(phases: list[ResolvedPhase], step: int) -> ResolvedPhase:
    """The phase that a checkpoint ended or was saved in."""
    for phase in phases:
        if step <= phase.last:
            return phase
    return phases[-1]


def _require_corpus(saved: Meta, expected: Meta) -> None:
    """Raise UserError if a checkpoint is of another corpus."""
    if (saved.corpus, saved.cleaning) != (expected.corpus, expected.cleaning):
        raise UserError(
            f"the run was trained on another corpus: identity {saved.corpus[:12]}…, cleaning "
            f"{saved.cleaning}; this one has {expected.corpus[:12]}…, {expected.cleaning}. Name "
            "the original corpus with `data.corpus`, or start a new run with `out`."
        )


def _difference(saved: Meta, expected: Meta, *, has_phases: bool) -> str | None:
    """How the rows of a checkpoint differ from those that would resume; None: they do not.

    In a run without phases, the rows began where the checkpoint says.
    """
    if saved.rows != expected.rows:
        return (
            f"the checkpoint's rows are {_describe(saved.rows)}, not {_describe(expected.rows)}; "
            "use the same rows, or reset the carry with `reset_carry`."
        )
    if has_phases and saved.origin != expected.origin:
        return (
            f"the phases before the checkpoint have changed: the run had read {saved.epoch:.3f} "
            f"epochs of the text, and would resume at {expected.epoch:.3f} from other places in "
            "it. Undo the change, or reset the carry with `reset_carry`."
        )
    return None


def _describe(rows: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in rows.items())


def _require_start(config: Config, saved: str | None, now: str | None) -> None:
    """Raise UserError if `train.start_from` does not name what the run started from.

    The run at that path may have trained further since: then the same path is enough.

    `saved` is the fingerprint of the parameters that the run started from, if any; `now` of those
    that `train.start_from` names, if it is known.
    """
    path = config.train.start_from
    if path is not None and saved is None:
        raise UserError(
            f"train.start_from is {path}, but the run did not start from other parameters. "
            "Leave `train.start_from` out to resume it, or start a new run with `out`."
        )
    before = run.read_config(Path(config.out))
    is_same_path = before is not None and before.train.start_from == path
    if now is not None and saved != now and not is_same_path:
        raise UserError(
            f"the run started from other parameters (fingerprint {str(saved)[:12]}…) than "
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
    intervals = (config.train.eval_every, config.train.checkpoint_every)
    # A save begins after the previous one has ended.
    second_save = sorted({*intervals, 2 * intervals[0], 2 * intervals[1]})[1]
    is_lost = newest > second_save and lines[-1].get("event") != "diverged"
    if resume or is_lost:
        known = f", although metrics.jsonl records {newest:,} steps" if newest else ""
        restart = "" if is_lost else ", or restart this one without `resume`"
        raise UserError(
            f"{folder} has no checkpoint to resume from{known}. Restore {folder / FOLDER}, or "
            f"start a new run with `out`{restart}."
        )
