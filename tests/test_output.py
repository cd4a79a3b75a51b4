"""A folder that cannot be made is refused before the work for it."""

from pathlib import Path

import pytest

from mlstm_jax import output
from mlstm_jax.config import Config
from mlstm_jax.errors import UserError
from mlstm_jax.training import run_folder


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    file = tmp_path / "reviews.csv"
    file.write_text("text\n")
    with pytest.raises(UserError, match=r"reviews.csv is a file; choose another folder with --out"):
        output.require_folder(file / "deep" / "run")
    with (
        pytest.raises(UserError, match=r"reviews.csv is a file"),
        run_folder.lock(Config(out=str(file / "run")), resume=False),
    ):
        pass
    with pytest.raises(UserError, match=r"cannot write in /proc"):
        output.require_folder(Path("/proc/x"))


def test_nothing_is_left_where_it_can_be_made(tmp_path: Path) -> None:
    output.require_folder(tmp_path / "deep" / "run")
    assert not list(tmp_path.iterdir())
