"""The models that come with the package: what a name opens, and what each knows."""

import csv
import dataclasses
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax import cli, shipped
from mlstm_jax.errors import Note
from mlstm_jax.options import SamplingOptions
from mlstm_jax.run import load_run, with_compute
from mlstm_jax.transfer import features
from mlstm_jax.transfer.classifier import load_classifier
from mlstm_jax.transfer.report import as_markdown
from mlstm_jax.transfer.trace import Tracer, generate
from mlstm_jax.view.viewer import Viewer
from tests.tables import column
from tests.tolerance import assert_close
from tests.transfer.pieces import likeliest, shares_of, whole

NAME = "reviews-1024"
GOOD = ["I loved this film, it is wonderful.", "Great sound, and my son plays it every day!"]
BAD = ["A dull, stupid mess of a film.", "It broke after two days. What a waste of money."]


@pytest.fixture(scope="module")
def model() -> mlstm.TrainedModel:
    return mlstm.load(NAME)


def test_files() -> None:
    folder = shipped.model(Path(NAME))
    weights = folder / "weights.safetensors"
    assert weights.stat().st_size <= 16e6
    text = weights.read_bytes()
    about = json.loads(text[8 : 8 + int.from_bytes(text[:8], "little")])["__metadata__"]
    assert json.loads(about["mlstm_jax"])["fingerprint"] in (folder / "card.md").read_text()


def test_english(model: mlstm.TrainedModel) -> None:
    # Of an untrained model it is 8; compressors are at about 4 for a text so short.
    assert model.bits_per_character([GOOD[0] + " " + BAD[0]]) < 2.5


def test_own_classifier(model: mlstm.TrainedModel) -> None:
    found = model.classify(GOOD + BAD)
    assert likeliest(found) == ["positive"] * 2 + ["negative"] * 2
    assert found == model.classify(GOOD + BAD, f"{NAME}/sentiment")
    # A text has the score of its last character.
    heat = model.heatmap(BAD[0], score=f"{NAME}/sentiment")
    assert heat.values[-1] < 0 < model.heatmap(GOOD[0], score=f"{NAME}/sentiment").values[-1]
    # The text of its page turns; cleaning puts one character more in front than behind.
    text = shipped.example(Path(NAME)).strip()
    turn = text.index("On the other hand")
    heat = model.heatmap(text, score=f"{NAME}/sentiment")
    assert heat.values[turn] > 0 > heat.values[-1]


def test_score_at_a_space(model: mlstm.TrainedModel) -> None:
    """It is the classifier's score of the text before it, of which cleaning ends in a space."""
    heat = model.heatmap(BAD[0], score=f"{NAME}/sentiment")
    spaces = [place for place, text in enumerate(heat.texts) if text == " "]
    before = ["".join(heat.texts[:place]) for place in spaces]
    # The first space is cleaning's own, before the text.
    found = model.classify(before[1:])
    log_odds = [np.log(shares["positive"] / shares["negative"]) for shares in found]
    assert_close(heat.values[spaces[1:]], np.array(log_odds), terms=2 * model.hidden)


NEW = ["This is great, I love it.", "It is a waste of money."]


def test_four_labels(model) -> None:
    of_names = {}
    for blame, praise in (("down", "up"), ("rotten", "fresh"), ("negative", "Positive")):
        labels = [praise, praise, blame, blame]
        made = model.transfer((GOOD + BAD, labels), (NEW, [praise, blame]))
        assert (made.result.has_prior, made.result.C, made.result.test) == (True, 0, 1)
        report = as_markdown(made.result, NAME, [])
        assert "so this is the classifier that comes with the model" in report
        assert "| the classifier that comes with the model, unchanged |  |  | 100.0 |" in report
        assert "C = 0" not in report
        of_names[praise] = column(model.classify(NEW, made), praise)
    for shares in of_names.values():
        assert shares == pytest.approx(of_names["up"], rel=1e-9)


def test_samples_in_bf16(model: mlstm.TrainedModel) -> None:
    """A text is the same alone and beside others; a smaller model would not tell."""
    run = dataclasses.replace(model.run, batch_model=with_compute(model.run, "bf16").model)
    tracer = Tracer(run)
    how = SamplingOptions(bytes=64, seed=1, temperature=1.0)
    one = whole(generate(tracer, "This film", how))
    three = whole(generate(tracer, "This film", dataclasses.replace(how, samples=3)))
    assert one == three[:1]


