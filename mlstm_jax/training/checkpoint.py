"""Checkpoints of a run, by Orbax: asynchronous, whole or absent, written by all processes together.

A checkpoint holds parameters, the rest of the state, the carry of all streams as one
[rows, L, H] array in their global order, and what it was trained on: with truncated
back-propagation, one without the carry or the position in the corpus is wrong. Parameters are an
item of their own, so that a reader needs nothing else.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as managers

from mlstm_jax.data.documents import Cleaning
from mlstm_jax.data.stream import Origin
from mlstm_jax.errors import KnownError
from mlstm_jax.model.language_model import Carry, Parameters
from mlstm_jax.training.state import TrainState

# Orbax reports every save at INFO, its own thread's handling at WARNING, and errors before it
# raises them.
logging.getLogger("absl").setLevel(logging.CRITICAL)
# When one file of many fails, the others report to an event loop that is gone, each with a
# traceback, and bury the one message that matters.
logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def _quiet(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def quiet(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            hook(unraisable)

    return quiet


sys.unraisablehook = _quiet(sys.unraisablehook)


class Meta(NamedTuple):
    """What a checkpoint was trained on; JSON."""

    corpus: str  # identity of the corpus, a sha256
    cleaning: Cleaning  # of its documents; a prompt is cleaned alike
    rows: dict[str, Any]  # what decides which bytes a row reads: batch, window, shards, ...
    origin: Origin
    epoch: float
    bytes_seen: int


class Damaged(KnownError):
    """A checkpoint cannot be read."""


class CheckpointFailed(KnownError):
    """A checkpoint could not be written."""


def _template(abstract: Any) -> Any:
    """Return zeros on the host for a tree of shapes; Orbax restores into their type."""
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), abstract)


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, keep: int = 2, *, read_only: bool = False) -> None:
        self._folder = folder
        self._begun: int | None = None
        self._failed = False
        newest = managers.LatestN(keep)
        best = managers.BestN(
            get_metric_fn=lambda metrics: metrics["bpc"],
            reverse=True,  # Orbax keeps the last of the order: the lowest.
            n=1,
            keep_checkpoints_without_metrics=False,
        )
        self._manager = ocp.CheckpointManager(
            (folder / "checkpoints").absolute(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=managers.AnyPreservationPolicy([newest, best]),
                # The policy decides; without this Orbax does not write the metrics.
                best_fn=lambda metrics: metrics["bpc"],
                create=not read_only,
                cleanup_tmp_directories=not read_only,
                read_only=read_only,
            ),
            item_handlers={
                "params": ocp.StandardCheckpointHandler(),
                "state": ocp.StandardCheckpointHandler(),
                "carry": ocp.StandardCheckpointHandler(),
                "meta": ocp.JsonCheckpointHandler(),
            },
        )

    def save(
        self, step: int, state: TrainState, carry: Carry, meta: Meta, bpc: float | None
    ) -> None:
        """Begin to write the state and the carry; return before it is done. All processes call it.

        Args:
            state: NumPy, the same in all processes.
            carry: global arrays, of which each process writes its rows.
            bpc: the validation BPC at this step, if it was measured.
        """
        if step in self._manager.all_steps():
            return
        with self._failure(step):
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(state.params),
                    state=ocp.args.StandardSave(state._replace(params=())),
                    carry=ocp.args.StandardSave(carry),
                    meta=ocp.args.JsonSave(meta._asdict()),
                ),
                metrics=None if bpc is None else {"bpc": bpc},
            )
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
            whole = ", ".join(map(str, sorted(self._manager.all_steps(read=True)))) or "none yet"
            raise CheckpointFailed(
                f"a checkpoint, that of step {step} or the one before it, could not be written to "
                f"{self._folder} ({_brief(error)}). Whole ones: {whole}. Free some space there; "
                "the same command goes on from the last of them."
            ) from error

    def latest(self) -> int | None:
        """Return the newest whole checkpoint's step."""
        return self._manager.latest_step()

    def best(self) -> int | None:
        """Return the step of the lowest validation BPC, or the newest where none was measured."""
        scored = [
            (self._manager.metrics(step)["bpc"], step)
            for step in self.steps()
            if self._manager.metrics(step)
        ]
        return min(scored)[1] if scored else self.latest()

    def steps(self) -> list[int]:
        """Return the steps of all whole checkpoints, in order."""
        return sorted(self._manager.all_steps())

    def meta(self, step: int) -> Meta:
        """Return what the checkpoint of `step` was trained on."""
        with _damage(step):
            restored = self._manager.restore(
                step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
            )
            fields = restored["meta"]
            return Meta(**fields | {"origin": Origin(*fields["origin"])})

    def restore(
        self, step: int, state: TrainState, carry: Carry | None
    ) -> tuple[TrainState, Carry | None]:
        """Return what was saved at `step`; raise Damaged if it cannot be read.

        Args:
            state: the shapes of the state, which comes back as NumPy.
            carry: the shapes of the carry and where its rows lie, which come back so; or None.
        """
        rest = state._replace(params=())
        items = {
            "params": ocp.args.StandardRestore(_template(state.params)),
            "state": ocp.args.StandardRestore(_template(rest)),
        }
        if carry is not None:
            items["carry"] = ocp.args.StandardRestore(carry)
        with _damage(step):
            restored = self._manager.restore(step, args=ocp.args.Composite(**items))
            return restored["state"]._replace(params=restored["params"]), restored.get("carry")

    def drop_after(self, step: int) -> None:
        """Delete the checkpoints after `step`: they are damaged, or a run has diverged in them."""
        for later in self.steps():
            if later > step:
                self._manager.delete(later)

    def restore_params(self, step: int, params: Parameters) -> Parameters:
        """Return the parameters at `step` as a NumPy tree; raise Damaged unless shaped as given."""
        with _damage(step):
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(params=ocp.args.StandardRestore(_template(params))),
            )
            found = restored["params"]
            # Orbax gives what it has, whatever is asked for.
            if jax.tree.map(np.shape, found) != jax.tree.map(np.shape, params):
                raise ValueError("it is of a model of other sizes than config.json says")
            return found

    def close(self) -> None:
        """Wait for what is being written; raise CheckpointFailed if it could not be."""
        if self._failed:
            return  # It has been said, and Orbax would raise it again.
        with self._failure(self._begun):
            self._manager.wait_until_finished()
            self._manager.close()


@contextmanager
def _damage(step: int) -> Iterator[None]:
    """Turn what Orbax, TensorStore and JSON say of a file cut short or gone into Damaged."""
    try:
        yield
    except (ValueError, OSError, KeyError, TypeError, MemoryError) as error:
        raise Damaged(f"the checkpoint of step {step} cannot be read ({_brief(error)})") from error


def _brief(error: BaseException) -> str:
    """Return what an error says, on one line that a person may read: its beginning and its end."""
    text = " ".join(str(error).split())
    return (
        f"{type(error).__name__}: {text if len(text) <= 300 else text[:80] + ' … ' + text[-200:]}"
    )
