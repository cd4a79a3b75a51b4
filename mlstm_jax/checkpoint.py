"""Checkpoints of a run, with Orbax: asynchronous, complete or absent, written by all processes.

A checkpoint contains the parameters, the rest of the state, the carry of all streams as one
[rows, L, H] array in their global order, and what it was trained on: with truncated
back-propagation, a checkpoint without the carry or the position in the corpus is wrong. Parameters
are a separate item, so a reader can load them alone.

Each array has a checksum: those of parameters and state are in the JSON item `meta`, which also has
a checksum of itself; the carry is saved with one checksum per row. An item that does not match its
checksum, or cannot be read, is damaged. Damaged checkpoints are never deleted, but moved to a
folder next to the checkpoints. `kept_steps` says which of the others stay.

Orbax takes 0.4 s to import, so it is imported where a checkpoint is opened, written or read.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray

from mlstm_jax import digest, fields
from mlstm_jax.data.corpus import Cleaning
from mlstm_jax.data.stream import Origin
from mlstm_jax.errors import FileError, remedy

FOLDER = "checkpoints"
# The file of a checkpoint: checkpoints/STEP/meta/metadata.
ITEM, FILE = "meta", "metadata"

Sums = dict[str, dict[str, int]]  # by item and by an array's path in it

# Seconds before each new attempt to read, in case the file system fails briefly.
PAUSES = (0.5, 2.0)
SET_ASIDE = "set-aside"
Read = TypeVar("Read")


class Meta(NamedTuple):
    """What a checkpoint was trained on."""

    corpus: str  # identity of the corpus, a sha256
    cleaning: Cleaning  # of its documents; a prompt is cleaned in the same way
    rows: dict[str, Any]  # what determines which bytes a row reads: batch, window, shards, ...
    origin: Origin
    epoch: float
    bytes_seen: int
    # A sha256 of the parameters that train.start_from named, if any.
    start: str | None = None
    high_steps: int = 0  # latest steps in a row whose loss was above train.divergence_bpc
    bpc: float | None = None  # of the validation split, if it was measured at this step
    label_loss: float | None = None  # the same

    @property
    def score(self) -> float | None:
        """What chooses the best checkpoint: the loss of the labels, or without labels the BPC."""
        return self.bpc if self.label_loss is None else self.label_loss


def steps_in(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints of a run folder, in order, from their names."""
    names = [path.name for path in (folder / FOLDER).glob("[0-9]*")]
    return sorted(int(name) for name in names if name.isdigit())


def resume_advice(folder: Path) -> str:
    """Say where the same command would resume a run that ends now."""
    if steps := steps_in(folder):
        return f"The same command resumes from the checkpoint of step {steps[-1]}"
    return "There is no checkpoint yet: the same command starts over"


def seal(meta: Meta, sums: Sums) -> dict[str, Any]:
    """Return a checkpoint's JSON: its meta, the checksums of its arrays, and one of both."""
    values = meta._asdict()
    for name in ("bpc", "label_loss"):
        if values[name] is not None and not math.isfinite(values[name]):
            values[name] = None
    return digest.sealed({"meta": values, "sums": sums})


def read_meta(folder: Path, step: int) -> tuple[Meta, Sums]:
    """Return the meta of the checkpoint of `step`, and the checksums of its arrays.

    Raises OSError, ValueError, KeyError or TypeError if the file is damaged.
    """
    content = digest.opened(fields.parse((folder / FOLDER / str(step) / ITEM / FILE).read_bytes()))
    values = content["meta"]
    return Meta(**values | {"origin": Origin(*values["origin"])}), content["sums"]


def score_of(folder: Path, step: int) -> float | None:
    """Return `Meta.score` of a step; None if there is none, or it cannot be read."""
    try:
        return read_meta(folder, step)[0].score
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # The file is damaged; restoring the checkpoint will raise an error.


def best_step(scores: Mapping[int, float | None]) -> int | None:
    """Return the step with the lowest score, the earliest of several; None if none is finite."""
    finite = [
        (score, step)
        for step, score in scores.items()
        if score is not None and math.isfinite(score)
    ]
    return min(finite)[1] if finite else None


def kept_steps(
    steps: Iterable[int], scores: Mapping[int, float | None], newest: int, reach: int
) -> set[int]:
    """Return the steps whose checkpoints are kept.

    These are the newest, the best, and the newest that is at least `reach` steps older than the
    last: if a divergence is detected within `reach` steps, the run can return to it. The oldest of
    the younger checkpoints will replace it later and is therefore kept, too.

    Args:
        steps: of the existing checkpoints.
        scores: `Meta.score` by step, where it was measured.
        newest: number of newest checkpoints to keep.
        reach: number of steps within which a divergence is detected.
    """
    ordered = sorted(steps)
    if not ordered:
        return set()
    chosen = set(ordered[-newest:])
    lowest = best_step({step: scores.get(step) for step in ordered})
    if lowest is not None:
        chosen.add(lowest)
    limit = ordered[-1] - reach
    chosen.update([step for step in ordered if step <= limit][-1:])
    chosen.update([step for step in ordered if step > limit][:1])
    return chosen