# Invented, as GOOD and BAD are.
UNLIKE = [
    "这部电影非常精彩，演员的表演令人感动，我强烈推荐给大家。",
    "Ein wunderbarer Film, und die Schauspieler sind großartig.",
    "for (size_t i = 0; i < n; ++i) { sum += x[i] * w[i]; }",
]


def test_unlike_texts(model, tmp_path, monkeypatch, capsys) -> None:
    """In Python, in the notes of the command and on the page; a few English words are like them."""
    like = [GOOD[0], "good", "Great!", "not bad at all"]
    with warnings.catch_warnings(action="error"):
        model.classify(like)
    with pytest.warns(Note, match="2 of 4 texts, the first number 2, are unlike"):
        model.classify([GOOD[0], UNLIKE[0], BAD[0], UNLIKE[1]])
    monkeypatch.chdir(tmp_path)
    Path("new.txt").write_text("\n".join(GOOD + UNLIKE))
    monkeypatch.setattr(features, "_MOST_TEXTS", 2)  # the notes are of all parts
    cli.main(["classify", NAME, f"{NAME}/sentiment", "new.txt"])
    written = capsys.readouterr()
    rows = list(csv.DictReader(written.out.splitlines()))
    assert column(rows, "record") == [*"12345"]
    assert column(rows[:2], "label") == ["positive"] * 2
    assert "note: 3 of 5 texts, the first number 3, are unlike" in written.err
    viewer = Viewer(load_run(Path(NAME)), load_classifier(Path(f"{NAME}/sentiment")))
    for text in (GOOD[0], "good", *UNLIKE[1:]):
        assert viewer.read({"text": text})["unlike"] == (text in UNLIKE)


def test_names_of_commands(tmp_path, monkeypatch, printed) -> None:
    monkeypatch.chdir(tmp_path)
    cli.main(["export", NAME])
    assert Path(f"{NAME}.safetensors").is_file()
    assert printed("configs", NAME) == (shipped.model(Path(NAME)) / "card.md").read_text()


# --- the model of three classes

TEXTS = {
    "positive": [
        "I loved it.",
        "No complaints.",
        "Not bad at all!",
        "The staff were wonderful and the room was perfect.",
        "thanks so much, you made my day :)",
    ],
    "negative": [
        "I hated it.",
        "It lacks charm.",
        "Not good at all!",
        "The staff were rude and the room was dirty.",
        "worst. service. ever.",
    ],
    "neutral": ["The meeting is at five.", "Where is the station?"],
}
ALL = [*TEXTS["positive"], *TEXTS["negative"], *TEXTS["neutral"]]


@pytest.fixture(scope="module")
def sentiment() -> mlstm.TrainedModel:
    return mlstm.load("sentiment", reader="numpy")


@pytest.mark.parametrize("label", TEXTS)
def test_invented_texts(sentiment, label) -> None:
    """Each alone, and among others."""
    together = sentiment.classify(TEXTS[label])
    assert likeliest(together) == [label] * len(together)
    for text, shares in zip(TEXTS[label], together, strict=True):
        (alone,) = sentiment.classify([text])
        assert list(alone) == ["negative", "neutral", "positive"]
        assert alone == pytest.approx(shares, abs=1e-5)


def test_two_classes(sentiment) -> None:
    three = sentiment.classify(ALL)
    two = sentiment.classify(ALL, classes=("negative", "positive"))
    for three_shares, part in zip(three, two, strict=True):
        praise = three_shares["positive"]
        share = praise / (three_shares["negative"] + praise)
        assert part == pytest.approx({"negative": 1 - share, "positive": share}, abs=1e-6)


def test_both_readers(sentiment) -> None:
    of_jax = mlstm.load("sentiment", reader="jax", compute="fp32")
    found = shares_of(sentiment.classify(ALL))
    np.testing.assert_allclose(found, shares_of(of_jax.classify(ALL)), rtol=0, atol=1e-5)


def test_score_along_a_text(sentiment) -> None:
    heat = sentiment.heatmap(ALL[0], score="sentiment/sentiment")
    (shares,) = sentiment.classify(ALL[:1])
    odds = shares["positive"] / (1 - shares["positive"])
    assert heat.values[-1] == pytest.approx(np.log(odds), abs=1e-3)
