"""The pretrained model of three classes: what it says of invented texts, with both readers."""

import numpy as np
import pytest

import mlstm_jax as mlstm
from tests.transfer.pieces import likeliest, shares_of

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
def model() -> mlstm.TrainedModel:
    return mlstm.load("sentiment", reader="numpy")


@pytest.mark.parametrize("label", TEXTS)
def test_invented_texts(model, label) -> None:
    """Each alone, and among others."""
    together = model.classify(TEXTS[label])
    assert likeliest(together) == [label] * len(together)
    for text, shares in zip(TEXTS[label], together, strict=True):
        (alone,) = model.classify([text])
        assert list(alone) == ["negative", "neutral", "positive"]
        assert alone == pytest.approx(shares, abs=1e-5)


def test_two_classes(model) -> None:
    three = model.classify(ALL)
    two = model.classify(ALL, classes=("negative", "positive"))
    for whole, part in zip(three, two, strict=True):
        share = whole["positive"] / (whole["negative"] + whole["positive"])
        assert part == pytest.approx({"negative": 1 - share, "positive": share}, abs=1e-6)


def test_both_readers(model) -> None:
    of_jax = mlstm.load("sentiment", reader="jax", compute="fp32")
    found = shares_of(model.classify(ALL))
    np.testing.assert_allclose(found, shares_of(of_jax.classify(ALL)), rtol=0, atol=1e-5)


def test_score_along_a_text(model) -> None:
    heat = model.heatmap(ALL[0], score="sentiment/sentiment")
    (shares,) = model.classify(ALL[:1])
    odds = shares["positive"] / (1 - shares["positive"])
    assert heat.values[-1] == pytest.approx(np.log(odds), abs=1e-3)
