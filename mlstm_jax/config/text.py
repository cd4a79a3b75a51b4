"""Configs as text: JSON in a run folder, and the differences between two."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from flax.traverse_util import flatten_dict

from mlstm_jax import digest, fields
from mlstm_jax.config import Config
from mlstm_jax.errors import UserError

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


def to_json(config: Config) -> str:
    """Return the config as JSON text, with one object per section, and a checksum."""
    return digest.to_json(dataclasses.asdict(config))


def from_json(text: str | bytes, source: Path) -> Config:
    """Build a config from `to_json`'s text; UserError names the file `source` and the field."""
    try:
        return fields.build(Config, digest.opened(fields.parse(text)))
    except fields.InvalidField as error:
        raise UserError(
            f"{source} is not the config of a run of this version ({error}); "
            "restore the file. For other values start a new run in another folder, with the values "
            "as options of `mlstm-jax train`."
        ) from error


def load_json(path: Path) -> Config:
    """Read the config.json of a run; UserError names the file and the wrong field."""
    try:
        return from_json(path.read_bytes(), path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def flatten(config: Config) -> dict[str, Any]:
    """Return every field by its dotted name."""
    return dict(flatten_dict(dataclasses.asdict(config), sep="."))


class Differences(NamedTuple):
    """Lines "field: old → new", grouped by what they mean for a run that resumes."""

    forbidden: list[str]
    resets_carry: list[str]  # possible if the state of every stream starts from zero
    allowed: list[str]


def differences(old: Config, new: Config) -> Differences:
    """Compare the config of a run with one that would continue it."""
    before, after = flatten(old), flatten(new)
    groups = Differences([], [], [])
    if type(old.model) is not type(new.model):
        groups.forbidden.append(f"model: {old.model.cli_name} → {new.model.cli_name}")
        before = {name: value for name, value in before.items() if not name.startswith("model.")}
    has_phases = bool(old.phases or new.phases)
    for name in before:
        if before[name] == after[name] or name.startswith(PLACES):
            continue
        if name == "precision.compute" and new.precision.compute is None:
            continue
        if has_phases and name == _REPLACED:
            continue
        kind = groups.allowed
        if name.startswith(_FIXED_IN_A_RUN):
            kind = groups.forbidden
        elif name.startswith(_FIXED_WITH_CARRY) and not (has_phases and name == _EVALUATED):
            kind = groups.resets_carry
        kind.append(f"{name}: {before[name]} → {after[name]}")
    return groups
