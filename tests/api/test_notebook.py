"""Bars and figures in a notebook, run by a real kernel."""

import pytest

import mlstm_jax as mlstm


def test_bars_heat_maps_and_figures_are_shown(model: mlstm.TrainedModel) -> None:
    for name in ("ipykernel", "ipywidgets", "matplotlib", "pandas"):
        pytest.importorskip(name)
    nbclient, nbformat = (pytest.importorskip(name) for name in ("nbclient", "nbformat"))
    notebook = nbformat.v4.new_notebook()
    for code in (
        f"import mlstm_jax as mlstm\nmodel = mlstm.load({str(model.path)!r})",
        "model.encode(['a text', 'another'] * 200, show_progress=True).shape",
        "model.heatmap('my guitar', 3)",
        "model.plot()",
    ):
        notebook.cells.append(nbformat.v4.new_code_cell(code))
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    _, encoded, (heat,), (figure,) = (cell.outputs for cell in notebook.cells)
    # A bar is drawn in place.
    assert any("application/vnd.jupyter.widget-view+json" in one.get("data", {}) for one in encoded)
    assert not [one for one in encoded if one.output_type == "stream" and "encode" in one.text]
    assert encoded[-1].data["text/plain"] == "(400, 128)"
    assert '<div class="heat">' in heat.data["text/html"]
    assert "image/png" in figure.data
