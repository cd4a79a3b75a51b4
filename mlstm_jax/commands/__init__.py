"""The commands: each parses a command line into a call of the API, and shows the result.

The options of a command are the arguments of a function of `api/`, with the same names, types,
defaults and help. The function here that shows the result adds those of the output, such as --out.
"""

import contextlib
import dataclasses
import functools
import inspect
import io
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, cast, get_args, get_origin

import tyro
from docstring_parser import parse as parse_docstring
from tyro.conf import FlagCreatePairsOff, Positional, arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec

from mlstm_jax.corpora.options import SplitWeights
from mlstm_jax.corpora.sources import Source, check_source
from mlstm_jax.errors import UserError
from mlstm_jax.terminal import printable, uncoloured, write_error

if TYPE_CHECKING:
    from mlstm_jax.api.model import TrainedModel
    from mlstm_jax.run import Run

RunFolder = Annotated[Path, Positional, arg(metavar="RUN")]
InputFile = Annotated[Path, Positional, arg(metavar="INPUT")]

_BY_NAME = Parameter.KEYWORD_ONLY

# A name of an argument or a field, and perhaps its value.
_NAME = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*)(=\S+|)")

_WITHOUT_COMPUTE = ("export", "finetune")  # read no texts with the model that they load
_NUMBERS = {int: "a whole number, such as 1000", float: "a number, such as 40e9"}
# Arguments of the API that only Python has; a command shows progress and owns its process.
_OF_PYTHON = ("self", "callbacks", "on_begin", "show_progress", "owns_process", "batch_size")


