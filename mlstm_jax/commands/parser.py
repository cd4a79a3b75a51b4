"""The table of commands, and the parser of their command lines."""

import ast
import dataclasses
import importlib
import inspect
import keyword
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, get_args

from mlstm_jax import __version__, environment, terminal
from mlstm_jax.errors import Note, nearest, question

_SplitWeights = tuple[float, float, float]  # of PrepareOptions, which need more imports

# Each command is a function of its name in this module of commands/, imported when it is run: most
# import JAX.
_COMMANDS = {
    "quickstart": "shipped",
    "configs": "shipped",
    "prepare": "corpora",
    "inspect": "corpora",
    "plan": "training",
    "schedule": "training",
    "sweep": "training",
    "train": "training",
    "evaluate": "evaluation",
    "generate": "models",
    "heatmap": "models",
    "report": "models",
    "features": "transfer",
    "transfer": "transfer",
    "finetune": "labels",
    "classify": "labels",
    "view": "models",
    "watch": "watch",
    "import": "models",
    "export": "models",
}

# Commands whose options are the fields of a config; they parse their own arguments.
_OF_A_CONFIG = ("quickstart", "train", "plan", "schedule")

# Commands that run no model: they do not use the GPU, which may be busy.
_ON_CPU = ("configs", "prepare", "inspect", "plan", "schedule", "import", "export", "watch")


def _registry() -> Any:
    """Return tyro's registry, in which the weights of the splits are one word: 1000,1,1."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec

    def parse(words: list[str]) -> _SplitWeights:
        try:
            train, valid, test = map(_weight, words[0].split(","))
        except ValueError:
            why = "is not three numbers for train, valid and test, such as 1000,1,1"
            raise ValueError(f"{words[0]!r} {why}") from None
        return train, valid, test

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def weights(info: Any) -> PrimitiveConstructorSpec[_SplitWeights] | None:
        if get_args(info.type) != get_args(_SplitWeights):
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="TRAIN,VALID,TEST",
            instance_from_str=parse,
            is_instance=lambda value: isinstance(value, tuple),
            str_from_instance=lambda weights: [",".join(map(str, weights))],
        )

    return registry


def _weight(word: str) -> float:
    try:
        return int(word)
    except ValueError:
        return float(word)


def _function(name: str) -> Callable[..., None]:
    """Import a command."""
    module = importlib.import_module(f"mlstm_jax.commands.{_COMMANDS[name]}")
    function: Callable[..., None] = getattr(module, _identifier(name))
    return function


def _identifier(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def _summaries() -> Iterator[tuple[str, str]]:
    """Return each command and the first line of its docstring, without importing it."""
    sources = {
        module: ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")).body
        for module in dict.fromkeys(_COMMANDS.values())
    }
    for name, module in _COMMANDS.items():
        for node in sources[module]:
            if isinstance(node, ast.FunctionDef) and node.name == _identifier(name):
                yield name, str(ast.get_docstring(node)).splitlines()[0]


def _usage(program: str) -> str:
    lines = [f"usage: {program} COMMAND ...", ""]
    lines += [f"  {name:<11}{summary}" for name, summary in _summaries()]
    lines += [
        "",
        f"{program} COMMAND --help explains the options of a command.",
        "Compiled programs are cached in ~/.cache/mlstm_jax, at most 1 GB per type of processor.",
        f"Set {environment.CACHE} to another folder, or to an empty value to turn the cache off.",
    ]
    return "\n".join(lines)


def _options(name: str) -> list[str]:
    """Return the long options of a command, without the leading dashes."""
    if name in _OF_A_CONFIG:
        from mlstm_jax.config import Config
        from mlstm_jax.config import text as config_text

        names = [*config_text.flatten(Config())]
    else:
        names = []
        for parameter in inspect.signature(_function(name)).parameters.values():
            grouped = dataclasses.is_dataclass(parameter.default)
            fields = dataclasses.fields(parameter.default) if grouped else [parameter]
            names += [field.name for field in fields]
    return [name.rstrip("_").replace("_", "-") for name in names]


def _of_short(word: str, options: Iterable[str]) -> list[str]:
    """Return at most two options that a shortened one may stand for, the shortest first.

    The word may be the initials or the beginning of the last part of a dotted option:
    ``lr`` stands for ``optimizer.learning-rate``.
    """
    found = []
    for option in options:
        last = option.rpartition(".")[2]
        initials = "".join(part[0] for part in last.split("-"))
        if word and (word == initials or (len(word) > 1 and last.startswith(word))):
            found.append(option)
    return sorted(found, key=len)[:2]


def _explain_short(name: str, rest: Sequence[str]) -> None:
    """Suggest options for an abbreviated one; the parser itself only suggests for misspelt ones."""
    options = _options(name)
    for word in rest:
        given = word.partition("=")[0]
        if given.startswith("--") and given[2:] not in options:
            found = [f"--{option}" for option in _of_short(given[2:], options)]
            if found:
                asked = question(found)
                terminal.show(f"mlstm-jax {name}: unknown option {given}{asked}", file=sys.stderr)


def run(words: Sequence[str], program: str | None) -> None:
    """Run the command that the words of a command line name.

    Raises:
        SystemExit: the words ask for help, or are wrong; a message has been printed.
    """
    name, *rest = words
    if name in ("-h", "--help"):
        print(_usage("mlstm-jax"))
        return
    if name == "--version":
        print(f"mlstm-jax {__version__}")
        return
    if name not in _COMMANDS:
        near = question(nearest(name, _COMMANDS)) or "."
        more = "`mlstm-jax --help` lists the commands."
        terminal.show(f"mlstm-jax: unknown command {name!r}{near} {more}", file=sys.stderr)
        sys.exit(2)
    import tyro
    from tyro.conf import FlagCreatePairsOff

    environment.silence()
    environment.without_gpus()
    if name in _ON_CPU:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    else:
        environment.cache_programs()
    try:
        with terminal.quoting(rest), _notes():
            function = _function(name)
            if name in _OF_A_CONFIG:
                own = program if program and name == "train" else f"mlstm-jax {name}"
                function(rest, own)
            else:
                tyro.cli(
                    function,
                    args=rest,
                    prog=f"mlstm-jax {name}",
                    config=(FlagCreatePairsOff,),
                    registry=_registry(),
                )
    except SystemExit as stop:
        if stop.code == 2:  # The parser has already reported the unknown option.
            _explain_short(name, rest)
        raise


@contextmanager
def _notes() -> Iterator[None]:
    """Print each `errors.Note` that the block warns with, as a line on standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", Note)
        show: Any = warnings.showwarning

        def print_note(text: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, Note):
                print(f"note: {terminal.message(text)}", file=sys.stderr)
            else:
                show(text, category, *rest, **more)

        warnings.showwarning = cast("Any", print_note)
        yield
