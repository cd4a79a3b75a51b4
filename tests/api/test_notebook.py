"""Bars and figures in a notebook, run by a real kernel."""

from typing import Any

import pytest

import mlstm_jax as mlstm


def outputs(code: str) -> list[Any]:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    return list(notebook.cells[0].outputs)


def test_a_bar_is_drawn_in_place(model: mlstm.TrainedModel) -> None:
    pytest.importorskip("ipywidgets")
    found = outputs(
        "import mlstm_jax as mlstm\n"
        f"model = mlstm.load({str(model.path)!r})\n"
        "model.encode(['a text', 'another'] * 200, show_progress=True).shape\n"
    )
    widgets = [
        one for one in found if "application/vnd.jupyter.widget-view+json" in one.get("data", {})
    ]
    assert widgets
    assert not [one for one in found if one.output_type == "stream" and "encode" in one.text]
    assert found[-1].data["text/plain"] == "(400, 64)"


def test_figures_and_heat_maps_are_shown(model: mlstm.TrainedModel) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    (shown,) = outputs(
        "import mlstm_jax as mlstm\n"
        f"model = mlstm.load({str(model.path)!r})\n"
        "model.heatmap('my guitar', 3)\n"
    )
    assert '<div class="heat">' in shown.data["text/html"]
    (figure,) = outputs(f"import mlstm_jax as mlstm\nmlstm.load({str(model.path)!r}).plot()\n")
    assert "image/png" in figure.data
