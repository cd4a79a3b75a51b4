"""Texts that a model or a classifier has learned from are counted, and named."""

import gzip
import json
import os
import warnings
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax import cli, shipped
from mlstm_jax.config import vary
from mlstm_jax.errors import Note, UserError
from mlstm_jax.loaded import load_small
from mlstm_jax.run import as_weights, load_run
from mlstm_jax.transfer import known
from mlstm_jax.transfer.classifier import Classifier, Description
from mlstm_jax.transfer.known import digests
from mlstm_jax.transfer.report import as_markdown
from mlstm_jax.weights import save
from tests.tables import column, praise_and_blame

TEXTS = praise_and_blame(0, 5)
LABELS = [1, 0] * 5
NEW = praise_and_blame(5, 8)


def test_digests() -> None:
    same = ["A film.<br /><br />A  PLOT &amp; b", " a film. a plot\n& b ", "A film. A plot & b"]
    assert len({*digests(same, "radford").tolist()}) == 1
    # What the package has on disk depends on this value.
    assert digests(["my guitar"], "radford").tolist() == [2349237758]


def test_texts_of_the_fit(model, tmp_path) -> None:
    out = tmp_path / "out"
    test = ([*NEW[:4], f"«{TEXTS[1].upper()}!»"], [1, 0, 1, 0, 0])
    options = mlstm.TransferOptions(state="mean_h")
    with pytest.warns(Note, match=r"1 of the 5 texts of test is also among the training texts"):
        made = model.transfer((TEXTS, LABELS), test, (NEW, LABELS[:6]), options=options, out=out)
    assert len(made.result.notes) == 1
    assert json.loads((out / "report.json").read_text())["notes"] == made.result.notes
    assert "**1 of the 5 texts of test is also" in (out / "report.md").read_text()
    with pytest.warns(Note, match="2 of 4 texts, the first number 2, .* classifier was fitted to"):
        model.classify([NEW[0], TEXTS[0], NEW[1], TEXTS[1]], out)
    with warnings.catch_warnings(action="error"):
        model.classify(NEW, made)
    # One in a thousand may be chance, and one in a hundred is far less than the accuracy's error.
    for count, total, is_left_out in (
        (1, 1001, True),
        (1, 600, True),
        (2, 600, True),
        (3, 600, False),
        (1, 90, False),
        (40, 50_000, True),
        (60, 50_000, False),
        (0, 5, True),
    ):
        assert known.is_negligible(count, total) == is_left_out


def test_rewritten_classifier(model, tmp_path) -> None:
    about = Description("c", False, model.loaded.fingerprint, None)
    made = Classifier(np.ones((1, 64)), np.zeros(1), ["a", "b"], 1.0, about=about)
    made.save(tmp_path)
    (first,) = model.classify(["my guitar"], tmp_path)
    assert model.classify(["my guitar"], tmp_path) == [first]
    made._replace(weights_KD=-made.weights_KD).save(tmp_path)
    (second,) = model.classify(["my guitar"], tmp_path)
    assert second == pytest.approx({"a": first["b"], "b": first["a"]})
    assert first["a"] != pytest.approx(0.5)


def test_texts_of_the_model(model, monkeypatch, tmp_path) -> None:
    np.save(tmp_path / "read.npy", np.sort(digests(TEXTS, "radford")))
    monkeypatch.setattr(shipped, "rated_texts", lambda path: tmp_path / "read.npy")
    told = "are in the model's own training data with their ratings, so their accuracy looks better"
    test = ([*NEW, TEXTS[0]], [1, 0, 1, 0, 1, 0, 1])
    with pytest.warns(Note, match=f"10 of the 10 texts of train {told}") as notes:
        made = model.transfer((TEXTS, LABELS), test, (NEW, LABELS[:6]))
    assert notes[0].filename == __file__
    assert "\n1 of the 7 texts of test is in" in "\n".join(["", *made.result.notes])
    report = as_markdown(made.result, "mine", [])
    assert "cannot be said here" in report
    for verdict in ("Words alone are better", "Words add nothing"):
        assert verdict not in report
    with pytest.warns(Note, match=f"10 of 10 texts {told}"):
        mlstm.Features(model).fit(TEXTS, LABELS)
    with pytest.warns(Note, match=f"10 of 10 texts, the first number 1, {told}"):
        model.classify(TEXTS, made)
    with warnings.catch_warnings(action="error"):
        mlstm.Features(model).fit(TEXTS)
        mlstm.Features(model).fit(NEW, LABELS[:6])


