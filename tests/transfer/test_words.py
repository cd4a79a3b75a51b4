"""The classifier of states and word counts together."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from mlstm_jax.api.model import TrainedModel
from mlstm_jax.errors import UserError
from mlstm_jax.options import TransferOptions
from mlstm_jax.transfer import words
from mlstm_jax.transfer.classifier import load_classifier
from mlstm_jax.transfer.labels import Labelled, codes
from mlstm_jax.transfer.report import as_markdown
from mlstm_jax.transfer.transfer import Transferred
from mlstm_jax.view.viewer import Viewer
from tests.tables import column
from tests.tolerance import assert_close
from tests.transfer.pieces import likeliest, shares_of

pytestmark = pytest.mark.filterwarnings("ignore:half of a character")

# As words "10" is before "9"; as numbers after it.
ENDS = {"9": ["bad", "\u00e9l\u00e9 'n'"], "10": ["GOOD", '\ud83c"fein"'], "so": ["fair\nenough"]}
OPTIONS = TransferOptions(state="mean_h", words=True)
WEIGHT = 0.25  # of words in `made`
NAMES = [*map("{0}{0}".format, "abcdefghijklmnopqrstuvwx")]
NEW = ["my guitar is bad", "my \u00e9l\u00e9", "zzzz", "\ud800", "Good, GOOD cable 3"]


def labelled(classes: list[str], count: int, first: int = 0, *, spaces: bool = True) -> Labelled:
    made = Labelled([], [])
    for n in range(first, first + count):
        label = classes[n % len(classes)]
        end = ENDS[label][n % 7 % len(ENDS[label])]
        text = f"my {('cable', 'guitar')[n % 2]} is {end} {n}"
        made.texts.append(text if spaces else "".join(text.split()))
        made.labels.append(label)
    return made


@pytest.fixture(scope="module")
def made(model: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Transferred:
    train = labelled(list(ENDS), 9, 9)[:2]
    valid = labelled(list(ENDS), 12, 12)[:2]
    test = labelled(list(ENDS), 36, 36)[:2]
    out = tmp_path_factory.mktemp("words") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "best_weight", lambda *_: WEIGHT)
        return model.transfer(train, test, valid, out=out, options=OPTIONS)


@pytest.mark.parametrize(("classes", "validated"), [(2, True), (3, True), (3, False)])
@pytest.mark.parametrize("counted", words.COUNTED)
def test_counts_of_scikit_learn(counted, classes, validated) -> None:
    names = list(ENDS)[:classes]
    train = labelled(names, 60, spaces=counted == "words")
    valid = labelled(names, 30, 60, spaces=counted == "words")
    found, C, score, held_out_NK = words.fit(train, valid if validated else None, names)
    assert found.counted == counted
    labels = codes(train.labels, names)
    theirs = make_pipeline(words.unfitted(counted), LogisticRegression(C=C, max_iter=1000))
    theirs.fit(train.texts, labels)
    shares = found.probabilities(NEW)
    assert_close(shares, theirs.predict_proba(NEW), len(found.vocabulary), "float64")
    np.testing.assert_array_equal(found.probabilities(train.texts).argmax(axis=1), labels)
    assert score == 1
    assert C in words.CS
    held = labels if not validated else codes(valid.labels, names)
    np.testing.assert_array_equal(held_out_NK.argmax(axis=1), held)
    if counted == "words":  # without a known one the intercepts answer
        np.testing.assert_array_equal(shares[2], shares[3])


@pytest.mark.parametrize(
    ("first", "letters", "between", "marks"),
    [
        (0x4E00, 500, "", ("\u5f88\u597d", "\u592a\u5dee")),  # Chinese
        (0x0E01, 46, "", ("\u0e14\u0e35\u0e21\u0e32\u0e01", "\u0e41\u0e22\u0e48")),  # Thai
        (0x0621, 26, " ", ("\u0648\u0627\u0644", "\u0628\u0627\u0644")),  # Arabic, before a word
    ],
)
def test_counts_of_characters(first, letters, between, marks, random):
    """Words of letters at random, no two alike; to one of each text a mark of its class is tied."""

    def texts(count: int) -> Labelled:
        made = []
        labels = []
        for number in range(count):
            drawn = random.integers(first, first + letters, (6, 5))
            parts = ["".join(map(chr, row)) for row in drawn]
            parts[random.integers(6)] = marks[number % 2] + parts[0]
            made.append(between.join(parts))
            labels.append("ab"[number % 2])
        return Labelled(made, labels)

    train = texts(200)
    test = texts(200)
    truth = codes(test.labels, ["a", "b"])
    by_words = make_pipeline(words.unfitted("words"), LogisticRegression())
    right = by_words.fit(train.texts, train.labels).predict(test.texts) == test.labels
    assert right.mean() < 0.65
    found = words.fit(train, None, ["a", "b"]).words
    assert found.counted == "characters"
    assert (found.probabilities(test.texts).argmax(axis=1) == truth).mean() > 0.9
    # Of many words the sequences are left out: they would take minutes.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "_MOST_CHARACTERS", 1000)
        assert words.fit(test, None, ["a", "b"]).words.counted == "words"


@pytest.mark.parametrize("count", [999, 1000])
def test_rare_words(count: int) -> None:
    train = Labelled(["odd", *["good", "bad"] * 500][:count], ["x", *["x", "y"] * 500][:count])
    found = words.fit(train, Labelled(["good"], ["x"]), ["x", "y"]).words
    assert ("odd" in found.vocabulary) == (count < 1000)


@pytest.mark.parametrize(
    ("states", "counts", "weight"),
    [
        ([0.1] * 80 + [0.9] * 320, [0.8] * 400, 1),
        ([0.8] * 400, [0.1] * 80 + [0.9] * 320, 0),
        ([0.8] * 400, [0.8] * 400, 0),
        # Each is right, and sure, where the other is not: four texts are two standard errors.
        ([0.4] * 4 + [0.9] * 396, [0.9] * 396 + [0.4] * 4, 0),
        ([0.4] * 5 + [0.9] * 395, [0.9] * 395 + [0.4] * 5, 0.5),
        ([0.4] * 5 + [0.9] * 395, [0.9] * 396 + [0.4] * 4, 1),
    ],
)
def test_weight_of_words(states, counts, weight) -> None:
    of_states = np.stack([1 - np.array(states), states], axis=1)
    of_words = np.stack([1 - np.array(counts), counts], axis=1)
    assert words.best_weight(of_states, of_words, np.ones(400, np.int64)) == weight


def test_many_classes(model: TrainedModel) -> None:
    """scikit-learn does not warn of them."""
    texts = [f"my {name} is {size}" for size in ("large", "small") for name in NAMES]
    result = model.transfer((texts, NAMES * 2), (texts, NAMES * 2), options=OPTIONS).result
    assert result.baseline["test"] == 1


# Of 100 texts 62 are right: Wilson's interval is from 0.522 to 0.709.
RIGHT = {"test": 0.62, "together": {"train": 1, "valid": 0.6, "test": 0.62}}
WORDS = "Words alone are better here"
UNNEEDED = "does not need `--words`"
BETTER = "TF-IDF is clearly better"
CHANCE = "nothing is clearly better than the commonest class"


@pytest.mark.parametrize(
    ("weight", "majority", "counts", "said"),
    [
        (1, 0.52, 0.62, {WORDS}),
        (1, 0.53, 0.62, {CHANCE}),
        (0, 0.4, 0.70, {UNNEEDED}),
        (0, 0.4, 0.71, {UNNEEDED, BETTER}),
    ],
)
def test_verdict_of_the_report(weight, majority, counts, said, made) -> None:
    assert made.result.word_weight == made.classifier.words.weight == WEIGHT
    others = {"baseline": RIGHT["together"] | {"test": counts}, "keeps_words": counts == 0.62}
    result = replace(made.result, texts={"test": 100}, majority=majority, **RIGHT, **others)
    report = as_markdown(replace(result, word_weight=weight), "mine", [])
    assert {one for one in (WORDS, UNNEEDED, BETTER, CHANCE) if one in report} == said


def test_saved_classifier(model, made) -> None:
    again = load_classifier(made.folder)
    found = made.classifier.words
    assert repr(again).startswith("Classifier of 64 features and 36 words and pairs: 3 classes")

    of_states = model.classify(NEW, made._replace(classifier=again._replace(words=None)))
    expected = (1 - WEIGHT) * shares_of(of_states) + WEIGHT * found.probabilities(NEW)
    answers = model.classify(NEW, made)
    np.testing.assert_array_equal(shares_of(answers), expected)
    assert answers == model.classify(NEW, made.folder)
    # The page reads one text byte by byte, in two layers of three products over 64 units.
    viewer = Viewer(model.run, again)
    assert viewer.model({})["scores"] == []
    shown = viewer.read({"text": NEW[0]})["classes"]
    assert column(shown, "name") == list(answers[0]) == list(ENDS)
    assert_close(column(shown, "probability"), [*answers[0].values()], 2 * 3 * 64 * 64)

    texts, labels, *_ = labelled(list(ENDS), 36, 36)
    best = likeliest(model.classify(texts, made))
    together = made.result.together
    assert together["test"] == np.mean(np.array(best) == labels)
    assert list(together) == ["train", "valid", "test"]
    assert f"test accuracy {together['test']:.3f} (" in repr(made.result)
    percent = 100 * np.array([*together.values()])
    report = (made.folder / "report.md").read_text()
    assert f"kept here is right on {percent[2]:.1f}% of the {len(texts)} test texts" in report
    row = "| **all features and TF-IDF (`--words`), kept** | {:.1f} | {:.1f} | **{:.1f}** |"
    assert row.format(*percent) in report
    alone = as_markdown(replace(made.result, keeps_words=False, test=0.5), "mine", [])
    assert f"kept here is right on 50.0% of the {len(texts)} test texts" in alone
    unused = as_markdown(replace(made.result, word_weight=0), "mine", [])
    for said, kept in ((report, False), (alone, True), (unused, True)):
        assert ("| **all features, kept** |" in said) == kept
        assert ("| **all features and TF-IDF (`--words`), kept** |" in said) != kept


def test_refused_with_words(model, made) -> None:
    alone = "for a classifier of states alone.*without `words`"
    with pytest.raises(UserError, match=f"score after each character is {alone}"):
        model.heatmap("my guitar is bad", score=made)
    with pytest.raises(UserError, match="texts is '0 strings'"):
        made.classifier.probabilities(np.ones((1, 64)))
    with pytest.raises(UserError, match=r"label is 'fair', .* no class has a score"):
        Viewer(model.run, made.classifier, "fair")
