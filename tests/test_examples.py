"""The programs in examples/."""

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlstm_jax
from tests.tables import column

EXAMPLES = Path(__file__).parents[1] / "examples"


def load_example(name: str) -> Any:
    about = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert about
    assert about.loader
    module = importlib.util.module_from_spec(about)
    about.loader.exec_module(module)
    return module


def nonsense(seed: int, words: int = 240) -> bytes:
    vocabulary = ["QUUX", "ZAX!", "KRRP", "WYVVLE", "#33#", "FJORDH", "XYLQ"]
    return " ".join(np.random.default_rng(seed).choice(vocabulary, words)).encode()


def test_dynamic_evaluation(run, tmp_path, capsys):
    example = load_example("dynamic_evaluation")
    evaluation = example.DynamicEvaluation(mlstm_jax.load(run.folder))
    text = nonsense(0)
    place = 150
    window = evaluation.window
    static = evaluation.nats(text)
    evaluation.measure_scales(nonsense(1))
    before = evaluation.nats(text, 1e-3, 0.01)
    after = evaluation.nats(text[:place] + b"e" + text[place + 1 :], 1e-3, 0.01)
    assert len(before) == len(text) - 1
    np.testing.assert_array_equal(before[: place - 1], after[: place - 1])
    assert (before != after)[place - 1]
    assert (before != after)[place + window :].mean() > 0.9
    np.testing.assert_array_equal(before[:window], static[:window])
    # 0.8 on two kinds of processor, 1 if nothing adapts.
    assert before.mean() < 0.9 * static.mean()

    for name, seed in (("text", 0), ("train", 1), ("valid", 2)):
        (tmp_path / name).write_bytes(nonsense(seed, words=30))
    files = [f"--{name}={tmp_path / name}" for name in ("train", "valid")]
    example.RATES = {True: (1e-3,)}
    example.DECAYS = (0.0, 0.01)
    example.main([str(run.folder), str(tmp_path / "text"), *files])
    *_, plain, dynamic = capsys.readouterr().out.splitlines()
    nats = evaluation.nats(nonsense(0, words=30)).mean()
    assert plain == f"bpc {nats / np.log(2):.4f} with the trained parameters"
    assert dynamic.endswith(("decay 0", "decay 0.01"))
    for wrong in ([], [files[1], "--decay=0.1"]):
        with pytest.raises(SystemExit):
            example.main([str(run.folder), str(tmp_path / "text"), *wrong])


def test_onnx_files(model, tmp_path, monkeypatch) -> None:
    """`export` compares the outputs with the package's; here two texts are read in pieces."""
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    example = load_example("export_onnx")
    path = tmp_path / "m.onnx"
    assert 0 < example.export(path, model, None) < 1e-5
    session = onnxruntime.InferenceSession(path)
    texts = [model.cleaned("my guitar is good"), model.cleaned("the café works")]
    first = [text[:9] for text in texts]
    given = example.inputs_of(first, model.config.model.shape)
    names = ["h_after", "c_after"]
    h, c = session.run(names, given)
    rest = [text[9:] for text in texts]
    given = example.inputs_of(rest, model.config.model.shape) | {"h": h, "c": c}
    _, c = session.run(names, given)
    whole = model.encode(["my guitar is good", "the café works"], "c", all_layers=True)
    np.testing.assert_allclose(c.reshape(2, -1), whole, atol=1e-5)
    monkeypatch.setattr(example, "TOLERANCE", 0)
    with pytest.raises(SystemExit, match="onnxruntime differs by"):
        example.export(tmp_path / "no.onnx", model, None)
    assert not (tmp_path / "no.onnx").exists()


def test_labels_with_onnxruntime(tmp_path, capsys) -> None:
    """A blank text gets no label, as from `classify`."""
    pytest.importorskip("onnx")
    path = tmp_path / "reviews.onnx"
    example = load_example("export_onnx")
    example.main(["reviews-1024", str(path), "--classifier", "reviews-1024/sentiment"])
    assert "within" in capsys.readouterr().out
    texts = ["I loved it.", "A dull,\r\nstupid &quot;mess&quot; of a café. ", " \n"]
    with (tmp_path / "new.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    blocked = "import sys; sys.modules.update(jax=None, mlstm_jax=None, scipy=None)\n"
    program = tmp_path / "label.py"
    program.write_text(blocked + (EXAMPLES / "label_with_onnx.py").read_text(encoding="utf-8"))
    words = [sys.executable, program, path, tmp_path / "new.csv", tmp_path / "labels.csv"]
    subprocess.run(words, check=True, timeout=60)
    with (tmp_path / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert column(rows, "text") == texts
    assert column(rows, "label") == ["positive", "negative", ""]
    answers = mlstm_jax.load("reviews-1024").classify(texts[:2])
    found = [float(row["positive"]) for row in rows[:2]]
    np.testing.assert_allclose(found, column(answers, "positive"), atol=1e-5)
