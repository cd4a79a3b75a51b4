"""ONNX files: their numbers beside JAX's, in any batch and in pieces; and a program without JAX."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax import cli
from mlstm_jax.errors import KnownError, UserError
from mlstm_jax.transfer import onnx_file
from mlstm_jax.transfer.classifier import load_classifier
from tests.tolerance import assert_close, bound
from tests.transfer.test_kinds import draw

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

TEXTS = ["my guitar is good", "the café works very well as expected &amp; great", "bad"]
TERMS = 2 * 3 * 64
OURS = Path("reviews-1024/sentiment")


def given(model: mlstm.TrainedModel, texts: list[bytes], **state: Any) -> dict[str, Any]:
    """The inputs for some texts, with bytes of no text after each."""
    bytes_BT = np.full((len(texts), max(map(len, texts)) + 2), 255, np.uint8)
    for row, text in zip(bytes_BT, texts, strict=True):
        row[: len(text)] = np.frombuffer(text, np.uint8)
    zero = np.zeros((len(texts), *model.config.model.shape), np.float32)
    lengths = np.array([len(text) for text in texts])
    return {"bytes": bytes_BT, "lengths": lengths, "h": zero, "c": zero} | state


def session_of(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_outputs_are_those_of_jax(model, tmp_path, dtype) -> None:
    path = model.export(tmp_path / "m.onnx", dtype)
    session, first = session_of(path), path.read_bytes()
    texts = [model.cleaned(text) for text in TEXTS]
    logits, h, c, mean_h, h_each, c_each = session.run(None, given(model, texts))
    found = {"h": h, "c": c, "mean_h": mean_h}
    # int8: an error of 1/126 of a column's largest number in each of the layers' matrices.
    far = {"float32": lambda a, b: assert_close(a, b, TERMS), "int8": assert_near}[dtype]
    for state, array in found.items():
        far(array.reshape(3, -1), model.encode(TEXTS, state, all_layers=True))
    for row, (text, read, logits_TV) in enumerate(zip(TEXTS, texts, logits, strict=True)):
        for state, each in (("h", h_each), ("c", c_each)):
            far(each[row, : len(read), -1], model.states(text, state))
        shifted = np.exp(logits_TV[: len(read) - 1].astype(np.float64))
        shares = shifted / shifted.sum(axis=1, keepdims=True)
        nats = np.log(shares[np.arange(len(read) - 1), np.frombuffer(read, np.uint8)[1:]])
        far(nats, model.log_probabilities(text))
    if dtype == "float32":  # in pieces, with the state carried; the last has one byte
        text, state = texts[1], {}
        for piece in (text[:30], text[30:-1], text[-1:]):
            _, h, c, *_ = session.run(None, given(model, [piece], **state))
            state = {"h": h, "c": c}
        assert_close(state, {"h": found["h"][1:2], "c": found["c"][1:2]}, TERMS)
        assert model.export(path, overwrite=True).read_bytes() == first
        about = json.loads(session.get_modelmeta().custom_metadata_map["mlstm_jax"])
        assert about["cleaning"] == "radford"
        assert about["source"].endswith("step 150")
        assert 0 < about["difference"] < 1e-5


def assert_near(found: Any, expected: Any) -> None:
    """By the root mean square: a single value, after 48 steps of both layers, may be far off."""
    error, size = (np.sqrt(np.mean(np.square(x))) for x in (found - expected, expected))
    # Three matrices in each of two layers.
    assert 1e-5 < error / size < 6 / 126


@pytest.mark.parametrize(
    ("labels", "state", "all_layers"),
    [(["good", "bad"] * 5, "c+mean_h", False), (["good", "bad", "fair"] * 3, "h", True)],
)
def test_probabilities_are_the_classifiers(model, tmp_path, labels, state, all_layers) -> None:
    train = [f"{'my cable is ' * (n % 3)}{n}" for n in range(len(labels))], labels
    options = mlstm.TransferOptions(state=state, all_layers=all_layers)
    made = model.transfer(train, valid=train, options=options)
    classifiers = [made.classifier]
    if len(made.classifier.classes) == 3:
        classifiers.append(made.classifier._replace(softmax=True))
    features = model.encode(TEXTS, state, all_layers=all_layers)
    texts = [model.cleaned(text) for text in TEXTS]
    path = tmp_path / "m.onnx"
    for classifier in classifiers:
        onnx_file.save(path, model._run, "a test", classifier=classifier)
        found = session_of(path).run(["probabilities"], given(model, texts))[0]
        # A score is a sum of features, each as exact as its own sums.
        assert_close(found, classifier.probabilities(features), TERMS * len(features[0]))
        assert onnx_file.read_about(path)["classes"] == classifier.classes


def test_a_program_without_jax_labels_a_csv(tmp_path, monkeypatch, capsys) -> None:
    """That of the page, where importing jax or this package fails."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/onnx.md").read_text(encoding="utf-8")
    line = re.search(r"(?m)^mlstm-jax (export .*)$", page)[1]
    cli.main(line.split())
    written = capsys.readouterr().out
    assert f"opset 17, onnx {__import__('onnx').__version__}, onnxruntime " in written
    blocked = "import sys; sys.modules.update(jax=None, mlstm_jax=None, scipy=None)\n"
    program = re.search(r"(?s)```python\n(.*?)```", page)[1]
    Path("label.py").write_text(blocked + program, encoding="utf-8")
    texts = ["I loved it.", "A dull,\r\nstupid &quot;mess&quot; of a café. ", "It broke at once."]
    with open("new.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    words = [sys.executable, "label.py", "reviews.onnx", "new.csv", "labels.csv"]
    subprocess.run(words, check=True, timeout=60)
    with open("labels.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == texts
    assert [row["label"] for row in rows] == ["positive", "negative", "negative"]
    model, classifier = mlstm.load("reviews-1024"), load_classifier(OURS)
    features = model.encode(texts, classifier.about.state)
    # Of the log-odds: the rounding of three products over 1024 units in each feature.
    limit = bound(3 * 1024) * np.abs(classifier.weights_KD).sum() * np.abs(features).max()
    found = [np.log(float(row["positive"]) / float(row["negative"])) for row in rows]
    np.testing.assert_allclose(found, classifier.scores(features)[:, 1], rtol=0, atol=limit)


def test_what_is_not_the_same_as_jax_is_not_written(model, tmp_path, monkeypatch) -> None:
    wrong = model._run.params | {"decoder_bias": model._run.params["decoder_bias"] + 1e-3}
    other = mlstm.TrainedModel(model._run.__class__(**{**model._run.__dict__, "params": wrong}))
    file = onnx_file._model(other._run, "float32", None)
    monkeypatch.setattr(onnx_file, "_model", lambda *_: file)
    with pytest.raises(KnownError, match=r"is not written: with opset 17, .* differ from JAX's"):
        model.export(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_what_a_format_does_not_have_is_refused(model, tmp_path) -> None:
    for out, how, message in (
        ("m.safetensors", {"dtype": "int8"}, "dtype is 'int8'"),
        ("m.safetensors", {"classifier": "none"}, "classifier is 'none'"),
        ("m.onnx", {"dtype": "float16"}, "dtype is 'float16'"),
        ("m.onnx", {"classifier": "none"}, "there is no folder none"),
    ):
        with pytest.raises(UserError, match=message):
            model.export(tmp_path / out, **how)
    for kind in ("lstm", "transformer"):
        message = f"format onnx is for an mLSTM, and this is model:{kind}"
        with pytest.raises(UserError, match=message):
            onnx_file.save(tmp_path / "m.onnx", draw(kind), "a test")
    assert not list(tmp_path.iterdir())
