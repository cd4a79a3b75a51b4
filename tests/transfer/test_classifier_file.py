"""A classifier on disk: what is written is read, and what is wrong is named."""

import dataclasses
import json
import resource
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlstm_jax import digest
from mlstm_jax.arrays import fingerprint
from mlstm_jax.errors import KnownError, UserError
from mlstm_jax.transfer.classifier import FORMAT, Classifier, Description, load_classifier
from mlstm_jax.transfer.words import Words
from tests.limits import limited

ABOUT = Description("c", False, "abc", None)
ODD = ["a\nb", '"quoted" \\', "\ud800", "\u00e9l\u00e9", ""]
PLAIN = Classifier(
    np.ones((3, 4)),
    np.arange(3.0),
    ["bad", "good", "so so"],
    0.25,
    deviations_D=np.ones(4),
    about=ABOUT,
)
WORDS = PLAIN._replace(
    words=Words("characters", ODD, np.arange(5.0), np.ones((3, 5)), np.zeros(3), weight=0.25),
    texts=np.array([3, 2**32 - 1], np.uint32),
)


def fields_of(classifier: Classifier) -> dict[str, Any]:
    fields = classifier._asdict()
    return fields | {"words": classifier.words and asdict(classifier.words)}


@pytest.mark.parametrize("made", [PLAIN, WORDS], ids=["states", "words"])
def test_round_trip(tmp_path: Path, made: Classifier) -> None:
    about = dataclasses.replace(ABOUT, text_column="review", step=7)
    made._replace(about=about).save(tmp_path)
    again = load_classifier(tmp_path)
    assert again.about == about
    again = again._replace(about=ABOUT)
    jax.tree.map(np.testing.assert_array_equal, fields_of(again), fields_of(made))
    if made.words:  # no text has a word of its
        shares_NK = again.words.probabilities(["my guitar", "zzzz"])
        np.testing.assert_array_equal(shares_NK, np.full((2, 3), 1 / 3))


@pytest.mark.parametrize(
    ("made", "change", "message"),
    [
        (PLAIN, {"classes": ["a", "a", "b"]}, "json: .*classes must be 2 or more different"),
        (PLAIN, {"classes": ["a", "b"]}, r"weights has the shape \(3, 4\), .* \(1, 4\)"),
        (PLAIN, {"state": "z"}, r"state is 'z', but it must be one of c, h, mean_h, max_h, c"),
        (PLAIN, {"format": FORMAT + 1}, "was written by another version of this program"),
        (PLAIN, {"labels": [{"C": 1, "threshold": 0.5}] * 3}, "labels"),
        (PLAIN, {"weights": np.zeros((3, 9))}, r"deviations has the shape \(4,\), .* \(9,\)"),
        (PLAIN, {"intercepts": np.full(3, np.nan)}, "intercepts must be finite numbers"),
        (PLAIN, {"intercepts": np.ones(3)}, r"intercepts of .*safetensors does not match its"),
        (WORDS, {"texts": np.ones(3)}, r"texts of classifier\.safetensors does not match its"),
        (WORDS, {"vocabulary": ["a"] * 5}, "json: .*vocabulary must be 1 or more different"),
        (WORDS, {"vocabulary": []}, "json: .*vocabulary must be 1 or more different"),
        (WORDS, {"vocabulary": [1]}, r"json: .*vocabulary\[0\] is 1, but it must be a string"),
        (WORDS, {"vocabulary": ["a"]}, r"idf has the shape \(5,\), but must have \(1,\)"),
        (WORDS, {"vocabulary": None}, "the unexpected idf, word_intercepts, word_weights"),
        (WORDS, {"counted": "bytes"}, "json: .*counted is 'bytes', but it must be one of words"),
        (WORDS, {"word_weight": 2}, "json: .*word_weight is 2"),
        (WORDS, {"word_weights": np.ones((1, 5))}, r"word_weights has the shape \(1, 5\)"),
        (WORDS, {"word_intercepts": np.ones(1)}, r"word_intercepts has the shape \(1,\)"),
        (WORDS, {"idf": None}, r"classifier\.safetensors: it is missing idf"),
        (WORDS, {"idf": np.ones(5)}, r"idf of classifier\.safetensors does not match its checksum"),
    ],
)
def test_wrong_fields(tmp_path, made, change, message) -> None:
    """A field or an array is replaced; None: without the array."""
    made.save(tmp_path)
    fields = json.loads((tmp_path / "classifier.json").read_text())
    kept = load_file(tmp_path / "classifier.safetensors")
    for name, value in change.items():
        part = kept if isinstance(value, np.ndarray) or name in kept else fields
        part[name] = value
        if part is kept and value is None:
            del kept[name]
    digest.write_json(tmp_path / "classifier.json", fields)
    save_file(kept, tmp_path / "classifier.safetensors")
    with pytest.raises(UserError, match=message):
        load_classifier(tmp_path)


def test_missing_files(tmp_path) -> None:
    def load(message: str, folder: str = "") -> None:
        with pytest.raises(UserError, match=message):
            load_classifier(tmp_path / folder)

    PLAIN.save(tmp_path)
    load("has no classifier.json; create one", "none")
    (tmp_path / "tuned/classifier").mkdir(parents=True)
    PLAIN.save(tmp_path / "tuned/classifier")
    load(r"did you mean .*tuned/classifier\?$", "tuned")

    # One that is written half is not loaded.
    message = "cannot be written: File too large"
    with limited(resource.RLIMIT_FSIZE, 100), pytest.raises(KnownError, match=message):
        PLAIN.save(tmp_path)
    load(r"has no classifier\.json")


def test_classifier_of_another_model(run) -> None:
    about = dataclasses.replace(ABOUT, fingerprint=fingerprint(run.params), step=run.step)
    made = PLAIN._replace(about=about)
    made.require_model("it", run)
    other = PLAIN._replace(about=dataclasses.replace(about, fingerprint="another"))
    message = f"parameters of {run.folder}, step .* and `checkpoint` {run.step} that it was"
    with pytest.raises(UserError, match=message):
        other.require_model("it", run)
