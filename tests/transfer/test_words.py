"""The classifier of states and word counts together."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlstm_jax import cli
from mlstm_jax.api.model import TrainedModel, load
from mlstm_jax.errors import Note, UserError
from mlstm_jax.run import Run
from mlstm_jax.transfer import classifier_file, words
from mlstm_jax.transfer.classifier_file import load_classifier
from mlstm_jax.transfer.classify import Classifier
from mlstm_jax.transfer.finetune import FinetuneOptions
from mlstm_jax.transfer.labels import Labelled, Task
from mlstm_jax.transfer.transfer import Transferred
from mlstm_jax.transfer.words import Words
from mlstm_jax.view.viewer import Viewer
from tests.tolerance import assert_close
from tests.transfer.test_classify import change_files

# As words "10" is before "9"; as numbers after it.
ENDS = {"9": ["bad", "\u00e9l\u00e9 'n'"], "10": ["GOOD", '\ud83c"fein"'], "so": ["fair\nenough"]}
NEW = ["my guitar is bad", "my \u00e9l\u00e9", "zzzz", "\ud800", "Good, GOOD cable 3"]


def labelled(classes: list[str], count: int, first: int = 0) -> Labelled:
    labels = [classes[n % len(classes)] for n in range(first, first + count)]
    ends = [ENDS[label][n % 7 % len(ENDS[label])] for n, label in enumerate(labels)]
    texts = [f"my {('cable', 'guitar')[n % 2]} is {end} {n}" for n, end in enumerate(ends, first)]
    return Labelled(texts, labels)


@pytest.fixture(scope="module")
def model(run: Run) -> TrainedModel:
    return load(run.folder)


@pytest.fixture(scope="module")
def made(model: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Transferred:
    train, valid, test = (labelled(list(ENDS), count, count)[:2] for count in (60, 30, 36))
    out = tmp_path_factory.mktemp("words") / "out"
    return model.transfer(train, test, valid, state="mean_h", words=True, out=out)


@pytest.mark.parametrize(("classes", "validated"), [(2, True), (3, True), (3, False)])
def test_word_counts_are_scikit_learns(classes: int, validated: bool) -> None:
    task = Task(list(ENDS)[:classes])
    train, valid = labelled(task.names, 60), labelled(task.names, 30, 60)
    found, C, score = words.fit(train, valid if validated else None, task)
    codes = task.codes(train.labels)
    theirs = words.pipeline(C).fit(train.texts, codes)
    shares = found.probabilities(NEW)
    assert_close(shares, theirs.predict_proba(NEW), len(found.vocabulary), "float64")
    np.testing.assert_array_equal(found.probabilities(train.texts).argmax(axis=1), codes)
    assert score == 1
    assert C in words.CS
    # Without a known word the intercepts answer.
    np.testing.assert_array_equal(shares[2], shares[3])


def test_the_saved_classifier_is_the_mean_of_both(model, made, tmp_path) -> None:
    again, about = load_classifier(made.folder)
    counts, found = again.words, made.classifier.words
    assert about == made.about
    assert counts.vocabulary == found.vocabulary
    for name in ("idf_V", "weights_KV", "intercepts_K"):
        np.testing.assert_array_equal(getattr(counts, name), getattr(found, name))
    assert repr(again).startswith("Classifier of 64 features and 20 words and pairs: 3 classes")

    of_states = model.classify(NEW, made._replace(classifier=again._replace(words=None)))
    by_words = found.probabilities(NEW)
    for given in (made, made.folder):
        answers = model.classify(NEW, given)
        for answer, states, row in zip(answers, of_states, by_words, strict=True):
            expected = {name: (states[name] + row[k]) / 2 for k, name in enumerate(ENDS)}
            assert answer == expected
    with pytest.warns(Note, match="1 of 1 texts, .* blank"):
        assert model.classify([" "], made) == [{}]
    assert model.classify([], made) == []

    texts, labels, *_ = labelled(list(ENDS), 36, 36)
    best = [max(one, key=one.get) for one in model.classify(texts, made)]
    together = made.result.together
    assert together["test"] == np.mean([a == b for a, b in zip(best, labels, strict=True)])
    assert list(together) == ["train", "valid", "test"]
    assert f", with words {together['test']:.3f}; 3 classes" in repr(made.result)
    percent = [f"{100 * together[name]:.1f}" for name in together]
    row = "| features and words together, `words` | {} | {} | **{}** |".format(*percent)
    assert row in (made.folder / "report.md").read_text()

    texts, out = tmp_path / "new.jsonl", tmp_path / "labels.csv"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in NEW))
    run, folder = str(model.path), str(made.folder)
    cli.main(["classify", run, folder, str(texts), "--out", str(out)])
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, answer in zip(rows, answers, strict=True):
        assert row["label"] == max(answer, key=answer.get)
        assert all(row[f"p({name})"] == f"{answer[name]:.4f}" for name in ENDS)


def test_the_command_saves_words(model, tmp_path, capsys) -> None:
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    for path, first in ((train, 0), (test, 60)):
        texts, labels, *_ = labelled(["9", "10"], 60, first)
        rows = ({"text": a, "label": b} for a, b in zip(texts, labels, strict=True))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["transfer", str(model.path), "--train", str(train), "--test", str(test)]
    for name, given in (("both", ["--words"]), ("states", [])):
        cli.main([*command, "--out", str(tmp_path / name), "--state", "mean_h", *given])
        # Without `words`, too, the report says what they would give; nothing is cross-validated.
        said = capsys.readouterr().out
        assert "| features and words together, `words` | 100.0 |  | **100.0** |" in said
        assert bool(load_classifier(tmp_path / name)[0].words) == bool(given)


def test_a_fine_tuned_classifier_counts_words_too(model, made, tmp_path) -> None:
    names, out = ["9", "10"], tmp_path / "out"
    train, valid = labelled(names, 40), labelled(names, 20, 40)
    options = FinetuneOptions(epochs=1, batch=4, window=32, words=True)
    tuned = model.finetune(train[:2], valid[:2], out=out, options=options)
    report = json.loads((out / "report.json").read_text())
    assert report["accuracy"] == tuned.accuracy
    assert report["without_words"] == tuned.without_words
    assert tuned.without_words["valid"] < tuned.accuracy["valid"] == 1  # the words decide here

    again, counts = load(out / "run", tuned.run.step), words.fit(train, valid, Task(names))[0]
    (chosen, about), by_words = load_classifier(out / "classifier"), counts.probabilities(NEW)
    alone = made._replace(classifier=chosen._replace(words=None), about=about)
    of_states = again.classify(NEW, alone)
    for answer, states, row in zip(
        again.classify(NEW, out / "classifier"), of_states, by_words, strict=True
    ):
        expected = {name: (states[name] + row[k]) / 2 for k, name in enumerate(names)}
        assert answer == pytest.approx(expected, abs=4 * np.finfo(np.float64).eps)

    letters = [chr(ord("A") + n) for n in range(40)]
    for labels, message in (({"joy": [0, 1] * 20}, "not for binary"), (train.labels, "be counted")):
        with pytest.raises(UserError, match=f"words .*{message}"):
            model.finetune((letters, labels), out=tmp_path / "none", options=options)
    assert not (tmp_path / "none").exists()


def test_nothing_else_imports_scikit_learns_word_counts(model, made, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    (chosen, _), folder = load_classifier(made.folder), made.folder
    model.classify(NEW, made._replace(classifier=chosen._replace(words=None)))
    with pytest.raises(ImportError):
        model.classify(NEW, folder)


def test_the_page_has_the_same_classes_and_no_score(model, made) -> None:
    viewer = Viewer(model._run, *load_classifier(made.folder))
    assert viewer.model({})["scores"] == []
    (answer,) = model.classify(NEW[:1], made)
    shown = {one["name"]: one["probability"] for one in viewer.read({"text": NEW[0]})["classes"]}
    assert list(shown) == list(ENDS)
    # The page reads one text byte by byte, in two layers of three products over 64 units.
    assert_close([*shown.values()], [*answer.values()], 2 * 3 * 64 * 64)


def test_what_needs_the_states_alone_refuses_words(model, made, tmp_path, refused) -> None:
    alone = "for a classifier of states alone.*without `words`"
    with pytest.raises(UserError, match=f"score after each character is {alone}"):
        model.heatmap("my guitar is bad", score=made)
    with pytest.raises(UserError, match=f"format onnx is {alone}"):
        model.export(tmp_path / "m.onnx", classifier=made.folder)
    with pytest.raises(UserError, match="texts has 0, but features has 1 rows"):
        made.classifier.probabilities(np.ones((1, 64)))
    page = "view", model.path, "--classifier", made.folder, "--port", -1  # so that none is served
    said = refused(*page, "--score")
    assert "the score after each character is for a classifier of states alone" in said
    (tmp_path / "dist").mkdir()
    for name in ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"):
        (tmp_path / "dist" / name).touch()
    said = refused(*page, "--static", tmp_path / "page", "--onnxruntime", tmp_path)
    assert "a page without a server is for a classifier of states alone" in said
    assert {path.name for path in tmp_path.iterdir()} == {"dist"}

    texts = labelled(list(ENDS), 12).texts
    with pytest.raises(UserError, match="words is for classes, not for binary labels"):
        model.transfer((texts, {"joy": [0, 1] * 6}), words=True)
    blank = ["x y z"] * 12, ["a", "b"] * 6
    with pytest.raises(UserError, match=r"words cannot be counted .*; leave `words` out"):
        model.transfer(blank, blank, state="mean_h", words=True)


ODD = ["a\nb", '"quoted" \\', "\ud800", "\u00e9l\u00e9", ""]
ABOUT = classifier_file.Description("c", False, "abc", None)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A classifier whose vocabulary no scikit-learn made."""
    counts = Words(ODD, np.arange(5.0), np.ones((3, 5)), np.zeros(3))
    both = Classifier(np.ones((3, 4)), np.zeros(3), ["a", "b", "c"], 1.0, words=counts)
    classifier_file.save(tmp_path, both, ABOUT)
    return tmp_path


