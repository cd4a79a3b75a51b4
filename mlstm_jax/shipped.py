"""The configs, sweeps, machines and XLA flags that come with the package, found by their names.

A clone has them in configs/, beside the package; a wheel has them inside it.
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
    """Return the folder of all shipped files."""
    package = Path(__file__).parent
    in_wheel = package / "configs"
    return in_wheel if in_wheel.is_dir() else package.parent / "configs"


def files(*kinds: Kind) -> dict[str, Path]:
    """Return the shipped files of some kinds, by default of all, sorted by name within a kind."""
    return {
        path.stem: path
        for kind in kinds or get_args(Kind)
        for path in sorted(folder().glob(_PATTERNS[kind]))
    }


def find(path: Path, kind: Kind) -> Path:
    """Return the path where it is a file, else the shipped file of that bare name.

    Raises:
        UserError: it is neither.
    """
    known = files(kind)
    if path.is_file() or (str(path) not in known and path.exists()):
        return path
    if str(path) in known:
        return known[str(path)]
    near = suggestion.question(suggestion.nearest(path.stem, known)) or "."
    raise UserError(
        f"{path} does not exist, and the package has no {kind} of that name{near} "
        "`mlstm-jax configs` lists what it has."
    )


def summary(path: Path) -> str:
    """Return one line that says what a shipped file is."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    if path.suffix == ".json":
        return str(json.loads(text)["name"])
    return text.strip()
