"""`transfer` and `classify` from the command line: the report, and how a stopped one resumes."""

import dataclasses
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest

from mlstm_jax import cli
from mlstm_jax.run import Run, with_compute
from mlstm_jax.transfer.classifier import load_classifier
from mlstm_jax.transfer.features import Featurizer, features_key
from tests.corpora.written import contents, jsonl
from tests.tables import column
from tests.transfer.pieces import COLUMNS, answers_of, write_reviews


@pytest.fixture(scope="module")
def folder(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `transfer` was called; what it wrote is in `said`."""
    folder = tmp_path_factory.mktemp("experiment")
    random = np.random.default_rng(0)
    with write_reviews(folder / "100.csv", random, 97).open("a") as file:
        for number in (512, 1024, 2048):  # their labels are wrong
            file.write(f"poor,my guitar is great {number}.\n")
    with write_reviews(folder / "70.csv", random, 70).open("a") as file:
        file.write("fine, \nfair,&nbsp;\n")  # of these nothing is learned
    files = "--train {0}/70.csv --valid {0}/100.csv --test {0}/100.csv --out {0}/out"
    words = ["transfer", str(run.folder), *files.format(folder).split(), *COLUMNS, "--state", "c"]
    with (folder / "said").open("w") as said, redirect_stdout(said), redirect_stderr(said):
        cli.main(words)
    return folder


def test_report(folder) -> None:
    result = json.loads((folder / "out/report.json").read_text())
    assert (result["classes"], result["state"]) == (["fair", "fine", "poor"], "c")
    assert result["test"] > 0.8 > result["majority"]
    assert result["baseline"]["test"] > 0.9
    verdicts = column(answers_of(folder / "100.csv"), "verdict")
    counts = [*map(verdicts.count, result["classes"])]
    assert np.sum(result["confusion"], axis=1).tolist() == counts
    assert np.trace(result["confusion"]) == pytest.approx(100 * result["test"])
    assert column(result["learning_curve"], "examples") == [10, 20, 50, 70]
    assert result["learning_curve"][-1]["mean"] == pytest.approx(result["test"])
    assert list(result["top_units"]) == ["1", "2", "5", "10", "50"]
    assert 1 > result["best_unit_test"] >= result["majority"] - 0.05
    said = (folder / "said").read_text()
    assert re.findall(r"note: .*70\.csv: 1 of 7. records have no text", said) == 2 * [ANY]
    assert re.search(r"; 70 of the 72 records of \S*70.csv; 100 of the 100 records of", said)
    assert f"**{100 * result['test']:.1f}**" in said
    right, low, high = re.search(r"(\S+)% of the 100 .*: (\S+) to (\S+)%\)", said).groups()
    assert float(right) == pytest.approx(100 * result["test"])
    assert float(low) < float(right) <= float(high)
    # The report says what word counts would give, which only `words` keeps.
    assert "all features and TF-IDF (`--words`)" in said
    assert load_classifier(folder / "out").words is None
    for picture in ("best_unit.png", "learning_curve.png"):
        assert (folder / "out" / picture).read_bytes().startswith(b"\x89PNG")
        assert picture in (folder / "out/report.md").read_text()


def test_labels_of_the_test_texts(folder, run, tmp_path) -> None:
    test = folder / "100.csv"
    labelled = tmp_path / "labelled.csv"
    cli.main(["classify", str(run.folder), str(folder / "out"), str(test), "--out", str(labelled)])
    found = answers_of(labelled)
    true = answers_of(test)
    result = json.loads((folder / "out/report.json").read_text())
    is_right_N = np.array(column(found, "label")) == column(true, "verdict")
    assert is_right_N.mean() == pytest.approx(result["test"])
    assert column(found, "text") == column(true, "review")
    assert column(found, "record") == [*map(str, range(1, 101))]
    assert list(found[0]) == ["record", "text", "label", "p(fair)", "p(fine)", "p(poor)"]


def test_odd_texts(folder, run, tmp_path, capsys, refused) -> None:
    """What has no text has no label, and any text makes a line that CSV readers take."""
    texts = ["my guitar is bad", None, "  ", "a\rb", '"a",\nb']
    odd = jsonl(tmp_path / "odd.jsonl", [{"text": text} for text in texts])
    labelled = tmp_path / "labelled.csv"
    words = ["classify", str(run.folder), str(folder / "out")]
    how = ["--text-column", "text", "--out", str(labelled)]
    cli.main([*words, odd, *how])
    blank = "2 of 5 texts, the first number 2, are blank, and without a label"
    assert blank in capsys.readouterr().err
    assert b"\r\n" not in labelled.read_bytes()
    found = answers_of(labelled)
    assert column(found, "text") == [text or "" for text in texts]
    for name in ("label", "p(fair)"):
        assert [*map(bool, column(found, name))] == [True, False, False, True, True]
    assert "is the input, which would be lost" in refused(*words, labelled, *how)


def test_order_of_words(folder, refused) -> None:
    out = folder / "out"
    test = folder / "100.csv"
    wrong = ((out, test), (out, "sentiment", test), ("sentiment", test, out), ("sentiment", out))
    for words in (*wrong, ("sentiment",)):
        assert "write `mlstm-jax classify sentiment DIR INPUT`, in" in refused("classify", *words)


def test_several_states(run, tmp_path, random, capsys, refused) -> None:
    """All layers, of texts without words; the same command goes on where it was killed."""
    letters = np.array(list("acdefghiklmnpqrstvwy"))
    for name, count in (("train", 10), ("test", 6), ("others", 10)):
        lines = ["text,label"]
        for number in range(count):
            text = " ".join([*random.choice(letters, 30), *"ab"[number % 2] * 8])
            lines.append(f"{text},{number % 2}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    out = tmp_path / "out"
    files = "--out {0}/out --valid {0}/test.csv --test {0}/test.csv --train {0}/train.csv"
    command = ["transfer", str(run.folder), *files.format(tmp_path).split(), "--all-layers"]
    several = [*command, "--state", "mean_h", "c+mean_h"]
    cli.main(several)
    whole = contents(out)
    assert f"{out} exists; choose another folder" in refused(*several)
    (out / "c+mean_h/report.md").unlink()
    (out / "c+mean_h/report.json").unlink()
    before = contents(out)
    # Of other texts, or of other states: nothing is touched.
    for wrong in (
        [*several, "--train", str(tmp_path / "others.csv")],
        several[:-1],
        [*command, "--state", "c+mean_h"],
    ):
        assert "repeat the command that created it" in refused(*wrong)
    assert contents(out) == before

    cli.main(several)
    said, noted = capsys.readouterr()
    assert f"reusing the features of the same texts in {out / 'features'}" in noted
    assert said.count("| TF-IDF, sequences of characters |") == 2  # there are no words
    # Fitted again, they say the same.
    again = contents(out)
    assert whole.keys() == again.keys()
    for name, content in whole.items():
        assert name.endswith(".png") or again[name] == content

    with np.load(out / "features/train.npz") as file:
        kept = dict(file)
    assert kept["features"].shape == (10, 256)
    assert set(kept["state"][:128]) == {"mean_h"}
    for state, words, width in (
        ("mean_h", "mean of h over the text", 128),
        ("c+mean_h", "cell state c after the last byte, and mean of h", 256),
    ):
        found = json.loads((out / state / "report.json").read_text())
        assert (found["state"], found["features"]) == (state, width)
        report = (out / state / "report.md").read_text()
        assert words in report
        best = found["best_unit"]
        edges = found["histogram"]["edges"]
        assert best["state"] in state.split("+")
        assert f"--state {best['state']} --layer {best['layer']} --unit {best['unit']} " in report
        # Each report is of its own state's columns.
        is_best = np.ones(256, bool)
        for name in best:
            is_best &= kept[name] == best[name]
        (values,) = kept["features"][:, is_best].T
        np.testing.assert_allclose(edges[:: len(edges) - 1], np.percentile(values, [0.5, 99.5]))


def test_keys_of_features(run: Run) -> None:
    readers = [
        Featurizer(run),
        Featurizer(run, states=["h"]),
        Featurizer(run, states=["c", "mean_h"]),
        Featurizer(run, all_layers=True),
        Featurizer(dataclasses.replace(run, cleaning="none")),
        Featurizer(with_compute(run, "bf16")),
    ]
    keys = set()
    for reader in readers:
        keys.add(features_key(reader, ["a"]))
    assert len(keys) == len(readers)
    assert features_key(Featurizer(run), ["a"]) in keys
