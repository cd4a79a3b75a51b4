"""Build dataclasses from untrusted JSON: every name and every type is checked."""

import dataclasses
import functools
import inspect
import json
import reprlib
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mlstm_jax.errors import UserError, require

Made = TypeVar("Made")

_RULES = {
    int: "a whole number of at most 64 bits",
    float: "a number",
    bool: "true or false",
    str: "a string",
}


class Wrong(UserError):
    """The message states which field is wrong and what it must be; the caller adds the file."""


def parse(text: str | bytes) -> Any:
    """Parse a JSON text; raise Wrong if it is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"not JSON: {error}") from error


def build(kind: type[Made], values: object, name: str = "") -> Made:
    """Return a dataclass or NamedTuple built from a parsed JSON object.

    Its fields may be int, float, bool, str, Literal of strings, another dataclass, and lists,
    tuples and dicts of these; each may also allow None. A field with a default may be absent.

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
        chosen, values = values.get("kind", kind.usual), dict(values)  # type: ignore[attr-defined]
        if chosen not in list(kinds):
            raise _wrong(f"{prefix}kind", chosen, f"one of {', '.join(sorted(kinds))}")
        kind = kinds[chosen]
        values.pop("kind", None)
    types = get_type_hints(kind)
    for key in values:
        if key not in types:
            raise Wrong(f"there is no field {reprlib.repr(prefix + str(key))}")
    for key, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is parameter.empty and key not in values:
            raise Wrong(f"{prefix}{key} is missing")
    made = {key: _checked(types[key], value, prefix + key) for key, value in values.items()}
    try:
        return kind(**made)
    except UserError as error:
        raise Wrong(str(error).rstrip(".")) from error


def _checked(kind: Any, value: Any, name: str) -> Any:
    """Return a value as `kind`, or raise Wrong."""
    origin, inner = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return build(kind, value, name)  # type: ignore[arg-type]
    if origin in (Union, UnionType):
        some = next(part for part in inner if part is not NoneType)
        return None if value is None else _checked(some, value, name)
    if origin is Literal:
        if isinstance(value, str) and value in inner:
            return value
        raise _wrong(name, value, f"one of {', '.join(inner)}")
    if origin is dict:
        if isinstance(value, dict):
            return {key: _checked(inner[1], item, f"{name}.{key}") for key, item in value.items()}
        raise _wrong(name, value, "an object")
    if origin in (list, tuple):
        if not isinstance(value, list):
            raise _wrong(name, value, "a list")
        if origin is list or inner[-1] is Ellipsis:
            inner = inner[:1] * len(value)
        if len(value) != len(inner):
            raise _wrong(name, value, f"a list of {len(inner)}")
        parts = zip(inner, value, strict=True)
        return origin(_checked(part, item, f"{name}[{n}]") for n, (part, item) in enumerate(parts))
    # In Python a bool is an int; people write 1 for a float.
    right = type(value) is kind or (kind is float and type(value) is int)
    if not right or (type(value) is int and not -(2**63) <= value < 2**63):
        raise _wrong(name, value, _RULES[kind])
    return value


def require_types(section: Any, name: str = "") -> None:
    """Raise UserError unless each field of a dataclass has its declared type.

    Python does not check this; "3" for 3 would fail much later. A subclass counts as its type, such
    as NumPy's float64 as a float.

    Args:
        section: the dataclass; its fields are int, float, str, bool, Literal of strings, a
            dataclass, or a tuple of dataclasses; each may allow None.
        name: its name in messages, such as "data"; empty for a whole config.
    """
    of: Any = type(section)
    for key, kind in _types(of).items():
        value = getattr(section, key)
        rule = _broken_rule(kind, value)
        require(rule is None, f"{name}.{key}" if name else key, value, str(rule))


@functools.cache
def _types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _broken_rule(kind: Any, value: Any) -> str | None:
    """Return what a value must be, or None if it is of its kind."""
    inner = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        some = next(part for part in inner if part is not NoneType)
        return None if value is None else _broken_rule(some, value)
    if get_origin(kind) is Literal:
        return None if value in inner else f"one of {', '.join(inner)}"
    if get_origin(kind) is tuple:
        right = isinstance(value, tuple) and not any(_broken_rule(inner[0], v) for v in value)
        return None if right else f"a tuple of {inner[0].__name__}"
    accepted = (int, float) if kind is float else (kind,)
    # In Python a bool is an int.
    if isinstance(value, accepted) and (kind is bool or not isinstance(value, bool)):
        return None
    return "an int" if kind is int else _RULES.get(kind, f"a {kind.__name__}")


def _wrong(name: str, value: object, rule: str) -> Wrong:
    return Wrong(f"{name} is {reprlib.repr(value)}, but it must be {rule}")
