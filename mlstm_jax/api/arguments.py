"""Check the arguments of public functions, and name them in messages as Python does."""

import functools
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from numbers import Integral, Real
from pathlib import Path
from typing import ParamSpec, TypeVar

from mlstm_jax.config import Config, load_file
from mlstm_jax.errors import KnownError, UserError

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

# An option of the command line: --text-column, --data.corpus.
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:[-.][a-z0-9]+)*)")


def in_python(text: str) -> str:
    """Return a message with command-line options, except those of commands, as arguments."""
    parts = text.split("`")
    for n, part in enumerate(parts):
        is_command = n % 2 == 1 and part.startswith("mlstm-jax")
        if not is_command:
            parts[n] = _OPTION.sub(lambda found: found[1].replace("-", "_"), part)
    return "`".join(parts)


def public(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Make error messages of a function name arguments instead of command-line options."""

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except KnownError as error:
            error.args = (in_python(str(error)), *error.args[1:])
            raise

    return wrapped


def as_texts(texts: Iterable[str], name: str = "texts") -> list[str]:
    """Return texts as a list.

    Raises:
        UserError: `texts` is a single string, which would be read letter by letter; or a table, a
            dict or a set, which would give other texts than those meant; or an item is not a
            string.
    """
    kind = type(texts).__name__
    if isinstance(texts, (str, bytes)):
        raise UserError(f"{name} is a single {kind}; give a list of texts, [text].")
    is_table = hasattr(texts, "columns") or getattr(texts, "ndim", 1) != 1
    if is_table or isinstance(texts, (Mapping, Set)) or not isinstance(texts, Iterable):
        hint = ", such as one column of the table" if is_table else ""
        raise UserError(f"{name} has type {kind}, but it must be a list of texts{hint}.")
    found = list(texts)
    wrong = next((n for n, text in enumerate(found) if not isinstance(text, str)), None)
    if wrong is not None:
        raise UserError(
            f"{name}[{wrong}] has type {type(found[wrong]).__name__}, but it must be a str."
        )
    return found


def as_config(config: Config | str | Path) -> Config:
    """Return a config, or that of a file, which is executed.

    Raises:
        UserError: it is neither, or the file does not exist or has an error.
    """
    if isinstance(config, (str, Path)):
        return load_file(config)
    if not isinstance(config, Config):
        raise UserError(f"config has type {type(config).__name__}, but it must be a Config.")
    return config


def one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise UserError unless a value is one of the allowed ones."""
    if value not in allowed:
        shown = ", ".join(repr(one) for one in allowed)
        raise UserError(f"{name} is {value!r}, but it must be one of {shown}.")


def at_least(name: str, value: int, least: int) -> None:
    """Raise UserError unless a value is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise UserError(f"{name} is {value!r}, but it must be an integer of at least {least}.")


def has_type(kind: type[str | int | float], *, optional: bool = False, **values: object) -> None:
    """Raise UserError unless each value has a type; NumPy's numbers are int or float, too."""
    words, wanted = {
        str: ("a str", str),
        int: ("an integer", Integral),
        float: ("a number", Real),
    }[kind]
    for name, value in values.items():
        if value is None and optional:
            continue
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise UserError(f"{name} is {reprlib.repr(value)}, but it must be {words}.")
