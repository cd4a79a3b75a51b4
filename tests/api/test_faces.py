"""The command line and Python give the same answers, and the same refusals, to the same input."""

import csv
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax import cli
from mlstm_jax.errors import UserError
from tests.corpora.written import jsonl
from tests.tables import praise_and_blame
from tests.transfer.pieces import shares_of


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, model: mlstm.TrainedModel) -> Path:
    folder = tmp_path_factory.mktemp("files")
    records: list[dict[str, object]] = []
    for number, text in enumerate(praise_and_blame(0, 5)):
        records.append({"text": text, "label": ("good", "bad")[number % 2]})
    a = jsonl(folder / "a.jsonl", records)
    model.transfer(a, valid=a, out=folder / "known", options=mlstm.TransferOptions(state="mean_h"))
    return folder


def read(path: Path) -> Any:
    """What a command has written, as Python returns it."""
    if path.suffix == ".npz":
        return np.load(path)["features"].tolist()
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            return [[float(row["p(bad)"]), float(row["p(good)"])] for row in rows]
    return path.read_bytes()


def comparable(answer: Any, folder: Path) -> Any:
    """What Python returns, as `read` returns it, or as a command prints it."""
    if isinstance(answer, np.ndarray):
        return answer.tolist()
    if type(answer) is list:
        return np.round(shares_of(answer), 4).tolist()
    if hasattr(answer, "save"):  # a heat map
        answer.save(folder / "h.html")
        answer = folder / "h.html"
    if hasattr(answer, "classifier"):
        answer = answer.folder / "classifier.safetensors"
    if hasattr(answer, "manifest"):
        answer = answer.path / "train.bin"
    return answer.read_bytes() if isinstance(answer, Path) else str(answer).strip("\n")


# MODEL, IN and OUT stand for the model, the folder of files, and the folder of results.
# A line; its file; the name of the function, and its arguments.
SAME: list[tuple[str, str | None, str, dict[str, Any]]] = [
    ("generate MODEL --prompt my --bytes 20 --seed 3 --top-k 9", None,
     "generate", {"prompt": "my", "bytes": 20, "seed": 3, "top_k": 9}),
    ("generate MODEL --bytes 30 --seed 1 --stop d --set-unit 3=1.5 7=-1", None,
     "generate", {"bytes": 30, "seed": 1, "stop": "d", "set_unit": {3: 1.5, 7: -1.0}}),
    ("report MODEL", None, "report", {}),
    ("plan small_512 --machine h200 --gpus 1 4 --price 3", None, "plan",
     {"config": "small_512", "machine": "h200", "devices": np.array([1, 4]), "price": 3.0}),
    ("features MODEL IN/a.jsonl --state mean_h --all-layers --out OUT/f.npz", "f.npz",
     "encode", {"texts": "IN/a.jsonl", "state": "mean_h", "all_layers": True}),
    ("classify MODEL IN/known IN/a.jsonl --out OUT/c.csv", "c.csv",
     "classify", {"texts": "IN/a.jsonl", "classifier": "IN/known"}),
    ("transfer MODEL --train IN/a.jsonl --valid IN/a.jsonl --state h --words --out OUT/t",
     "t/classifier.safetensors", "transfer",
     {"train": "IN/a.jsonl", "valid": "IN/a.jsonl", "out": "OUT/t",
      "options": mlstm.TransferOptions(state="h", words=True)}),
    ("heatmap MODEL --unit 3 --text my --scale 1 --out OUT/h.html", "h.html",
     "heatmap", {"text": "my", "unit": 3, "scale": 1.0}),
    ("heatmap MODEL --score IN/known --label bad --text my --out OUT/h.html", "h.html",
     "heatmap", {"text": "my", "score": "IN/known", "label": "bad"}),
    ("export MODEL --dtype float16 --out OUT/m.safetensors", "m.safetensors",
     "export", {"out": "OUT/m.safetensors", "dtype": "float16"}),
    ("prepare IN/a.jsonl --split 8,1,1 --seed 3 --out OUT/corpus", "corpus/train.bin", "prepare",
     {"sources": "IN/a.jsonl", "out": "OUT/corpus",
      "options": mlstm.PrepareOptions(split=(8, 1, 1), seed=3)}),
]  # fmt: skip


