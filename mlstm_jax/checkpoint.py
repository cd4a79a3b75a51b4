"""Checkpoints of a run, with Orbax: asynchronous, complete or absent, written by all processes.

A checkpoint contains the parameters, the rest of the state, the carry of all streams as one
[rows, L, H] array in their global order, and in the item `meta` the record of record.py: what it
was trained on, and the checksums of all arrays. A reader can load the parameters alone.

An item that does not match its checksum, or cannot be read, is damaged. Damaged checkpoints are
never deleted, but moved to a folder next to the checkpoints.

Orbax takes 0.4 s to import, so it is imported where a checkpoint is opened, written or read.
"""

import shutil
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from mlstm_jax import digest, output
from mlstm_jax.errors import FileError, UserError, is_of_process, remedy
from mlstm_jax.record import (
    FILE,
    FOLDER,
    ITEM,
    SET_ASIDE,
    Meta,
    Record,
    best_step,
    move_aside,
    of_rows,
    of_tree,
    read_record,
    resume_advice,
    scores_in,
)

# Old checkpoints are renamed to this folder, and then deleted: a kill leaves each whole, or none.
_DELETED = "deleted"
# Seconds before each new attempt to read, in case the file system fails briefly.
PAUSES = (0.5, 2.0)
Read = TypeVar("Read")


def kept_steps(
    steps: Iterable[int], scores: Mapping[int, float | None], newest: int, reach: int
) -> set[int]:
    """The steps whose checkpoints are kept; `scores` are `Meta.score` by step.

    These are the `newest` newest, the best, and the newest that is at least `reach` steps older
    than the last: if a divergence is detected within `reach` steps, the run can return to it. The
    oldest of the younger checkpoints will replace it later and is therefore kept, too.
    """
    ordered = sorted(steps)
    if not ordered:
        return set()
    chosen = set(ordered[-newest:])
    lowest = best_step({step: scores.get(step) for step in ordered})
    if lowest is not None:
        chosen.add(lowest)
    limit = ordered[-1] - reach
    first_younger = bisect_right(ordered, limit)
    chosen.update(ordered[:first_younger][-1:])
    chosen.update(ordered[first_younger:][:1])
    return chosen


class Damaged(FileError):
    """A checkpoint cannot be read, or differs from what was written."""


class OtherRun(UserError):
    """A checkpoint is of another run than its folder."""


