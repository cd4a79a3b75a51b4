"""Checkpoints of a run, by Orbax: asynchronous, whole or absent, written by all processes together.

A checkpoint holds parameters, the rest of the state, the carry of all streams as one
[rows, L, H] array in their global order, and what it was trained on: with truncated
back-propagation, one without the carry or the position in the corpus is wrong. Parameters are an
item of their own, so that a reader needs nothing else.

Each array has a checksum: those of parameters and state are in the JSON item `meta`, which has one
of itself, and the carry has one a row beside it. What does not agree with its checksum is damaged,
as is whatever cannot be read. Nothing damaged is deleted: it is set aside, in a folder beside.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from mlstm_jax.checkpoints import checksum, meta, retention
from mlstm_jax.checkpoints.meta import FOLDER, Meta
from mlstm_jax.errors import FileError, remedy

# A file system that is out of reach for a moment is tried again after so many seconds.
PAUSES = (0.5, 2.0)

SET_ASIDE = "set-aside"

Read = TypeVar("Read")


class Damaged(FileError):
    """A checkpoint cannot be read, or is not what was written."""


class CheckpointFailed(FileError):
    """A checkpoint could not be written."""


def with_sums(carry: Any) -> dict[str, Any]:
    """Return what is saved of a carry, NumPy [rows, L, H]: itself, and a checksum a row."""
    return {"carry": carry, "sums": checksum.of_rows(carry)}


def _template(abstract: Any) -> Any:
    """Return zeros on the host for a tree of shapes; Orbax restores into their type."""
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), abstract)


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(
        self, folder: Path, keep: int = 2, *, reach: int = 0, read_only: bool = False
    ) -> None:
        """Open the folder; see retention.py for what `keep` and `reach` keep."""
        self.folder, self._read_only = folder, read_only
        self._begun: int | None = None
        self._failed = False
        self._scores: dict[int, float | None] = {}
        self._policy = retention.Policy(self._scores, keep, reach)
        self.open()

    def open(self) -> None:
        """Look at what is on the disk; all processes call it."""
        self._scores.clear()
        for step in meta.steps_in(self.folder):
            self._scores[step] = meta.score(self.folder, step)
        self._manager = ocp.CheckpointManager(
            (self.folder / FOLDER).absolute(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._policy,
                create=not self._read_only,
                cleanup_tmp_directories=not self._read_only,
                read_only=self._read_only,
                # Or a damaged file of any checkpoint would keep all from being opened.
                lightweight_initialize=True,
            ),
            item_handlers={
                "params": ocp.StandardCheckpointHandler(),
                "state": ocp.StandardCheckpointHandler(),
                "carry": ocp.StandardCheckpointHandler(),
                "meta": ocp.JsonCheckpointHandler(filename=meta.FILE),
            },
        )

    def save(self, step: int, state: Any, rows: Any, about: Meta) -> None:
        """Begin to write the state and the carry; return before it is done. All processes call it.

        Args:
            state: NumPy, the same in all processes; a NamedTuple that has `params`.
            rows: `with_sums` of the carry as global arrays, of which each process writes its rows.
            about: what it was trained on.

        Raises:
            CheckpointFailed: it, or the one before it, could not be written.
        """
        parts = {"params": state.params, "state": state._replace(params=())}
        sums = {name: checksum.of_tree(part) for name, part in parts.items()}
        self._scores[step] = about.bpc
        with self._failure(step):
            begun = self._manager.save(
                step,
                args=ocp.args.Composite(
                    **{name: ocp.args.StandardSave(part) for name, part in parts.items()},
                    carry=ocp.args.StandardSave(rows),
                    meta=ocp.args.JsonSave(meta.seal(about, sums)),
                ),
            )
            if not begun:
                raise FileExistsError(f"a checkpoint of step {self.latest()} is there already")
        self._begun = step

    def check(self) -> None:
        """Raise CheckpointFailed if one begun earlier could not be written."""
        with self._failure(self._begun):
            self._manager.check_for_errors()

    @contextmanager
    def _failure(self, step: int | None) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Of Orbax, TensorStore or the system: each has its own.
            self._failed = True
            whole = ", ".join(map(str, meta.steps_in(self.folder)))
            advice = remedy(error)
            first = f"{advice}; the" if advice else "When that is put right, the"
            ending = (
                f"Whole ones: {whole}. {first} same command goes on from the last."
                if whole
                else f"There is none yet. {first} same command starts over."
            )
            raise CheckpointFailed(
                f"a checkpoint, that of step {step} or the one before it, could not be written to "
                f"{self.folder} ({_brief(error)}). {ending}"
            ) from error

    def latest(self) -> int | None:
        """Return the newest whole checkpoint's step."""
        return self._manager.latest_step()

    def best(self) -> int | None:
        """Return the step of the lowest validation BPC, or the newest where none was measured."""
        scores = {step: self._scores.get(step) for step in self.steps()}
        best = retention.best(scores)
        return self.latest() if best is None else best

    def steps(self) -> list[int]:
        """Return the steps of all whole checkpoints, in order."""
        return sorted(self._manager.all_steps())

    def meta(self, step: int) -> Meta:
        """Return what the checkpoint of `step` was trained on; raise Damaged if it cannot be."""
        return self._attempt(step, lambda: meta.read_meta(self.folder, step)[0])

    def restore(self, step: int, state: Any, carry: Any | None) -> tuple[Any, Any | None]:
        """Return what was saved at `step`; raise Damaged if it cannot be read.

        Args:
            state: the shapes of the state, which comes back as NumPy.
            carry: the shapes of the carry and where its rows lie, which come back so; or None.
        """

        def read() -> tuple[Any, Any | None]:
            _, sums = meta.read_meta(self.folder, step)
            parts = {"params": state.params, "state": state._replace(params=())}
            items = {
                name: ocp.args.StandardRestore(_template(part)) for name, part in parts.items()
            }
            if carry is not None:
                target = carry if sums is None else {"carry": carry, "sums": _sums_of(carry)}
                items["carry"] = ocp.args.StandardRestore(target)
            restored = self._manager.restore(step, args=ocp.args.Composite(**items))
            rows = restored.get("carry")
            if sums is not None:
                for name in parts:
                    checksum.require(name, restored[name], sums[name])
                if rows is not None:
                    _require_rows(**rows)
                    rows = rows["carry"]
            return restored["state"]._replace(params=restored["params"]), rows

        return self._attempt(step, read)

    def restore_params(self, step: int, params: Any) -> Any:
        """Return the parameters at `step` as a NumPy tree; raise Damaged unless shaped as given."""

        def read() -> Any:
            _, sums = meta.read_meta(self.folder, step)
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(params=ocp.args.StandardRestore(_template(params))),
            )
            found = restored["params"]
            if sums is not None:
                checksum.require("params", found, sums["params"])
            return found

        found = self._attempt(step, read)
        # Orbax gives what it has, whatever is asked for.
        if jax.tree.map(np.shape, found) != jax.tree.map(np.shape, params):
            raise Damaged(
                f"the checkpoint of step {step} is of a model of other sizes than config.json says"
            )
        return found

    def drop_after(self, step: int) -> None:
        """Delete the checkpoints after `step`, because the run has diverged in them."""
        with self._failure(self._begun):
            self._manager.wait_until_finished()
        for later in self.steps():
            if later > step:
                self._manager.delete(later)

    def set_aside(self, steps: list[int]) -> list[Path]:
        """Move checkpoints out of the way, and return where they are now.

        One process calls it; then all call `close` and `open`.
        """
        folder, moved = self.folder / SET_ASIDE, []
        folder.mkdir(exist_ok=True)
        for step in steps:
            names = (str(step) if n == 1 else f"{step}-{n}" for n in range(1, 1000))
            target = next(folder / name for name in names if not (folder / name).exists())
            shutil.move(self.folder / FOLDER / str(step), target)
            moved.append(target)
        return moved

    def close(self) -> None:
        """Wait for what is being written; raise CheckpointFailed if it could not be."""
        if self._failed:
            return  # It has been said, and Orbax would raise it again.
        with self._failure(self._begun):
            self._manager.wait_until_finished()
            self._manager.close()

    def _attempt(self, step: int, read: Callable[[], Read]) -> Read:
        """Return what `read` does, tried again after pauses; raise Damaged if it never succeeds."""
        for pause in (*PAUSES, None):
            try:
                return read()
            except Exception as error:  # Orbax, TensorStore and JSON raise what they like.
                if pause is None:
                    raise Damaged(
                        f"the checkpoint of step {step} cannot be read ({_brief(error)})"
                    ) from error
                time.sleep(pause)
        raise AssertionError("unreachable")


def _sums_of(carry: Any) -> jax.ShapeDtypeStruct:
    """Return the shape of the checksums of a carry's rows, and where they lie: with the rows."""
    leaf = jax.tree.leaves(carry)[0]
    return jax.ShapeDtypeStruct(leaf.shape[:1], np.uint32, sharding=leaf.sharding)


def _require_rows(carry: Any, sums: jax.Array) -> None:
    """Raise ValueError where a row of this process is not the one whose checksum was written."""
    for number, shard in enumerate(sums.addressable_shards):
        rows = jax.tree.map(lambda x, n=number: np.asarray(x.addressable_shards[n].data), carry)
        if not np.array_equal(checksum.of_rows(rows), np.asarray(shard.data)):
            raise ValueError("a row of carry has another checksum")


def _brief(error: BaseException) -> str:
    """Return what an error says, on one line that a person may read: its beginning and its end."""
    text = " ".join(str(error).split())
    return (
        f"{type(error).__name__}: {text if len(text) <= 300 else text[:80] + ' … ' + text[-200:]}"
    )
