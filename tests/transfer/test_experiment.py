"""`transfer` and `classify` from the command line: the report, and how a stopped one resumes."""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from mlstm_jax import cli
from mlstm_jax.run import Run, with_compute
from mlstm_jax.transfer import transfer
from mlstm_jax.transfer.classifier import load_classifier
from mlstm_jax.transfer.features import Featurizer, features_key
from tests.corpora.written import contents, jsonl
from tests.tables import column
from tests.transfer.pieces import COLUMNS, answers_of, write_reviews


def test_transfer_and_classify(run, tmp_path, random, capsys, refused) -> None:
    train = write_reviews(tmp_path / "70.csv", random, 70)
    test = write_reviews(tmp_path / "100.csv", random, 100)
    out = tmp_path / "out"
    with train.open("a") as file:  # Nothing is learned from what `classify` gives no label.
        file.write("fine, \nfair,&nbsp;\n")
    paths = ["--train", str(train), "--valid", str(test), "--test", str(test), "--out", str(out)]
    command = ["transfer", str(run.folder), *paths, *COLUMNS, "--state", "c"]
    cli.main(command)
    said, noted = capsys.readouterr()
    assert re.findall(r"note: .*70\.csv: 1 of 7. records have no text", noted) == 2 * [ANY]
    result = json.loads((out / "report.json").read_text())
    assert (result["classes"], result["state"]) == (["fair", "fine", "poor"], "c")
    assert result["test"] > 0.8 > result["majority"]
    assert result["baseline"]["test"] > 0.9
    true = answers_of(test)
    verdicts = column(true, "verdict")
    counts = [*map(verdicts.count, result["classes"])]
    assert np.sum(result["confusion"], axis=1).tolist() == counts
    assert np.trace(result["confusion"]) == pytest.approx(100 * result["test"])
    assert column(result["learning_curve"], "examples") == [10, 20, 50, 70]
    assert result["learning_curve"][-1]["mean"] == pytest.approx(result["test"])
    assert list(result["top_units"]) == ["1", "2", "5", "10", "50"]
    assert 1 > result["best_unit_test"] >= result["majority"] - 0.05
    assert f"**{100 * result['test']:.1f}**" in said
    # The report says what word counts would give, which only `words` keeps.
    assert "all features and TF-IDF (`--words`)" in said
    right, low, high = re.search(r"(\S+)% of the 100 .*: (\S+) to (\S+)%\)", said).groups()
    assert float(right) == pytest.approx(100 * result["test"])
    assert float(low) < float(right) <= float(high)
    assert re.search(r"; 70 of the 72 records of \S*70.csv; 100 of the 100 records of", said)
    assert load_classifier(out).words is None
    for picture in ("best_unit.png", "learning_curve.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
        assert picture in (out / "report.md").read_text()

    labelled = tmp_path / "labelled.csv"
    cli.main(["classify", str(run.folder), str(out), str(test), "--out", str(labelled)])
    found = answers_of(labelled)
    right = np.array(column(found, "label")) == verdicts
    assert right.mean() == pytest.approx(result["test"])
    assert column(found, "text") == column(true, "review")
    assert column(found, "record") == [*map(str, range(1, 101))]
    assert list(found[0]) == ["record", "text", "label", "p(fair)", "p(fine)", "p(poor)"]

    # What has no text has no label, and any text makes a line that CSV readers take.
    records = [{"text": "my guitar is bad"}, {}, {"text": "  "}, {"text": "a\rb"}]
    odd = jsonl(tmp_path / "odd.jsonl", [*records, {"text": '"a",\nb'}])
    odd_command = ["classify", str(run.folder), str(out), odd, "--text-column", "text"]
    capsys.readouterr()
    cli.main([*odd_command, "--out", str(labelled), "--overwrite"])
    blank = "2 of 5 texts, the first number 2, are blank, and without a label"
    assert blank in capsys.readouterr().err
    assert b"\r\n" not in labelled.read_bytes()
    found = answers_of(labelled)
    assert column(found, "text") == ["my guitar is bad", "", "  ", "a\rb", '"a",\nb']
    for name in ("label", "p(fair)"):
        assert [*map(bool, column(found, name))] == [True, False, False, True, True]
    again = ["classify", run.folder, out, labelled, "--text-column", "text", "--out", labelled]
    assert "is the input, which would be lost" in refused(*again)
    for words in ((out, test), ("sentiment", test, out), ("sentiment", out), ("sentiment",)):
        assert "write `mlstm-jax classify sentiment DIR INPUT`, in" in refused("classify", *words)
    assert "exists; choose another folder" in refused(*command)


def test_several_states(run, tmp_path, random, monkeypatch, capsys, refused) -> None:
    """All layers, of texts without words; stopped between two states."""
    letters = np.array(list("acdefghiklmnpqrstvwy"))
    for name, count in (("train", 10), ("test", 6), ("others", 10)):
        lines = ["text,label"]
        for number in range(count):
            text = " ".join([*random.choice(letters, 30), *"ab"[number % 2] * 8])
            lines.append(f"{text},{number % 2}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    train = str(tmp_path / "train.csv")
    test = str(tmp_path / "test.csv")
    out = tmp_path / "out"
    command = ["transfer", str(run.folder), "--out", str(out), "--all-layers"]
    command += ["--valid", test, "--test", test]
    several = [*command, "--state", "mean_h", "c", "c+mean_h"]
    plain = transfer.write_report

    def stop(folder: Path, *more: Any) -> None:
        if folder.name == "c":
            raise ZeroDivisionError
        plain(folder, *more)

    monkeypatch.setattr(transfer, "write_report", stop)
    with pytest.raises(ZeroDivisionError):
        cli.main([*several, "--train", train])
    assert set(os.listdir(out)) == {"features", "mean_h", "c"}
    assert not (out / "c/report.md").exists()
    before = contents(out)
    monkeypatch.setattr(transfer, "write_report", plain)
    # Of other texts, or of other states: nothing is touched.
    for wrong in (
        [*several, "--train", str(tmp_path / "others.csv")],
        [*several[:-1], "--train", train],
        [*command, "--state", "c+mean_h", "--train", train],
    ):
        assert "repeat the command that created it" in refused(*wrong)
    assert contents(out) == before

    cli.main([*several, "--train", train])
    said, noted = capsys.readouterr()
    assert f"reusing the features of the same texts in {out / 'features'}" in noted
    assert said.count("| TF-IDF, sequences of characters |") == 3  # there are no words
    # Fitted again, they say the same.
    for name, content in before.items():
        assert name.endswith(".png") or (out / name).read_bytes() == content
    assert f"{out} exists; choose another folder" in refused(*several, "--train", train)

    with np.load(out / "features/train.npz") as file:
        kept = dict(file)
    assert kept["features"].shape == (10, 256)
    assert set(kept["state"][:128]) == {"mean_h"}
    for state, words, width in (
        ("mean_h", "mean of h over the text", 128),
        ("c", "cell state c", 128),
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
        Featurizer(run, all_layers=True),
        Featurizer(dataclasses.replace(run, cleaning="none")),
        Featurizer(with_compute(run, "bf16")),
    ]
    keys = set()
    for reader in readers:
        keys.add(features_key(reader, ["a"]))
    assert len(keys) == len(readers)
    assert features_key(Featurizer(run), ["a"]) in keys
