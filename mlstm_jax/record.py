"""The record of a checkpoint, sealed in one file: its step, its run, what it was trained on, sums.

The record has the checksums of the arrays of parameters and state. The carry has one checksum per
row, which starts from the record, so that no item can take the place of another step's or run's.
"""

import math
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from mlstm_jax import digest
from mlstm_jax.digest import Extent
from mlstm_jax.options import Cleaning, renamed

FOLDER = "checkpoints"
SET_ASIDE = "set-aside"
# The file of a checkpoint: checkpoints/STEP/meta/metadata.
ITEM, FILE = "meta", "metadata"


class Meta(NamedTuple):
    """What a checkpoint was trained on."""

    corpus: str  # identity of the corpus, a sha256
    cleaning: Cleaning  # of its documents; a prompt is cleaned in the same way
    rows: dict[str, Any]  # what determines which bytes a row reads: batch, window, shards, ...
    function: dict[str, Any]  # what determines the model's function, see `config.function_of`
    epoch: float = 0.0  # where the rows are in the text
    bytes_seen: int = 0
    # A sha256 of the parameters that train.start_from named, if any.
    start: str | None = None
    # That of the first parameters in a chain of such runs: `start`, unless that run had one, too.
    first_start: str | None = None
    high_steps: int = 0  # latest steps in a row whose loss was above train.divergence_bpc
    bpc: float | None = None  # of the validation split, if it was measured at this step
    label_loss: float | None = None  # the same
    metrics: Extent = Extent()  # of metrics.jsonl, up to this step

    @property
    def update_bytes(self) -> int:
        """The bytes of text of each update, on all devices."""
        return self.rows["batch"] * self.rows["window"]

    @property
    def score(self) -> float | None:
        """What chooses the best checkpoint: the loss of the labels, or without labels the BPC."""
        return self.bpc if self.label_loss is None else self.label_loss


def steps_in(folder: Path) -> list[int]:
    """The steps of the complete checkpoints of a run folder, in order, from their names."""
    names = [path.name for path in (folder / FOLDER).glob("[0-9]*")]
    return sorted(map(int, filter(str.isdecimal, names)))


def resume_advice(folder: Path) -> str:
    """Say where the same command would resume a run that ends now."""
    try:
        steps = steps_in(folder)
    except OSError:  # as when no more files can be opened
        return "The same command resumes the run"
    if steps:
        return f"The same command resumes from the checkpoint of step {steps[-1]}"
    return "There is no checkpoint, so the same command starts over"


class Record(NamedTuple):
    """What a checkpoint says of itself, sealed in one file."""

    step: int
    run: str  # the id of its run, see `run.id_of`
    meta: Meta
    sums: dict[str, dict[str, int]]  # of parameters and state, by item and an array's path in it

    @property
    def seed(self) -> int:
        """What the checksums of the carry's rows start from."""
        return int(digest.of_json([self.step, self.run, self.sums]), 16)


def read_record(folder: Path, step: int) -> Record:
    """The record of the checkpoint of `step`; see `damage` for what it raises."""
    path = folder / FOLDER / str(step) / ITEM / FILE
    content = digest.read_json(path.read_bytes())
    meta = Meta(**content.pop("meta"))
    rows = renamed({"data": meta.rows})["data"]
    meta = meta._replace(metrics=Extent(*meta.metrics), rows=rows)
    record = Record(meta=meta, **content)
    if record.step != step:
        raise ValueError(f"it is the checkpoint of step {record.step} under another name")
    return record


def newest_record(folder: Path) -> Record | None:
    """The record of the newest checkpoint that has a readable one; None if none has."""
    for step in reversed(steps_in(folder)):
        with damage():
            return read_record(folder, step)
    return None


def scores_in(folder: Path) -> dict[int, float | None]:
    """`Meta.score` of each step of a run folder; None if there is none, or is unreadable."""
    scores: dict[int, float | None] = dict.fromkeys(steps_in(folder))
    for step in scores:
        with damage():
            scores[step] = read_record(folder, step).meta.score
    return scores


def damage() -> AbstractContextManager[None]:
    """Suppress what `read_record` raises if a file is damaged."""
    return suppress(OSError, ValueError, KeyError, TypeError, AttributeError)


def best_step(scores: Mapping[int, float | None]) -> int | None:
    """The step with the lowest score, the earliest of several; None if none is finite."""
    finite = [(x, step) for step, x in scores.items() if x is not None and math.isfinite(x)]
    return min(finite)[1] if finite else None


def of_tree(tree: Any) -> dict[str, int]:
    """The checksum of every array of a tree, by its path, such as `layer_0/wh_v`."""
    sums = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        sums[jax.tree_util.keystr(path, simple=True, separator="/")] = digest.of_array(leaf)
    return sums


def of_rows(tree: Any, seed: int) -> NDArray[np.uint32]:
    """One checksum per row of NumPy arrays whose first axis is the rows, uint32 [rows].

    A process can thus verify the rows that it reads, however many processes wrote them.
    """
    leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(tree)]
    sums = np.full(len(leaves[0]), seed, np.uint32)
    for row in range(len(sums)):
        for leaf in leaves:
            sums[row] = digest.crc32(leaf[row].reshape(-1).view(np.uint8), int(sums[row]))
    return sums


def move_aside(path: Path, folder: Path) -> None:
    """Move a file or a folder to another folder, under a name that is free there."""
    folder.mkdir(exist_ok=True)
    target = folder / path.name
    number = 1
    while target.exists():
        number += 1
        target = folder / f"{path.name}-{number}"
    shutil.move(path, target)
