"""Check values against annotations, of fields and arguments; and build dataclasses from JSON.

A field is int, float, bool, str, Literal of strings, another dataclass, or a list, tuple or dict of
these; each may allow None. ``Annotated[int, Between(1, 2**20)]`` has a range, too.
"""

import dataclasses
import functools
import inspect
import json
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as type_hints

from mlstm_jax.errors import UserError

Built = TypeVar("Built")

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


class Between(NamedTuple):
    """The range of a number. `ends` says which ends belong to it: "[)" only the lower one."""

    least: float
    most: float = math.inf
    ends: Literal["[]", "[)", "(]", "()"] = "[]"

    def holds(self, value: float) -> bool:
        """Return whether a number is in the range; NaN is in none."""
        above = value >= self.least if self.ends[0] == "[" else value > self.least
        return above and (value <= self.most if self.ends[1] == "]" else value < self.most)

    @property
    def rule(self) -> str:
        """The range in words."""
        if self.ends == "[]" and self.most < math.inf:
            return f"{self.least:,} to {self.most:,}"
        low = f"{'at least' if self.ends[0] == '[' else 'above'} {self.least:,}"
        if self.most == math.inf:
            return low if self.ends[1] == "]" else f"{low} and finite"
        return f"{low} and {'at most' if self.ends[1] == ']' else 'below'} {self.most:,}"


Count = Annotated[int, Between(1)]
Positive = Annotated[float, Between(0, ends="()")]
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


def parse(text: str | bytes) -> Any:
    """Parse a JSON text; raise Wrong if it is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidField(f"not JSON: {error}") from error


def build(kind: type[Built], values: object, name: str = "") -> Built:
    """Return a dataclass or NamedTuple built from a parsed JSON object.

    A field with a default may be absent.

    Args:
        kind: the class to build; or one with a dict `kinds`, of which the field "kind" names one.
        values: the object: values by field name.
        name: the object's name in messages, such as "model"; empty for a whole file.

    Raises:
        Wrong: a field is unknown, missing, of the wrong type, or refused by `kind` itself.
    """
    if not isinstance(values, Mapping):
        raise _wrong(name or "the top level", values, "an object with named fields")
    prefix = f"{name}." if name else ""
    if kinds := vars(kind).get("kinds"):
        chosen, values = values.get("kind", kind.default_kind), dict(values)  # type: ignore[attr-defined]
        if chosen not in list(kinds):
            raise _wrong(f"{prefix}kind", chosen, f"one of {', '.join(sorted(kinds))}")
        kind = kinds[chosen]
        values.pop("kind", None)
    types = type_hints(kind, include_extras=True)
    for key in values:
        if key not in types:
            raise InvalidField(f"there is no field {reprlib.repr(prefix + str(key))}")
    for key, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is parameter.empty and key not in values:
            raise InvalidField(f"{prefix}{key} is missing")
    parts = {key: _converted(types[key], value, prefix + key) for key, value in values.items()}
    try:
        return kind(**parts)
    except UserError as error:
        raise InvalidField(str(error).rstrip(".")) from error


def _converted(kind: Any, value: Any, name: str) -> Any:
    """Return a value of JSON as `kind`, or raise Wrong."""
    origin, inner = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return build(kind, value, name)  # type: ignore[arg-type]
    if origin in (Union, UnionType):
        return (
            None
            if value is None
            else _converted(next(one for one in inner if one is not NoneType), value, name)
        )
    if origin is dict:
        if isinstance(value, dict):
            return {key: _converted(inner[1], one, f"{name}.{key}") for key, one in value.items()}
        raise _wrong(name, value, "an object")
    if origin in (list, tuple):
        if not isinstance(value, list):
            raise _wrong(name, value, "a list")
        if origin is list or inner[-1] is Ellipsis:
            inner = inner[:1] * len(value)
        if len(value) != len(inner):
            raise _wrong(name, value, f"a list of {len(inner)}")
        parts = enumerate(zip(inner, value, strict=True))
        return origin(_converted(part, item, f"{name}[{n}]") for n, (part, item) in parts)
    if rule := broken_rule(kind, value):
        raise _wrong(name, value, rule)
    return value


def require_valid(section: Any, name: str = "") -> None:
    """Raise UserError unless each field of a dataclass has its type and is in its range.

    Python does not check this; "3" for 3 would fail much later. A number of NumPy becomes Python's.

    Args:
        section: the dataclass.
        name: its name in messages, such as "data"; empty for a whole config.
    """
    of: Any = type(section)
    for key, kind in _types(of).items():
        value = _plain(getattr(section, key))
        require_kind(f"{name}.{key}" if name else key, value, kind)
        object.__setattr__(section, key, value)


@functools.cache
def _types(kind: Any) -> dict[str, Any]:
    hints = type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _plain(value: Any) -> Any:
    """Return a number, bool or string of NumPy as Python's, also in a tuple."""
    if type(value) is tuple:
        return tuple(map(_plain, value))
    return value.item() if getattr(value, "shape", None) == () else value


def require_kind(name: str, value: Any, kind: Any) -> None:
    """Raise UserError unless a value has the type of an annotation, and is in its range."""
    if rule := broken_rule(kind, value):
        raise UserError(f"{_wrong(name, value, rule)}.")


def broken_rule(kind: Any, value: Any) -> str | None:
    """Return what a value must be, in words, or None if its annotation allows it.

    NumPy's numbers count as numbers. What is in a Sequence or an Iterable is not examined.
    """
    origin: Any = get_origin(kind) or kind
    value, inner = _plain(value), get_args(kind)
    if origin is Annotated:
        ranges = (part for part in inner[1:] if isinstance(part, Between))
        broken = (one.rule for one in ranges if not one.holds(value))
        return broken_rule(inner[0], value) or next(broken, None)
    if origin in (Union, UnionType):
        rules = [broken_rule(one, value) for one in inner]
        return None if None in rules else " or ".join(map(str, rules))
    if origin is Literal:
        fits = isinstance(value, str) and value in inner
        return None if fits else f"one of {', '.join(inner)}"
    if origin in (Any, Iterable) or not isinstance(origin, type):
        return None
    rule = _WORDS.get(origin) or f"a {origin.__name__}"
    if origin is Sequence:  # a pandas Series, too
        fits = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping, Set))
    elif origin in (int, float):
        # People write 1 for a float, and in Python a bool is an int.
        fits = isinstance(value, (int, origin)) and not isinstance(value, bool)
        if fits and isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            fits, rule = False, f"{rule} of at most 64 bits"
    else:
        fits = isinstance(value, origin)
    if origin in (dict, Mapping):
        fits = fits and not any(any(map(broken_rule, inner, pair)) for pair in value.items())
        rule = f"a dict from {_words(inner[0])} to {_words(inner[1])}"
    elif origin is tuple:
        kinds = inner[:1] * len(value) if fits and Ellipsis in inner else inner
        fits = fits and len(value) == len(kinds) and not any(map(broken_rule, kinds, value))
        rule = f"a tuple ({', '.join(map(_words, inner))})"
    return None if fits else rule


def _words(kind: Any) -> str:
    """Return an annotation in words."""
    return "..." if kind is Ellipsis else broken_rule(kind, object()) or "any value"


def _wrong(name: str, value: object, rule: str) -> InvalidField:
    shown = reprlib.repr(value)
    if "\n" in shown:  # a table
        shown = f"a {type(value).__name__}"
    return InvalidField(f"{name} is {shown}, but it must be {rule}")
