"""The notebooks read a run of one's own; `make docs` runs them whole, with the project's runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlstm_jax.training.train import train as run_train
from tests.test_analysis import write_run
from tests.training.runs import make_config, short

pytest.importorskip("pandas")
plt = pytest.importorskip("matplotlib.pyplot")

FOLDER = Path(__file__).parent.parent / "notebooks"

# Of matplotlib, on curves that are few or empty.
pytestmark = pytest.mark.filterwarnings("ignore")


def cells(path: Path) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text())
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(autouse=True)
def _in_the_folder(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(FOLDER)
    with plt.rc_context({"backend": "Agg", "figure.max_open_warning": 0}):
        yield
    plt.close("all")


def figures(name: str, check: str = "", **parameters: Any) -> int:
    """Return the number of figures that a notebook draws with other values of its parameters.

    `check` is run after each cell that sets the limits of an axis.
    """
    plt.close("all")
    names: dict[str, Any] = {"display": lambda shown: None}
    for cell in cells(FOLDER / f"{name}.ipynb"):
        source = "".join(cell["source"])
        exec(source, names)
        if "parameters" in cell["metadata"].get("tags", []):
            assert parameters.keys() <= names.keys()
            names |= parameters
        if "analysis.limits(" in source:
            exec(check, names)
    return len(plt.get_fignums())


def test_the_stored_outputs_are_those_of_the_stored_code() -> None:
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    from notebooks.store import code_digest

    paths = sorted(FOLDER.glob("*.ipynb"))
    assert len(paths) == 5
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
        assert notebook.metadata["executed"] == code_digest(notebook), f"run make notebooks: {path}"
        assert any("image/png" in one.get("data", {}) for one in outputs), path
        assert all(one.output_type != "error" for one in outputs), path
        assert path.stat().st_size < 400_000, path


@pytest.mark.slow
def test_convergence_of_a_run_of_ones_own(corpus: Path, tmp_path: Path) -> None:
    train = short(steps=60, epochs=None, eval_every=20)
    run = run_train(make_config(corpus, tmp_path / "run", train=train))
    assert figures("convergence", RUNS=[str(run)], BY_BATCH=[], STARTS=[], HALF=[]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("bpc", [0.9, 5.5])
def test_the_curves_of_a_sweep_of_ones_own_are_seen(bpc: float, tmp_path: Path) -> None:
    for row in ("8", "32"):
        for column in ("sqrt", "mine"):
            write_run(tmp_path / row / column, bpc=bpc, train=bpc)
    check = """
for axes in panels.flat:
    low, high = axes.get_ylim()
    assert axes.lines
    for line in axes.lines:
        inside = [low < y < high for y in line.get_ydata()]
        assert sum(inside) >= len(inside) / 2, (low, high, line.get_ydata())
"""
    own = {"BY_BATCH": [str(tmp_path)], "STARTS": [str(tmp_path)], "HALF": []}
    runs = [str(tmp_path / "8" / "mine")]
    assert figures("convergence", check, RUNS=runs, **own) == 4
    parts = {"LEGW": None, "RECIPE": None}
    assert figures("large_batch", check, SWEEP=str(tmp_path), **parts) == 4
