"""Configs as text: JSON in a run folder, the command line, and the differences between two."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlstm_jax import digest, fields
from mlstm_jax.config import Config, load_file, vary
from mlstm_jax.errors import UserError
from mlstm_jax.model.architecture import Architecture

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
    except fields.Wrong as error:
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


def split_config(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the config that a command line names, or None, and the rest of the line.

    The config is the first word, ``CONFIG``, or follows ``--config`` anywhere.
    """
    rest, named = list(arguments), []
    if rest and not rest[0].startswith("-"):
        named.append(rest.pop(0))
    while (at := next((i for i, word in enumerate(rest) if _is_config(word)), None)) is not None:
        option, equals, value = rest.pop(at).partition("=")
        if not equals:
            if at == len(rest) or rest[at].startswith("-"):
                raise UserError(f"{option} needs the name of a shipped config or a file.")
            value = rest.pop(at)
        named.append(value)
    if len(named) > 1:
        raise UserError(f"give only one config, not {' and '.join(named)}.")
    return (named[0] if named else None), rest


def _is_config(word: str) -> bool:
    return word == "--config" or word.startswith("--config=")


def take_file(arguments: Sequence[str], default: Config) -> tuple[Config, list[str]]:
    """Return the config that a command line starts from, and the rest of it.

    A word ``model:lstm`` anywhere replaces the config's kind of model; the new one has the sizes
    that the config changed, and else its own defaults.
    """
    kinds, words = Architecture.kinds, [word for word in arguments if word.startswith("model:")]
    named, rest = split_config([word for word in arguments if word not in words])
    config = default if named is None else load_file(Path(named))
    for word in words:
        kind = kinds.get(word.removeprefix("model:"))
        if kind is None or len(words) > 1:
            known = ", ".join(f"model:{name}" for name in sorted(kinds))
            raise UserError(f"{' and '.join(words)}: choose one model of {known}.")
        if kind is not type(config.model):
            shared = [field.name for field in dataclasses.fields(Architecture)]
            sizes = {name: getattr(config.model, name) for name in shared}
            usual = vars(type(config.model)())
            changed = {name: value for name, value in sizes.items() if value != usual[name]}
            config = dataclasses.replace(config, model=kind(**changed))
    for option in (word.partition("=")[0] for word in rest if word.startswith("--model.")):
        field = option.removeprefix("--model.").removeprefix("no-").replace("-", "_")
        of = [f"model:{name}" for name, kind in kinds.items() if field in kind.__dataclass_fields__]
        if of and config.model.cli_name not in of:
            raise UserError(
                f"{option} is an option of {', '.join(of)}, not of {config.model.cli_name}; leave "
                f"it out, or choose {of[0]}."
            )
    options = {word.partition("=")[0].replace("_", "-") for word in rest}
    if {"--data.batch", "--data.batch-per-device"} <= options:
        raise UserError("--data.batch and --data.batch-per-device: give only one of them.")
    if "--data.batch" in options:
        config = vary(config, data__batch_per_device=None)
    return config, rest


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
    groups = Differences([], [], [])
    if type(old.model) is not type(new.model):
        groups.forbidden.append(f"model: {old.model.cli_name} → {new.model.cli_name}")
        before = {name: value for name, value in before.items() if not name.startswith("model.")}
    has_phases = bool(old.phases or new.phases)
    for name in before:
        if before[name] == after[name] or name.startswith(PLACES):
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