def test_an_odd_vocabulary_is_kept(odd: Path) -> None:
    counts = load_classifier(odd)[0].words
    assert counts.vocabulary == ODD
    np.testing.assert_array_equal(counts.probabilities(NEW), np.full((len(NEW), 3), 1 / 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary": ["a"] * 5}, "json: .*vocabulary must be different words"),
        ({"vocabulary": []}, "json: .*vocabulary must be different words"),
        ({"vocabulary": [1]}, r"json: .*vocabulary\[0\] is 1, but it must be a string"),
        ({"vocabulary": ["a"]}, r"idf has the shape \(5,\), but must have \(1,\)"),
        ({"vocabulary": None}, "has the unexpected idf, word_intercepts, word_weights"),
        ({"labels": [{"C": 1, "threshold": 0.5}] * 3}, "json: .*vocabulary .* for classes only"),
        ({"word_weights": np.ones((1, 5))}, r"word_weights has the shape \(1, 5\), but must have"),
        ({"word_intercepts": np.ones(1)}, r"word_intercepts has the shape \(1,\), but must have"),
        ({"idf": np.full(5, np.nan)}, "idf must be finite numbers"),
        ({"idf": np.ones(5)}, r"idf of classifier\.safetensors does not match its checksum"),
    ],
)
def test_invalid_words_are_refused(change, message, odd) -> None:
    change_files(odd, change)
    with pytest.raises(UserError, match=message):
        load_classifier(odd)


def test_a_missing_part_is_named(odd: Path) -> None:
    arrays = load_file(odd / "classifier.safetensors")
    del arrays["idf"]
    save_file(arrays, odd / "classifier.safetensors")
    with pytest.raises(UserError, match=r"classifier\.safetensors: is missing idf"):
        load_classifier(odd)
    text = (odd / "classifier.json").read_text()
    (odd / "classifier.json").write_text(
        text.replace('"quoted', '"Quoted', 1).replace("quoted", "Quoted", 1)
    )
    with pytest.raises(UserError, match=r"classifier\.json: .* does not match its crc32"):
        load_classifier(odd)
