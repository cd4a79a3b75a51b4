"""The configuration of an experiment: a Python module that sets ``config = Config(...)``.

A command line overrides single fields of it: ``mlstm-jax train small_512 --train.steps 9``. A
config may import jax, but must not start its backend: devices and flags are set after it is read.
"""

import dataclasses
import runpy
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from flax.traverse_util import flatten_dict

from mlstm_jax import digest, fields, shipped
from mlstm_jax.config.sections import (
    MOST_STEPS,
    Data,
    Devices,
    Distributed,
    Optimizer,
    Precision,
    Train,
    others_fields,
)
from mlstm_jax.errors import KnownError, UserError, did_you_mean, require
from mlstm_jax.fields import Checked
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.model.gated import GRU, LSTM
from mlstm_jax.model.mlstm import MLSTM
from mlstm_jax.model.transformer import BERT, Transformer
from mlstm_jax.options import OPTIMIZERS, RENAMED, Compute, names_meant, renamed

Model = MLSTM

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
# These are locations and processes; they do not define the run.
PLACES = ("out", "data.corpus", "train.start_from", "distributed.")

__all__ = [
    "BERT",
    "GRU",
    "LSTM",
    "MLSTM",
    "MOST_STEPS",
    "Compute",
    "Config",
    "Data",
    "Devices",
    "Distributed",
    "Model",
    "Optimizer",
    "Precision",
    "Train",
    "Transformer",
    "load_file",
    "vary",
]


@dataclass(frozen=True, kw_only=True)
class Config(Checked):
    """Everything that determines a run.

    Attributes:
        out: Run folder: config, metrics, checkpoints. An unfinished run in it is resumed.
        model: The network and its initial parameters.
        data: The corpus and how it is read.
        optimizer: The optimizer and its learning rate.
        precision: Number types and loss scaling.
        train: How long the run trains, and when it writes what.
        devices: The devices to train on.
        distributed: The processes of the run, on this machine or several.

    Each of these but `out` is a dataclass, and help(mlstm_jax.config.Data) explains its fields.

    Examples:
        >>> mlstm.Config(out="runs/mine").data.window
        256
    """

    out: str = "runs/quickstart"
    model: Architecture = field(default_factory=MLSTM)
    data: Data = field(default_factory=Data)
    optimizer: Optimizer = field(default_factory=Optimizer)
    precision: Precision = field(default_factory=Precision)
    train: Train = field(default_factory=Train)
    devices: Devices = field(default_factory=Devices)
    distributed: Distributed = field(default_factory=Distributed)


def load_file(path: Config | Path | str) -> Config:
    """Run a config file, which is the user's own Python code.

    Args:
        path: of the file; or the name of a config of the package, such as small_512. A `Config` is
            returned unchanged.

    Returns:
        What the file sets as ``config``.

    Raises:
        ValueError: there is no such file, or it sets no config.
    """
    if isinstance(path, Config):
        return path
    path = shipped.find(Path(path), "config")
    config = run_python(path, "config").get("config")
    if not isinstance(config, Config):
        raise UserError(
            f"{path} sets no `config = Config(...)`; see `mlstm-jax configs small_512`."
        )
    return config


def run_python(path: Path, what: str) -> dict[str, Any]:
    """Run a user's Python file, `what` it is in messages; return the names that it sets."""
    if path.suffix != ".py":
        raise UserError(
            f"{path} is not a {what}, which must be a Python file (.py); `mlstm-jax configs` lists "
            "the package's. Name a corpus with `data.corpus`, and a run with `out`."
        )
    try:
        return runpy.run_path(str(path))
    except Exception as error:  # also SyntaxError, whose text has the line
        place = str(path)
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == str(path):
                place = f"{path}, line {frame.lineno}"
        kind = "" if isinstance(error, KnownError) else f"{type(error).__name__}: "
        raise UserError(f"{place}: {kind}{error}") from error


