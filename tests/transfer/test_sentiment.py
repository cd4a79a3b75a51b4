"""The pretrained model of three classes: what it says of invented texts, with both readers."""

import numpy as np
import pytest

import mlstm_jax as mlstm

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
WRITTEN = [(text, label) for label, some in TEXTS.items() for text in some]
ALL = [text for text, _ in WRITTEN]


@pytest.fixture(scope="module")
def model() -> mlstm.TrainedModel:
    return mlstm.load("sentiment", reader="numpy")


def likeliest(shares: dict[str, float]) -> str:
    return max(shares, key=lambda name: shares[name])


@pytest.mark.parametrize(("text", "label"), WRITTEN)
def test_invented_texts(model, text, label) -> None:
    (shares,) = model.classify([text])
    assert likeliest(shares) == label
    assert list(shares) == ["negative", "neutral", "positive"]


def test_two_classes(model) -> None:
    three = model.classify(ALL)
    two = model.classify(ALL, classes=("negative", "positive"))
    for whole, part in zip(three, two, strict=True):
        share = whole["positive"] / (whole["negative"] + whole["positive"])
        assert part == pytest.approx({"negative": 1 - share, "positive": share}, abs=1e-6)


def test_both_readers(model) -> None:
    of_jax = mlstm.load("sentiment", reader="jax", compute="fp32")
    for ours, theirs in zip(model.classify(ALL), of_jax.classify(ALL), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_texts_alone(model) -> None:
    together = model.classify(ALL)
    for text, shares in zip(ALL, together, strict=True):
        (alone,) = model.classify([text])
        assert alone == pytest.approx(shares, abs=1e-5)


def test_score_along_a_text(model) -> None:
    heat = model.heatmap(ALL[0], score="sentiment/sentiment")
    (shares,) = model.classify(ALL[:1])
    odds = shares["positive"] / (1 - shares["positive"])
    assert heat.values[-1] == pytest.approx(np.log(odds), abs=1e-3)