def placed(text: Any, **places: Path) -> Any:
    """A text in which names stand for places; anything else as it is."""
    if isinstance(text, str):
        for name, place in places.items():
            text = re.sub(rf"\b{name}\b", str(place), text)
    return text


def call(model: mlstm.TrainedModel, name: str, arguments: dict[str, Any], **places: Path) -> Any:
    given = {}
    for key, value in arguments.items():
        place = placed(value, MODEL=model.path, **places)
        given[key] = Path(place) if isinstance(value, str) and place != value else value
    function = getattr(model, name, None) or getattr(mlstm, name)
    return function(**given)


@pytest.mark.parametrize(("line", "file", "name", "arguments"), SAME)
def test_same_answers(line, file, name, arguments, model, files, tmp_path, printed) -> None:
    said = printed(*placed(line, MODEL=model.path, IN=files, OUT=tmp_path).split())
    found = read(tmp_path / file) if file else said.strip("\n")
    folder = tmp_path / "python"
    folder.mkdir()
    answer = call(model, name, arguments, IN=files, OUT=folder)
    assert found == comparable(answer, folder)


def test_several_samples(model, printed) -> None:
    words = ["--prompt", "my", "--bytes", 0, "--samples", 2]
    assert printed("generate", model.path, *words) == "--- 1 of 2\nmy\n--- 2 of 2\nmy\n"


# A line; the name of the function and its arguments; and the field that both messages name.
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("generate MODEL --bytes -1", "generate", {"bytes": -1}, "bytes"),
    ("generate MODEL --set-unit 9999=1", "generate", {"set_unit": {9999: 1.0}}, "a unit, 0 to 63"),
    ("generate MODEL --set-unit 3", "generate", {"set_unit": "3"}, "set_unit"),
    ("generate MODEL --stop é", "generate", {"stop": "é"}, "stop"),
    ("heatmap MODEL --text a --out x.html", "heatmap", {"text": "a"}, "unit"),
    ("evaluate MODEL --corpus none", "evaluate", {"corpus": "none"}, "none"),
    ("export MODEL --out x.bin", "export", {"out": "x.bin"}, "x.bin"),
    ("transfer MODEL --train IN/a.jsonl --label-column stars --out x", "transfer",
     {"train": "IN/a.jsonl", "label_column": "stars", "out": "x"}, "stars"),
    ("classify MODEL none IN/a.jsonl", "classify",
     {"texts": "IN/a.jsonl", "classifier": "none"}, "none"),
    ("report MODEL --checkpoint 7", "load", {"path": "MODEL", "checkpoint": 7}, "no checkpoint 7"),
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
    said = refused(*placed(line, MODEL=model.path, IN=files).split())
    assert field in said.replace("--set-unit", "set_unit")  # each names it as it is written there
    with pytest.raises(UserError, match=re.escape(field)):
        call(model, name, arguments, IN=files)
    assert not list(tmp_path.iterdir())


# What a command line does not say, and options of another name.
ONLY_PYTHON = {
    *("self", "fields", "callbacks", "show_progress", "owns_process", "batch_size", "changes"),
    *("texts", "classifier", "state"),
}
RENAMED = {"devices": "gpus"}
FUNCTIONS = {"import": mlstm.import_weights, "features": mlstm.TrainedModel.encode}
OTHERS = {"configs", "quickstart", "train", "view"}


@pytest.mark.parametrize("name", sorted(cli.COMMANDS.keys() - OTHERS))
def test_names_and_defaults(name: str) -> None:
    options = inspect.signature(cli._function(name)).parameters
    function = FUNCTIONS.get(name) or getattr(mlstm.TrainedModel, name, None)
    function = function or getattr(mlstm, name)
    for argument, one in inspect.signature(function).parameters.items():
        if argument in ONLY_PYTHON or (name == "export" and argument == "classifier"):
            continue
        own = options[RENAMED.get(argument, argument)]
        required = argument in ("config", "text", "sources", "stop", "set_unit", "options", "out")
        assert required or own.default == one.default, argument
