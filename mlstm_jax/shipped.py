"""Find the configs, sweeps, machines and XLA flags that come with the package by their names.

In a clone they are in configs/, next to the package; in a wheel they are inside it.
"""

import ast
import json
from pathlib import Path
from typing import Literal, get_args

from mlstm_jax import suggestion
from mlstm_jax.errors import UserError

Kind = Literal["config", "sweep", "machine", "flags"]

_PATTERNS: dict[Kind, str] = {
    "config": "*.py",
    "sweep": "sweeps/*.py",
    "machine": "machines/*.json",
    "flags": "xla_flags/*.txt",
}


def folder() -> Path:
    """Return the folder of the package's files."""
    package = Path(__file__).parent
    in_wheel = package / "configs"
    return in_wheel if in_wheel.is_dir() else package.parent / "configs"


def files(*kinds: Kind) -> dict[str, Path]:
    """Return the package's files of some kinds (default: all), sorted by name within a kind."""
    return {
        path.stem: path
        for kind in kinds or get_args(Kind)
        for path in sorted(folder().glob(_PATTERNS[kind]))
    }


def find(path: Path, kind: Kind) -> Path:
    """Return the path if it is a file, otherwise the package's file with that bare name.

    Raises:
        UserError: neither exists.
    """
    known = files(kind)
    if path.is_file() or (str(path) not in known and path.exists()):
        return path
    if str(path) in known:
        return known[str(path)]
    near = suggestion.question(suggestion.nearest(path.stem, known)) or "."
    raise UserError(
        f"{path} does not exist, and the package has no {kind} of that name{near} "
        "`mlstm-jax configs` lists all names."
    )


def summary(path: Path) -> str:
    """Return a one-line summary of one of the package's files."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    if path.suffix == ".json":
        return str(json.loads(text)["name"])
    return text.strip()
