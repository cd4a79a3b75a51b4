"""Run a user's Python file, a config or a sweep, and report the line of an error in it."""

import dataclasses
import re
import runpy
import traceback
from pathlib import Path
from typing import Any

from mlstm_jax.errors import KnownError, UserError, nearest, question

_UNKNOWN_FIELD = re.compile(
    r"(?P<kind>\w+)\.__init__\(\) got an unexpected keyword argument '(?P<field>\w+)'"
)


def run(path: Path, what: str) -> dict[str, Any]:
    """Run a file, and return the names that it sets.

    Args:
        path: an existing file; its name must end in .py.
        what: "config" or "sweep", for messages.

    Raises:
        UserError: the file is not valid Python, or raises an error; the message names the line.
    """
    if path.suffix != ".py":
        raise UserError(
            f"{path} is not a {what}, which must be a Python file (.py). If {path} is text to "
            f"train on, make a corpus with `mlstm-jax prepare {path} --out corpora/mine` and pass "
            "`data.corpus=corpora/mine`."
        )
    try:
        return runpy.run_path(str(path))
    except UserError as error:
        place = _place(path, error)
        raise UserError(str(error) if place == str(path) else f"{place}: {error}") from error
    except KnownError:
        raise
    except SyntaxError as error:
        place = f"{error.filename or path}{f', line {error.lineno}' if error.lineno else ''}"
        raise UserError(f"{place} is not valid Python: {error.msg}.") from error
    except Exception as error:
        raise UserError(f"{_place(path, error)}: {_explained(error)}") from error


def _place(path: Path, error: Exception) -> str:
    """Return the file, and its last line in the traceback of an error."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _explained(error: Exception) -> str:
    """Return an error's type and message; for an unknown field, similar names."""
    match = _UNKNOWN_FIELD.match(str(error)) if isinstance(error, TypeError) else None
    # The class is a name of the file, or of a module that it calls.
    frames = [frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__)]
    kinds = [names[match["kind"]] for names in frames if match and match["kind"] in names]
    kind = kinds[-1] if kinds else None
    if not match or not dataclasses.is_dataclass(kind):
        return f"{type(error).__name__}: {error}"
    names = [field.name for field in dataclasses.fields(kind)]
    near = question(nearest(match["field"], names)) or f"; its fields are {', '.join(names)}."
    return f"{match['kind']} has no field {match['field']!r}{near}"
