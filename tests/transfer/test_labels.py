"""Labels: read alike from every format, checked, and held out by content."""

import warnings
from collections import Counter
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from mlstm_jax.errors import Note, UserError
from mlstm_jax.options import Cleaning
from mlstm_jax.transfer import known, sets
from mlstm_jax.transfer.known import digests, keys_of
from mlstm_jax.transfer.labels import (
    Labelled,
    codes,
    of_classes,
    read_labelled,
    require_classes,
    require_known,
)
from mlstm_jax.transfer.sets import folds, with_held_out
from tests.corpora.written import jsonl

MANY = ",a\n".join([*map(str, range(300)), ""])


def test_bad_labels(tmp_path: Path) -> None:
    for name, content, message in (
        ("a.csv", "label,text\n10,good\n,none\n", "label of record 2, in 'label', must be"),
        ("a.csv", "stars,text\n10,good\n", r"label in 'label'; .*no such field.*`label_column`"),
        ("a.csv", "text,Label\ngood,1\n", r"label in 'label'; .* did you mean Label\?"),
        ("a.csv", "label,text\n1,good\n1,bad\n", "has only the label 1"),
        ("a.csv", "label,text\n" + MANY, "300 different labels"),
        ("a.txt", "good\t1\n", r"a\.txt: a \.txt file has texts, but no labels"),
        ("a.jsonl", '{"text": "a", "label": NaN}\n{"text": "b", "label": 1}', "of record 1, in"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=message):
            require_classes(read_labelled(tmp_path / name, None, "label"))


def test_order_of_labels(tmp_path: Path) -> None:
    records = [{"text": "a", "kind": 1.0}, {"text": "b", "kind": "neg"}, {"text": "c", "kind": 2}]
    lines = jsonl(tmp_path / "b.jsonl", records)
    assert read_labelled(lines, None, "kind")[:2] == (["a", "b", "c"], ["1", "neg", "2"])
    words = Labelled(["a text"] * 7, ["nan", "2", "inf", "1", "3", "10", "-1"])
    assert words.classes == ["-1", "1", "2", "3", "10", "inf", "nan"]
    with pytest.raises(UserError, match="label '10', which the training texts do not have"):
        require_known(words, ["-1", "1", "2", "3"])


FORMATS = {"csv": "csv", "tsv": "csv, DELIMITER '\t'", "jsonl": "json", "parquet": "parquet"}


def write_table(path: Path, rows: str) -> None:
    """Write the rows of a SELECT as a file of its suffix."""
    with duckdb.connect() as con:
        con.execute(f"COPY ({rows}) TO '{path}' (FORMAT {FORMATS[path.suffix[1:]]})")


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
def test_labels_of_every_format(tmp_path, suffix, values, expected) -> None:
    path = tmp_path / f"a.{suffix}"
    texts = ["t", "u", "v", "w"]
    read: Any = partial(read_labelled, path, None)
    if suffix == "memory":
        places = [*map("label of record {}".format, range(1, 5))]
        read = partial(of_classes, texts, values, places, "x")
    else:
        rows = ", ".join(map("('{}', '{}')".format, texts, values))
        write_table(path, f"SELECT * FROM (VALUES {rows}) t(text, label)")
    if expected is None:
        with pytest.raises(UserError, match=r"label of record 1\b.* must be a string or a number"):
            read()
    else:
        assert read()[:2] == (texts, expected)


def test_labels_of_every_type() -> None:
    values = {
        "1": [1, 1.0, np.float32(1), Decimal("1.0")],
        "true": [True],
        "false": [np.bool_(False)],
        "0.1": [0.1, np.float32(0.1)],
        "1.5": [Decimal("1.50")],
        "inf": [float("inf")],
        "1" + "0" * 20: [10**20],
        "1" + "0" * 22: [1e22],
    }
    for label, same in values.items():
        found = of_classes(["a"] * len(same), same, ["label"] * len(same), "x")
        assert set(found.labels) == {label}
    with pytest.warns(Note, match="'1', '1.0' are read as one class, '1'"):
        of_classes(["a"] * 4, ["1", "1.0", " 1", "2"], ["label"] * 4, "x")
    with warnings.catch_warnings(action="error"):
        of_classes(["a"] * 4, [1, 1.0, " a", "a"], ["label"] * 4, "x")
    for value, kind in (
        (np.datetime64("2020-01-01", "ns"), "a datetime64"),
        (np.timedelta64(1, "ns"), "a timedelta64"),
        (np.datetime64("NaT", "ns"), "missing"),
    ):
        with pytest.raises(UserError, match=f"^y must be a string or a number, but it is {kind};"):
            of_classes(["a"], [value], ["y"], "x")


def test_labels_that_look_alike() -> None:
    for names, told in (
        (["pos", "Pos", "neg"], "'Pos', 'pos' differ only"),
        (["so so", "soso", "x"], "'so so', 'soso' differ only"),
        (["01", "1", "2"], "'01', '1' differ only"),
        (["3.1", "3.10", "x"], "'3.1', '3.10' differ only"),
        (["nai\u0308ve", "na\xefve", "x"], r"'nai\\u0308ve', 'na\\xefve' differ only"),
        (["pos", "pos\u200b", "x"], r"'pos', 'pos\\u200b' differ only"),
    ):
        found = Labelled(["a text"] * 3, names)
        with pytest.warns(Note, match=told):
            assert require_classes(found) == sorted(names)
        with pytest.raises(UserError, match=r"has the label .*; did you mean "):
            require_known(found, [names[0], names[2]])
    with warnings.catch_warnings(action="error"):
        require_classes(Labelled(["a text"] * 3, ["1", "2", "one"]))
        # As floats these are equal.
        require_classes(Labelled(["a text"] * 2, ["12345678901234567", "12345678901234568"]))


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
def test_column_without_labels(tmp_path, suffix, value, kind) -> None:
    path = tmp_path / f"a.{suffix}"
    write_table(path, f"SELECT 'a text' AS text, {value} AS label FROM range(2)")
    if "DATE" in value and suffix == "jsonl":  # there it is a string
        assert read_labelled(path, None).labels == ["2020-01-01"] * 2
        return
    told = rf"has no label in 'label'; it is {kind}(?s:.*)\(several labels"
    with pytest.raises(UserError, match=told):
        read_labelled(path, None)


TURNED = str.maketrans("abcd", "dcba")


def alike(texts: list[str], cleaning: Cleaning) -> known.Digests:
    (alike_N,) = known.alike([keys_of(texts, cleaning)])
    return alike_N


def hold_out(labelled: Labelled, cleaning: Cleaning) -> tuple[Labelled, Labelled]:
    is_held_N = sets.held_out(labelled.labels, alike(labelled.texts, cleaning))
    return labelled.select(~is_held_N), labelled.select(is_held_N)


def test_held_out_texts(random: np.random.Generator) -> None:
    """Of each class, the same in any order, with equal texts on one side and no class lost."""
    texts = [*map("text {}".format, range(90))]
    labels = "a" * 60 + "b" * 30
    ten = texts[:10]  # twice
    found = Labelled([*texts, *ten, "rare", "odd", "odd"], [*labels, *labels[:10], *"cda"])
    train, held = hold_out(found, "none")
    assert not set(train.texts) & set(held.texts)
    assert sorted(train.texts + held.texts) == sorted(found.texts)
    assert train.classes == ["a", "b", "c", "d"]
    distinct = dict(zip(held.texts, held.labels, strict=True))
    assert Counter(distinct.values()) == {"a": 12, "b": 6}
    order = random.permutation(len(found.texts))
    shuffled = Labelled(*np.array(found[:2])[:, order].tolist())
    assert set(hold_out(shuffled, "none")[1].texts) == set(held.texts)
    turned = found._replace(labels=[*"".join(found.labels).translate(TURNED)])
    assert hold_out(turned, "none")[1].texts == held.texts
    for more in range(5):  # wherever it is among the others
        some = Labelled([*map(str, range(90 + more)), "rare"], ["a"] * (90 + more) + ["c"])
        assert "rare" not in hold_out(some, "none")[1].texts
    with pytest.raises(UserError, match=r"^x has only 2 texts, too few to hold .* pass `test`"):
        with_held_out({"train": Labelled(["a", "b"], ["a", "b"], name="x")}, "none", "test")


def test_forms_of_a_text() -> None:
    """Held out, and in each fold of a cross-validation."""
    plain = [*map("text {}<br />of a film".format, range(60))]
    texts = [*plain, *map(str.upper, plain), *map("text {}  of a film".format, range(60))]
    texts += map("({}!)".format, plain)
    found = Labelled(texts, [*"ab" * 120])
    train, held = hold_out(found, "radford")
    assert len(held.texts) == 48
    alike_N = alike(texts, "radford")
    assert len(set(alike_N)) == 60
    digest_of = dict(zip(texts, alike_N, strict=True))
    assert not {digest_of[text] for text in train.texts} & {digest_of[text] for text in held.texts}
    labels_N = codes(found.labels, "ab")
    parts = list(folds(labels_N, alike_N, 5).split())
    assert len(parts) == 5
    for fitted, held_out in parts:
        assert not set(alike_N[fitted]) & set(alike_N[held_out])
        assert np.bincount(labels_N[held_out]).tolist() == [24, 24]


def test_alike_and_different() -> None:
    assert len(set(alike(["caf\u00e9", "cafe\u0301", "\uff43AFE\u0301"], "radford"))) == 1
    others = ["!!!", "???", "\u0e14\u0e35", "\u0e14\u0e38", "4 £", "4 €"]
    assert len(set(alike(others, "radford"))) == 6


@pytest.mark.filterwarnings("ignore:the texts. texts with several labels")
def test_several_labels_and_lone_texts() -> None:
    mine = Labelled(["a", " A", "b", "c"], ["x", "y", "x", "y"], "mine.csv")
    with pytest.warns(Note, match="mine.csv: texts with several labels: 1, such as 'a' with x, y;"):
        with_held_out(dict.fromkeys(["train", "valid", "test"], mine), "none", "test")
    once = Labelled(["a", " A", "b", "c"], ["x", "x", "y", "y"])
    same_N = digests(once.texts, "none")
    assert folds(codes(once.labels, "xy"), same_N, 5) is None
    both = {"train": once, "test": once}
    ten = [*map(str, range(10))]
    several = Labelled([*ten, "0", "1"], [*"ab" * 5, "c", "c"])
    for train, told in (
        (once, "'x' has 2 texts, but only 1 counts, because texts that are alike count once,"),
        (several, "'c' has 2 texts, but none counts, because"),
        (Labelled(ten, [*"ab" * 4, "a", "c"]), "'c' has only one text; cross-validation needs two"),
    ):
        with pytest.raises(UserError, match=f"the class {told}"):
            with_held_out({"train": train, "test": train}, "none", "test")
    assert with_held_out(both | {"valid": once}, "none", "test").classes == ["x", "y"]


N = np.arange(80)


@pytest.mark.parametrize(
    ("shown", "numbers", "are_numbers"),
    [
        ("{:.3f}", N / 7, True),
        ("{}", N * N, True),
        ("{:g}", N % 21 / 5, True),  # the mean of five annotators
        ("{}", N % 5 + 1, False),
        ("{:g}", N % 9 / 2 + 1, False),  # half stars
        ("{:g}", N % 3 / 2, False),
        ("{}", N % 2, False),
        ("{}", N % 30, False),  # codes of classes
        ("v{:.3f}", N / 7, False),
    ],
)
def test_numbers_and_classes(shown, numbers, are_numbers) -> None:
    """Numbers are refused; numbers that are classes are noted, if there are more than two."""
    labels = [*map(shown.format, numbers.tolist())]
    found = Labelled([*map("text {}".format, N)], labels, name="x")
    if are_numbers:
        with pytest.raises(UserError, match=r"^x has .* numbers, not classes.*Features"):
            require_classes(found)
        return
    assert require_classes(found) == found.classes
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with_held_out(dict.fromkeys(["train", "valid", "test"], found), "none", "test")
    notes = [one for one in told if "classes, without an order; to" in str(one.message)]
    assert len(notes) == (shown.startswith("{") and len(found.classes) > 2)