def test_texts_of_a_run_from_the_model(run, corpus, monkeypatch, tmp_path) -> None:
    """A run knows what the parameters had read with which it began, also through others."""
    np.save(tmp_path / "read.npy", np.sort(digests(TEXTS, "radford")))
    of_run = {run.fingerprint: tmp_path / "read.npy"}
    monkeypatch.setattr(shipped, "rated_texts", of_run.get)
    start = run.folder
    for name in ("first", "second"):
        config = vary(run.config, out=str(tmp_path / name), train__start_from=str(start))
        config = vary(config, data__corpus=str(corpus), train__steps=1)
        made = mlstm.train(config, show_progress=False)
        assert len(known.read_with_ratings(made.loaded)) == len(TEXTS)
        start = (tmp_path / name).rename(tmp_path / f"moved_{name}")
    mlstm.load(start).export(tmp_path / "exported.safetensors")
    mlstm.load(run.folder).export(tmp_path / "rounded.safetensors", "int8")
    for name in ("exported", "rounded"):
        file = tmp_path / f"{name}.safetensors"
        mlstm.import_weights("mlstm", file, tmp_path / name)
        for loaded in (load_small(file), load_run(file), load_small(tmp_path / name)):
            assert len(known.read_with_ratings(loaded)) == len(TEXTS)


def test_texts_of_the_shipped_model(tmp_path: Path) -> None:
    """Of every ten labelled reviews of IMDB the first eight, and the sentences of SST's fit."""
    run = load_run(Path("reviews-1024"))
    read = known.read_with_ratings(run)
    assert (read.dtype, len(read)) == (np.uint32, 34_147)
    assert (np.diff(read.astype(np.int64)) > 0).all()
    file = tmp_path / "mine.safetensors"
    save(file, as_weights(run))
    np.testing.assert_array_equal(known.read_with_ratings(load_run(file)), read)
    folder = shipped.model(Path("reviews-1024"))
    size = 0
    for path in (*folder.glob("*.npy"), *folder.glob("*/classifier.safetensors")):
        size += path.stat().st_size
    assert size <= 204_800
    given = os.environ.get("MLSTM_JAX_SHARED_DATA")
    shared = Path(given) if given else Path(__file__).parents[2].parent / "shared/data"
    imdb = shared / "imdb/train.jsonl.gz"
    if not imdb.is_file():
        pytest.skip("no real reviews: MLSTM_JAX_SHARED_DATA/imdb has no train.jsonl.gz")
    with gzip.open(imdb, "rt", encoding="utf-8") as lines:
        texts = column(map(json.loads, islice(lines, 1000)), "text")
    is_read_N = np.isin(digests(texts, "radford"), read).reshape(-1, 10)
    assert is_read_N[:, :8].mean() > 0.98
    assert is_read_N[:, 8:].mean() < 0.01


def test_ends_of_a_long_text(tmp_path, capsys) -> None:
    """A text that is not longer than `at_most` is read as it is."""
    model = mlstm.load(shipped.MODEL)
    ends = "It was a dull, stupid mess. ", "I loved it, and so did my family."
    for at_most in (40, 41, 200):
        text = ends[0] + "x" * 500 + ends[1]
        cleaned = model.cleaned(text)
        tail = at_most // 2
        read = cleaned[: at_most - tail] + cleaned[-tail:]
        stream = model.reader("mean_h").feed(read)
        features = model.featurizer([text], ("mean_h",), at_most=at_most)([text])
        np.testing.assert_allclose(features[0], stream.state, atol=1e-5)
    short = "I loved it."
    assert model.classify([short], at_most=20) == model.classify([short])
    (tmp_path / "a.txt").write_text(f"{text}\n", encoding="utf-8")
    cli.main(["classify", shipped.MODEL, str(tmp_path / "a.txt"), "--at-most", "40"])
    (answer,) = model.classify([text], at_most=40)
    assert f"{answer['positive']:.4f}" in capsys.readouterr().out
    with pytest.raises(UserError, match="at_most is 0"):
        model.classify([text], at_most=0)
