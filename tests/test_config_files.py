"""A mistake in a config or sweep file is a message that names its line, never a traceback."""

from pathlib import Path

import pytest

from mlstm_jax.config import load_file
from mlstm_jax.errors import UserError
from mlstm_jax.training import sweep

HEAD = "from mlstm_jax.config import *\n\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("config = Config(model=Model(hiden=3))", "line 3: TypeError: MLSTM.* 'hiden'"),
        ("config = vary(Config(), train__step=3)", "line 3: Train has no field 'step'; did you"),
        (
            "config = vary(Config(), zebra=1)",
            "Config has no field 'zebra'; its fields are out, mod",
        ),
        ("import absent_module", r"line 3: ModuleNotFoundError: No module named 'absent_module'"),
        ("class A:\n    def __init__(self): 0\nconfig = A(x=1)", r"line 5: TypeError: A\.__init__"),
        ("config = (", r"line 3 is not valid Python: '\(' was never closed"),
        ("config = 1 / 0", r"line 3: ZeroDivisionError"),
        ("batch = 3", r"mine\.py sets no `(config = Config|runs)"),
        ("config = Config(model=Model(hidden=0))", r"line 3: model.hidden is 0, but it must be"),
    ],
)
@pytest.mark.parametrize("load", [load_file, sweep.load_sweep])
def test_the_line_and_the_field_are_named(load, code: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + code + "\n")
    with pytest.raises(UserError, match=message):
        load(path)


def test_text_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("text\nfine\n")
    with pytest.raises(UserError, match=r"reviews.csv is not a config.*mlstm-jax prepare"):
        load_file(tmp_path / "reviews.csv")
