"""Several binary labels: read, learned and given, mostly through the command; their thresholds."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mlstm_jax import cli
from mlstm_jax.api.arguments import as_labelled
from mlstm_jax.errors import UserError
from mlstm_jax.run import Run, load_run
from mlstm_jax.transfer import classifier_file, classify, thresholds
from mlstm_jax.transfer.classify import Examples
from mlstm_jax.transfer.features import Featurizer
from mlstm_jax.transfer.labels import Labelled, Task, of_columns, read_labelled, require_task
from tests.tolerance import bound
from tests.transfer.test_classify import change_files

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
    fields = ("f1", "precision", "recall", "average_precision", "all_yes")
    means = {name: np.mean([score[name] for score in result["labels"]]) for name in fields}
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
    shutil.copytree(transferred, renamed := tmp_path / "renamed")
    change_files(renamed, {"classes": ["praise", "record", "bad"]})
    words[2] = str(renamed)
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


def test_a_label_of_one_value_in_validation_has_no_threshold(model, files, tmp_path) -> None:
    valid, task = tmp_path / "valid.csv", Task(list(NAMES), several=True)
    valid.write_text("text,praise,guitar,bad\na,1,0,0\nb,0,1,\n")
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
    for labels in ({0: [1, 0], 1: [0, 1]}, pandas.DataFrame({0: [1, 0], 1: [0, 1]})):
        of_numbers = as_labelled({"train": (["a", "b"], labels)}, None, None, None)["train"]
        assert of_numbers == Labelled(["a", "b"], [(1, 0), (0, 1)], ("0", "1"), "train")
    twice = pandas.DataFrame([[1, 0], [0, 1]], columns=["joy", "joy"])
    for labels in (twice, {1: [1, 0], "1": [0, 1]}):
        with pytest.raises(UserError, match=r"train\[1\] has columns of the same name"):
            as_labelled({"train": (["a", "b"], labels)}, None, None, None)


def test_labels_in_memory_are_those_of_a_file(model, files, transferred) -> None:
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
    for train, test, message in (
        ({"praise": [1, 0]}, {"praise": [1]}, "train has 1 texts, but 2 labels"),
        ({"bad": [3]}, {"bad": [1]}, r"train\[1\], text 0: the label 'bad' is 3, but it must be"),
        ({"bad": [1]}, {"bat": [1]}, r"test\[1\] has no label 'bad'; did you mean bat?"),
        ({"bad": [1]}, [1], r"test\[1\] has type list, but several labels must be a d"),
    ):
        with pytest.raises(ValueError, match=message):
            model.transfer((["a"], train), (["a"], test))


@pytest.mark.slow
def test_finetune_several_labels_from_the_outside(run, files, tmp_path, capsys) -> None:
    """Then again, as after a kill at the checkpoint in the middle: the same to the bit."""
    out = tmp_path / "out"
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    how = "--epochs 4 --batch 16 --window 32 --label-weight 100 --learning-rate 1e-2"
    command = ["finetune", str(run.folder), *words, *OPTION, *how.split()]
    command += ["--checkpoint", "latest", "--out", str(out)]
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


MISSING = -1


def f1_of(answers: np.ndarray, said: np.ndarray) -> float:
    both = int(((answers == 1) & (said == 1)).sum())
    return 2 * both / (int((answers == 1).sum()) + int((said == 1).sum()))


@pytest.mark.parametrize("ties", [False, True])
def test_no_threshold_has_a_larger_f1(ties: bool, random: np.random.Generator) -> None:
    """Each that tells two probabilities apart is tried; of the best it is the highest."""
    for _ in range(200):
        count = int(random.integers(2, 30))
        answers = np.concatenate([[1, 0], random.integers(0, 2, count - 2)])
        yes = 0.3 * answers + 0.7 * random.random(count)
        if ties:
            yes = np.round(yes, 1)
        found, f1 = thresholds.best_threshold(answers, yes)
        assert f1 == pytest.approx(f1_of(answers, yes >= found), rel=1e-12)
        scores = {low: f1_of(answers, yes >= low) for low in np.unique(yes)}
        best = max(scores.values())
        assert f1 == pytest.approx(best, rel=1e-12)
        highest = max(low for low, score in scores.items() if score >= best - 1e-12)
        lower = max((low for low in scores if low < highest), default=0.0)
        assert found == pytest.approx((lower + highest) / 2)


@pytest.mark.parametrize("yes", [[1.0, np.nextafter(1.0, 0)], [5e-324, 0.0], [0.0, 0.0]])
def test_a_threshold_between_neighbouring_floats_tells_them_apart(yes: list[float]) -> None:
    found, f1 = thresholds.best_threshold(np.array([1, 0]), np.array(yes))
    assert f1 == pytest.approx(f1_of(np.array([1, 0]), np.array(yes) >= found))


def test_what_is_measured_is_counted_without_missing_answers() -> None:
    answers = np.array([[1, 0], [1, 0], [0, MISSING], [0, 0], [MISSING, 0], [1, 0]])
    yes = np.array([[0.9, 0.9], [0.4, 0.1], [0.6, 0.9], [0.1, 0.1], [0.9, 0.1], [0.5, 0.1]])
    first, second = thresholds.measure(answers, yes, [0.5, 0.5], ["joy", "fear"])
    assert (first.label, first.threshold, first.known, first.positives) == ("joy", 0.5, 5, 3)
    # Said yes to 0.9, 0.6 and 0.5, the first and the last rightly.
    found = (first.f1, first.precision, first.recall, first.all_yes)
    assert found == pytest.approx((2 / 3, 2 / 3, 2 / 3, 2 * 3 / (3 + 5)))
    # By falling probability: yes, no, yes, yes.
    assert first.average_precision == pytest.approx((1 / 1 + 2 / 3 + 3 / 4) / 3)
    assert (second.known, second.positives, second.f1, second.recall) == (5, 0, None, None)
    assert thresholds.macro([first, second])["f1"] == pytest.approx(2 / 3)


def learn_by_heart(inputs: np.ndarray, answers: np.ndarray, C: float) -> Any:
    """Learn all texts, and C."""
    return dict(zip(inputs.tolist(), answers.tolist(), strict=True)), C


def recalled(learned: Any, asked: np.ndarray) -> np.ndarray:
    """Of other texts the probability is the input; with a small C it is the reverse."""
    known, C = learned
    return np.array([known.get(x, x if C > 1 else 1 - x) for x in asked.tolist()], float)


@pytest.mark.parametrize("validated", [True, False])
def test_c_and_threshold_are_of_texts_held_out(validated, random) -> None:
    """On the texts of the fit every C would be perfect, and 0.5 the threshold."""

    def data(count: int) -> tuple[Any, np.ndarray]:
        inputs = random.permutation(np.linspace(0.01, 0.99, count)) + 1e-6 * random.random(count)
        return inputs, (inputs > 0.8).astype(np.int64)[:, None]

    train, valid = data(60), data(50)
    held_out = valid if validated else None
    (chosen,) = thresholds.choose(learn_by_heart, recalled, (1, 4), train, held_out, ["joy"])
    assert chosen.C == 4
    # Between two neighbouring inputs, of which one is above 0.8.
    assert abs(chosen.threshold - 0.8) < 0.02
    assert chosen.f1 == 1


def test_one_yes_cannot_be_held_out() -> None:
    inputs, answers = np.linspace(0, 1, 9), np.array([[1], *[[0]] * 8])
    with pytest.raises(UserError, match="1 in the label 'joy' has only one text, too few"):
        thresholds.choose(learn_by_heart, recalled, (1,), (inputs, answers), None, ["joy"])
