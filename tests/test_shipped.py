"""The files that come with the package, by their names; what several files say of it is one."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

import mlstm_jax
from mlstm_jax import config, shipped
from mlstm_jax.errors import UserError
from mlstm_jax.planning import load_machine
from mlstm_jax.training import sweep
from tests import xla_flags

REPOSITORY = Path(__file__).parent.parent
FOLDER = REPOSITORY / "configs"


def test_names_of_files() -> None:
    kinds = set(get_args(shipped.Kind)) - {"model"}
    found = [path for kind in kinds for path in shipped.files(kind).values()]
    assert {path.relative_to(FOLDER) for path in found} == {
        path.relative_to(FOLDER)
        for path in FOLDER.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(shipped.files()) == len(found) + len(shipped.files("model"))


def test_names_of_kinds(tmp_path, monkeypatch) -> None:
    assert config.load_file("small_512") == config.load_file(FOLDER / "small_512.py")
    assert len(sweep.load_sweep(Path("puri_fig5"))) > 1
    assert load_machine(Path("h200")) == load_machine(FOLDER / "machines/h200.json")
    with pytest.raises(UserError, match="puri_fig5 does not exist, and the package has no config"):
        config.load_file("puri_fig5")
    # A file goes before a name, and a name before a folder.
    monkeypatch.chdir(tmp_path)
    Path("small_512").mkdir()
    assert shipped.find(Path("small_512"), "config") == FOLDER / "small_512.py"
    Path("tuned_512").write_text("")
    assert shipped.find(Path("tuned_512"), "config") == Path("tuned_512")


def test_folder_with_a_models_name(tmp_path, monkeypatch) -> None:
    """Only a run or a classifier stands for the pretrained model of its name."""
    monkeypatch.chdir(tmp_path)
    path = Path("sentiment")
    places = [shipped.model(path), shipped.classifier(path)]
    (path / "sentiment").mkdir(parents=True)
    shipped.require_model(path)
    assert [shipped.model(path), shipped.classifier(path)] == places
    for name in ("config.json", "classifier.json"):
        (path / name).touch()
        assert shipped.model(path) == path
        assert shipped.classifier(path) is None
        (path / name).unlink()


def test_list_of_files(printed) -> None:
    lines = printed("configs").splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
    assert shown.keys() == shipped.files().keys()
    assert shown["small_512"].startswith("A full run for one GPU, or slowly on a CPU")
    assert shown["h200"].startswith("H200 141 GB")
    assert shown["overlap"].startswith("--xla_gpu")
    assert shown["reviews-1024"].startswith("English reviews")


def test_jax_with_the_flags(command_environment) -> None:
    flags = " ".join(path.read_text() for path in shipped.files("flags").values())
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    subprocess.run(command, env=command_environment | {"XLA_FLAGS": flags}, check=True)


def test_printed_configs_and_sweeps(tmp_path, printed) -> None:
    """Some vary a config that ships, and must find it."""
    for kind, load in (("sweep", sweep.load_sweep), ("config", config.load_file)):
        for name in shipped.files(kind):
            folder = tmp_path / name  # of its own, without those that it may need
            folder.mkdir()
            (folder / f"{name}.py").write_text(printed("configs", name))
            assert load(folder / f"{name}.py") == load(Path(name))


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