class CheckpointFailed(FileError):
    """A checkpoint could not be written."""


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(
        self,
        folder: Path,
        run: str | None,
        keep: int = 2,
        *,
        reach: int = 0,
        read_only: bool = False,
    ) -> None:
        """Open the folder of a run; without its id a reader accepts all. See `kept_steps`."""
        self.folder = folder
        self.run = run
        self._read_only = read_only
        self._begun: int | None = None
        self._failed = False
        self._opened = ExitStack()
        self._keep = keep
        self._reach = reach
        self.open()

    def open(self) -> None:
        """Read which checkpoints exist on disk; all processes must call it."""
        import orbax.checkpoint as ocp

        self._scores = scores_in(self.folder)
        self._is_proven = bool(self._scores)
        items = ("params", "state", "carry")
        handlers: dict[str, Any] = {name: ocp.StandardCheckpointHandler() for name in items}
        handlers[ITEM] = ocp.JsonCheckpointHandler(filename=FILE)
        self._manager = ocp.CheckpointManager(
            self._opened.enter_context(output.plain_path(self.folder)) / FOLDER,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self,
                todelete_subdir=_DELETED,
                create=not self._read_only,
                cleanup_tmp_directories=not self._read_only,
                read_only=self._read_only,
                # Otherwise one damaged file would prevent all checkpoints from being opened.
                lightweight_initialize=True,
            ),
            item_handlers=handlers,
        )

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Whether each checkpoint is kept; this makes the object Orbax's PreservationPolicy."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = kept_steps(steps, self._scores, self._keep, self._reach)
        return [step in kept for step in steps]

    def save(
        self, step: int, state: Any, carry: Any, join_rows: Callable[[Any], Any], about: Meta
    ) -> None:
        """Start to write the state and the carry, and return; all processes must call it.

        Both are NumPy: the state is a NamedTuple with the field `params`, and the carry has this
        process's rows first, which `join_rows` joins to global arrays. The first checkpoint of a
        run is read back at once, so that a run does not learn at its end that it has kept nothing.

        Raises:
            CheckpointFailed: this checkpoint, or the previous one, could not be written, or the
                first cannot be read back.
        """
        import orbax.checkpoint as ocp

        assert self.run is not None
        self.wait()  # The save before may be renaming an old checkpoint, to be deleted.
        self._delete()
        parts = _parts_of(state)
        sums = {name: of_tree(part) for name, part in parts.items()}
        record = Record(step, self.run, about, sums)
        rows = {}
        if jax.tree.leaves(carry):
            rows["carry"] = join_rows({"carry": carry, "sums": of_rows(carry, record.seed)})
        written = digest.sealed(record._asdict() | {"meta": about._asdict()})
        items: dict[str, Any] = {ITEM: ocp.args.JsonSave(written)}
        for name, item in (parts | rows).items():
            items[name] = ocp.args.StandardSave(item)
        self._scores[step] = about.score
        self._begun = step
        with self._failure():
            if not self._manager.save(step, args=ocp.args.Composite(**items)):
                raise FileExistsError(f"step {self._manager.latest_step()} already has one")
        if not self._is_proven:
            self.wait()
            self._prove(step, parts, rows.get("carry", {}).get("carry"))
            self._is_proven = True

    def _prove(self, step: int, parts: dict[str, Any], carry: Any) -> None:
        """Read a checkpoint back."""
        try:
            self._read(step, parts, carry)
        except Exception as error:  # Orbax, TensorStore and the system raise different types.
            self._failed = True
            raise CheckpointFailed(
                f"the first checkpoint, of step {step}, was written to {self.folder}, but cannot "
                f"be read back ({_brief(error)}). {remedy(error) or 'Choose another folder'}."
            ) from error

    def wait(self) -> None:
        """Wait until checkpoints are written; raise CheckpointFailed if one could not be."""
        with self._failure():
            self._manager.wait_until_finished()
        self.check()

    def check(self) -> None:
        """Raise CheckpointFailed if a checkpoint started earlier could not be written."""
        with self._failure():
            self._manager.check_for_errors()

    @contextmanager
    def _failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Orbax, TensorStore and the system raise different types.
            self._failed = True
            raise CheckpointFailed(
                f"the checkpoint of step {self._begun}, or the previous one, could not be written "
                f"to {self.folder} ({_brief(error)}). {remedy(error) or 'Correct the cause'}. "
                f"{resume_advice(self.folder)}."
            ) from error

    def best(self) -> int:
        """The step with the lowest `Meta.score`, or the newest if none was measured."""
        steps = self.steps()
        best = best_step({step: self._scores.get(step) for step in steps})
        return steps[-1] if best is None else best

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, in order."""
        return sorted(self._manager.all_steps())

    def look_again(self) -> None:
        """Read which checkpoints there are now, as where a run trains in the folder."""
        self._manager.reload()
        self._scores = scores_in(self.folder)

    def meta(self, step: int) -> Meta:
        """The meta of the checkpoint of `step`; raise Damaged if it cannot be read."""
        return self._attempt(step, lambda: self._record(step).meta)

    def _record(self, step: int) -> Record:
        """The record of a checkpoint of this run."""
        record = read_record(self.folder, step)
        if self.run not in (None, record.run):
            raise OtherRun(
                f"{self.folder / FOLDER / str(step)} is a checkpoint of another run, {record.run}; "
                f"this run is {self.run} (environment.json). Move it away, or restore the folder."
            )
        return record

    def restore(self, step: int, state: Any, carry: Any | None) -> tuple[Any, Any | None]:
        """The state, NumPy, and the carry, of the given shapes and shardings, of `step`.

        Raises Damaged if they cannot be read.
        """
        restored = self._attempt(step, lambda: self._read(step, _parts_of(state), carry))
        fields = restored["state"] | {"params": restored["params"]}
        # The version that wrote it may lack a metric: its mean over this line is unknown.
        for name, x in state.tally.items():
            unknown = np.nan if np.issubdtype(x.dtype, np.floating) else 0
            fields["tally"].setdefault(name, np.full(x.shape, unknown, x.dtype))
        fields["tally"] = {name: fields["tally"][name] for name in state.tally}
        return state._replace(**fields), restored.get("carry", carry)

    def restore_params(self, step: int, params: Any) -> Any:
        """The parameters at `step` as a NumPy tree; raise Damaged if they cannot be read."""
        return self._attempt(step, lambda: self._read(step, {"params": params}))["params"]

    def _read(self, step: int, parts: dict[str, Any], carry: Any | None = None) -> dict[str, Any]:
        """Read the items `parts`, and the carry unless it is empty; raise if one is damaged."""
        import orbax.checkpoint as ocp

        record = self._record(step)
        # Orbax restores to the type of these, and to the sharding of the carry.
        targets = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), parts)
        if "state" in targets:
            # Another version may have written other diagnostics.
            paths = [path.partition("/") for path in record.sums["state"]]
            names = [name for item, _, name in paths if item == "tally"]
            known = targets["state"]["tally"]
            unknown = np.zeros((), np.float32)
            targets["state"]["tally"] = {name: known.get(name, unknown) for name in names}
        leaves = jax.tree.leaves(carry)
        if leaves:
            rows = leaves[0].shape[:1]
            sums = jax.ShapeDtypeStruct(rows, np.uint32, sharding=leaves[0].sharding)
            targets["carry"] = {"carry": carry, "sums": sums}
        restored: dict[str, Any] = {}
        for name, target in targets.items():
            item = ocp.args.Composite(**{name: ocp.args.StandardRestore(target)})
            try:
                restored |= dict(self._manager.restore(step, args=item).items())
            except Exception as error:
                error.add_note(f"item {name}")
                raise
        for name in parts:
            digest.require_arrays(name, of_tree(restored[name]), record.sums[name])
        if leaves:
            read = restored["carry"]
            _require_rows(read["carry"], read["sums"], record.seed)
            restored["carry"] = read["carry"]
        return restored

    def drop_after(self, step: int) -> None:
        """Delete the checkpoints after `step`, where the run has diverged."""
        with self._failure():
            self._manager.wait_until_finished()
        for later in self.steps():
            if later > step:
                self._manager.delete(later)

    def set_aside(self, steps: list[int]) -> None:
        """Move checkpoints away; one process calls it, between `close` and `open` of all."""
        for step in steps:
            move_aside(self.folder / FOLDER / str(step), self.folder / SET_ASIDE)

    def close(self) -> None:
        """Wait until checkpoints are written; raise CheckpointFailed if one could not be."""
        with self._opened:
            if self._failed:
                # The error has been raised; Orbax would raise it again. Its threads must not write
                # to the folder when the next run of this process has opened it.
                with suppress(Exception):
                    if jax.process_count() == 1:  # With others, they may wait for each other.
                        self._manager.wait_until_finished()
                return
            with self._failure():
                self._manager.wait_until_finished()
                self._manager.close()
            if not self._read_only:
                self._delete()

    def _delete(self) -> None:
        """Delete the old checkpoints that have been renamed."""
        if jax.process_index() == 0:
            shutil.rmtree(self.folder / FOLDER / _DELETED, ignore_errors=True)

    def _attempt(self, step: int, read: Callable[[], Read]) -> Read:
        """The result of `read`, retried after pauses; raise Damaged if all attempts fail."""
        for pause in (*PAUSES, 0.0):
            try:
                return read()
            except OtherRun:
                raise
            except Exception as error:  # Orbax, TensorStore and JSON raise different types.
                failure = error
                time.sleep(pause)
        message = f"the checkpoint of step {step} cannot be read ({_brief(failure)})"
        if is_of_process(failure):
            raise FileError(f"{message}. {remedy(failure)}.") from failure
        raise Damaged(message) from failure


def _parts_of(state: Any) -> dict[str, Any]:
    """The items of a state, of which the parameters are a separate one."""
    fields = state._asdict()
    if fields["maxima_U3"] is None:
        del fields["maxima_U3"]
    return {"params": state.params, "state": fields | {"params": ()}}


def _require_rows(carry: Any, sums: jax.Array, seed: int) -> None:
    """Raise ValueError if a row of this process does not match its checksum."""
    for number, shard in enumerate(sums.addressable_shards):
        rows = jax.tree.map(lambda x, n=number: np.asarray(x.addressable_shards[n].data), carry)
        if not np.array_equal(of_rows(rows, seed), np.asarray(shard.data)):
            raise ValueError("a row of carry does not match its checksum")


def _brief(error: BaseException) -> str:
    """An error's notes, type and message on one line, shortened in the middle."""
    text = " ".join(str(error).split())
    if len(text) > 300:
        text = f"{text[:80]} … {text[-200:]}"
    return ": ".join([*getattr(error, "__notes__", []), type(error).__name__, text])
