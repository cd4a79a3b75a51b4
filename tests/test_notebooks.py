"""The notebooks run, from the project's runs and from a run of one's own; both in a real kernel."""

from pathlib import Path
from typing import Any

import pytest

from mlstm_jax.training import loop
from tests.test_analysis import write_run
from tests.training.runs import make_config, short

nbformat = pytest.importorskip("nbformat")
NotebookClient = pytest.importorskip("nbclient").NotebookClient

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

# Of Jupyter's own libraries, not of this project.
pytestmark = pytest.mark.filterwarnings("ignore")


def execute(path: Path, check: str = "", **parameters: Any) -> Any:
    """Run a notebook in its folder, with some lines of its cell of parameters replaced.

    `check` is run after each cell that sets the limits of an axis.
    """
    notebook = nbformat.read(path, as_version=4)
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    for name, value in parameters.items():
        assert f"{name} = " in cell.source
        cell.source += f"\n{name} = {value!r}"
    limited = [cell for cell in notebook.cells if "analysis.limits(" in cell.source]
    assert limited or not check
    for cell in limited:
        cell.source += f"\n{check}"
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": FOLDER}}
    ).execute()
    return notebook


def pictures(notebook: Any) -> int:
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    return sum("image/png" in out.get("data", {}) for out in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs_and_has_no_stored_output(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert not any(cell.get("outputs") for cell in cells)  # `make docs` runs them
    assert pictures(execute(path)) >= 2


@pytest.mark.slow
def test_convergence_of_a_run_of_ones_own(corpus: Path, tmp_path: Path) -> None:
    train = short(steps=60, epochs=None, eval_every=20)
    run = loop.train(make_config(corpus, tmp_path / "run", train=train))
    notebook = execute(
        FOLDER / "convergence.ipynb", RUNS=[str(run)], BY_BATCH=[], STARTS=[], HALF=[]
    )
    assert pictures(notebook) == 2


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
    assert pictures(execute(FOLDER / "convergence.ipynb", check, RUNS=runs, **own)) == 4
    parts = {"LEGW": None, "RECIPE": None}
    assert pictures(execute(FOLDER / "large_batch.ipynb", check, SWEEP=str(tmp_path), **parts)) == 4


@pytest.mark.slow
def test_models_of_a_sweep_of_ones_own(tmp_path: Path) -> None:
    for column in ("mine", "other, 0.1"):
        write_run(tmp_path / "small" / column)
    assert pictures(execute(FOLDER / "models.ipynb", SWEEP=str(tmp_path), TRANSFER=None)) == 1
