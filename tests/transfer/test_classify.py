"""The classifier on features, what is reported of it, and its use on new texts."""

import csv
import dataclasses
import json
import math
import re
import signal
import subprocess
import sys
import warnings
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import duckdb
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlstm_jax import cli, digest
from mlstm_jax.errors import KnownError, Note, UserError
from mlstm_jax.run import Run, with_compute
from mlstm_jax.transfer import classifier_file, classify, experiment
from mlstm_jax.transfer.classifier_file import Description
from mlstm_jax.transfer.classify import Classifier, Examples
from mlstm_jax.transfer.features import Featurizer, features_key, read_features
from mlstm_jax.transfer.labels import (
    Labelled,
    hold_out,
    of_classes,
    read_labelled,
    require_classes,
    usable,
)

OTHER = ["No", "yes"]
NAMES = {2: ["0", "1"], 3: ["bad", "good", "so so"]}
ABOUT = Description("c", False, "abc", None)
COLUMNS = ["--text-column", "review", "--label-column", "verdict"]


def change_files(folder: Path, change: dict[str, Any]) -> None:
    """Replace fields and arrays of a saved classifier; None: without the array."""
    fields = json.loads((folder / "classifier.json").read_text())
    arrays = load_file(folder / "classifier.safetensors")
    for name, value in change.items():
        (arrays if isinstance(value, np.ndarray) or name in arrays else fields)[name] = value
    digest.write_json(folder / "classifier.json", fields)
    kept = {name: array for name, array in arrays.items() if array is not None}
    save_file(kept, folder / "classifier.safetensors")


def make(random: np.random.Generator, count: int, classes: int = 2) -> Examples:
    """Features in which unit 17 + k alone tells class k from the others."""
    labels = random.integers(0, classes, count)
    values = random.normal(size=(count, 40)).astype(np.float32)
    for label in range(1 if classes == 2 else 0, classes):
        own = 4.0 * (labels == label) - 2
        values[:, 17 + label] = own + 0.5 * random.normal(size=count)
    return Examples(values, labels)


@pytest.mark.parametrize(("classes", "validated"), [(2, True), (3, True), (3, False)])
def test_informative_units_rank_first(classes, validated, random) -> None:
    valid = make(random, 100, classes) if validated else None
    train = make(random, 400, classes)
    found, score, _ = classify.best_fit(train, valid, NAMES[classes], None, classify.CS)
    test = make(random, 400, classes)
    assert min(found.score(test), score) > 0.95
    telling = [18] if classes == 2 else [17, 18, 19]
    assert sorted(found.ranking[: len(telling)].tolist()) == telling
    assert (found.weights_KD == 0).all(axis=0).any()
    assert found.C in classify.CS
    np.testing.assert_allclose(found.probabilities(test.features).sum(axis=1), 1)


def test_the_best_unit_separates_the_classes(random: np.random.Generator) -> None:
    data = make(random, 400)
    data.features[:, 18] *= 1e-3  # small, and so of little weight
    data.features[:, 3] = 7  # never moves
    assert experiment._best_unit(data) == 18
    # A unit that is the same within each class tells most.
    data.features[:, 7] = data.labels
    assert experiment._best_unit(data) == 7


