"""Which checkpoints a run keeps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


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
        scores: validation BPC by step, where it was measured.
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


class Policy:
    """`kept` in the form that Orbax needs; the mapping of scores may change at any time."""

    def __init__(self, scores: Mapping[int, float | None], newest: int, reach: int) -> None:
        self._scores, self._newest, self._reach = scores, newest, reach

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Return whether each is kept; see Orbax's PreservationPolicy."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        chosen = kept(steps, self._scores, self._newest, self._reach)
        return [step in chosen for step in steps]
