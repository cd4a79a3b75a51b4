"""The command line and Python give the same answers, and the same refusals, to the same input."""

import csv
import importlib
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax import cli
from mlstm_jax.corpora.options import PrepareOptions
from mlstm_jax.errors import UserError

TEXTS = [f"my guitar is {word} {n}." for n in range(5) for word in ("good", "bad")]
LABELS = ["good", "bad"] * 5


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, model: mlstm.TrainedModel) -> Path:
    folder = tmp_path_factory.mktemp("files")
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "windows.txt").write_text("my", encoding="utf-8-sig")
    a = folder / "a.jsonl"
    model.transfer(a, valid=a, out=folder / "known", options=mlstm.TransferOptions(state="mean_h"))
    return folder


def read(path: Path) -> Any:
    """What a command has written, as Python returns it."""
    if path.name == "f.npz":
        return np.load(path)["features"].tolist()
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [[row["p(bad)"], row["p(good)"]] for row in csv.DictReader(file)]
    return path.read_bytes()


# MODEL, IN and OUT stand for the model, the folder of files, and that of the results.
SAME: list[tuple[str, str | None, Callable[[mlstm.TrainedModel, Path, Path], Any]]] = [
    ("generate MODEL --prompt my --bytes 20 --seed 3 --top-k 9", None,
     lambda m, i, o: m.generate("my", bytes=20, seed=3, top_k=9) + "\n"),
    ("generate MODEL --prompt my --bytes 0 --samples 2", None,
     lambda m, i, o: "--- 1 of 2\nmy\n--- 2 of 2\nmy\n"),
    ("generate MODEL --bytes 30 --seed 1 --stop d --set-unit 3=1.5 7=-1", None,
     lambda m, i, o: m.generate(bytes=30, seed=1, stop="d", set_unit={3: 1.5, 7: -1.0}) + "\n"),
    ("report MODEL", None, lambda m, i, o: f"\n{m.report()}\n"),
    ("plan small_512 --machine h200 --gpus 1 4 --price 3", None,
     lambda m, i, o: f"{mlstm.plan('small_512', 'h200', devices=np.array([1, 4]), price=3.0)}\n"),
    ("features MODEL IN/a.jsonl --state mean_h --all-layers --out OUT/f.npz", "f.npz",
     lambda m, i, o: m.encode(i / "a.jsonl", "mean_h", all_layers=True).tolist()),
    ("classify MODEL IN/known IN/a.jsonl --out OUT/c.csv", "c.csv",
     lambda m, i, o: [[f"{p:.4f}" for p in row.values()]
                      for row in m.classify(i / "a.jsonl", i / "known")]),
    ("transfer MODEL --train IN/a.jsonl --valid IN/a.jsonl --state h --words --out OUT/t",
     "t/classifier.safetensors", lambda m, i, o: (m.transfer(
         i / "a.jsonl", valid=i / "a.jsonl", out=o,
         options=mlstm.TransferOptions(state="h", words=True),
     ).folder / "classifier.safetensors").read_bytes()),
    ("heatmap MODEL --unit 3 --text my --scale 1 --out OUT/h.html", "h.html",
     lambda m, i, o: saved(m.heatmap("my", 3, scale=1.0), o / "h.html")),
    ("heatmap MODEL --unit 3 --file IN/windows.txt --out OUT/h.html", "h.html",
     lambda m, i, o: saved(m.heatmap("my", 3), o / "h.html")),
    ("heatmap MODEL --score IN/known --label bad --text my --out OUT/h.html", "h.html",
     lambda m, i, o: saved(m.heatmap("my", score=i / "known", label="bad"), o / "h.html")),
    ("export MODEL --dtype float16 --out OUT/m.safetensors", "m.safetensors",
     lambda m, i, o: m.export(o / "m.safetensors", "float16").read_bytes()),
    ("prepare IN/a.jsonl --split 8,1,1 --seed 3 --out OUT/corpus", "corpus/train.bin",
     lambda m, i, o: (mlstm.prepare(
         i / "a.jsonl", o / "corpus", PrepareOptions(split=(8, 1, 1), seed=3)
     ).path / "train.bin").read_bytes()),
]  # fmt: skip


def saved(found: Any, path: Path) -> bytes:
    found.save(path)
    return path.read_bytes()


def words_of(line: str, **places: Path) -> list[str]:
    """The words of a line, in which names stand for places."""
    for name, place in places.items():
        line = re.sub(rf"\b{name}\b", str(place), line)
    return line.split()