@pytest.mark.parametrize("count", [300, 30])
def test_probabilities_are_scikit_learns(count: int, random: np.random.Generator) -> None:
    """With an L1 penalty; with an L2 penalty of fewer examples than the 40 features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data = make(random, count)
    # Units of any scale and place, and one that never moves.
    data.features[:, :20] = data.features[:, :20] * 0.01 + 5
    data.features[:, 30] = 2
    found = classify.fit(data, ["0", "1"], 0.5)
    penalty: dict[str, Any] = {"l1_ratio": 1.0, "solver": "liblinear", "random_state": 0}
    logistic = LogisticRegression(C=0.5, max_iter=1000, **(penalty if count == 300 else {}))
    theirs = make_pipeline(StandardScaler(), logistic).fit(
        data.features.astype(np.float64), data.labels
    )
    # Both solvers stop at a tolerance of 1e-4.
    np.testing.assert_allclose(
        found.probabilities(data.features), theirs.predict_proba(data.features), atol=1e-4
    )
    assert found.ranking[0] == 18
    assert (found.weights_KD == 0).sum() > (1 if count == 300 else 0)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_prior_says_what_few_labels_cannot(classes: int, random: np.random.Generator) -> None:
    """Its direction is dense: ten examples do not show it. Its sign is learned."""
    weights_D = random.normal(size=40)

    def examples(count: int) -> Examples:
        values = random.normal(size=(count, 40)).astype(np.float32)
        return Examples(values, np.digitize(values @ weights_D, [0, 4][: classes - 1]))

    few, test, names = examples(10 * classes), examples(500), NAMES[classes]
    is_first = test.labels == 0
    for prior in (classify.Prior(weights_D, 0.25, OTHER), classify.Prior(-weights_D, 0, OTHER)):
        found = classify.fit(few, names, classify.CS[0], prior)
        assert ((found.scores(test.features)[:, 0] > 0) == is_first).mean() > 0.9
        # The classifier is linear in the features, and has scikit-learn's probabilities.
        wide, seen = few.features.astype(np.float64), test.features.astype(np.float64)
        pipeline = classify._pipeline(few, classes, 0.5, prior).fit(wide, few.labels)
        theirs = pipeline.predict_proba(seen)
        ours = classify.fit(few, names, 0.5, prior).probabilities(test.features)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert classify.fit(few, names, 0.5).score(test) < 0.8


BARE = [1.0] * 5  # losses without the prior at each C, above the least


@pytest.mark.parametrize(
    ("as_is", "with_it", "without", "chosen"),
    [
        (0.09, [0.0] * 5, BARE, (True, 0)),
        (0.11, [0.09, 0.0, 0.0, 0.0, 0.0], BARE, (True, classify.CS[0])),
        (0.11, [0.11, 0.11, 0.0, 0.0, 0.0], BARE, (True, classify.CS[4])),
        (0.11, [0.09] * 5, [0.0] * 5, (True, classify.CS[0])),
        (0.11, [0.11] * 5, [0.11, 0.0, 0.0, 0.0, 0.0], (False, classify.CS[2])),
        (0.11, [0.11] * 5, [0.09, 0.0, 0.0, 0.0, 0.0], (False, classify.CS[0])),
    ],
)
@pytest.mark.parametrize("validated", [True, False])
def test_a_prior_changes_as_little_as_one_standard_error_allows(
    as_is, with_it, without, chosen, validated, random, monkeypatch
) -> None:
    """Here that of each difference of two losses is 0.1, but for the best's from itself."""
    noise_N = 0.1 * np.sqrt(60) * np.tile([-1.0, 1.0], 30)

    def held_out(train: Any, valid: Any, classes: Any, C: float, prior: Any) -> Any:
        above = as_is if not C else (with_it if prior else without)[classify.CS[::2].index(C)]
        return 1 + above + bool(above) * noise_N, noise_N > 0

    prior = classify.Prior(random.normal(size=80), 2.0, OTHER)
    few = Examples(random.normal(size=(60, 80)).astype(np.float32), np.tile([0, 1], 30))
    monkeypatch.setattr(classify, "_held_out", held_out)
    found, score, used = classify.best_fit(few, few if validated else None, NAMES[2], prior)
    assert (used is prior, found.C) == chosen
    assert score == 0.5
    if not found.C:
        np.testing.assert_array_equal(found.weights_KD[0], prior.weights_D)
        assert found.intercepts_K == [2]
    # As many examples as features have no prior.
    narrow = Examples(few.features[:, :60], few.labels)
    assert (
        classify.best_fit(narrow, narrow, NAMES[2], prior._replace(weights_D=np.ones(60)))[2]
        is None
    )


@pytest.mark.parametrize(("features", "best"), [(60, 2), (61, 3)])
def test_many_labels_choose_by_errors_and_few_by_the_loss(
    features, best, random, monkeypatch
) -> None:
    def held_out(train: Any, valid: Any, classes: Any, C: float, prior: Any) -> Any:
        number = classify.CS[::2].index(C)
        return np.full(60, 1.0 - (number == 3)), np.arange(60) < (50 if number == 2 else 40)

    monkeypatch.setattr(classify, "_held_out", held_out)
    values = random.normal(size=(60, features)).astype(np.float32)
    found, score, _ = classify.best_fit(Examples(values, np.tile([0, 1], 30)), None, NAMES[2])
    assert classify.CS[::2].index(found.C) == best
    assert score == (50 if best == 2 else 40) / 60


