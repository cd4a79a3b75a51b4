"""The command line and Python give the same answers, and the same refusals, to the same input."""

import csv
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
from mlstm_jax.commands import as_options
from mlstm_jax.config import load_file
from mlstm_jax.corpora.options import PrepareOptions
from mlstm_jax.errors import UserError
from mlstm_jax.planning.machine import load_machine

TEXTS = [f"my guitar is {word} {n}." for n in range(12) for word in ("good", "bad")]
LABELS = ["good", "bad"] * 12
SHOWN = ("report", "generate", "schedule")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, model: mlstm.TrainedModel) -> Path:
    folder = tmp_path_factory.mktemp("files")
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    a = folder / "a.jsonl"
    model.transfer(a, valid=a, out=folder / "known", state="mean_h")
    return folder


def read(path: Path) -> Any:
    """What a command has written, as Python returns it."""
    if path.name == "f.npz":
        return np.load(path)["features"].tolist()
    if path.suffix == ".json":
        return json.loads(path.read_text())
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
    ("report MODEL", None, lambda m, i, o: f"\n{m.report()}\n"),
    ("schedule small_512 --corpus-bytes 1e6 --train.steps 40", None,
     lambda m, i, o: mlstm.schedule(
         mlstm.vary(load_file("small_512"), train__steps=40), corpus_bytes=1e6
     ).text + "\n"),
    ("plan small_512 --machine h200 --gpus 1 4 --price 3 --json OUT/plan.json", "plan.json",
     lambda m, i, o: {"machine": load_machine(Path("h200")).name, "rows": [
         row._asdict()
         for row in mlstm.plan("small_512", "h200", devices=np.array([1, 4]), price=3.0)
     ]}),
    ("features MODEL IN/a.jsonl --state mean_h --all-layers --out OUT/f.npz", "f.npz",
     lambda m, i, o: m.encode(i / "a.jsonl", "mean_h", all_layers=True).tolist()),
    ("classify MODEL IN/known IN/a.jsonl --out OUT/c.csv", "c.csv",
     lambda m, i, o: [[f"{p:.4f}" for p in row.values()]
                      for row in m.classify(i / "a.jsonl", i / "known")]),
    ("transfer MODEL --train IN/a.jsonl --valid IN/a.jsonl --state h --words --out OUT/t",
     "t/classifier.safetensors", lambda m, i, o: (m.transfer(
         i / "a.jsonl", valid=i / "a.jsonl", out=o, state="h", words=True
     ).folder / "classifier.safetensors").read_bytes()),
    ("heatmap MODEL --unit 3 --text my --scale 1 --out OUT/h.html", "h.html",
     lambda m, i, o: saved(m.heatmap("my", 3, scale=1.0), o / "h.html")),
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
def test_a_line_and_a_call_give_the_same_answer(line, file, call, model, files, tmp_path, capsys):
    cli.main(words_of(line, MODEL=model.path, IN=files, OUT=tmp_path))
    found = read(tmp_path / file) if file else capsys.readouterr().out
    (tmp_path / "python").mkdir()
    assert found == call(model, files, tmp_path / "python")


REFUSED: list[tuple[str, Callable[[mlstm.TrainedModel, Path], Any]]] = [
    ("generate MODEL --bytes -1", lambda m, i: m.generate(bytes=-1)),
    ("generate MODEL --set-unit 9999=1", lambda m, i: m.generate(set_unit={9999: 1.0})),
    ("heatmap MODEL --text a --out x.html", lambda m, i: m.heatmap("a")),
    ("heatmap MODEL --text a --unit 1 --out x.gif", lambda m, i: m.heatmap("a", 1).save("x.gif")),
    ("evaluate MODEL --corpus none", lambda m, i: m.evaluate(corpus="none")),
    ("export MODEL --out x.bin", lambda m, i: m.export("x.bin")),
    ("transfer MODEL --train IN/a.jsonl --label-column stars --out x",
     lambda m, i: m.transfer(i / "a.jsonl", label_column="stars", out="x")),
    ("classify MODEL none IN/a.jsonl", lambda m, i: m.classify(i / "a.jsonl", "none")),
    ("report MODEL --checkpoint 7", lambda m, i: mlstm.load(m.path, 7)),
    ("inspect none", lambda m, i: mlstm.inspect("none")),
    ("plan small_512 --machine h200 --gpus 0",
     lambda m, i: mlstm.plan("small_512", "h200", devices=[0])),
    ("schedule small_512 --corpus-bytes 0",
     lambda m, i: mlstm.schedule("small_512", corpus_bytes=0.0)),
    ("prepare IN/a.jsonl --split 9,-1,1 --out x",
     lambda m, i: mlstm.prepare(i / "a.jsonl", "x", PrepareOptions(split=(9, -1, 1)))),
    ("import mlstm none --out x", lambda m, i: mlstm.import_weights("mlstm", "none", "x")),
    ("train none.py", lambda m, i: mlstm.train("none.py")),
]  # fmt: skip


@pytest.mark.parametrize(("line", "call"), REFUSED, ids=[line for line, *_ in REFUSED])
def test_both_are_refused_alike(line, call, model, files, tmp_path, monkeypatch, refused) -> None:
    monkeypatch.chdir(tmp_path)
    words = words_of(line, MODEL=model.path, IN=files)
    written = refused(*words)
    with pytest.raises(UserError) as error:
        call(model, files)
    assert "--" not in re.sub("`mlstm-jax .*?`", "", str(error.value))
    said = as_options(str(error.value), cli._command(words[0]).options()).replace("\n", "\n  ")
    assert written == f"mlstm-jax {words[0]}: {said}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lower `data.batch`.", "lower --data.batch."),
        ("give `data.corpus=corpora/mine`.", "give --data.corpus corpora/mine."),
        ("or `overwrite=True`", "or --overwrite"),
        ("devices is 0", "--gpus is 0"),
        ("`mlstm-jax prepare` makes one", "`mlstm-jax prepare` makes one"),
    ],
)
def test_messages_name_options(text: str, expected: str) -> None:
    assert as_options(text, {"devices": "--gpus"}) == expected


@pytest.mark.parametrize("name", cli._COMMANDS)
def test_every_argument_in_python_is_an_option(name: str) -> None:
    command = cli._command(name)
    if command._function is None:
        return
    only_python = {"self", "callbacks", "on_begin", "show_progress", "owns_process", "batch_size"}
    for argument, one in inspect.signature(command._function).parameters.items():
        if argument not in only_python:
            assert argument in command.parameters
            assert f"    {argument}: " in command._doc or argument == "config"
            own = command.parameters[argument].default
            # `classify` has two positional forms, so its command takes `texts` as optional.
            shown = one.default is None or argument in ("config", "state", "text", "texts")
            assert own == one.default or shown
