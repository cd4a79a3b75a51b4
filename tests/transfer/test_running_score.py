"""A classifier's score along a text: as a heat map, and on the page (test_view.py)."""

import re

import numpy as np
import pytest

from mlstm_jax import cli
from mlstm_jax.interop.weights import fingerprint
from mlstm_jax.transfer import classifier_file
from mlstm_jax.transfer.classify import Classifier
from mlstm_jax.transfer.features import Featurizer
from mlstm_jax.transfer.heatmap_drawing import Heatmap, as_html
from mlstm_jax.transfer.trace import Reader, score_heat
from tests.tolerance import bound

TEXT = "my café is good, but 5 < 6 & bad"


def classifier_of(width: int, classes: int = 2, **fields: object) -> Classifier:
    random = np.random.default_rng(0)
    rows = 1 if classes == 2 and "thresholds" not in fields else classes
    names = ["negative", "positive", "neither"][:classes]
    weights = random.normal(size=(rows, width))
    return Classifier(weights, random.normal(size=rows), names, 1.0, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("classes", "fields"),
    [(2, {}), (3, {}), (3, {"softmax": True}), (3, {"thresholds": [0.2, 0.7, 0.5]})],
)
def test_scores_are_the_log_odds_of_what_is_answered(classes: int, fields: dict) -> None:
    classifier = classifier_of(8, classes, **fields)
    features = np.random.default_rng(1).normal(size=(50, 8)).astype(np.float32)
    scores, shares = classifier.scores(features), classifier.probabilities(features)
    if classifier.thresholds:
        limits = np.array(classifier.thresholds)
        expected = np.log(shares / (1 - shares)) - np.log(limits / (1 - limits))
        np.testing.assert_array_equal(scores > 0, classifier.predict(features) == 1)
    elif classes == 2 or classifier.softmax:
        expected = np.log(shares / (1 - shares))
    else:
        expected = scores
        np.testing.assert_array_equal(scores.argmax(axis=1), classifier.predict(features))
    np.testing.assert_allclose(scores, expected, atol=1e-8)


@pytest.mark.parametrize(
    ("state", "all_layers"), [("c", False), ("h", True), ("mean_h", False), ("c+mean_h", True)]
)
def test_the_last_score_is_the_classifiers_own(run, state, all_layers) -> None:
    """And that after each character is what it answers to the text up to there."""
    featurizer = Featurizer(run, states=(state,), all_layers=all_layers)
    classifier = classifier_of(len(featurizer.columns))
    about = classifier_file.Description(state, all_layers, "abc", None)
    made = score_heat(Reader(run), TEXT, classifier, about)
    assert "".join(made.texts) == f"\n {TEXT} "
    features = featurizer([TEXT, TEXT[:7]])
    whole, part = classifier.scores(features)[:, 1]
    # Two layers of three products over 64 units, and the classifier's sum.
    limit = bound(2 * 3 * 64) * np.abs(classifier.weights_KD).sum() * np.abs(features).max()
    assert abs(made.values[-1] - whole) <= limit
    # The newline, the space, seven characters and the space after them.
    assert made.texts[9] == " "
    assert abs(made.values[9] - part) <= limit
    ends = [n for n in range(2, len(made.texts) - 1) if made.texts[n + 1] == " " != made.texts[n]]
    assert made.scale == np.abs(made.values[ends]).max()
    negative = score_heat(Reader(run), TEXT, classifier, about, "negative")
    np.testing.assert_array_equal(negative.values, -made.values)


def test_a_page_has_the_score_after_each_word() -> None:
    texts = list("\n so bad ")
    values = np.array([0, 0, 1, 2.26, 0, -0.5, -1, -3.04, 0])
    made = Heatmap(texts, values, 3.0, "Score of <good>", "log-odds of <good>", "run", by_word=True)
    page = as_html(made)
    assert re.findall(r"<rt>(.*?)</rt>", page) == ["+2.3", "−3.0"]
    assert re.sub(r"<rt>.*?</rt>|<[^>]*>", "", page.split('class="text">')[1].split("</p>")[0]) == (
        "↵ so bad "
    )
    assert page.count("<span style") == len(texts)
    assert "<good>" not in page
    assert "<rt>" not in as_html(made._replace(by_word=False))


def test_the_command_draws_a_score(run, tmp_path, capsys) -> None:
    about = classifier_file.Description("c", False, fingerprint(run.params), None)
    classifier_file.save(tmp_path, classifier_of(64), about)
    command = ["heatmap", str(run.folder), "--score", str(tmp_path), "--text", TEXT]
    for name in ("a.html", "a.png"):
        cli.main([*command, "--out", str(tmp_path / name)])
        assert "log-odds of positive from" in capsys.readouterr().out
    assert "Score of positive" in (tmp_path / "a.html").read_text(encoding="utf-8")
    cli.main([*command, "--label", "negative", "--out", str(tmp_path / "b.html")])
    assert "Score of negative" in (tmp_path / "b.html").read_text(encoding="utf-8")
