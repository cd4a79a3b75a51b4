"""The configuration of an experiment.

A config file is a Python module that sets ``config = Config(...)``. A command line starts from it
and overrides single fields: ``mlstm-jax train small_512 --optimizer.learning-rate 1e-3``. A config
may import jax, but must not start its backend: devices and flags are set after it is read. A run
folder has its config as JSON.
"""

import dataclasses
import runpy
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from flax.traverse_util import flatten_dict

from mlstm_jax import digest, fields, shipped
from mlstm_jax.config.sections import (
    MOST_SEED,
    MOST_STEPS,
    Data,
    Devices,
    Distributed,
    Optimizer,
    Phase,
    Train,
)
from mlstm_jax.errors import KnownError, UserError, did_you_mean, nearest, require
from mlstm_jax.fields import Checked
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.model.gated import GRU, LSTM
from mlstm_jax.model.mlstm import MLSTM
from mlstm_jax.model.ops import Compute, Precision
from mlstm_jax.model.stack import Recurrent
from mlstm_jax.model.transformer import BERT, Transformer

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
# With phases nothing uses it.
_REPLACED = "data.batch"
# These are locations and processes; they do not define the run.
PLACES = ("out", "data.corpus", "train.start_from", "distributed.")

__all__ = [
    "BERT",
    "GRU",
    "LSTM",
    "MLSTM",
    "MOST_SEED",
    "MOST_STEPS",
    "Compute",
    "Config",
    "Data",
    "Devices",
    "Distributed",
    "Model",
    "Optimizer",
    "Phase",
    "Precision",
    "Train",
    "Transformer",
    "by_phase",
    "load_file",
    "longest_window",
    "resolve_batch",
    "vary",
]


@dataclass(frozen=True, kw_only=True)
class Config(Checked):
    """Everything that determines a run."""

    # Run folder: config, metrics, checkpoints. An unfinished run in it is resumed.
    out: str = "runs/quickstart"
    # The network and its initial parameters.
    model: Architecture = field(default_factory=MLSTM)
    # The corpus and how it is read.
    data: Data = field(default_factory=Data)
    # The optimizer and its learning rate.
    optimizer: Optimizer = field(default_factory=Optimizer)
    # Number types and loss scaling.
    precision: Precision = field(default_factory=Precision)
    # How long the run trains, and when it writes what.
    train: Train = field(default_factory=Train)
    # The devices to train on.
    devices: Devices = field(default_factory=Devices)
    # The processes of the run, on this machine or several.
    distributed: Distributed = field(default_factory=Distributed)
    # The phases of the run, in order; only in a config file. They replace `data.batch`,
    # `data.window`, `train.steps` and `train.epochs`. One learning-rate schedule covers all phases,
    # except where a phase has a `learning_rate` of its own. A phase with the batch and window of
    # the one before continues its rows and their carry; otherwise new rows begin near the same
    # place in the text, with a zero carry.
    phases: tuple[Phase, ...] = ()


def _require_fit(config: Config) -> None:
    """Raise UserError if a field is for another kind of model."""
    model = config.model
    every = config.train.recompute_every
    rule = f"unset for {model.cli_name}; use it with a recurrent model"
    require(every is None or isinstance(model, Recurrent), "train.recompute_every", every, rule)
    kernels = config.devices.kernels
    rule = f"xla for {model.cli_name}; use it with {MLSTM().cli_name}"
    require(kernels != "pallas" or isinstance(model, MLSTM), "devices.kernels", kernels, rule)
    recurrent = config.precision.recurrent
    if recurrent != "compute":
        _require_fp8(config, recurrent)
    places = model.longest_window
    window = longest_window(config)
    name = "phases.window" if config.phases else "data.window"
    fits = places is None or window <= places
    require(fits, name, window, f"at most model.positions, {places}")
    cell = config.precision.cell
    rule = f"fp32 for {model.cli_name}, which has no c"
    require(cell == "fp32" or "c" in model.states, "precision.cell", cell, rule)


def _require_fp8(config: Config, recurrent: str) -> None:
    """Raise UserError if a field does not go with fp8 operands."""
    model = config.model
    fits = isinstance(model, MLSTM) and model.layers == 1
    rule = f"compute, unless the model is {MLSTM().cli_name} with one layer"
    require(fits, "precision.recurrent", recurrent, rule)
    end = f"with precision.recurrent {recurrent}"
    compute = config.precision.compute
    require(compute in (None, "bf16"), "precision.compute", compute, f"bf16 {end}")
    every = config.train.recompute_every
    require(every is None, "train.recompute_every", every, f"unset {end}")
    kernels = config.devices.kernels
    other = "xla" if recurrent == "fp8" else "pallas"
    rule = f"{'pallas' if recurrent == 'fp8' else 'xla'} or auto {end}"
    require(kernels != other, "devices.kernels", kernels, rule)


