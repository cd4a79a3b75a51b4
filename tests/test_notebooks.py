"""The notebooks; `make docs` runs them whole."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"


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