class Policy(NamedTuple):
    """`kept_steps` in the form that Orbax needs; the mapping of scores may change at any time."""

    scores: Mapping[int, float | None]
    newest: int
    reach: int

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Return whether each is kept; see Orbax's PreservationPolicy."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        chosen = kept_steps(steps, *self)
        return [step in chosen for step in steps]


class Damaged(FileError):
    """A checkpoint cannot be read, or differs from what was written."""


class CheckpointFailed(FileError):
    """A checkpoint could not be written."""


def of_tree(tree: Any) -> dict[str, int]:
    """Return the checksum of every array of a tree, by its path, such as `layer_0/wh_v`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): digest.of_array(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def of_rows(tree: Any) -> NDArray[np.uint32]:
    """Return one checksum per row of arrays whose first axis is the rows, uint32 [rows].

    A process can thus verify the rows that it reads, however many processes wrote them.
    """
    leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(tree)]
    sums = np.zeros(len(leaves[0]), np.uint32)
    for row in range(len(sums)):
        for leaf in leaves:
            sums[row] = digest.crc32(leaf[row].reshape(-1).view(np.uint8), int(sums[row]))
    return sums


def with_sums(carry: Any) -> dict[str, Any]:
    """Return what is saved of a carry, NumPy, rows first: the carry and one checksum per row.

    Nothing is saved of an empty carry.
    """
    return {"carry": carry, "sums": of_rows(carry)} if jax.tree.leaves(carry) else {}


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(
        self, folder: Path, keep: int = 2, *, reach: int = 0, read_only: bool = False
    ) -> None:
        """Open the folder; `kept_steps` explains `keep` and `reach`."""
        self.folder, self._read_only = folder, read_only
        self._begun: int | None = None
        self._failed = False
        self._scores: dict[int, float | None] = {}
        self._policy = Policy(self._scores, keep, reach)
        self.open()

    def open(self) -> None:
        """Read which checkpoints exist on disk; all processes must call it."""
        import orbax.checkpoint as ocp

        self._scores.clear()
        for step in steps_in(self.folder):
            self._scores[step] = score_of(self.folder, step)
        self._manager = ocp.CheckpointManager(
            (self.folder / FOLDER).absolute(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._policy,
                create=not self._read_only,
                cleanup_tmp_directories=not self._read_only,
                read_only=self._read_only,
                # Otherwise one damaged file would prevent all checkpoints from being opened.
                lightweight_initialize=True,
            ),
            item_handlers={
                "params": ocp.StandardCheckpointHandler(),
                "state": ocp.StandardCheckpointHandler(),
                "carry": ocp.StandardCheckpointHandler(),
                "meta": ocp.JsonCheckpointHandler(filename=FILE),
            },
        )

    def save(self, step: int, state: Any, rows: Any, about: Meta) -> None:
        """Start to write the state and the carry, and return; all processes must call it.

        Args:
            step: of the checkpoint.
            state: NumPy, the same in all processes; a NamedTuple with the field `params`.
            rows: `with_sums` of the carry as global arrays; each process writes its rows.
            about: what the checkpoint was trained on.

        Raises:
            CheckpointFailed: this checkpoint, or the previous one, could not be written.
        """
        import orbax.checkpoint as ocp

        parts = {"params": state.params, "state": state._replace(params=())}
        sums = {name: of_tree(part) for name, part in parts.items()}
        items = parts | ({"carry": rows} if rows else {})
        self._scores[step] = about.score
        with self._failure(step):
            begun = self._manager.save(
                step,
                args=ocp.args.Composite(
                    **{name: ocp.args.StandardSave(item) for name, item in items.items()},
                    meta=ocp.args.JsonSave(seal(about, sums)),
                ),
            )
            if not begun:
                raise FileExistsError(f"a checkpoint of step {self.latest()} already exists")
        self._begun = step

    def wait(self) -> None:
        """Wait until checkpoints are written; raise CheckpointFailed if one could not be."""
        with self._failure(self._begun):
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def check(self) -> None:
        """Raise CheckpointFailed if a checkpoint started earlier could not be written."""
        with self._failure(self._begun):
            self._manager.check_for_errors()

    @contextmanager
    def _failure(self, step: int | None) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Orbax, TensorStore and the system raise different types.
            self._failed = True
            advice = remedy(error)
            first = f"{advice}; the" if advice else "Correct the cause; the"
            try:
                whole = ", ".join(map(str, steps_in(self.folder)))
            except OSError:  # as when no more files can be opened
                ending = f"{first} same command resumes from the last complete checkpoint, if any."
            else:
                ending = (
                    f"Complete checkpoints: {whole}. {first} same command resumes from the last."
                    if whole
                    else f"There is no complete checkpoint yet. {first} same command starts over."
                )
            raise CheckpointFailed(
                f"the checkpoint of step {step}, or the previous one, could not be written to "
                f"{self.folder} ({_brief(error)}). {ending}"
            ) from error

    def latest(self) -> int | None:
        """Return the step of the newest complete checkpoint."""
        return self._manager.latest_step()

    def best(self) -> int | None:
        """Return the step with the lowest `Meta.score`, or the newest if none was measured."""
        scores = {step: self._scores.get(step) for step in self.steps()}
        best = best_step(scores)
        return self.latest() if best is None else best

    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints, in order."""
        return sorted(self._manager.all_steps())

    def meta(self, step: int) -> Meta:
        """Return the meta of the checkpoint of `step`; raise Damaged if it cannot be read."""
        return self._attempt(step, lambda: read_meta(self.folder, step)[0])

    def restore(self, step: int, state: Any, carry: Any | None) -> tuple[Any, Any | None]:
        """Return what was saved at `step`; raise Damaged if it cannot be read.

        Args:
            step: of the checkpoint.
            state: the shapes of the state, which is returned as NumPy.
            carry: the shapes and shardings of the carry, which is returned with them; or None.
        """
        parts = {"params": state.params, "state": state._replace(params=())}
        restored = self._attempt(step, lambda: self._read(step, parts, carry))
        return restored["state"]._replace(params=restored["params"]), restored.get("carry", carry)

    def restore_params(self, step: int, params: Any) -> Any:
        """Return the parameters at `step` as a NumPy tree; raise Damaged unless shaped as given."""
        restored = self._attempt(step, lambda: self._read(step, {"params": params}))["params"]
        # Orbax returns the saved arrays, whatever shapes are requested.
        if jax.tree.map(np.shape, restored) != jax.tree.map(np.shape, params):
            raise Damaged(
                f"the checkpoint of step {step} has other array sizes than config.json describes"
            )
        return restored

    def _read(self, step: int, parts: dict[str, Any], carry: Any | None = None) -> dict[str, Any]:
        """Read the items `parts`, and the carry unless it is empty; raise if one is damaged."""
        import orbax.checkpoint as ocp

        _, sums = read_meta(self.folder, step)
        # Orbax restores to the type of these, and to the sharding of the carry.
        targets = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), parts)
        if leaves := jax.tree.leaves(carry):
            rows, sharding = leaves[0].shape[:1], leaves[0].sharding
            sums_of_rows = jax.ShapeDtypeStruct(rows, np.uint32, sharding=sharding)
            targets["carry"] = {"carry": carry, "sums": sums_of_rows}
        items = {name: ocp.args.StandardRestore(target) for name, target in targets.items()}
        restored = dict(self._manager.restore(step, args=ocp.args.Composite(**items)).items())
        for name in parts:
            digest.require_arrays(name, of_tree(restored[name]), sums[name])
        if "carry" in restored:
            _require_rows(**restored["carry"])
            restored["carry"] = restored["carry"]["carry"]
        return restored

    def drop_after(self, step: int) -> None:
        """Delete the checkpoints after `step`, where the run has diverged."""
        with self._failure(self._begun):
            self._manager.wait_until_finished()
        for later in self.steps():
            if later > step:
                self._manager.delete(later)

    def set_aside(self, steps: list[int]) -> None:
        """Move checkpoints to the folder `set-aside`.

        Only one process calls it, between `close` and `open` of all processes.
        """
        folder = self.folder / SET_ASIDE
        folder.mkdir(exist_ok=True)
        for step in steps:
            names = (str(step) if n == 1 else f"{step}-{n}" for n in range(1, 1000))
            target = next(folder / name for name in names if not (folder / name).exists())
            shutil.move(self.folder / FOLDER / str(step), target)

    def close(self) -> None:
        """Wait until checkpoints are written; raise CheckpointFailed if one could not be."""
        if self._failed:
            return  # The error has been raised; Orbax would raise it again.
        with self._failure(self._begun):
            self._manager.wait_until_finished()
            self._manager.close()

    def _attempt(self, step: int, read: Callable[[], Read]) -> Read:
        """Return the result of `read`, retried after pauses; raise Damaged if all attempts fail."""
        for pause in PAUSES:
            with suppress(Exception):
                return read()
            time.sleep(pause)
        try:
            return read()
        except Exception as error:  # Orbax, TensorStore and JSON raise different types.
            message = f"the checkpoint of step {step} cannot be read ({_brief(error)})"
            raise Damaged(message) from error


def _require_rows(carry: Any, sums: jax.Array) -> None:
    """Raise ValueError if a row of this process does not match its checksum."""
    for number, shard in enumerate(sums.addressable_shards):
        rows = jax.tree.map(lambda x, n=number: np.asarray(x.addressable_shards[n].data), carry)
        if not np.array_equal(of_rows(rows), np.asarray(shard.data)):
            raise ValueError("a row of carry does not match its checksum")


def _brief(error: BaseException) -> str:
    """Return an error's type and message on one readable line, shortened in the middle."""
    text = " ".join(str(error).split())
    if len(text) > 300:
        text = f"{text[:80]} … {text[-200:]}"
    return f"{type(error).__name__}: {text}"
