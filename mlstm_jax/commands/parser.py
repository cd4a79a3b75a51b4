"""Turn the words of a command line into a call of a command, with tyro.

The command is any function of `commands/`: its typed arguments are the options, its docstring the
help.
"""

import contextlib
import dataclasses
import functools
import inspect
import io
import json
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from mlstm_jax.corpora.options import SplitWeights
from mlstm_jax.errors import UserError, did_you_mean
from mlstm_jax.options import names_meant
from mlstm_jax.terminal import tell

Call = functools.partial[None]

_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=|$)")  # not a text that begins with --


def parse(
    command: Callable[..., None],
    words: Sequence[str],
    program: str,
    fields: Mapping[str, str] = MappingProxyType({}),
    types: Mapping[str, Any] = MappingProxyType({}),
    **defaults: Any,
) -> Call:
    """Turn a command line into a call of a command; exit if it asks for help or has a mistake.

    `program` is how the command is called, for the help; `fields`: see `_require_options`; `types`
    and `defaults` are of its arguments.
    """
    is_help = bool({"-h", "--help"} & set(words))
    if not is_help:
        lists = "--help-all" if fields else "--help"
        kinds = options(command, types)
        _require_options(words, f"{program} {lists}", dict.fromkeys(kinds, "") | dict(fields))
        _require_once(words, kinds)

    shown = io.StringIO()
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown):
            call: Call = tyro.cli(
                functools.partial(_for_parser(command, types), **defaults),
                args=words,
                prog=program,
                registry=_registry(),
            )
            return call
    except SystemExit as stop:
        # The parser shows the error of an options class in a box, where names stay Python's.
        cause = stop.__context__ and stop.__context__.__context__
        leftover = re.search(r"Unrecognized options: (\S+)", said.getvalue())
        if leftover:
            cause = UserError(
                f"{leftover[1]} belongs to no option; put several words in quotes, such as 'two "
                f"words'. `{program} --help` lists the options."
            )
        if not isinstance(cause, UserError):
            raise
        said = io.StringIO()
        raise cause from None
    finally:
        if shown.getvalue():
            print(_wrapped(shown.getvalue()) if is_help else shown.getvalue(), end="")
        tell(said.getvalue(), end="")  # It may repeat words of the command line.


def _for_parser(command: Callable[..., None], types: Mapping[str, Any]) -> Callable[..., Call]:
    """A function with a command's arguments and help that returns the call.

    `types` are of arguments whose annotation names what only a type checker imports.
    """

    def later(**given: Any) -> Call:
        return functools.partial(command, **given)

    signature = inspect.signature(command)
    parameters = []
    for name, parameter in signature.parameters.items():
        parameters.append(parameter.replace(annotation=types.get(name, parameter.annotation)))
    # No functools.wraps: the parser would follow `__wrapped__` to the annotations of the command.
    later.__annotations__ = {**command.__annotations__, **types}
    later.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    # The parser would keep the line breaks within the help of an argument.
    later.__doc__ = (inspect.getdoc(command) or "").replace("\n" + 8 * " ", " ")
    return later


def _require_options(words: Sequence[str], lists: str, known: Mapping[str, str]) -> None:
    """Raise UserError for an unknown option.

    `lists` is the command that lists all. `known` has the names of options in Python; the value of
    a former name is the present one.
    """
    for word in words:
        given = _OPTION.match(word)
        if given is None:
            continue
        name = given[1].replace("-", "_")
        is_known = name.startswith("tyro_") or known.get(name.replace(".no_", "."), name) == ""
        if is_known and word.startswith("--"):
            continue
        names = sorted(one for one, now in known.items() if not now)
        meant = [known[name]] if known.get(name) else names_meant(name, names)
        near = did_you_mean(f"--{one.replace('_', '-')}" for one in meant)
        raise UserError(f"there is no option {given[0].rstrip('=')}{near} `{lists}` lists all.")


def _require_once(words: Sequence[str], kinds: Mapping[str, Any]) -> None:
    """Raise UserError for a repeated option of several values: the parser keeps the last ones."""
    names = [given[1].replace("-", "_") for given in map(_OPTION.match, words) if given]
    with _registry():
        for name, kind in kinds.items():
            if names.count(name) > 1 and _spec_of(kind).nargs == "*":
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{option} occurs twice; write all values after one {option}.")


