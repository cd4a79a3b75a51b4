"""Several binary labels: read, learned, measured and given, mostly through the command."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax import cli, digest
from mlstm_jax.api.arguments import as_labelled
from mlstm_jax.errors import UserError
from mlstm_jax.run import Run, load_run
from mlstm_jax.transfer import classifier_file, classify
from mlstm_jax.transfer.classify import Examples
from mlstm_jax.transfer.features import Featurizer
from mlstm_jax.transfer.labels import Labelled, Task, of_columns, read_labelled, require_task
from tests.tolerance import bound
from tests.transfer.test_thresholds import f1_of

pytestmark = pytest.mark.numeric

NAMES = ("praise", "guitar", "bad")
OPTION = ["--label-columns", *NAMES]


def write(path: Path, random: np.random.Generator, count: int, missing: float = 0.2) -> Path:
    """Write texts like those of the model's corpus; pandas writes numbers with a missing one so."""
    lines = [",".join(["text", *NAMES])]
    for _ in range(count):
        noun = random.choice(["guitar", "cable", "piano"])
        end = random.choice(["good", "great", "as expected", "very well", "bad"])
        labels = [float(end in ("good", "great")), int(noun == "guitar"), int(end == "bad")]
        shown = ["" if random.random() < missing else str(label) for label in labels]
        lines.append(f"my {noun} is {end} {random.integers(3000)}.,{','.join(shown)}")
    path.write_text("\n".join(lines))
    return path


