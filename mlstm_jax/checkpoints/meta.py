"""The meta of a checkpoint, JSON with the checksums of its arrays and one of itself; which to keep.

It is separate from checkpoint.py because it needs neither JAX nor Orbax.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlstm_jax import digest, fields
from mlstm_jax.data.corpus import Cleaning
from mlstm_jax.data.stream import Origin

FOLDER = "checkpoints"
# The file of a checkpoint: checkpoints/STEP/meta/metadata.
ITEM, FILE = "meta", "metadata"

Sums = dict[str, dict[str, int]]  # by item and by an array's path in it


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


def score(folder: Path, step: int) -> float | None:
    """Return `Meta.score` of a step; None if there is none, or it cannot be read."""
    try:
        return read_meta(folder, step)[0].score
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # The file is damaged; restoring the checkpoint will raise an error.


def best(scores: Mapping[int, float | None]) -> int | None:
    """Return the step with the lowest score, the earliest of several; None if none is finite."""
    finite = [
        (score, step)
        for step, score in scores.items()
        if score is not None and math.isfinite(score)
    ]
    return min(finite)[1] if finite else None


def kept(
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
    lowest = best({step: scores.get(step) for step in ordered})
    if lowest is not None:
        chosen.add(lowest)
    limit = ordered[-1] - reach
    chosen.update([step for step in ordered if step <= limit][-1:])
    chosen.update([step for step in ordered if step > limit][:1])
    return chosen


class Policy(NamedTuple):
    """`kept` in the form that Orbax needs; the mapping of scores may change at any time."""

    scores: Mapping[int, float | None]
    newest: int
    reach: int

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Return whether each is kept; see Orbax's PreservationPolicy."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        chosen = kept(steps, *self)
        return [step in chosen for step in steps]
