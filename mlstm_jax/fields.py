"""The fields of options: their types and ranges are data, checked here; and build them from JSON.

A field is int, float, bool, str, Literal of strings, another dataclass, or a list, tuple or dict of
these; each may allow None. ``Annotated[int, Between(1, 2**20)]`` has a range, too.
"""

import dataclasses
import functools
import inspect
import json
import math
import reprlib
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as type_hints

from mlstm_jax.errors import UserError, require

Built = TypeVar("Built")

_RULES = {
    int: "a whole number of at most 64 bits",
    float: "a number",
    bool: "true or false",
    str: "a string",
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
            return low if self.ends[1] == "]" else f"{low}, and finite"
        return f"{low} and {'at most' if self.ends[1] == ']' else 'below'} {self.most:,}"


Count = Annotated[int, Between(1)]
Positive = Annotated[float, Between(0, ends="()")]
Fraction = Annotated[float, Between(0, 1, "[)")]


class Wrong(UserError):
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
        raise Wrong(f"not JSON: {error}") from error


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
            raise Wrong(f"there is no field {reprlib.repr(prefix + str(key))}")
    for key, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is parameter.empty and key not in values:
            raise Wrong(f"{prefix}{key} is missing")
    parts = {key: _converted(types[key], value, prefix + key) for key, value in values.items()}
    try:
        return kind(**parts)
    except UserError as error:
        raise Wrong(str(error).rstrip(".")) from error


def _converted(kind: Any, value: Any, name: str) -> Any:
    """Return a value of JSON as `kind`, or raise Wrong."""
    origin, inner = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return build(kind, value, name)  # type: ignore[arg-type]
    if origin in (Union, UnionType):
        return None if value is None else _converted(_not_none(inner), value, name)
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
    if rule := _broken_rule(kind, value):
        raise _wrong(name, value, rule)
    return value


def require_valid(section: Any, name: str = "") -> None:
    """Raise UserError unless each field of a dataclass has its type and is in its range.

    Python does not check this; "3" for 3 would fail much later. A subclass counts as its type, such
    as NumPy's float64 as a float.

    Args:
        section: the dataclass.
        name: its name in messages, such as "data"; empty for a whole config.
    """
    of: Any = type(section)
    for key, kind in _types(of).items():
        value = getattr(section, key)
        rule = _broken_rule(kind, value)
        require(rule is None, f"{name}.{key}" if name else key, value, str(rule))


@functools.cache
def _types(kind: Any) -> dict[str, Any]:
    hints = type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _not_none(parts: tuple[Any, ...]) -> Any:
    return next(part for part in parts if part is not NoneType)


def _broken_rule(kind: Any, value: Any) -> str | None:
    """Return what a value must be, or None if it is of its kind."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        rule = _broken_rule(inner[0], value)
        ranges = [part for part in inner[1:] if isinstance(part, Between)]
        if rule is None and value is not None:
            rule = next((one.rule for one in ranges if not one.holds(value)), None)
        return rule
    if origin in (Union, UnionType):
        return None if value is None else _broken_rule(_not_none(inner), value)
    if origin is Literal:
        return None if value in inner else f"one of {', '.join(inner)}"
    if origin is tuple:
        right = isinstance(value, tuple) and not any(_broken_rule(inner[0], one) for one in value)
        return None if right else f"a tuple of {inner[0].__name__}"
    # In Python a bool is an int; people write 1 for a float.
    right = isinstance(value, (int, float) if kind is float else (kind,))
    if isinstance(value, bool) and kind is not bool:
        right = False
    if right and isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        right = False
    return None if right else _RULES.get(kind, f"a {kind.__name__}")


def _wrong(name: str, value: object, rule: str) -> Wrong:
    return Wrong(f"{name} is {reprlib.repr(value)}, but it must be {rule}")
