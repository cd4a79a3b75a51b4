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
    "model.",
    "optimizer.name",
    "optimizer.muon_decoder",
    "precision.compute",
    "precision.recurrent",
    "precision.cell",
    "train.seed",
)
# With phases nothing uses it.
_REPLACED = "data.batch"
# These are locations and processes; they do not define the run.
PLACES = ("out", "data.corpus", "train.start_from", "distributed.")


def to_json(config: Config) -> str:
    """The config as JSON text, with one object per section, and a checksum."""
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
    return from_json(path.read_bytes(), path)


def flatten(config: Config) -> dict[str, Any]:
    """Every field by its dotted name."""
    return dict(flatten_dict(dataclasses.asdict(config), sep="."))


class Differences(NamedTuple):
    """Lines "field: old → new", grouped by what they mean for a run that resumes."""

    forbidden: list[str]
    allowed: list[str]  # unless they change rows, which are compared with the checkpoint's


def differences(old: Config, new: Config) -> Differences:
    """Compare the config of a run with a config that would continue it."""
    after = flatten(new)
    groups = Differences([], [])
    ignored: tuple[str, ...] = PLACES
    unused: set[str] = set()
    if type(old.model) is not type(new.model):
        groups.forbidden.append(f"model: {old.model.cli_name} → {new.model.cli_name}")
        ignored += ("model.",)
    if new.precision.compute is None:
        unused.add("precision.compute")
    if new.devices.kernels == "auto":
        unused.add("devices.kernels")
    if old.phases or new.phases:
        unused.add(_REPLACED)
    for name, value in flatten(old).items():
        if name.startswith(ignored) or name in unused or value == after[name]:
            continue
        is_fixed = name.startswith(_FIXED_IN_A_RUN)
        group = groups.forbidden if is_fixed else groups.allowed
        group.append(f"{name}: {value} → {after[name]}")
    return groups