@pytest.mark.parametrize(
    ("count", "names", "above", "stays"),
    [
        (40, ["no", "Yes"], 0.29, True),
        (40, ["no", "Yes"], 0.31, False),
        (40, ["no", "so so"], 0.29, False),
        (60, ["no", "Yes"], 0.29, False),
    ],
)
def test_few_labels_of_the_same_names_must_be_clear(
    count, names, above, stays, random, monkeypatch
) -> None:
    """That is, by three standard errors, each 0.1."""
    noise_N = 0.1 * np.sqrt(count) * np.tile([-1.0, 1.0], count // 2)

    def held_out(train: Any, valid: Any, classes: Any, C: float, prior: Any) -> Any:
        return (1.0 + 0 * noise_N) if C else (1 + above + noise_N), noise_N > 0

    monkeypatch.setattr(classify, "_held_out", held_out)
    few = Examples(random.normal(size=(count, 80)).astype(np.float32), np.tile([0, 1], count // 2))
    prior = classify.Prior(random.normal(size=80), 2.0, OTHER)
    found, _, _ = classify.best_fit(few, None, names, prior)
    assert (found.C == 0) == stays


@pytest.mark.parametrize("validated", [True, False])
def test_few_labels_judge_a_prior(validated: bool, random: np.random.Generator) -> None:
    """It stays if it is right, is turned if the classes are, and goes if it tells nothing."""
    weights_D = random.normal(size=80) / 3

    def examples(count: int, weights_D: Any) -> Examples:
        values = random.normal(size=(count, 80)).astype(np.float32)
        yes_N = random.random(count) < 1 / (1 + np.exp(-values @ weights_D))
        return Examples(values, yes_N.astype(np.int64))

    few, held, test = (examples(count, weights_D) for count in (60, 60, 1000))
    valid = held if validated else None
    right, turned, away = (classify.Prior(sign * weights_D, 0.0, OTHER) for sign in (1, -1, 0))
    found, score, used = classify.best_fit(few, valid, NAMES[2], right)
    assert (found.C, score, used) == (0, found.score(valid or few), right)
    again, _, used = classify.best_fit(few, valid, NAMES[2], turned)
    assert used is turned
    assert again.score(test) > found.score(test) - 0.05
    # A prior of other units is worse than none.
    other_D = np.where(np.arange(80) == 7, 9.0, 0.0)
    few, held, test = (examples(count, other_D) for count in (60, 60, 1000))
    valid = held if validated else None
    plain, _, _ = classify.best_fit(few, valid, NAMES[2])
    found, _, _ = classify.best_fit(few, valid, NAMES[2], right)
    assert found.score(test) > plain.score(test) - 0.05
    # A single example of a class cannot be cross-validated.
    alone = Examples(few.features[:4], np.array([1, 0, 0, 0]))
    for prior, C in ((away, 0), (None, classify.CS[-1])):
        found, score, used = classify.best_fit(alone, None, NAMES[2], prior)
        assert (found.C, used) == (C, prior)
        assert math.isnan(score)


def test_a_classifier_is_kept_without_pickle(tmp_path: Path, random: np.random.Generator) -> None:
    found = classify.fit(make(random, 200, 3), NAMES[3], 0.25)
    classifier_file.save(tmp_path, found, ABOUT)
    again, also = classifier_file.load_classifier(tmp_path)
    assert also == ABOUT
    assert (again.classes, again.C) == (found.classes, 0.25)
    np.testing.assert_array_equal(again.weights_KD, found.weights_KD)
    assert list(json.loads((tmp_path / "classifier.json").read_text())) == [
        *("format", "classes", "C", "softmax", "state", "all_layers", "model", "text_column"),
        *("arrays", "crc32"),
    ]
    (tmp_path / "classifier.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match="cannot be read"):
        classifier_file.load_classifier(tmp_path)
    (about := tmp_path / "classifier.json").write_text(about.read_text().replace("bad", "Bad"))
    with pytest.raises(UserError, match=r"classifier\.json: .* does not match its crc32"):
        classifier_file.load_classifier(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        classifier_file.load_classifier(tmp_path / "none")
    (tmp_path / "tuned/classifier").mkdir(parents=True)
    classifier_file.save(tmp_path / "tuned/classifier", found, ABOUT)
    with pytest.raises(UserError, match=r"give .*tuned/classifier\. .* the run .*tuned/run"):
        classifier_file.load_classifier(tmp_path / "tuned")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ["a", "a", "b"]}, "classes must be two or more different names"),
        ({"classes": ["a", "b"]}, r"weights has the shape \(3, 4\), but must have \(1, 4\)"),
        ({"state": "z"}, r"state is 'z', but it must be one of c, h, mean_h, c\+mean_h"),
        ({"format": 3}, "was written by another version of this program"),
        ({"weights": np.zeros((3, 9))}, r"deviations has the shape \(4,\), but must have \(9,\)"),
        ({"intercepts": np.full(3, np.nan)}, "intercepts must be finite numbers"),
        ({"intercepts": np.ones(3)}, r"intercepts.* of classifier\.safetensors does not match"),
        ({"labels": [{"C": 1, "threshold": 0.5}] * 3}, "labels"),
    ],
)
def test_an_invalid_classifier_is_refused(change, message, tmp_path) -> None:
    found = Classifier(np.ones((3, 4)), np.zeros(3), NAMES[3], 1.0, deviations_D=np.ones(4))
    classifier_file.save(tmp_path, found, ABOUT)
    change_files(tmp_path, change)
    with pytest.raises(UserError, match=message):
        classifier_file.load_classifier(tmp_path)


def test_a_subset_has_every_class() -> None:
    labels = np.array([0] * 95 + [1] * 4 + [2])
    data = Examples(np.arange(100.0, dtype=np.float32)[:, None], labels)
    for seed in range(5):
        few = classify.subset(data, 10, seed)
        assert len(few.labels) == 10
        assert set(few.labels) == {0, 1, 2}
        np.testing.assert_array_equal(labels[few.features[:, 0].astype(int)], few.labels)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "label,text\n10,good\n,none\n", "label of record 2, in 'label', is empty"),
        ("a.csv", "stars,text\n10,good\n", r"has a label in 'label'.*`label_column`"),
        ("a.csv", "text,Label\ngood,1\n", r"label in 'label'; .* did you mean Label\?"),
        ("a.csv", "label,text\n1,good\n1,bad\n", "has only the label 1"),
        ("a.csv", "label,text\n" + "".join(f"{n},a\n" for n in range(300)), "300 different labels"),
        ("a.txt", "good\t1\n", r"a\.txt: a \.txt file has texts, but no labels"),
        ("a.jsonl", '{"text": "a", "label": NaN}\n{"text": "b", "label": 1}', "of record 1, in"),
    ],
)
def test_bad_labels_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        require_classes(read_labelled(tmp_path / name, None, "label"))


