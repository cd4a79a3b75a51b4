"""`transfer` and `classify` from the command line: the report, and how a stopped one resumes."""

import dataclasses
import json
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
from tests.transfer.pieces import COLUMNS, answers_of, write_reviews


def test_transfer_and_classify(run, tmp_path, random, capsys, refused) -> None:
    train, test = (write_reviews(tmp_path / f"{n}.csv", random, n) for n in (70, 100))
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
    verdicts = [row["verdict"] for row in answers_of(test)]
    assert [sum(row) for row in result["confusion"]] == [*map(verdicts.count, result["classes"])]
    assert np.trace(result["confusion"]) == pytest.approx(100 * result["test"])
    assert [point["examples"] for point in result["learning_curve"]] == [10, 20, 50, 70]
    assert result["learning_curve"][-1]["mean"] == pytest.approx(result["test"])
    assert list(result["top_units"]) == ["1", "2", "5", "10", "50"]
    assert 1 > result["best_unit_test"] >= result["majority"] - 0.05
    assert f"**{100 * result['test']:.1f}**" in said
    # The report says what word counts would give, which only `words` keeps.
    assert "features and TF-IDF together" in said
    low, high = re.search(r"\*\* \((\S+) to (\S+)\) \|", said).groups()
    assert float(low) < 100 * result["test"] <= float(high)
    assert re.search(r"; 70 of the 72 records of \S*70.csv; 100 of the 100 records of", said)
    assert load_classifier(out).words is None
    for picture in ("best_unit.png", "learning_curve.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
        assert picture in (out / "report.md").read_text()

    labelled = tmp_path / "labelled.csv"
    cli.main(["classify", str(run.folder), str(out), str(test), "--out", str(labelled)])
    found = answers_of(labelled)
    true = answers_of(test)
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
    blank = "2 of 5 texts, the first number 2, are blank, and without a label"
    assert blank in capsys.readouterr().err
    assert b"\r\n" not in labelled.read_bytes()
    found = answers_of(labelled)
    assert [row["text"] for row in found] == [text or "" for text in texts]
    for column in ("label", "p(fair)"):
        assert [row[column] != "" for row in found] == [True, False, False, True, True]
    again = ["classify", run.folder, out, labelled, "--text-column", "text", "--out", labelled]
    assert "is the input, which would be lost" in refused(*again)
    assert "is a classifier, not a model; write the model before" in refused("classify", out, test)
    told = "is a classifier, and the file of texts is missing"
    assert told in refused("classify", "reviews-1024", out)
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
    train, test, others = (str(tmp_path / f"{name}.csv") for name in ("train", "test", "others"))
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
    assert {path.name for path in out.iterdir()} == {"features", "mean_h", "c"}
    assert not (out / "c/report.md").exists()
    before = {path: path.read_bytes() for path in out.glob("*/*")}
    monkeypatch.setattr(transfer, "write_report", plain)
    monkeypatch.setattr(Featurizer, "__call__", lambda *_: pytest.fail("read again"))
    # Of other texts, or of other states: nothing is touched.
    for wrong in (
        [*several, "--train", others],
        [*several[:-1], "--train", train],
        [*command, "--state", "c+mean_h", "--train", train],
    ):
        assert "repeat the command that created it" in refused(*wrong)
    assert {path: path.read_bytes() for path in out.glob("*/*")} == before

    cli.main([*several, "--train", train])
    said, noted = capsys.readouterr()
    assert f"reusing the features of the same texts in {out / 'features'}" in noted
    assert said.count("| TF-IDF, sequences of characters |") == 3  # there are no words
    # Fitted again, they say the same.
    for path, content in before.items():
        assert path.suffix == ".png" or path.read_bytes() == content
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
        is_best = np.all([kept[name] == best[name] for name in best], axis=0)
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
    keys = [features_key(reader, ["a"]) for reader in readers]
    assert len(set(keys)) == len(keys)
    assert keys[0] == features_key(Featurizer(run), ["a"])
