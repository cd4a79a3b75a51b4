"""The differences between two configs, and what they mean for a run that resumes."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from mlstm_jax.config import Config

# The shapes and types of the state depend on these; a run cannot resume with another value.
_FIXED_IN_A_RUN = (
    *("model.", "optimizer.name", "precision.compute", "precision.cell", "train.seed"),
)
# What each row reads depends on these; with another value the carry must be reset. (The corpus is
# compared by its content, not by its path.)
_FIXED_WITH_CARRY = "data."
# Phases replace these; their own rows are compared with those of the checkpoint. Only evaluation
# still uses the window.
_REPLACED, _EVALUATED = "data.batch", "data.window"
# These are locations and processes; they do not define the run.
PLACES = ("out", "data.corpus", "train.start_from", "distributed.")


def flatten(config: Config) -> dict[str, Any]:
    """Return every field by its dotted name, as on the command line."""

    def walk(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            for key, item in value.items():
                yield from walk(f"{prefix}.{key}" if prefix else key, item)
        else:
            yield prefix, value

    return dict(walk("", dataclasses.asdict(config)))


class Differences(NamedTuple):
    """Lines "field: old → new", grouped by what they mean for a run that resumes."""

    forbidden: list[str]
    resets_carry: list[str]  # possible if the state of every stream starts from zero
    allowed: list[str]


def differences(old: Config, new: Config) -> Differences:
    """Compare the config of a run with one that would continue it."""
    before, after = flatten(old), flatten(new)
    found = Differences([], [], [])
    if type(old.model) is not type(new.model):
        found.forbidden.append(f"model: {old.model.choice} → {new.model.choice}")
        before = {name: value for name, value in before.items() if not name.startswith("model.")}
    has_phases = bool(old.phases or new.phases)
    for name in before:
        if before[name] == after[name] or name.startswith(PLACES):
            continue
        if has_phases and name == _REPLACED:
            continue
        kind = found.allowed
        if name.startswith(_FIXED_IN_A_RUN):
            kind = found.forbidden
        elif name.startswith(_FIXED_WITH_CARRY) and not (has_phases and name == _EVALUATED):
            kind = found.resets_carry
        kind.append(f"{name}: {before[name]} → {after[name]}")
    return found
