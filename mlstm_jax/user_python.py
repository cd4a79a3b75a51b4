"""Run the Python of a user's own, a config or a sweep, and say where a mistake in it is."""

import dataclasses
import re
import runpy
import traceback
from pathlib import Path
from typing import Any

from mlstm_jax.errors import KnownError, UserError
from mlstm_jax.suggestion import nearest, question

_UNKNOWN_FIELD = re.compile(
    r"(?P<kind>\w+)\.__init__\(\) got an unexpected keyword argument '(?P<field>\w+)'"
)


def run(path: Path, what: str) -> dict[str, Any]:
    """Return the names that a file sets.

    Args:
        path: a .py file that is there.
        what: "config" or "sweep", for messages.

    Raises:
        UserError: the file is not Python, or raises an error; the message names the line.
    """
    if path.suffix != ".py":
        raise UserError(
            f"{path} is not a {what}: that is a Python file, its name ends in .py. If {path} is "
            f"text to train on, make a corpus with `mlstm-jax prepare {path} --out corpora/mine` "
            "and name it with --data.corpus corpora/mine."
        )
    try:
        return runpy.run_path(str(path))
    except KnownError:
        raise
    except SyntaxError as error:
        place = f"{error.filename or path}{f', line {error.lineno}' if error.lineno else ''}"
        raise UserError(f"{place} is not Python: {error.msg}.") from error
    except Exception as error:
        raise UserError(f"{_place(path, error)}: {_explained(error)}") from error


def _place(path: Path, error: Exception) -> str:
    """Return the file and the last line of it that led to an error."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _explained(error: Exception) -> str:
    """Return an error's own words; for an unknown field, the names that resemble it."""
    from mlstm_jax import config

    found = _UNKNOWN_FIELD.match(str(error)) if isinstance(error, TypeError) else None
    kind = getattr(config, found["kind"], None) if found else None
    if not found or not dataclasses.is_dataclass(kind):
        return f"{type(error).__name__}: {error}"
    names = [field.name for field in dataclasses.fields(kind)]
    near = question(nearest(found["field"], names)) or f"; its fields are {', '.join(names)}."
    return f"{found['kind']} has no field {found['field']!r}{near}"