def vary(config: Config, **values: Any) -> Config:
    """Change fields of a config, each given as section__field=value.

    A new `data__batch` replaces `data.batch_per_device`; a new `optimizer__name` unsets the fields
    that only other optimizers have.

    Args:
        config: it stays as it is.
        values: the new values.

    Returns:
        A new config.

    Raises:
        ValueError: there is no such field, or a value is invalid.

    Examples:
        >>> mlstm.vary(mlstm.Config(), model__hidden=512, data__batch=32).model.hidden
        512
    """
    require(isinstance(config, Config), "config", config, "a Config")
    whole: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, field = name.partition("__")
        _require_field(config, section)
        if field:
            _require_field(getattr(config, section), field, f"{section}.")
            sections.setdefault(section, {})[field] = value
        else:
            whole[section] = value
    chosen = sections.get("optimizer", {})
    if chosen.get("name") in OPTIMIZERS:
        sections["optimizer"] = others_fields(chosen["name"]) | chosen
    if "batch" in sections.get("data", {}):
        sections["data"].setdefault("batch_per_device", None)
    # Replace all fields of a section at once, because they are checked together.
    for section, changes in sections.items():
        whole[section] = dataclasses.replace(getattr(config, section), **changes)
    return dataclasses.replace(config, **whole)


def _require_field(section: Any, name: str, before: str = "") -> None:
    """Raise UserError unless there is such a field; `before` is the section's name and a dot."""
    known = [field.name for field in dataclasses.fields(section)]
    if name in known:
        return
    meant = names_meant(name, known)
    if "." in name:
        meant = [name.replace(".", "__")]
    elif before + name in RENAMED:
        meant = [RENAMED[before + name].removeprefix(before)]
    near = did_you_mean(meant, f"; its fields are {', '.join(known)}.")
    raise UserError(f"{type(section).__name__} has no field {name!r}{near}")


def to_json(config: Config) -> str:
    """The config as JSON text, with one object per section, and a checksum."""
    return digest.to_json(dataclasses.asdict(config))


def from_json(text: str | bytes, source: Path) -> Config:
    """Build a config from `to_json`'s text."""
    advice = "; restore the file, or start a new run with other options of `mlstm-jax train`"
    with fields.named(f"{source} cannot be read", advice):
        values = digest.read_json(text)
    advice = "; use that version, or begin a new run with the parameters that it exports"
    with fields.named(f"{source} was written by another version of mlstm_jax", advice):
        return fields.build(Config, renamed(values))


def function_of(config: Config) -> dict[str, Any]:
    """What determines the function of trained parameters, as JSON: it is recorded with them."""
    names = ("compute", "recurrent", "cell")  # with which a trained model is read
    precision = {name: getattr(config.precision, name) for name in names}
    return {"model": dataclasses.asdict(config.model), "precision": precision}


def require_function(recorded: Any, config: Config, what: str) -> None:
    """Raise UserError unless the parameters of `what` are read as they were trained."""
    with fields.named(f"{what} was written by another version of mlstm_jax"):
        trained = fields.build(Config, renamed(recorded))
    before = flatten_dict(function_of(trained), sep=".")
    after = flatten_dict(function_of(config), sep=".")
    changes = [f"{name} is {new}, not {old}" for name, old, new in differing(before, after)]
    if changes:
        raise UserError(
            f"config.json does not belong to {what}: {', '.join(changes)}. Restore config.json "
            "from a copy."
        )


def load_json(path: Path) -> Config:
    """Read the config.json of a run; UserError names the file and the wrong field."""
    return from_json(path.read_bytes(), path)


def flatten(config: Config) -> dict[str, Any]:
    """Every field by its dotted name."""
    return dict(flatten_dict(dataclasses.asdict(config), sep="."))


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The name, the old and the new value of each field that differs; None: it is not there."""
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)


class Differences(NamedTuple):
    """Lines "field: old → new" of a run that resumes."""

    forbidden: list[str]
    allowed: list[str]  # unless they change rows, which are compared with the checkpoint's


def differences(old: Config, new: Config) -> Differences:
    """Compare the config of a run with a config that would continue it."""
    groups = Differences([], [])
    ignored: tuple[str, ...] = PLACES
    if type(old.model) is not type(new.model):
        groups.forbidden.append(f"model: {old.model.cli_name} → {new.model.cli_name}")
        ignored += ("model.",)
    for name, before, after in differing(flatten(old), flatten(new)):
        if not name.startswith(ignored):
            is_fixed = name.startswith(_FIXED_IN_A_RUN)
            group = groups.forbidden if is_fixed else groups.allowed
            group.append(f"{name}: {before} → {after}")
    return groups
