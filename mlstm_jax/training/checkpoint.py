"""Checkpoints of a run, by Orbax: asynchronous, whole or absent.

A checkpoint holds parameters, the rest of the state, the carry of all streams as one
[rows, L, H] array in their global order, and what it was trained on: with truncated
back-propagation, one without the carry or the position in the corpus is wrong. Parameters are an
item of their own, so that a reader needs nothing else.
"""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as managers

from mlstm_jax.errors import UserError
from mlstm_jax.model.language_model import Carry, Parameters
from mlstm_jax.training.state import TrainState

# Orbax reports every save at INFO and its own thread's handling at WARNING; errors still raise.
logging.getLogger("absl").setLevel(logging.ERROR)


class Meta(NamedTuple):
    """What a checkpoint was trained on; JSON."""

    corpus: str  # identity of the corpus, a sha256
    cleaning: str  # of its documents; a prompt is cleaned alike


def _template(abstract: Any) -> Any:
    """Return zeros on the host for a tree of shapes; Orbax restores into their type."""
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), abstract)


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, keep: int = 2, *, read_only: bool = False) -> None:
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
        """Begin to write host copies of the state and the joined carry; return before it is done.

        Args:
            bpc: the validation BPC at this step, if it was measured.
        """
        if step in self._manager.all_steps():
            return
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
        restored = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))
        return Meta(**restored["meta"])

    def require_corpus(self, step: int, meta: Meta) -> None:
        """Raise UserError unless the checkpoint of `step` was trained on the corpus of `meta`."""
        before = self.meta(step)
        if before != meta:
            raise UserError(
                f"the run was trained on another corpus: identity {before.corpus[:12]}…, cleaning "
                f"{before.cleaning}; this one has {meta.corpus[:12]}…, {meta.cleaning}. Name the "
                "first corpus with --data.corpus, or start a new run with --out."
            )

    def restore(self, step: int, state: TrainState, carry: Carry) -> tuple[TrainState, Carry]:
        """Return the state and carry at `step` as NumPy trees, shaped as the ones given."""
        rest = state._replace(params=())
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(_template(state.params)),
                state=ocp.args.StandardRestore(_template(rest)),
                carry=ocp.args.StandardRestore(_template(carry)),
            ),
        )
        return restored["state"]._replace(params=restored["params"]), restored["carry"]

    def restore_params(self, step: int, params: Parameters) -> Parameters:
        """Return the parameters at `step` as a NumPy tree, shaped as the one given."""
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(params=ocp.args.StandardRestore(_template(params))),
        )
        return restored["params"]

    def close(self) -> None:
        """Wait for what is being written; raise if it could not be."""
        self._manager.wait_until_finished()
        self._manager.close()
