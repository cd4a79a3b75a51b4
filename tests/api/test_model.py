"""A model in Python: what `load` takes, and what the model makes of texts."""

import copy
import logging
import pickle
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax.corpora.documents import clean
from mlstm_jax.errors import Note
from mlstm_jax.run import Run
from mlstm_jax.transfer import reader as module
from mlstm_jax.transfer.features import Featurizer
from tests.tolerance import assert_close

TEXTS = ["my guitar is good 1.", "", "that strap sounds bad 12.", "the café works great 3." * 20]
# The sums that a feature passes through in a step: H, E and the gates' inputs.
TERMS = 3 * 64


def test_what_is_loaded_can_be_read_in_a_few_lines(model: mlstm.TrainedModel) -> None:
    lines = repr(model).splitlines()
    assert len(lines) == 3
    assert "2 x 64 units" in lines[1]
    assert "step 300" in lines[2]
    assert model.hidden == 64


def test_encode_gives_the_features(model: mlstm.TrainedModel, run: Run) -> None:
    found = model.encode(TEXTS)
    assert found.shape == (4, 64)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[1], 0)
    expected = Featurizer(run, states=("mean_h",))(TEXTS)
    assert_close(found, expected, TERMS)
    every = model.encode(TEXTS, "c", all_layers=True)
    assert every.shape == (4, 128)
    assert_close(every[:, 64:], model.encode(TEXTS, "c", batch_size=2), TERMS)
    assert model.encode([]).shape == (0, 64)