def test_labels_are_strings_in_the_order_of_numbers(tmp_path: Path) -> None:
    lines = tmp_path / "b.jsonl"
    records = [{"text": "a", "kind": 1.0}, {"text": "b", "kind": "neg"}, {"text": "c", "kind": 2}]
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert read_labelled(lines, None, "kind") == Labelled(["a", "b", "c"], ["1", "neg", "2"])
    words = Labelled(["a text"] * 7, ["nan", "2", "inf", "1", "3", "10", "-1"])
    assert words.classes == ["-1", "1", "2", "3", "10", "inf", "nan"]
    with pytest.raises(UserError, match="label '10', which the training texts do not have"):
        require_classes(words, ["-1", "1", "2", "3"])


FORMATS = {"csv": "csv", "tsv": "csv, DELIMITER '\t'", "jsonl": "json", "parquet": "parquet"}


@pytest.mark.parametrize("suffix", [*FORMATS, "memory"])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "1.0", " 1 ", "0"], ["1", "1", "1", "0"]),
        (["True", "true", "FALSE", "word "], ["true", "true", "false", "word"]),
        (["1.50", "-2.0", "01", "1e2"], ["1.50", "-2", "01", "1e2"]),
        (["3.1", "3.10", "250.0", "250.00"], ["3.1", "3.10", "250", "250.00"]),
        (["12345678901234567.0", "12345678901234568", "9007199254740993.0", "-0"],
         ["12345678901234567", "12345678901234568", "9007199254740993", "-0"]),
        (["nan", "a", "b", "a"], None),
        ([" ", "a", "b", "a"], None),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:the labels .* are read as one class")
def test_labels_are_the_same_in_every_format(tmp_path, suffix, values, expected) -> None:
    path, texts = tmp_path / f"a.{suffix}", ["t", "u", "v", "w"]
    read: Any = partial(read_labelled, path, None)
    if suffix == "memory":
        read = partial(of_classes, texts, values, [f"label of record {n}" for n in range(1, 5)])
    else:
        rows = ", ".join(f"('{row[0]}', '{row[1]}')" for row in zip(texts, values, strict=True))
        with duckdb.connect() as con:
            table = f"(SELECT * FROM (VALUES {rows}) t(text, label))"
            con.execute(f"COPY {table} TO '{path}' (FORMAT {FORMATS[suffix]})")
    if expected is None:
        with pytest.raises(UserError, match=r"label of record 1\b.* is empty, nan, or"):
            read()
    else:
        assert read() == Labelled(texts, expected)


