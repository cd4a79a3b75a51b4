"""Check values against annotations, of fields and arguments; and build dataclasses from JSON.

A field is int, float, bool, str, Literal of strings, another dataclass, or a list, tuple or dict of
these; each may allow None. ``Annotated[int, Between(1, 2**20)]`` has a range, too;
``Annotated[..., "a file"]`` its rule in words.
"""

import dataclasses
import functools
import inspect
import json
import math
import reprlib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar, Union

from mlstm_jax.errors import UserError

Built = TypeVar("Built")
Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    NoneType: "None",
    Sequence: "a list",
    Callable: "a function",
}
_LARGEST = 2**63
_hints: Callable[[Any], dict[str, Any]] = functools.cache(
    functools.partial(typing.get_type_hints, include_extras=True)
)
_END = {"[": "at least", "(": "above", "]": "at most", ")": "below"}


class Between(NamedTuple):
    """The range of a number. `ends` says which ends belong to it: "[)" only the lower one."""

    least: float
    most: float = math.inf
    ends: Literal["[]", "[)", "(]", "()"] = "[]"

    def holds(self, value: float) -> bool:
        """Whether a number is in the range; NaN is in none."""
        inside = self.least < value < self.most
        at_least = value == self.least and self.ends[0] == "["
        at_most = value == self.most and self.ends[1] == "]"
        return inside or at_least or at_most

    @property
    def rule(self) -> str:
        """The range in words."""
        if self.least == self.most:
            return f"{self.least:,}"
        if self.ends == "[]" and self.most < math.inf:
            return f"{self.least:,} to {self.most:,}"
        rule = f"{_END[self.ends[0]]} {self.least:,}"
        if self.most < math.inf:
            return f"{rule} and {_END[self.ends[1]]} {self.most:,}"
        return rule if self.ends[1] == "]" else f"{rule} and finite"


Count = Annotated[int, Between(1)]
Positive = Annotated[float, Between(0, ends="()")]
# JAX builds its keys from the last 32 bits, so two larger seeds could give the same key.
Seed = Annotated[int, Between(0, 2**32 - 1)]
Fraction = Annotated[float, Between(0, 1, "[)")]


class InvalidField(UserError):
    """The message states which field is wrong and what it must be; the caller adds the file."""


class Checked:
    """The base of a dataclass whose fields are checked; `section` is its name in messages."""

    _section = ""

    def __init_subclass__(cls, section: str = "") -> None:
        cls._section = section or cls._section

    def __post_init__(self) -> None:
        require_valid(self, self._section)


@contextmanager
def named(what: str, advice: str = "") -> Iterator[None]:
    """Convert an InvalidField of the block into a UserError: what it is in, and what to do."""
    try:
        yield
    except InvalidField as error:
        raise UserError(f"{what} ({error}){advice}.") from error


def parse(text: str | bytes) -> Any:
    """Parse a JSON text; InvalidField if it is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidField(f"not JSON: {error}") from error


def build(kind: type[Built], values: object, name: str = "") -> Built:
    """A dataclass or NamedTuple built from a parsed JSON object; InvalidField if it does not fit.

    A field with a default may be absent. Of a class with a dict `kinds` the field "kind" names one.
    In messages the object is `name`, such as "model"; it is empty for a whole file.
    """
    if not isinstance(values, Mapping):
        raise _invalid(name or "the top level", values, "an object with named fields")
    prefix = f"{name}." if name else ""
    values = dict(values)
    kinds = vars(kind).get("kinds")
    if kinds:
        chosen = values.pop("kind", kind.default_kind)  # type: ignore[attr-defined]
        if chosen not in list(kinds):
            raise _invalid(f"{prefix}kind", chosen, f"one of {', '.join(sorted(kinds))}")
        kind = kinds[chosen]
    types = _hints(kind)
    parts = {}
    for key, value in values.items():
        if key not in types:
            raise InvalidField(f"there is no field {reprlib.repr(prefix + str(key))}")
        parts[key] = _converted(types[key], value, prefix + key)
    for key, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is parameter.empty and key not in values:
            raise InvalidField(f"{prefix}{key} is missing")
    try:
        return kind(**parts)
    except UserError as error:
        raise InvalidField(str(error).rstrip(".")) from error


def _converted(kind: Any, value: Any, name: str) -> Any:
    """A value of JSON as `kind`; InvalidField if it does not fit."""
    if typing.get_origin(kind) in (Union, UnionType) and value is not None:
        kind = next(part for part in typing.get_args(kind) if part is not NoneType)
    origin = typing.get_origin(kind)
    inner = typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return build(kind, value, name)  # type: ignore[arg-type]
    if origin is dict and isinstance(value, dict):
        return {key: _converted(inner[1], part, f"{name}.{key}") for key, part in value.items()}
    if origin in (list, tuple) and isinstance(value, list):
        parts = []
        for number, part in enumerate(value):
            parts.append(_converted(inner[0], part, f"{name}[{number}]"))  # all of one type
        value = origin(parts)
    rule = broken_rule(kind, value)
    if rule:
        raise _invalid(name, value, rule)
    return value


def require_valid(section: Any, name: str = "") -> None:
    """Raise UserError unless each field of a dataclass has its type and is in its range.

    A number of NumPy becomes Python's. In messages the dataclass is `name`, such as "data"; it is
    empty for a whole config.
    """
    prefix = f"{name}." if name else ""
    hints = _hints(type(section))
    for field in dataclasses.fields(section):
        value = _plain(getattr(section, field.name))
        require_kind(prefix + field.name, value, hints[field.name])
        object.__setattr__(section, field.name, value)


def _plain(value: Any) -> Any:
    """A number, bool or string of NumPy as Python's, also in a tuple."""
    if type(value) is tuple:
        return tuple(map(_plain, value))
    if getattr(value, "shape", None) == ():
        return value.item()
    return value