def by_phase(config: Config) -> list[Config]:
    """Each phase as a config of its own; a run without phases as it is."""
    configs = []
    for phase in config.phases:
        data = dataclasses.replace(config.data, batch=phase.batch, window=phase.window)
        train = dataclasses.replace(config.train, steps=phase.steps, epochs=None)
        configs.append(dataclasses.replace(config, data=data, train=train))
    return configs or [config]


def longest_window(config: Config) -> int:
    """The most bytes of a training window of a run."""
    return max(phase.data.window for phase in by_phase(config))


def resolve_batch(config: Config, device_count: int) -> Config:
    """Set what follows from other fields, and check the batch against the number of devices.

    These fields are the global batch, the model's objective, from `train.objective`, and the
    positions of a Transformer, at least the longest window.

    Raises UserError if the rows cannot be split evenly over the devices (Puri et al. 2018,
    section IV), or a field is for another kind of model.
    """
    model = config.model.for_windows(longest_window(config))
    if config.train.objective is not None:
        model = dataclasses.replace(model, objective=config.train.objective)
    data = config.data
    if data.batch_per_device is not None:
        batch = data.batch_per_device * device_count
        data = dataclasses.replace(data, batch=batch, batch_per_device=None)
    config = dataclasses.replace(config, model=model, data=data)
    _require_fit(config)
    micro_batches = config.train.micro_batches
    for phase in by_phase(config):
        name = "phases.batch" if config.phases else "data.batch"
        batch = phase.data.batch
        rule = (
            f"a multiple of {device_count}, so that the devices share it evenly; or set "
            "data.batch_per_device, or use fewer devices with `devices.count`"
        )
        require(batch % device_count == 0, name, batch, rule)
        rows = batch // device_count
        rule = f"a divisor of the {rows} rows of a device ({name} {batch})"
        require(rows % micro_batches == 0, "train.micro_batches", micro_batches, rule)
    return config


def load_file(path: Config | Path | str) -> Config:
    """Run a config file, which is the user's own Python code, and return its ``config``.

    A bare name that is not a file selects a config that comes with the package: ``small_512``. A
    `Config` is returned unchanged.
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
    """Run a user's Python file, a config or a sweep as `what` says; return the names that it sets.

    Raises UserError, which names the line, if it is not valid Python, or raises an error.
    """
    if path.suffix != ".py":
        raise UserError(
            f"{path} is not a {what}, which must be a Python file (.py). Name a corpus with "
            "`data.corpus`, and a run to resume with `out`."
        )
    try:
        return runpy.run_path(str(path))
    except UserError as error:
        raise UserError(f"{_place(path, error)}: {error}") from error
    except KnownError:
        raise
    except Exception as error:  # also SyntaxError, whose text has the line
        raise UserError(f"{_place(path, error)}: {type(error).__name__}: {error}") from error


def _place(path: Path, error: Exception) -> str:
    """The file, and its last line in the traceback of an error."""
    place = str(path)
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(path):
            place = f"{path}, line {frame.lineno}"
    return place


def vary(config: Config, **values: Any) -> Config:
    """Return the config with changed fields, each given as section__field=value.

    A new `data__batch` replaces `data.batch_per_device`.

    Raises:
        UserError: there is no such field, or a value is invalid.
    """
    require(isinstance(config, Config), "config", config, "a Config")
    whole: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, field = name.partition("__")
        _require_field(config, section)
        if field:
            _require_field(getattr(config, section), field)
            sections.setdefault(section, {})[field] = value
        else:
            whole[section] = value
    if "batch" in sections.get("data", {}):
        sections["data"].setdefault("batch_per_device", None)
    # Replace all fields of a section at once, because they are checked together.
    for section, changes in sections.items():
        whole[section] = dataclasses.replace(getattr(config, section), **changes)
    return dataclasses.replace(config, **whole)


def _require_field(section: Any, name: str) -> None:
    if name not in field_names(section):
        meant = [name.replace(".", "__")] if "." in name else nearest_fields(section, name)
        near = did_you_mean(meant, f"; its fields are {', '.join(field_names(section))}.")
        raise UserError(f"{type(section).__name__} has no field {name!r}{near}")


def field_names(section: Any) -> list[str]:
    """The names of the fields of a config or of a section."""
    return [field.name for field in dataclasses.fields(section)]


# What other libraries call a field.
_ELSEWHERE = {"units": "hidden", "lr": "learning_rate", "iterations": "steps"}


def nearest_fields(section: Any, name: str) -> list[str]:
    """The fields of a section that a name which it does not have may mean."""
    names = field_names(section)
    usual = _ELSEWHERE.get(name)
    return [usual] if usual in names else nearest(name, names)


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
        group = groups.allowed
        if name.startswith(_FIXED_IN_A_RUN):
            group = groups.forbidden
        group.append(f"{name}: {value} → {after[name]}")
    return groups