class Call:
    """A call of a function of the API, with the arguments that a command line gives."""

    def __init__(self, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
        self._function, self.given = function, given
        names = inspect.signature(function).parameters
        every = {"show_progress": True, "owns_process": True, **given}
        self.arguments = {name: every[name] for name in names if name in every}
        self._of_model = "self" in names

    @functools.cached_property
    def model(self) -> "TrainedModel":
        """The model of RUN and --checkpoint; loaded when it is first used."""
        own = "checkpoint" in self.arguments  # of the result
        checkpoint = "best" if own else self.given["checkpoint"]
        return _api().load(self.given["run"], checkpoint, self.given.get("compute", "auto"))

    @property
    def run(self) -> "Run":
        """What the model is of, for the lower layers."""
        return self.model._run

    def __call__(self) -> Any:
        """Return what the function returns."""
        own = [self.model] if self._of_model else []
        return self._function(*own, **self.arguments)


class Command:
    """A command, to call with the words of its command line and the name of the program."""

    def __init__(
        self,
        function: Callable[..., Any] | None,
        show: Callable[..., None],
        positional: Sequence[str] = (),
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Derive the options.

        Args:
            function: of the API; None: `show` does everything.
            show: takes the `Call` and its own options, and shows the result. An own option with the
                name of an argument of the API replaces it, and is passed to both.
            positional: arguments of the API that are given without an option.
            names: options that are not called as their argument.
        """
        self._function, self._show, self._names = function, show, names
        own, docs = dict(inspect.signature(show).parameters), _docs(show)
        self._own = list(own)[1:] if function else list(own)
        theirs: dict[str, Parameter] = {}
        if function:
            del own[next(iter(own))]
            signature = inspect.signature(function).parameters
            docs, theirs = _docs(function) | docs, dict(signature)
            if "self" in signature:
                loads = _docs(_api().load)
                theirs["run"] = Parameter("run", _BY_NAME, annotation=RunFolder)
                best = Parameter("checkpoint", _BY_NAME, annotation=str, default="best")
                theirs.setdefault("checkpoint", best)
                if function.__name__ not in _WITHOUT_COMPUTE:
                    theirs["compute"] = inspect.signature(_api().load).parameters["compute"]
                docs = {"run": loads["path"], **loads} | docs
        first = [n for n in ("run", *own) if n in theirs]
        every = dict.fromkeys([*first, *theirs, *own])
        chosen = {n: own.get(n) or theirs[n] for n in every if n not in _OF_PYTHON}
        self.parameters = {
            name: _parsed(one, names.get(name), positional=name in positional)
            for name, one in chosen.items()
        }
        self._help = functools.partial(_as_help, options=self.options())
        about = (parse_docstring(inspect.getdoc(show) or "").description or "").split("\n\n")
        lines = [
            f"    {name}: {self._help(docs[name])}" for name in self.parameters if name in docs
        ]
        self._doc = "\n\n".join([*map(_joined, about), "Args:\n" + "\n".join(lines)])

    def parse(self, words: Sequence[str], program: str) -> dict[str, Any]:
        """Return the arguments by name; exit with a message, or the help, if there are none.

        Raises:
            UserError: of a section of options, such as a config's; the parser would print it in a
                box, with the names of fields.
        """

        def collect(**given: Any) -> dict[str, Any]:
            return given

        signature: Any = inspect.Signature(list(self.parameters.values()))
        collect.__signature__, collect.__doc__ = signature, self._doc  # type: ignore[attr-defined]
        collect.__annotations__ = {n: one.annotation for n, one in self.parameters.items()}
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                return tyro.cli(collect, args=words, prog=program, registry=_registry(self._help))
        except SystemExit as stop:
            cause = stop.__context__
            while cause and not isinstance(cause, UserError):
                cause = cause.__context__
            if cause:
                said.truncate(0)
                raise cause from None
            raise
        finally:
            # It may repeat words of the command line.
            hostile = any(printable(word) != word for word in words)
            write_error(uncoloured(said.getvalue()) if hostile else said.getvalue())

    def __call__(self, words: Sequence[str], program: str) -> None:
        """Run the command."""
        given = self.parse(words, program)
        calls = [Call(self._function, given)] if self._function else []
        self._show(*calls, **{name: given[name] for name in self._own})

    def options(self) -> dict[str, str]:
        """Return the option of each argument, as it is typed: text_column, --text-column."""
        names: dict[str, str] = {}
        for name, one in self.parameters.items():
            if dataclasses.is_dataclass(one.default):
                names |= {field.name: field.name for field in dataclasses.fields(one.default)}
            else:
                names[name.rstrip("_")] = self._names.get(name, name)
        return {name: _option(option) for name, option in names.items()}


def command(
    function: Callable[..., Any] | None = None, *positional: str
) -> Callable[[Callable[..., None]], Command]:
    """Make a command of what shows the result of a function; see `Command`."""
    return lambda show: Command(function, show, positional)


def as_options(text: str, own: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a message with names of arguments and fields as options.

    A name is in backquotes, alone or with a value: `data.batch` becomes --data.batch, and
    `overwrite=True` --overwrite. So does the first word, if it is an option of the command.
    """
    parts = text.split("`")
    for place in range(1, len(parts), 2):
        if match := _NAME.fullmatch(parts[place]):
            value = match[2].removeprefix("=").removeprefix("True")
            parts[place] = own.get(match[1]) or _option(match[1])
            parts[place] += f" {value}" if value else ""
        else:  # such as a command
            parts[place] = f"`{parts[place]}`"
    text = "".join(parts)
    first, space, rest = text.partition(" ")
    name = first.rstrip(":")
    return own.get(name, name) + first[len(name) :] + space + rest


def _joined(lines: str) -> str:
    """Return a paragraph as one line; tyro would break it before a line such as "16 to 64"."""
    return " ".join(lines.split())


def _as_help(text: str, options: Mapping[str, str]) -> str:
    """Return the help of an argument or field as one line that names the options of others."""
    names = {name.rpartition(".")[2]: option for name, option in options.items()} | {**options}
    named = r"`[\w.]+`|\b\w+\.\w+\b"
    return re.sub(named, lambda name: names.get(name[0].strip("`"), name[0]), _joined(text))


def _option(name: str) -> str:
    return f"--{name.rstrip('_').replace('_', '-')}"


def require_files(*paths: Path | None) -> None:
    """Raise UserError unless all text files can be opened; call it before loading a model."""
    for path in paths:
        if path:
            check_source(Source(str(path)))


def _api() -> Any:
    """Import what needs JAX, for the commands of a model."""
    from mlstm_jax.api import model

    return model


def _docs(function: Callable[..., Any]) -> dict[str, str]:
    """Return the help of each argument; "see `name`" is that of another method of the model."""
    docs = {}
    for one in parse_docstring(inspect.getdoc(function) or "").params:
        text = _joined(one.description or "")
        other = re.match(r"see `(\w+)`", text)
        if other and (method := getattr(_api().TrainedModel, other[1], None)):
            text = _docs(method)[one.arg_name] + text[other.end() :].removeprefix(".")
        docs[one.arg_name] = text
    return docs


def _parsed(one: Parameter, name: str | None, *, positional: bool) -> Parameter:
    """Return an argument of the API as the parser reads it: files by name, options in groups."""
    kind, default = one.annotation, one.default
    inner = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    if Path in inner:  # otherwise it is a table, a list or something else in memory
        kind = Path | None if NoneType in inner else Path
    for part in inner:
        if dataclasses.is_dataclass(part):
            kind, default = Annotated[part, arg(name="")], cast("Any", part)()
    if one.name != "config":  # a field of a config file may be true
        kind = cast("Any", FlagCreatePairsOff)[kind]
    if name:
        kind = Annotated[kind, arg(name=name)]
    if default in ("", ()):  # which the help would show as "(default: )"
        kind = Annotated[kind, arg(help_behavior_hint="")]
    if positional:
        kind = Annotated[kind, Positional, arg(metavar=one.name.upper())]
    return Parameter(one.name, _BY_NAME, annotation=kind, default=default)


def _registry(as_help: Callable[[str], str]) -> ConstructorRegistry:
    """Return tyro's registry, with our messages, in which the weights of the splits are one word.

    The help of a dataclass's fields is changed by `as_help`.
    """

    def parse(words: list[str]) -> SplitWeights:
        try:
            train, valid, test = map(_weight, words[0].split(","))
        except ValueError:
            why = "is not three numbers for train, valid and test, such as 1000,1,1"
            raise ValueError(f"{words[0]!r} {why}") from None
        return train, valid, test

    registry = ConstructorRegistry()
    inside: list[Any] = []

    @registry.struct_rule
    def fields(info: Any) -> Any:
        if info.type in inside or not dataclasses.is_dataclass(info.type):
            return None  # tyro's own rule is next
        inside.append(info.type)
        spec: Any = ConstructorRegistry.get_struct_spec(info)
        inside.pop()
        fields = (
            dataclasses.replace(field, helptext=lambda text=field.helptext: as_help(text() or ""))
            for field in spec.fields
        )
        return dataclasses.replace(spec, fields=tuple(fields))

    @registry.primitive_rule
    def weights(info: Any) -> PrimitiveConstructorSpec[SplitWeights] | None:
        if get_args(info.type) != get_args(SplitWeights):
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="TRAIN,VALID,TEST",
            instance_from_str=parse,
            is_instance=lambda value: isinstance(value, tuple),
            str_from_instance=lambda weights: [",".join(map(str, weights))],
        )

    @registry.primitive_rule
    def numbers(info: Any) -> PrimitiveConstructorSpec[Any] | None:
        kind, can_be_none = _number(info.type)
        return _number_spec(kind, can_be_none=can_be_none) if kind in _NUMBERS else None

    return registry


def _number(kind: Any) -> tuple[Any, bool]:
    """Return a type without None and its range, and whether it allows None."""
    is_union = get_origin(kind) in (Union, UnionType)
    members = get_args(kind) if is_union else (kind,)
    types = [one for one in members if one is not NoneType]
    if len(types) != 1:
        return None, False
    (number,) = types
    if get_origin(number) is Annotated:
        number = get_args(number)[0]
    return number, is_union


def _number_spec(kind: type, *, can_be_none: bool) -> PrimitiveConstructorSpec[Any]:
    """Return how a number is read; tyro's own message would show the annotation."""

    def parse(words: list[str]) -> Any:
        if can_be_none and words[0] == "None":
            return None
        try:
            return kind(words[0])
        except ValueError:
            raise ValueError(f"{words[0]!r} is not {_NUMBERS[kind]}") from None

    name = kind.__name__.upper()
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{None}}|{name}" if can_be_none else name,
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, (int, float, NoneType)),
        str_from_instance=lambda value: [str(value)],
    )


def _weight(word: str) -> float:
    try:
        return int(word)
    except ValueError:
        return float(word)