@pytest.mark.parametrize(("line", "file", "call"), SAME, ids=[line for line, *_ in SAME])
def test_same_answers(line, file, call, model, files, tmp_path, capsys):
    cli.main(words_of(line, MODEL=model.path, IN=files, OUT=tmp_path))
    found = read(tmp_path / file) if file else capsys.readouterr().out
    (tmp_path / "python").mkdir()
    assert found == call(model, files, tmp_path / "python")


# A line; the name of the function and its arguments; and the field that both messages name.
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("generate MODEL --bytes -1", "generate", {"bytes": -1}, "bytes"),
    ("generate MODEL --set-unit 9999=1", "generate", {"set_unit": {9999: 1.0}}, "set_unit"),
    ("generate MODEL --set-unit 3", "generate", {"set_unit": "3"}, "set_unit"),
    ("generate MODEL --stop é", "generate", {"stop": "é"}, "stop"),
    ("heatmap MODEL --text a --out x.html", "heatmap", {"text": "a"}, "unit"),
    ("evaluate MODEL --corpus none", "evaluate", {"corpus": "none"}, "none"),
    ("export MODEL --out x.bin", "export", {"out": "x.bin"}, "x.bin"),
    ("transfer MODEL --train IN/a.jsonl --label-column stars --out x", "transfer",
     {"train": "IN/a.jsonl", "label_column": "stars", "out": "x"}, "stars"),
    ("classify MODEL none IN/a.jsonl", "classify",
     {"texts": "IN/a.jsonl", "classifier": "none"}, "none"),
    ("report MODEL --checkpoint 7", "load", {"path": "MODEL", "checkpoint": 7}, "checkpoints"),
    ("inspect none", "inspect", {"corpus": "none"}, "none"),
    ("plan small_512 --machine h200 --gpus 0", "plan",
     {"config": "small_512", "machine": "h200", "devices": [0]}, "devices"),
    ("prepare IN/a.jsonl --split 9,-1,1 --out x", "PrepareOptions", {"split": (9, -1, 1)}, "split"),
    ("import mlstm none --out x", "import_weights",
     {"kind": "mlstm", "source": "none", "out": "x"}, "none"),
    ("train none.py", "train", {"config": "none.py"}, "none.py"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "name", "arguments", "field"), REFUSED)
def test_same_refusals(line, name, arguments, field, model, files, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    assert field in refused(*words_of(line, MODEL=model.path, IN=files))
    places = {"IN/a.jsonl": files / "a.jsonl", "MODEL": model.path}
    for key, value in arguments.items():
        if isinstance(value, str):
            arguments = arguments | {key: places.get(value, value)}
    call = getattr(model, name, None) or getattr(mlstm, name)
    with pytest.raises(UserError, match=re.escape(field)):
        call(**arguments)
    assert not list(tmp_path.iterdir())


def test_heat_map_in_another_format(model, tmp_path, monkeypatch, refused) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--text", "a", "--unit", "1", "--out", "x.gif"]
    assert "x.gif" in refused("heatmap", model.path, *words)
    with pytest.raises(UserError, match=r"x\.gif"):
        model.heatmap("a", 1).save("x.gif")


# What a command line does not say, and options of another name.
ONLY_PYTHON = {
    *("self", "fields", "callbacks", "show_progress", "owns_process", "batch_size", "changes"),
    *("texts", "classifier", "state"),
}
RENAMED = {"devices": "gpus"}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(mlstm, name) for name in ("inspect", "plan", "prepare", "sweep")},
    **{"import": mlstm.import_weights, "features": mlstm.TrainedModel.encode},
    **{name: getattr(mlstm.TrainedModel, name) for name in cli.COMMANDS
       if hasattr(mlstm.TrainedModel, name)},
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_names_and_defaults(name: str) -> None:
    module = importlib.import_module(f"mlstm_jax.commands.{cli.COMMANDS[name]}")
    command = getattr(module, cli._identifier(name))
    options = inspect.signature(command).parameters
    for argument, one in inspect.signature(FUNCTIONS[name]).parameters.items():
        if argument in ONLY_PYTHON or (name == "export" and argument == "classifier"):
            continue
        own = options[RENAMED.get(argument, argument)]
        required = argument in ("config", "text", "sources", "stop", "set_unit", "options", "out")
        assert required or own.default == one.default, argument
