"""What the project says of itself in several files is the same in all."""

import re
import tomllib
from pathlib import Path

import mlstm_jax
from tests import xla_flags

REPOSITORY = Path(__file__).parent.parent


def test_one_version() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "mlstm_jax/__init__.py"
    citation = (REPOSITORY / "CITATION.cff").read_text()
    assert re.findall(r"(?m)^version: (.*)$", citation) == [mlstm_jax.__version__]
    newest, *_ = re.findall(r"(?m)^## \[(.*)\]", (REPOSITORY / "CHANGELOG.md").read_text())
    assert newest == mlstm_jax.__version__


def test_names_in_messages() -> None:
    for path in (REPOSITORY / "mlstm_jax").rglob("*.py"):
        found = re.findall(r"-e '\.|bin/activate|configs/\w+", path.read_text())
        assert not found, f"{path}: {found}"


def test_flags_of_xla() -> None:
    paths = [REPOSITORY / "Makefile", *REPOSITORY.glob("*.md"), *REPOSITORY.glob(".ci/*")]
    for folder in ("mlstm_jax", "benchmarks", "results", "docs"):
        paths += (REPOSITORY / folder).rglob("*.py")
        paths += (REPOSITORY / folder).rglob("*.md")
    found: set[str] = set()
    for path in paths:
        found.update(re.findall(r"--xla_\w+", path.read_text(encoding="utf-8")))
    assert "--xla_gpu_deterministic_ops" in found
    assert xla_flags.unknown(" ".join(found)) == []