def known_of(path: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows of a file have a label, and the values of those."""
    values = [row[name] for row in csv.DictReader(path.read_text().splitlines())]
    known = np.array([value != "" for value in values])
    return known, np.array([int(float(value)) for value in values if value])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, random = tmp_path_factory.mktemp("several"), np.random.default_rng(0)
    sizes = {"train": 200, "valid": 100, "test": 90}
    return {name: write(folder / f"{name}.csv", random, size) for name, size in sizes.items()}


@pytest.fixture(scope="module")
def transferred(run: Run, files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("transferred") / "out"
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    cli.main(["transfer", str(run.folder), *words, *OPTION, "--state", "mean_h", "--out", str(out)])
    return out


def check_against_csv(scores: list[dict[str, Any]], labelled: Path, truth: Path) -> None:
    """What a report says of texts is what `classify` says of them, counted by hand."""
    rows = list(csv.DictReader(labelled.read_text().splitlines()))
    probabilities = [f"p({name})" for name in NAMES]
    assert list(rows[0]) == ["record", "text", *NAMES, *probabilities]
    for score, name in zip(scores, NAMES, strict=True):
        known, answers = known_of(truth, name)
        said = np.array([int(row[name]) for row in rows])
        yes = np.array([float(row[f"p({name})"]) for row in rows])
        clear = np.abs(yes - score["threshold"]) > 1e-4  # of four decimals
        np.testing.assert_array_equal(said[clear], (yes >= score["threshold"])[clear])
        assert (score["label"], score["known"]) == (name, known.sum())
        assert score["positives"] == answers.sum()
        assert score["f1"] == pytest.approx(f1_of(answers, said[known]))
        right = ((said[known] == 1) & (answers == 1)).sum()
        assert score["recall"] == pytest.approx(right / answers.sum())
        assert score["precision"] == pytest.approx(right / said[known].sum())


def test_transfer_and_classify_several_labels(run, files, transferred, tmp_path) -> None:
    result = json.loads((transferred / "report.json").read_text())
    assert result["classes"] == list(NAMES)
    test = tmp_path / "test.csv"
    words = ["classify", str(run.folder), str(transferred), str(files["test"])]
    cli.main([*words, "--out", str(test)])
    check_against_csv(result["labels"], test, files["test"])
    means = {
        name: np.mean([score[name] for score in result["labels"]])
        for name in ("f1", "precision", "recall", "average_precision", "all_yes")
    }
    assert result["macro"] == pytest.approx(means)
    assert result["test"] == pytest.approx(means["f1"])
    assert result["majority"] == pytest.approx(means["all_yes"])
    assert means["f1"] > means["all_yes"] + 0.2
    assert result["baseline"]["test"] > 0.9
    baseline = [score["f1"] for score in result["baseline"]["labels"]]
    assert result["baseline"]["test"] == pytest.approx(np.mean(baseline))
    report = (transferred / "report.md").read_text()
    for score, unit in zip(result["labels"], result["label_units"], strict=True):
        line = f"| {score['label']} | {score['threshold']:.3f} | {score['positives']} of "
        assert f"{line}{score['known']} | {100 * score['f1']:.1f} | " in report
        assert f" | mean_h of unit {unit['unit']} of layer 1 |" in report
    assert "Macro F1 of the labels, %" in report
    assert f"| always yes |  |  | **{100 * means['all_yes']:.1f}** |" in report
    # A label with the name of another column of the answer.
    for name in ("classifier.json", "classifier.safetensors"):
        shutil.copy(transferred / name, tmp_path)
    about = json.loads((tmp_path / "classifier.json").read_text())
    renamed = about | {"classes": ["praise", "record", "bad"]}
    digest.write_json(tmp_path / "classifier.json", renamed)
    words[2] = str(tmp_path)
    cli.main([*words, "--out", str(test), "--overwrite"])
    header = test.read_text().splitlines()[0]
    assert header == "record,text,praise,label(record),bad,p(praise),p(record),p(bad)"


def test_each_label_is_learned_from_the_texts_that_have_it(files, transferred) -> None:
    """As the two classes of one column would be from a file of those texts alone, to the bit."""
    found, _ = classifier_file.load_classifier(transferred)
    features = {name: np.load(transferred / f"features/{name}.npz")["features"] for name in files}
    assert isinstance(found.C, list)
    assert found.thresholds
    for k, name in enumerate(NAMES):
        known, answers = known_of(files["train"], name)
        train = Examples(features["train"][known], answers)
        alone = classify.fit(train, ["0", "1"], found.C[k])
        yes = found.probabilities(features["test"])[:, k]
        np.testing.assert_array_equal(found.weights_KD[k], alone.weights_KD[0])
        assert found.intercepts_K[k] == alone.intercepts_K[0]
        # One product has three columns, the other one: sums of 64 in another order. The logistic
        # function has a slope of at most a quarter.
        expected = alone.probabilities(features["test"])[:, 1]
        summed = np.abs(features["test"]) @ np.abs(alone.weights_KD[0])
        assert np.abs(yes - expected).max() <= bound(64, "float64") * summed.max() / 4
        # The threshold is the best of the validation texts, not of the others.
        known, answers = known_of(files["valid"], name)
        yes = alone.probabilities(features["valid"][known])[:, 1]
        best = max(f1_of(answers, yes >= low) for low in yes)
        assert f1_of(answers, yes >= found.thresholds[k]) == pytest.approx(best)


@pytest.mark.parametrize(
    ("values", "option", "message"),
    [
        (["1", "2"], ["joy"], r"train.csv, record 2: the label 'joy' is '2', but it must be"),
        (["1", "-1"], ["joy"], "record 2: the label 'joy' is '-1', but it must be"),
        (["yes", "0"], ["joy"], "1: the label 'joy' is 'yes', but it must be 1 or true for yes"),
        (["1", "1", ""], ["joy"], "the label 'joy' is 1 in every text that has it, but a"),
        (["", ""], ["joy"], "no record has a label in 'joy'"),
        (["1", "0"], ["joyy"], "no record has a label in 'joyy'; .*; did you mean joy?"),
        (["1", "0"], ["joy", "joy"], "--label-columns joy joy: name one or more columns"),
        (["1", "0"], [], "--label-columns : name one or more columns"),
        (["1", "0"], ["joy", "--label-column", "joy"], "exclude each other"),
    ],
)
def test_bad_labels_are_named(values, option, message, run, tmp_path, refused) -> None:
    path, out = tmp_path / "train.csv", tmp_path / "out"
    path.write_text("text,joy\n" + "".join(f"a text,{value}\n" for value in values))
    for command, other in (("transfer", "--test"), ("finetune", "--valid")):
        words = [command, run.folder, "--train", path, other, path, "--out", out]
        assert re.search(message, refused(*words, "--label-columns", *option))
        assert not out.exists()


def test_a_label_of_one_value_in_validation_has_no_threshold(run, files, tmp_path) -> None:
    valid, task = tmp_path / "valid.csv", Task(list(NAMES), several=True)
    valid.write_text("text,praise,guitar,bad\na,1,0,0\nb,0,1,\n")
    model = mlstm.load(run.folder)
    message = r"valid\.csv: the label 'bad' is 0 in every text that has it, "
    with pytest.raises(ValueError, match=message):
        model.transfer(files["train"], files["test"], valid, label_columns=NAMES)
    with pytest.raises(ValueError, match="but the choice of its threshold needs both 1 and 0"):
        model.finetune(files["train"], valid, out=tmp_path / "out", label_columns=NAMES)
    # In the test texts it may be so; with no yes at all nothing can be measured.
    assert require_task(Labelled(["a", "b"], [(-1, 0, 0), (0, 0, 1)], NAMES), task)
    with pytest.raises(UserError, match="every label is 0 or missing in every text"):
        require_task(Labelled(["a", "b"], [(-1, 0, 0), (0, 0, 0)], NAMES), task)


def test_values_that_mean_one_zero_and_missing() -> None:
    yes, no = ["1", "1.0", "TRUE", "true", True, np.float64(1), np.int8(1)], ["0", "False", 0.0]
    missing = ["", "nan", None, float("nan")]
    values = [*yes, *no, *missing]
    found = of_columns(["a"] * len(values), {"joy": values}, ["a"] * len(values))
    expected = [(1,)] * len(yes) + [(0,)] * len(no) + [(-1,)] * len(missing)
    assert found == Labelled(["a"] * len(values), expected, ("joy",))
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"joy": pandas.Series([1, None, 0], dtype="Int64")})
    of_table = as_labelled({"train": (["a", "b", "c"], table)}, None, None, None)
    assert of_table["train"].labels == [(1,), (-1,), (0,)]


def test_labels_in_memory_are_those_of_a_file(run, files, transferred) -> None:
    model = mlstm.load(run.folder)
    given, missing = {}, {"praise": None, "guitar": float("nan"), "bad": ""}
    for name, path in files.items():
        texts, rows = read_labelled(path, None, NAMES)[:2]
        columns = dict(zip(NAMES, zip(*rows, strict=True), strict=True))
        shown = {key: [missing[key] if v < 0 else v for v in columns[key]] for key in NAMES}
        given[name] = (texts, shown)
    # What the test texts are labelled does not change the classifier.
    texts, labels = given["test"]
    flipped = {key: [1 - v if v in (0, 1) else v for v in column] for key, column in labels.items()}
    made = model.transfer(given["train"], (texts, flipped), given["valid"], state="mean_h")
    kept, _ = classifier_file.load_classifier(transferred)
    assert made.classifier.C == kept.C
    assert made.classifier.thresholds == kept.thresholds
    np.testing.assert_array_equal(made.classifier.weights_KD, kept.weights_KD)
    result = json.loads((transferred / "report.json").read_text())
    assert made.result.valid == result["valid"]
    assert made.result.test < result["test"]
    answers = made.classifier.predict(model.encode(texts, "mean_h"))
    assert answers.shape == (90, 3)
    assert set(answers.ravel()) == {0, 1}
    for train, test, message in (
        ({"praise": [1, 0]}, {"praise": [1]}, "train has 1 texts, but 2 labels"),
        ({"bad": [3]}, {"bad": [1]}, r"train\[1\], text 0: the label 'bad' is 3, but it must be"),
        ({"bad": [1]}, {"bat": [1]}, r"test\[1\] has no label 'bad'; did you mean bat?"),
        ({"bad": [1]}, [1], r"test\[1\] has type list, but several labels must be a d"),
    ):
        with pytest.raises(ValueError, match=message):
            model.transfer((["a"], train), (["a"], test))


def test_the_page_shows_what_is_a_yes(run: Run, transferred: Path) -> None:
    from mlstm_jax.view.viewer import Viewer

    chosen, about = classifier_file.load_classifier(transferred)
    viewer = Viewer(run, chosen, about)
    texts = [f"my {noun} is {end}" for noun in ("guitar", "cable") for end in ("good", "bad")]
    features, said = Featurizer(run, states=("mean_h",))(texts), set()
    for text, shares, answers in zip(
        texts, chosen.probabilities(features), chosen.predict(features), strict=True
    ):
        found = viewer.read({"text": text})["classes"]
        np.testing.assert_allclose([one["probability"] for one in found], shares, atol=1e-4)
        assert [one["yes"] for one in found] == answers.astype(bool).tolist()
        said |= {one["yes"] for one in found}
    assert said == {True, False}


@pytest.mark.slow
def test_finetune_several_labels_from_the_outside(run, files, tmp_path, capsys) -> None:
    """Then again, as after a kill at the checkpoint in the middle: the same to the bit."""
    out = tmp_path / "out"
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    command = ["finetune", str(run.folder), *words, *OPTION, "--out", str(out), "--epochs", "4"]
    command += ["--batch", "16", "--window", "32", "--label-weight", "100"]
    command += ["--learning-rate", "1e-2", "--checkpoint", "latest"]
    cli.main(command)
    said = capsys.readouterr().out
    result = json.loads((out / "report.json").read_text())
    tuned = load_run(out / "run", "latest")
    assert (tuned.config.model.binary_labels, tuned.config.model.classes) == (3, 0)
    means = {name: np.mean([one["f1"] for one in part]) for name, part in result["labels"].items()}
    assert {name: part["f1"] for name, part in result["macro"].items()} == pytest.approx(means)
    shown = ", ".join(f"{name} {100 * f1:.1f}" for name, f1 in means.items())
    assert f"macro F1, %: {shown} (step " in said
    always = result["macro"]["test"]["all_yes"]
    assert means["test"] > always + 0.15
    # The thresholds are the best of the validation texts.
    found, _ = classifier_file.load_classifier(out / "classifier")
    features = Featurizer(tuned, states=("h",))(read_labelled(files["valid"], None, NAMES).texts)
    yes_NK = found.probabilities(features)
    for k, name in enumerate(NAMES):
        known, answers = known_of(files["valid"], name)
        yes = yes_NK[known, k]
        best = max(f1_of(answers, yes >= low) for low in yes)
        assert result["labels"]["valid"][k]["f1"] == pytest.approx(best)
    labelled = tmp_path / "test.csv"
    words = [str(out / "run"), str(out / "classifier"), str(files["test"]), "--out", str(labelled)]
    cli.main(["classify", *words, "--checkpoint", "latest"])
    check_against_csv(result["labels"]["test"], labelled, files["test"])

    before = {path: path.read_bytes() for path in (out / "classifier").iterdir()}
    steps = sorted(int(path.name) for path in (out / "run/checkpoints").iterdir())
    assert len(steps) > 1
    shutil.rmtree(out / f"run/checkpoints/{steps[-1]}")
    cli.main(command)
    assert f"{steps[-2]:,}" in capsys.readouterr().err  # where it resumed
    assert {path: path.read_bytes() for path in (out / "classifier").iterdir()} == before
    again = load_run(out / "run", "latest")
    assert again.step == tuned.step
    jax.tree.map(np.testing.assert_array_equal, again.params, tuned.params)