def _wrapped(text: str) -> str:
    """The parser wraps its boxes to the terminal; wrap also what is before them."""
    width = shutil.get_terminal_size().columns
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        wrapped = textwrap.wrap(
            line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
        )
        lines += wrapped or [""]
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def options(
    command: Callable[..., None], types: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """A command's options: their names in Python and types, with the fields of its options classes.

    `types`: see `parse`.
    """
    kinds: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind = types.get(name, parameter.annotation)
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        if dataclasses.is_dataclass(kind):
            kinds |= {field.name: field.type for field in dataclasses.fields(kind)}
        else:
            kinds[name.strip("_")] = kind
    return kinds


def _registry() -> ConstructorRegistry:
    """Return tyro's types, and ours, whose messages show no annotation of Python."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def ours(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        parts = get_args(info.type)
        if info.type_origin is Literal:
            return _type(f"{{{','.join(parts)}}}", functools.partial(_as_choice, parts), str)
        if info.type_origin is tuple and Ellipsis in parts:
            one = _spec_of(parts[0])
            read = one.instance_from_str
            return _type(
                f"{one.metavar} ...",
                lambda words: tuple(read([word]) for word in words),
                tuple,
                lambda values: " ".join(map(str, values)),
                "*",
            )
        if info.type_origin in (Union, UnionType):
            return _optional(_spec_of(next(part for part in parts if part is not NoneType)))
        return _TYPES.get(info.type)

    return registry


def _optional(given: PrimitiveConstructorSpec[Any]) -> PrimitiveConstructorSpec[Any]:
    """Of X or None: the help shows X, and None as unset."""
    return dataclasses.replace(
        given,
        instance_from_str=lambda words: (
            None if words == ["None"] else given.instance_from_str(words)
        ),
        is_instance=lambda value: value is None or given.is_instance(value),
        str_from_instance=lambda value: (
            ["unset"] if value is None else given.str_from_instance(value)
        ),
    )


def _spec_of(kind: Any) -> PrimitiveConstructorSpec[Any]:
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, set()))
    assert isinstance(spec, PrimitiveConstructorSpec)
    return spec


def _as_choice(choices: Sequence[str], words: list[str]) -> str:
    if words[0] not in choices:
        raise ValueError(f"{words[0]!r} is not one of {', '.join(choices)}")
    return words[0]


def _as_number(kind: type[float], words: list[str]) -> float:
    try:
        return kind(words[0])
    except ValueError:
        rule = "a whole number, such as 1000" if kind is int else "a number, such as 0.5 or 40e9"
        raise ValueError(f"{words[0]!r} is not {rule}") from None


def _as_weights(words: list[str]) -> SplitWeights:
    try:
        train, valid, test = json.loads(f"[{words[0]}]")
    except ValueError:
        why = "needs three numbers, for train, valid and test, such as 8,1,1, or 8,1,0 without test"
        raise ValueError(f"{words[0]!r} {why}") from None
    return train, valid, test


def _as_units(words: list[str]) -> dict[int, float]:
    units = {}
    for word in words:
        unit, _, value = word.partition("=")
        try:
            number = int(unit)
            amount = float(value)
        except ValueError:
            raise ValueError(f"{word!r} is not UNIT=VALUE, such as 236=3") from None
        if number in units:
            raise ValueError(f"{word!r} gives unit {number} a second value")
        units[number] = amount
    return units


def _type(
    metavar: str,
    build: Callable[[list[str]], Any],
    kinds: Any,
    shown: Callable[[Any], str] = str,
    nargs: Any = 1,
) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs=nargs,
        metavar=metavar,
        instance_from_str=build,
        is_instance=lambda value: isinstance(value, kinds),
        str_from_instance=lambda value: [shown(value)],
    )


# tyro's message about a wrong word would show our annotations.
_TYPES: dict[Any, PrimitiveConstructorSpec[Any]] = {
    SplitWeights: _type("TRAIN,VALID,TEST", _as_weights, tuple, lambda x: ",".join(map(str, x))),
    Mapping[int, float]: _type("UNIT=VALUE ...", _as_units, Mapping, nargs="*"),
    str: _type("TEXT", "".join, str),
    int: _type("N", functools.partial(_as_number, int), int),
    float: _type("X", functools.partial(_as_number, float), (int, float)),
}