def require_kind(name: str, value: Any, kind: Any) -> None:
    """Raise UserError unless a value has the type of an annotation, and is in its range."""
    rule = broken_rule(kind, value)
    if rule:
        raise UserError(f"{_invalid(name, value, rule)}.")


def public(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Check the types of a function's arguments."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # raises Python's own error, which names the function
        for name, value in given.items():
            require_kind(name, value, function.__annotations__.get(name, Any))
        return function(*args, **kwargs)

    return wrapped


def broken_rule(kind: Any, value: Any) -> str | None:
    """What a value must be, in words, or None if its annotation allows it.

    NumPy's numbers count as numbers. What is in a Sequence or an Iterable is not examined.
    """
    origin: Any = typing.get_origin(kind) or kind
    inner = typing.get_args(kind)
    value = _plain(value)
    if origin is Annotated:
        rule = broken_rule(inner[0], value)
        for part in inner[1:]:
            if rule is None and isinstance(part, Between) and not part.holds(value):
                rule = part.rule
            elif rule and isinstance(part, str):
                rule = part
        return rule
    if origin in (Union, UnionType):
        rules = [broken_rule(part, value) for part in inner]
        if None in rules:
            return None
        return " or ".join(map(str, rules))
    if origin is Literal:
        if isinstance(value, str) and value in inner:
            return None
        return f"one of {', '.join(inner)}"
    if origin in (Any, Iterable) or not isinstance(origin, type):
        return None
    rule = _WORDS.get(origin, f"a {origin.__name__}")
    fits = isinstance(value, origin)
    if origin is Sequence:  # a pandas Series, too
        fits = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping, Set))
    elif origin in (int, float):
        # People write 1 for a float, and in Python a bool is an int.
        fits = isinstance(value, (int, origin)) and not isinstance(value, bool)
        if fits and isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            fits = False
            rule = f"{rule} of at most 64 bits"
    elif origin in (dict, Mapping):
        fits = fits and not any(any(map(broken_rule, inner, pair)) for pair in value.items())
        rule = f"a dict from {_words(inner[0])} to {_words(inner[1])}"
    elif origin is tuple:
        rule = f"a tuple ({', '.join(map(_words, inner))})"
        if fits and Ellipsis in inner:
            inner = inner[:1] * len(value)
        fits = fits and len(value) == len(inner) and not any(map(broken_rule, inner, value))
    return None if fits else rule


def _words(kind: Any) -> str:
    """An annotation in words."""
    if kind is Ellipsis:
        return "..."
    return broken_rule(kind, object()) or "any value"


def _invalid(name: str, value: object, rule: str) -> InvalidField:
    shown = reprlib.repr(value)
    if "\n" in shown:  # a table
        shown = f"a {type(value).__name__}"
    return InvalidField(f"{name} is {shown}, but it must be {rule}")
