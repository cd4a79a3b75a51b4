"""A model in Python: what `load` takes, what it makes of texts, and what a notebook shows."""

import copy
import os
import pickle
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import joblib
import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

import mlstm_jax as mlstm
from mlstm_jax.api.report import report_of
from mlstm_jax.training.evaluation import Score
from mlstm_jax.transfer.classifier import load_classifier
from tests.tables import praise_and_blame
from tests.transfer.pieces import shares_of

TEXTS = ["my guitar is good 1.", "", "that strap sounds bad 12.", "the café works great 3." * 20]


def test_repr_and_parameters(model: mlstm.TrainedModel) -> None:
    lines = repr(model).splitlines()
    assert len(lines) == 3
    assert "2 x 64 units" in lines[1]
    assert "step 150" in lines[2]
    assert model.hidden == 64
    with pytest.raises(ValueError, match="read-only"):
        model.parameters["decoder_bias"][0] = 1


def test_progress(model, monkeypatch, capsys) -> None:
    """It ends at its total: bytes that are left out are done, too."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    texts = ["I loved it, and so did my family. " * 100, "Good."]
    label = partial(mlstm.load("sentiment").classify, at_most=40)
    calls = {"encode": model.encode, "score": model.bits_per_character, "classify": label}
    for name, read in calls.items():
        read(texts, show_progress=True)
        said = capsys.readouterr().err
        assert name in said
        assert re.findall(r"([\d.]+)/([\d.]+) kB", said)[-1] == ("3.4", "3.4")


def test_heat_map_in_a_notebook(model: mlstm.TrainedModel, tmp_path: Path) -> None:
    made = model.heatmap("my guitar is good", 3, state="mean_h")
    assert made.name == "mean of h so far of unit 3 of layer 1"
    # A part of a notebook, whose own style it leaves as it is.
    part = made._repr_html_()
    rules = re.findall(r"^(.+?) \{", re.search(r"<style>(.*?)</style>", part, re.DOTALL)[1], re.M)
    assert len(rules) > 3
    for rule in rules:
        assert rule.startswith(".heat")
    assert "<html" not in part
    made.save(tmp_path / "heat.html")
    with pytest.raises(ValueError, match=r"heat\.html exists; .* replace it with `overwrite=True`"):
        made.save(tmp_path / "heat.html")
    with pytest.raises(ValueError, match=r"path is .*heat\.gif', but it must be an \.html file"):
        made.save(tmp_path / "heat.gif")
    page = (tmp_path / "heat.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert part in page


def test_copies_and_pickles(model: mlstm.TrainedModel, tmp_path, monkeypatch) -> None:
    """A path that is loaded keeps its place when the process changes its folder."""
    assert copy.deepcopy(model) is model
    monkeypatch.chdir(model.path.parent)
    run = mlstm.load(model.path.name)
    monkeypatch.chdir(tmp_path)
    weights = mlstm.load(model.export("w.safetensors").name)
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(run))
    assert (again.path, again.step) == (model.path.resolve(), model.step)
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
    assert str(run.metrics) == str(model.metrics)
    assert len(pickle.dumps(model)) < 1000
    assert "imported" in repr(weights)
    assert pickle.loads(pickle.dumps(weights)).path == (tmp_path / "w.safetensors").resolve()
    ours = pickle.dumps(mlstm.load("reviews-1024"))
    assert str(Path(mlstm.__file__).parent).encode() not in ours
    assert repr(pickle.loads(ours)) == repr(mlstm.load("reviews-1024"))


def test_replaced_files(model: mlstm.TrainedModel, tmp_path: Path) -> None:
    """What was fitted to a model is not applied to another one under the same name."""
    path = model.export(tmp_path / "w.safetensors")
    pipeline = make_pipeline(mlstm.Features(path), KNeighborsClassifier(1))
    stored = pickle.dumps(pipeline.fit(TEXTS, list(range(len(TEXTS)))))
    early = mlstm.load(path, reader="numpy")
    pickle.loads(stored).predict(TEXTS)
    unfitted = joblib.hash(mlstm.Features(path))  # by which a pipeline's `memory` knows it
    assert joblib.hash(mlstm.Features(path)) == unfitted
    model.export(path, "float16", overwrite=True)  # other numbers
    with pytest.raises(ValueError, match=r"w\.safetensors, .* has other parameters"):
        pickle.loads(stored)
    assert joblib.hash(mlstm.Features(path)) != unfitted
    with pytest.raises(ValueError, match=r"w\.safetensors, .* has other parameters"):
        early.spans(TEXTS[:1], [[(0, 1)]])


def test_export_and_load_again(model: mlstm.TrainedModel, tmp_path: Path) -> None:
    path = model.export(tmp_path / "mine.safetensors")
    again = mlstm.load(str(path), reader="jax")
    assert "imported" in repr(again)
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
    with pytest.raises(ValueError, match=r"exists; .* `overwrite=True`"):
        model.export(path)
    with pytest.raises(ValueError, match="has no metrics"):
        _ = again.metrics
    # What it has loaded, whatever the file has become.
    content = path.read_bytes()
    mlstm.load("reviews-1024").export(path, overwrite=True)
    assert again.export(tmp_path / "copy.safetensors").read_bytes() == content
    with pytest.raises(ValueError, match="is a file; choose another folder"):
        model.export(path / "m.safetensors")


def test_report(model: mlstm.TrainedModel) -> None:
    """A run names its step and its folder, a pretrained model neither."""
    score = Score(loss=1.0, bpc=1.4, bytes_scored=100, seconds=1.0)
    pretrained = mlstm.load("reviews-1024").run
    for run, of, is_run in ((model.run, "step 150", True), (pretrained, "a pretrained", False)):
        text = report_of(run, model.config.data.corpus, score, "a sample")
        assert f"1.400   {of}" in text
        assert (f"The run is in {run.folder}" in text) == is_run


def examples(first: int, count: int) -> tuple[list[str], list[int]]:
    return praise_and_blame(first, first + count), [1, 0] * count


MEAN_H = mlstm.TransferOptions(state="mean_h")


def test_transfer_of_texts_in_memory(model: mlstm.TrainedModel, tmp_path: Path) -> None:
    train = examples(100, 5)
    test = examples(200, 15)
    kept = model.transfer(train, test, test, options=MEAN_H, out=tmp_path / "out")
    assert kept.result.test > 0.9
    # In memory as in a file, 1.0 is 1, and a space is no part of a label.
    made = model.transfer((train[0], [" 1 ", 0.0] * 5), test, test, options=MEAN_H)
    assert made.folder is None
    assert made.result == kept.result
    # What a notebook shows: the accuracy, its interval and the classes, no arrays.
    low, high = made.result.interval
    assert low <= made.result.test <= high < low + 0.4
    shown = f"test accuracy {made.result.test:.3f} ({low:.3f} to {high:.3f}, 95% of 30 texts)"
    assert repr(made).startswith(f"Transferred: {shown}")
    assert "2 classes: 0, 1" in repr(made.classifier)
    assert "array(" not in repr([made, made.classifier, model.run])
    # Without test texts a fifth of train is held out.
    held_out = model.transfer(train, options=MEAN_H).result
    assert held_out.texts == {"train": 8, "valid": 0, "test": 2}
    shares = made.classifier.probabilities(model.encode(test[0], "mean_h"))
    for given in (made, tmp_path / "out"):
        found = model.classify(test[0], given)
        assert list(found[0]) == ["0", "1"]
        np.testing.assert_array_equal(shares_of(found), shares)
        scored = model.heatmap("my guitar is good", score=given, label="1")
        assert scored.name == "log-odds of 1"


def test_folder_of_transfer(model: mlstm.TrainedModel, tmp_path: Path) -> None:
    """What it wrote there is replaced if this is asked for, and nothing of others."""
    train = examples(100, 5)
    test = examples(200, 15)
    how = {"options": MEAN_H, "out": tmp_path / "out"}
    model.transfer(train, test, test, **how)
    with pytest.raises(ValueError, match=r"exists; .* replace .* with `overwrite=True`"):
        model.transfer(train, test, test, **how)
    (tmp_path / "out/old.png").touch()
    (tmp_path / "out/.directory").touch()  # as a file manager does
    (tmp_path / "empty").mkdir()
    (tmp_path / "out/link.png").symlink_to(tmp_path / "empty")
    made = model.transfer(test, train, train, overwrite=True, **how)
    assert made.result.texts == {"train": 30, "valid": 10, "test": 10}
    found = load_classifier(tmp_path / "out")
    np.testing.assert_array_equal(found.weights_KD, made.classifier.weights_KD)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names.isdisjoint({"old.png", "link.png"})
    assert ".directory" in names
    (tmp_path / "mine/features").mkdir(parents=True)
    for name in ("letter.txt", "features/text.npz", "c+mean_h/a.py", "c+h", "report.md.bak"):
        (letter := tmp_path / "mine" / name).parent.mkdir(exist_ok=True)
        letter.touch()
        told = rf"mine exists, and {re.escape(name)} in it is not from `transfer`; move"
        with pytest.raises(ValueError, match=told):
            model.transfer(train, test, out=tmp_path / "mine", overwrite=True)
        letter.unlink()
    stopped = tmp_path / "stopped"
    (stopped / "features").mkdir(parents=True)
    (stopped / "letter.txt").touch()
    model.transfer(train, test, out=stopped)  # goes on, and removes nothing
    assert {"report.md", "letter.txt"} < set(os.listdir(stopped))


def test_transfers_at_once(model: mlstm.TrainedModel, tmp_path: Path) -> None:
    """One of them writes its results, and the other is refused."""
    train = examples(100, 5)
    how = {"options": MEAN_H, "out": tmp_path / "out"}
    model.transfer(train, train, train, **how)
    for path in (tmp_path / "out").glob("*.*"):
        path.unlink()
    both = Barrier(2)

    def read_with_the_other() -> Iterator[str]:
        both.wait()
        yield from train[0]

    def call(_: int) -> str:
        try:
            model.transfer((read_with_the_other(), train[1]), train, train, **how)
        except ValueError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor() as pool:
        done, refused = sorted(pool.map(call, range(2)))
    assert not done
    assert "exists; choose another folder with `out`" in refused


def test_bar_in_a_notebook() -> None:
    pytest.importorskip("ipykernel")
    pytest.importorskip("ipywidgets")
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    code = """
from mlstm_jax.terminal import ProgressLine
with ProgressLine("encode", 3) as line:
    line.advance(3)
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    shown = []
    for one in notebook.cells[0].outputs:
        shown += one.get("data", {})
        assert one.output_type != "stream" or "encode" not in one.text
    assert "application/vnd.jupyter.widget-view+json" in shown