def test_labels_of_every_type() -> None:
    values = [1, 1.0, True, np.float32(1), Decimal("1.0"), 10**20, 0.1, np.bool_(False)]
    values += [np.float32(0.1), Decimal("1.50"), 1e22, float("inf")]
    expected = ["1", "1", "true", "1", "1", "1" + "0" * 20, "0.1", "false"]
    expected += ["0.1", "1.5", "1" + "0" * 22, "inf"]
    assert of_classes(["a"] * 12, values, ["label"] * 12).labels == expected


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["pos", "Pos", "neg"], "'Pos', 'pos' differ only"),
        (["so so", "soso", "x"], "'so so', 'soso' differ only"),
        (["01", "1", "2"], "'01', '1' differ only"),
        (["3.1", "3.10", "x"], "'3.1', '3.10' differ only"),
        (["nai\u0308ve", "na\xefve", "x"], r"'nai\\u0308ve', 'na\\xefve' differ only"),
        (["pos", "pos\u200b", "x"], r"'pos', 'pos\\u200b' differ only"),
    ],
)
def test_labels_that_differ_only_in_form_are_noted(names: list[str], told: str) -> None:
    found = Labelled(["a text"] * 3, names)
    with pytest.warns(Note, match=told):
        assert require_classes(found) == sorted(names)
    with pytest.raises(UserError, match=r"has the label .*; did you mean "):
        require_classes(found, [names[0], names[2]])
    with warnings.catch_warnings(action="error"):
        require_classes(Labelled(["a text"] * 3, ["1", "2", "one"]))
        # As floats these are equal.
        require_classes(Labelled(["a text"] * 2, ["12345678901234567", "12345678901234568"]))


def test_labels_that_are_merged_are_noted() -> None:
    with pytest.warns(Note, match="'1', '1.0' are read as one class, '1'"):
        of_classes(["a"] * 4, ["1", "1.0", " 1", "2"], ["label"] * 4)
    with warnings.catch_warnings(action="error"):
        of_classes(["a"] * 4, [1, 1.0, " a", "a"], ["label"] * 4)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("['pos']", "a list in 2 of 2"),
        ("{'pos': 1}", "an object with the fields pos in 2"),
        ("DATE '2020-01-01'", "a date in 2"),
        ("NULL", "missing in 2"),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_column_without_labels_is_named_with_its_type(tmp_path, suffix, value, kind) -> None:
    path = tmp_path / f"a.{suffix}"
    rows = f"(SELECT 'a text' AS text, {value} AS label FROM range(2))"
    with duckdb.connect() as con:
        con.execute(f"COPY {rows} TO '{path}' (FORMAT {FORMATS[suffix]})")
    if "DATE" in value and suffix == "jsonl":  # there it is a string
        assert read_labelled(path, None).labels == ["2020-01-01"] * 2
        return
    told = rf"no record has a label in 'label'; it is {kind}(?s:.*)\(several labels"
    with pytest.raises(UserError, match=told):
        read_labelled(path, None)


def write_reviews(path: Path, random: np.random.Generator, count: int) -> Path:
    words = {"fine": ["good", "great", "very well"], "poor": ["bad"], "fair": ["as expected"]}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["verdict", "review"])
        for _ in range(count):
            verdict = str(random.choice(list(words)))
            noun, end = random.choice(["guitar", "cable", "piano"]), random.choice(words[verdict])
            writer.writerow([verdict, f"my {noun} is {end} {random.integers(3000)}."])
    return path


