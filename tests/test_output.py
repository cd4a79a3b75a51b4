"""A folder that cannot be made is refused before the work for it."""

import contextlib
from pathlib import Path

import pytest

from mlstm_jax import cli, output
from mlstm_jax.config import Config
from mlstm_jax.errors import UserError
from mlstm_jax.training import run_folder


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    file = tmp_path / "reviews.csv"
    file.write_text("text\n")
    with pytest.raises(UserError, match=r"reviews.csv is a file; choose another folder with `out`"):
        output.require_folder(file / "deep" / "run")
    with (
        pytest.raises(UserError, match=r"reviews.csv is a file"),
        run_folder.lock(Config(out=str(file / "run")), resume=False),
    ):
        pass
    with pytest.raises(UserError, match=r"cannot write in /proc"):
        output.require_folder(Path("/proc/x"))


@pytest.mark.parametrize(
    "words",
    [
        "features run a.csv --out x.npz",
        "classify run classifier a.csv --out x.csv",
        "heatmap run --unit 1 --out x.html",
        "export run --out x.safetensors",
        "evaluate run --json x.json",
        "plan --machine absent --json x.json",
    ],
)
def test_a_file_is_replaced_on_request_alone(words, tmp_path, monkeypatch, capsys, refused):
    monkeypatch.chdir(tmp_path)
    file = Path(words.split()[-1])
    file.write_text("mine")
    Path("a.csv").write_text("text\na\n")
    Path("run").mkdir()
    said = refused(*words.split())
    assert f"{file} exists; choose another file, or replace it with `overwrite=True`." in said
    with contextlib.suppress(SystemExit):  # it then fails for another reason
        cli.main([*words.split(), "--overwrite"])
    assert f"{file} exists" not in capsys.readouterr().err
    assert file.read_text() == "mine"