def test_a_second_call_compiles_nothing(
    model: mlstm.TrainedModel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of texts of other lengths, in the same number of rows."""
    model.encode(["another text " * 65] * 8)
    model.generate("another", bytes=4)
    made: list[Any] = []
    monkeypatch.setattr(module, "_make_step", lambda *a, **k: made.append(a))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        model.encode(["a longer text " * 60] * 7)
        model.generate("longer?", bytes=4)
    assert not made
    assert "Compiling" not in caplog.text


def test_progress_counts_the_bytes_that_are_read(
    model: mlstm.TrainedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mlstm_jax.progress._SECONDS_BETWEEN_PLAIN_LINES", 0.0)
    texts = ["a text of any length "] * 500  # 23 bytes after cleaning
    model.encode(texts, show_progress=True)
    assert "encode 11.5/11.5 kB" in capsys.readouterr().err
    model.bits_per_character(texts, show_progress=True)
    assert "score 11.5/11.5 kB" in capsys.readouterr().err


def test_bits_per_character_of_texts(model: mlstm.TrainedModel, run: Run) -> None:
    """The cross-entropy of every byte but the first, text by text, in NumPy."""
    nats, count = 0.0, 0
    for text in TEXTS:
        read = np.frombuffer(clean(text, run.cleaning), np.uint8)
        if len(read) < 2:
            continue
        variables = {"params": run.params}
        _, logits, *_ = run.model.apply(variables, read[None, :-1], run.model.init_carry(1))
        logits = np.asarray(logits[0], np.float64)
        largest = logits.max(axis=1)
        normaliser = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
        nats += (normaliser - logits[np.arange(len(read) - 1), read[1:]]).sum()
        count += len(read) - 1
    found = model.bits_per_character(TEXTS)
    assert_close(np.float32(found), np.float32(nats / count / np.log(2)), TERMS + count)
    with pytest.raises(ValueError, match="no byte to score"):
        model.bits_per_character([])


def test_generate_continues_a_prompt(model: mlstm.TrainedModel) -> None:
    text = model.generate("my guitar", bytes=50, temperature=0)
    assert text.startswith("my guitar")
    assert text == model.generate("my guitar", bytes=50, temperature=0, seed=3)
    assert "\n" not in model.generate(bytes=200, stop="\n")
    held = dict.fromkeys(range(32), 3.0)
    assert model.generate(bytes=30, set_unit=held) != model.generate(bytes=30)


def test_a_heat_map_shows_itself(model: mlstm.TrainedModel, tmp_path: Path) -> None:
    made = model.heatmap("my guitar is good", 3, state="mean_h")
    assert made.name == "mean of h so far of unit 3 of layer 1"
    # A part of a notebook, whose own style it leaves as it is.
    part = made._repr_html_()
    rules = re.findall(r"^(.+?) \{", re.search(r"<style>(.*?)</style>", part, re.DOTALL)[1], re.M)
    assert len(rules) > 3
    assert all(rule.startswith(".heat") for rule in rules)
    assert "<html" not in part
    labels = ["good", "bad"] * 10
    texts = [f"the piano is {label}" for label in labels]
    known = model.transfer((texts, labels), (texts, labels), out=tmp_path / "known")
    scored = model.heatmap("my guitar is good", score=known, label="good")
    assert scored.name == "log-odds of good"
    again = model.heatmap("my guitar is good", score=tmp_path / "known", label="good")
    np.testing.assert_array_equal(scored.values, again.values)
    made.save(tmp_path / "heat.html")
    with pytest.raises(ValueError, match=r"heat\.html exists; .* replace it with `overwrite=True`"):
        made.save(tmp_path / "heat.html")
    page = (tmp_path / "heat.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert part in page


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: m.encode("one text"),
            r"texts is a single str; give a list of texts, \[text\], or Path\(file\)\.",
        ),
        (lambda m: m.encode(b"bytes"), "texts is a single bytes"),
        (lambda m: m.encode(["a", 3]), r"texts\[1\] has type int"),
        (lambda m: m.encode(["a"], "mean"), "state is 'mean', but it must be one of 'c', 'h', "),
        (lambda m: m.encode(["a"], batch_size=0), "batch_size is 0, but .* at least 1"),
        (lambda m: m.encode({"a": "x"}), "texts has type dict, but it must be a list of texts"),
        (lambda m: m.encode({"a"}), "texts has type set"),
        (lambda m: m.encode(np.array([["a"]])), "type ndarray, .*such as one column of the table"),
        (lambda m: m.encode(None), "texts has type NoneType"),
        (lambda m: mlstm.Features(m, batch_size=0).fit(["a"]), "batch_size is 0"),
        (lambda m: m.generate(bytes=5.5), r"^bytes is 5\.5, but it must be an integer"),
        (lambda m: m.generate(seed=1.5), r"^seed is 1\.5"),
        (lambda m: m.generate(stop=None), "^stop is None, but it must be a str"),
        (lambda m: m.generate(top_k=0), r"^top_k is 0, but it must be 1 or more"),
        (lambda m: m.generate(stop="ab"), r"^stop is b'ab', but it must be a single byte"),
        (lambda m: m.generate(["a"]), r"prompt is \['a'\], but it must be a str"),
        (lambda m: m.heatmap("a", 64), r"^unit 64 does not exist: the model has units 0 to 63"),
        (lambda m: m.heatmap("", 1), "the text is empty"),
        (lambda m: m.heatmap(None, 1), "text is None, but it must be a str"),
        (lambda m: m.heatmap("a", 1.5), r"unit is 1\.5, but it must be an integer"),
        (lambda m: m.heatmap("a", 1, scale="0"), "scale is '0', but it must be a number"),
        (lambda m: m.heatmap("a", 1, label="good"), "label is for `score`; leave it out"),
        (lambda m: m.heatmap("a", score="x", layer=1), "layer is for `unit`; leave it out"),
        (lambda m: m.heatmap("a", 1).save("heat.txt"), r"heat\.txt: a heat map is an \.html or"),
        (lambda m: m.heatmap("a"), "give either `unit` or `score`"),
        (lambda m: m.evaluate("dev"), "split is 'dev', but it must be one of 'train', 'valid'"),
        (lambda m: m.transfer((["a"], [1, 2]), (["a"], [1])), "train has 1 texts, but 2 labels"),
        (lambda m: m.transfer((["a", "b"], [1, 1]), (["a"], [1])), "only the label 1"),
        (
            lambda m: m.transfer((["a", "b"], [1, None]), (["a"], [1])),
            r"train\[1\], text 1: the label is empty",
        ),
        (lambda m: m.transfer((["a"], [np.nan]), (["a"], [1])), "text 0: the label is empty"),
        (lambda m: m.transfer((["a"], [[1]]), (["a"], [1])), "neither a string nor a number"),
        (
            lambda m: m.transfer((["a"], {"joy": np.array([[1]])}), (["a"], {"joy": [1]})),
            r"text 0: the label 'joy' is array\(\[1\]\)",
        ),
        (lambda m: mlstm.load(Path("none")), "none is not a run folder"),
        (lambda m: mlstm.Features(3).fit(["a"]), "model has type int"),
        (lambda m: mlstm.Features(m, state="cc").fit(["a"]), "state is 'cc', but it must be one"),
        (lambda m: mlstm.train(3), "config is 3, but it must be a Config, a str or a Path"),
        (lambda m: mlstm.train("smal_512"), "smal_512 does not exist, .* did you mean small_512"),
        (
            lambda m: mlstm.train(m.config, callbacks=[3]),
            "callbacks has 3, but each must be a func",
        ),
        (lambda m: mlstm.plan("smal_512", "h200"), "did you mean small_512"),
        (lambda m: mlstm.vary(m.config, dat__batch=1), "Config has no field 'dat'; did you mean"),
        (lambda m: mlstm.vary(m.config, data__bacth=1), "Data has no field 'bacth'; did you mean"),
        (lambda m: mlstm.plot_metrics([]), "runs is empty"),
    ],
)
def test_mistakes_are_value_errors_that_name_the_argument(
    call: Any, message: str, model: mlstm.TrainedModel
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        call(model)
    assert "--" not in str(error.value)


def test_what_a_model_shows_of_itself_cannot_be_changed(model: mlstm.TrainedModel) -> None:
    with pytest.raises(ValueError, match="read-only"):
        model.parameters["decoder_bias"][0] = 1


def test_copies_and_pickles(model: mlstm.TrainedModel) -> None:
    assert copy.deepcopy(model) is model
    again = pickle.loads(pickle.dumps(model))
    assert again.step == model.step
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
    assert len(pickle.dumps(model)) < 1000
    ours = pickle.dumps(mlstm.load("reviews-768"))
    assert str(Path(mlstm.__file__).parent).encode() not in ours
    assert repr(pickle.loads(ours)) == repr(mlstm.load("reviews-768"))


def test_export_and_load_again(model: mlstm.TrainedModel, tmp_path: Path) -> None:
    path = model.export(tmp_path / "mine.safetensors")
    again = mlstm.load(str(path))
    assert "imported" in repr(again)
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
    with pytest.raises(ValueError, match=r"exists; .* `overwrite=True`"):
        model.export(path)
    with pytest.raises(ValueError, match="has no metrics"):
        _ = again.metrics
    assert model.export(path, overwrite=True) == path
    with pytest.raises(ValueError, match=r"the folder .*none does not exist"):
        model.export(tmp_path / "none" / "m.npz")
    pickled = pickle.loads(pickle.dumps(again))
    np.testing.assert_array_equal(pickled.encode(TEXTS[:1]), model.encode(TEXTS[:1]))


def test_transfer_of_texts_in_memory(model: mlstm.TrainedModel, tmp_path: Path) -> None:
    def examples(first: int, count: int) -> tuple[list[str], list[int]]:
        words = [("good", 1), ("bad", 0)]
        texts = [f"my guitar is {words[n % 2][0]} {n}." for n in range(first, first + count)]
        return texts, [words[n % 2][1] for n in range(first, first + count)]

    train, test = examples(0, 60), examples(100, 30)
    made = model.transfer(train, test, state="mean_h")
    assert made.folder is None
    # What a notebook shows: the accuracy, its interval and the classes, no arrays.
    low, high = made.result.interval
    assert low <= made.result.test <= high < low + 0.4
    shown = f"test accuracy {made.result.test:.3f} ({low:.3f} to {high:.3f}, 95% of 30 texts)"
    assert repr(made).startswith(f"Transferred: {shown}; 2 classes: 0, 1")
    assert "2 classes: 0, 1" in repr(made.classifier)
    assert "array(" not in repr([made, made.classifier, model._run])
    # Without test texts a fifth of train is held out, whatever the order.
    pairs = list(zip(*train, strict=True))
    one = model.transfer(train, state="mean_h").result
    other = model.transfer(tuple(zip(*pairs[::-1], strict=True)), state="mean_h").result
    assert one.texts == {"train": 48, "valid": 0, "test": 12}
    assert np.sum(one.confusion, axis=1).tolist() == [6, 6]
    assert other.confusion == one.confusion
    assert made.result.test > 0.9
    assert made.result.state == "mean_h"
    kept = model.transfer(train, test, state="mean_h", out=tmp_path / "out")
    assert (tmp_path / "out/report.md").is_file()
    assert kept.result == made.result
    with pytest.raises(ValueError, match="exists; choose another folder with `out`"):
        model.transfer(train, test, out=tmp_path / "out")
    shares = made.classifier.probabilities(model.encode(test[0], "mean_h"))
    for given in (made, tmp_path / "out"):
        found = model.classify(test[0], given)
        assert [list(one) for one in found] == [["0", "1"]] * 30
        np.testing.assert_array_equal([list(one.values()) for one in found], shares)
    with pytest.warns(Note, match="1 of 2 texts are blank and get no label, the first is number 1"):
        blank, text = model.classify(["&nbsp;", test[0][0]], made)
    assert blank == {}
    assert np.isfinite(list(text.values())).all()
    # In memory as in a file, 1.0 is 1, and a space is no part of a label.
    words = [" 1 " if label else 0.0 for label in train[1]]
    assert model.transfer((train[0], words), test, state="mean_h").result == made.result
    with pytest.raises(ValueError, match="comes with no classifier"):
        model.classify(test[0])