def answers_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_transfer_and_classify_from_the_outside(run, tmp_path, random, capsys, refused) -> None:
    train, test = (write_reviews(tmp_path / f"{n}.csv", random, n) for n in (90, 100))
    out = tmp_path / "out"
    with train.open("a") as file:  # Nothing is learned from what `classify` gives no label.
        file.write("fine, \nfair,&nbsp;\n")
    command = ["transfer", str(run.folder), "--train", str(train), "--test", str(test), *COLUMNS]
    command += ["--out", str(out), "--state", "c"]
    cli.main(command)
    said, noted = capsys.readouterr()
    assert re.findall(r"note: .*90\.csv: 1 of 9. records have no text", noted) == 2 * [ANY]
    result = json.loads((out / "report.json").read_text())
    assert (result["classes"], result["state"]) == (["fair", "fine", "poor"], "c")
    assert result["test"] > 0.8 > result["majority"]
    assert result["baseline"]["test"] > 0.9
    assert np.sum(result["confusion"]) == 100
    assert np.trace(result["confusion"]) == pytest.approx(100 * result["test"])
    assert result["learning_curve"][-1]["examples"] == 90
    assert result["learning_curve"][-1]["mean"] == pytest.approx(result["test"])
    assert list(result["top_units"]) == ["1", "2", "5", "10", "50"]
    assert 1 > result["best_unit_test"] >= result["majority"] - 0.05
    best = result["best_unit"]
    assert best["layer"] == 1
    assert f"| c of unit {best['unit']} of layer 1, the best alone |" in said
    assert f"**{100 * result['test']:.1f}**" in said
    # The report says what word counts would give, which only `words` keeps.
    assert re.search(r"features and words together, `words` \| 100.0 \| +\| \*\*\d", said)
    assert classifier_file.load_classifier(out)[0].words is None
    for picture in ("best_unit.png", "learning_curve.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
        assert picture in (out / "report.md").read_text()

    labelled = tmp_path / "labelled.csv"
    cli.main(["classify", str(run.folder), str(out), str(test), "--out", str(labelled)])
    found, true = answers_of(labelled), answers_of(test)
    right = [a["label"] == b["verdict"] for a, b in zip(found, true, strict=True)]
    assert np.mean(right) == pytest.approx(result["test"])
    assert [a["text"] for a in found] == [b["review"] for b in true]
    assert [a["record"] for a in found] == [str(n) for n in range(1, 101)]
    assert list(found[0]) == ["record", "text", "label", "p(fair)", "p(fine)", "p(poor)"]

    # What has no text has no label, and any text makes a line that CSV readers take.
    odd = tmp_path / "odd.jsonl"
    texts = ["my guitar is bad", None, "  ", "a\rb", '"a",\nb']
    odd.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    odd_command = ["classify", str(run.folder), str(out), str(odd), "--text-column", "text"]
    capsys.readouterr()
    cli.main([*odd_command, "--out", str(labelled), "--overwrite"])
    blank = "2 of 5 texts, the first number 2, are blank and get no label"
    assert blank in capsys.readouterr().err
    assert b"\r\n" not in labelled.read_bytes()
    found = answers_of(labelled)
    assert [row["text"] for row in found] == [text or "" for text in texts]
    for column in ("label", "p(fair)"):
        assert [row[column] != "" for row in found] == [True, False, False, True, True]
    again = ["classify", run.folder, out, labelled, "--text-column", "text", "--out", labelled]
    assert "is the input, which would be lost" in refused(*again)
    assert "exists; choose another folder" in refused(*command)
    about = json.loads((out / "classifier.json").read_text())
    for change, message in (
        ({"model": "another"}, "was created with other parameters"),
        ({"all_layers": True}, "reads 64 features, but"),
    ):
        digest.write_json(out / "classifier.json", about | change)
        assert message in refused("classify", run.folder, out, test, "--text-column", "review")
    digest.write_json(out / "classifier.json", about | {"model": "another"})
    later = dataclasses.replace(run, step=run.step + 100)  # trained further
    with pytest.raises(UserError, match=f"of step {run.step} .* give `checkpoint {run.step}`"):
        classifier_file.require_model("it", *classifier_file.load_classifier(out), later, "a run")


def test_texts_without_words_have_a_report_without_tfidf(run, tmp_path, random, capsys) -> None:
    """Proteins and the like: single letters. All states of all layers, in one pass."""
    letters = np.array(list("acdefghiklmnpqrstvwy"))
    for name, count in (("train", 24), ("test", 10)):
        lines = ["text,label"]
        for number in range(count):
            text = " ".join([*random.choice(letters, 30), *"ab"[number % 2] * 8])
            lines.append(f"{text},{number % 2}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    out, test = tmp_path / "out", tmp_path / "test.csv"
    command = ["transfer", str(run.folder), "--out", str(out), "--all-layers"]
    command += ["--valid", str(test), "--test", str(test)]
    command += ["--train", str(tmp_path / "train.csv"), "--state", "mean_h", "c", "c+mean_h"]
    cli.main(command)
    said = capsys.readouterr().out
    assert said.count("TF-IDF is omitted because it cannot be fitted to these texts: ") == 3
    with np.load(out / "features/train.npz") as file:
        kept = dict(file)
    assert kept["features"].shape == (24, 256)
    assert set(kept["state"][:128]) == {"mean_h"}
    for state, words, width in (
        ("mean_h", "mean of h over the text", 128),
        ("c", "cell state c", 128),
        ("c+mean_h", "cell state c after the last byte, and mean of h", 256),
    ):
        found = json.loads((out / state / "report.json").read_text())
        assert (found["state"], found["features"], found["baseline"]) == (state, width, None)
        report = (out / state / "report.md").read_text()
        assert words in report
        assert {unit["layer"] for unit in found["units"]} == {0, 1}
        assert max(unit["unit"] for unit in found["units"]) < 64
        best, edges = found["best_unit"], found["histogram"]["edges"]
        assert best["state"] in state.split("+")
        assert f"--state {best['state']} --layer {best['layer']} --unit {best['unit']} " in report
        assert json.loads((out / state / "classifier.json").read_text())["state"] == state
        # Each report is of its own state's columns.
        is_best = np.all([kept[name] == best[name] for name in best], axis=0)
        (values,) = kept["features"][:, is_best].T
        np.testing.assert_allclose(edges[:: len(edges) - 1], np.percentile(values, [0.5, 99.5]))

    # As `transfer` did, so does `classify`.
    folder, labelled = out / "c+mean_h", tmp_path / "labelled.csv"
    cli.main(["classify", str(run.folder), str(folder), str(test), "--out", str(labelled)])
    pairs = zip(answers_of(labelled), answers_of(test), strict=True)
    right = np.mean([one["label"] == other["label"] for one, other in pairs])
    assert right == json.loads((folder / "report.json").read_text())["test"]


def test_texts_that_are_all_the_same_have_a_report(run: Run, tmp_path: Path) -> None:
    path, out = tmp_path / "same.csv", tmp_path / "out"
    path.write_text("text,label\n" + "same text,0\nsame text,1\n" * 6)
    paths = ["--train", str(path), "--test", str(path), "--out", str(out)]
    cli.main(["transfer", str(run.folder), *paths])
    assert json.loads((out / "report.json").read_text())["test"] == 0.5


def fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("anything")


def test_features_are_kept_whatever_fails_after_them(run, tmp_path, random, monkeypatch, capsys):
    train, test = (write_reviews(tmp_path / f"{n}.csv", random, n) for n in (40, 20))
    out = tmp_path / "out"
    command = ["transfer", str(run.folder), "--train", str(train), "--test", str(test), *COLUMNS]
    said = f"reusing the features of the same texts in {out / 'features'}"
    monkeypatch.setattr(experiment, "run", fail)
    for again in (False, True):
        if again:
            monkeypatch.setattr(Featurizer, "__call__", lambda *_: pytest.fail("read again"))
        with pytest.raises(RuntimeError, match="anything"):
            cli.main([*command, "--out", str(out)])
        assert (said in capsys.readouterr().err) == again
        assert [path.name for path in out.iterdir()] == ["features"]
    texts = read_labelled(train, "review", "verdict").texts
    key = features_key("abc", Featurizer(run), texts)
    assert read_features(out / "features/train.npz", key) is None  # of another model


def test_a_fifth_is_held_out_by_content(random: np.random.Generator) -> None:
    """Of each class, the same in any order, with equal texts on one side and no class lost."""
    texts = [f"text {n % 90}" for n in range(100)]  # ten twice
    labels = ["a" if n % 90 < 60 else "b" for n in range(100)]
    found = Labelled([*texts, "rare", "odd", "odd"], [*labels, "c", "d", "a"])
    train, held = hold_out(found)
    assert not set(train.texts) & set(held.texts)
    assert sorted(train.texts + held.texts) == sorted(found.texts)
    assert train.classes == ["a", "b", "c", "d"]
    count = {name: len({t for t, n in zip(*held[:2], strict=True) if n == name}) for name in "abcd"}
    assert count == {"a": 12, "b": 6, "c": 0, "d": 0}
    order = random.permutation(len(found.texts))
    shuffled = Labelled([found.texts[n] for n in order], [found.labels[n] for n in order])
    assert set(hold_out(shuffled)[1].texts) == set(held.texts)
    for more in range(5):  # wherever it is among the others
        some = Labelled([*map(str, range(90 + more)), "rare"], ["a"] * (90 + more) + ["c"])
        assert "rare" not in hold_out(some)[1].texts
    with pytest.raises(UserError, match=r"^x has 2 texts, too few to hold out a fifth; .* `test`"):
        usable({"train": Labelled(["a", "b"], ["a", "b"], name="x")}, "none", "test")


def test_features_of_another_reading_or_other_units_have_another_key(run: Run) -> None:
    readers = [
        Featurizer(run),
        Featurizer(run, states=["h"]),
        Featurizer(run, units=[1, 2]),
        Featurizer(run, units=[1, 3]),
        Featurizer(dataclasses.replace(run, cleaning="none")),
        Featurizer(with_compute(run, "bf16")),
    ]
    keys = [features_key("abc", reader, ["a"]) for reader in readers]
    assert len(set(keys)) == len(keys)
    assert keys[0] == features_key("abc", Featurizer(run), ["a"])


def test_a_half_written_classifier_is_not_loaded(tmp_path, monkeypatch) -> None:
    made = Classifier(np.ones((1, 3)), np.ones(1), ["no", "yes"], 1.0)
    classifier_file.save(tmp_path, made, ABOUT)

    def is_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(classifier_file.arrays, "write_safetensors", is_full)
    with pytest.raises(KnownError, match="cannot be written: No space left on device"):
        classifier_file.save(tmp_path, made, ABOUT)
    with pytest.raises(UserError, match=r"has no classifier\.json"):
        classifier_file.load_classifier(tmp_path)


# A process that is killed when it draws the second state.
KILLED = """
import os, signal, sys
from matplotlib.figure import Figure
from mlstm_jax import cli
save = Figure.savefig
def kill(self, path, **options):
    if "mean_h" in str(path):
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, path, **options)
Figure.savefig = kill
cli.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_killed_transfer_resumes(run, tmp_path, random, monkeypatch, capsys, refused) -> None:
    """Killed between two states."""
    train, test, others = (write_reviews(tmp_path / f"{n}.csv", random, n) for n in (40, 20, 41))
    out = tmp_path / "out"
    command = ["transfer", str(run.folder), "--test", str(test), "--out", str(out), *COLUMNS]
    several = [*command, "--state", "c", "mean_h"]
    process = subprocess.run(
        [sys.executable, "-c", KILLED, *several, "--train", str(train)], capture_output=True
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert {path.name for path in out.iterdir()} == {"features", "c", "mean_h"}
    assert (out / "mean_h/classifier.json").exists()
    assert not (out / "mean_h/report.md").exists()
    before = {path: path.read_bytes() for path in out.glob("*/*")}
    monkeypatch.setattr(Featurizer, "__call__", lambda *_: pytest.fail("read again"))
    # Of other texts, or of other states: nothing is touched.
    for wrong in (
        [*several, "--train", str(others)],
        [*several[:-1], "--train", str(train)],
        [*several, "c+mean_h", "--train", str(train)],
        [*command, "--state", "c+mean_h", "--train", str(train)],
    ):
        assert "repeat the command that created it" in refused(*wrong)
    assert {path: path.read_bytes() for path in out.glob("*/*")} == before

    cli.main([*several, "--train", str(train)])
    said = f"reusing the features of the same texts in {out / 'features'}"
    assert said in capsys.readouterr().err
    for state, words in (("c", "cell state c"), ("mean_h", "mean of h over the text")):
        assert words in (out / state / "report.md").read_text()
    # Fitted again, they say the same.
    for path, content in before.items():
        assert path.suffix == ".png" or path.read_bytes() == content
    assert f"{out} exists; choose another folder" in refused(*several, "--train", train)


def test_the_learning_curve_chooses_C_for_each_draw(random: np.random.Generator) -> None:
    train, test = make(random, 3000), make(random, 500)
    strong = classify.fit(train, NAMES[2], classify.CS[0])
    curve = experiment._learning_curve(train, make(random, 200), test, strong, None)
    means = {point["examples"]: point["mean"] for point in curve}
    assert 0.6 < means[20] < means[200]
    assert means[3000] == strong.score(test)
    prior = classify.Prior(4.0 * (np.arange(40) == 18), 0.0, NAMES[2])
    told = experiment._learning_curve(train, None, test, strong, prior)
    assert {point["examples"]: point["mean"] for point in told}[10] > 0.95
