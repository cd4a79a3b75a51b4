"""Mistakes in Python: each is a UserError that names the argument, or gives the right result."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax.errors import Note, UserError

NAN = float("nan")
TEXTS = [f"{word} {n}" for n in range(9) for word in ("good", "bad")]
LABELS = [1, 0] * 9
READERS: dict[str, Callable[[mlstm.TrainedModel, Any], object]] = {
    "encode": lambda model, texts: model.encode(texts),
    "bits_per_character": lambda model, texts: model.bits_per_character(texts),
    "Features": lambda model, texts: mlstm.Features(model).fit_transform(texts),
}


@pytest.fixture(scope="module")
def classifier(model: mlstm.TrainedModel) -> Any:
    return model.transfer((TEXTS, LABELS), (TEXTS, LABELS))


@pytest.mark.parametrize(
    "texts",
    ["one", b"x", ["a", None], ["a", b"b"], ["a", NAN], ["a", 3], np.array([["a"]]),
     np.array("a"), np.array([b"a"]), {"a"}, {"a": "b"}, None, 5],
    ids=repr,
)  # fmt: skip
def test_what_is_no_list_of_texts_is_refused(
    model: mlstm.TrainedModel, classifier: Any, texts: Any
) -> None:
    for read in [*READERS.values(), lambda m, t: m.classify(t, classifier)]:
        with pytest.raises(UserError, match=r"^texts"):
            read(model, texts)


def test_texts_come_in_any_list_or_file(
    model: mlstm.TrainedModel, classifier: Any, tmp_path: Path
) -> None:
    pandas = pytest.importorskip("pandas")
    two = TEXTS[:2]
    table = pandas.DataFrame({"review": two}, index=[7, 3])
    for name in ("a.csv", "a.jsonl.gz", "a.parquet"):
        if name.endswith("parquet"):
            pytest.importorskip("pyarrow")
            table.to_parquet(tmp_path / name)
        elif name.endswith("csv"):
            table.to_csv(tmp_path / name, index=False)
        else:
            table.to_json(tmp_path / name, orient="records", lines=True)
    features, answers = model.encode(two), model.classify(two, classifier)
    for texts in (np.array(two), np.array(two, object), table["review"], tuple(two), iter(two)):
        np.testing.assert_array_equal(model.encode(texts), features)
    for path in sorted(tmp_path.iterdir()):
        np.testing.assert_array_equal(model.encode(path, text_column="review"), features)
        assert model.classify(path, classifier, text_column="review") == answers
    with pytest.raises(UserError, match=r"none\.csv: there is no such file"):
        model.encode(tmp_path / "none.csv")
    assert model.classify([], classifier) == []
    with pytest.warns(Note, match="1 of 3 texts are blank and get no label, the first is number 2"):
        assert model.classify([two[0], " ", two[1]], classifier) == [answers[0], {}, answers[1]]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        *(
            (name, lambda m, p, one={name: value}: m.generate(**one))
            for name, values in {
                "bytes": (-1, 1.5, True, "3"),
                "seed": (-1, 2**40),
                "temperature": (NAN, -1, None),
                "top_k": (0, 1.5),
                "top_p": (0, NAN, "x"),
                "set_unit": (
                    {9999: 1}, {-1: 1}, {0: NAN}, {True: 1}, {"3": 1}, {3: "a"}, [3], "3=1",
                ),
                "stop": ("ab", b"a", None),
                "prompt": (None, b"x", 3),
            }.items()
            for value in values
        ),
        *(
            (name, lambda m, p, one={"unit": 1, name: value}: m.heatmap("a", **one))
            for name, values in {
                "unit": (-1, 64, True),
                "layer": (2, "x"),
                "state": ("x", "c+mean_h", 3),
                "scale": (0, -1, NAN, "0"),
            }.items()
            for value in values
        ),
        ("score", lambda m, p: m.heatmap("a", score=3)),
        ("label", lambda m, p: m.heatmap("a", score="x", label=3)),
        ("classifier", lambda m, p: m.classify(["a"], 3)),
        ("split", lambda m, p: m.evaluate("dev")),
        ("corpus", lambda m, p: m.evaluate("test", corpus=3)),
        ("state", lambda m, p: m.encode(["a"], "mean")),
        ("batch_size", lambda m, p: m.encode(["a"], batch_size=0)),
        *(
            ("train", lambda m, p, train=train: m.transfer(train))
            for train in (
                None, 3, [("a", 1)], (TEXTS, LABELS, LABELS), (TEXTS, None), (TEXTS, 1),
                (TEXTS, "ab" * 9), ("a", [1]), (TEXTS, [*LABELS, 1]), (TEXTS, [None] * 18),
                ([], []),
                (["a", None], [1, 0]), (TEXTS, {1: LABELS}), (TEXTS, {"a": 3}), "none.csv",
            )
        ),
        ("test", lambda m, p: m.transfer((TEXTS, LABELS), (["a"], [7]))),
        ("test", lambda m, p: m.transfer((TEXTS, LABELS), ([], []))),
        ("label_columns", lambda m, p: m.transfer((TEXTS, LABELS), label_columns=3)),
        ("out", lambda m, p: m.transfer((TEXTS, LABELS), out=3)),
        ("out", lambda m, p: m.finetune((TEXTS, LABELS), out=None)),
        ("options", lambda m, p: m.finetune((TEXTS, LABELS), out=p / "x", options=3)),
        *(
            (name, lambda m, p, one={name: value}: mlstm.FinetuneOptions(**one))
            for name, value in {
                "epochs": -1, "batch": 0, "window": -3, "learning_rate": NAN, "dropout": 1,
            }.items()
        ),
        ("batch", lambda m, p: mlstm.FinetuneOptions(batch="3")),
        ("out", lambda m, p: m.export(3)),
        ("dtype", lambda m, p: m.export(p / "x.npz", "int8")),
        ("path", lambda m, p: mlstm.load(None)),
        ("checkpoint", lambda m, p: mlstm.load(m.path, 3.5)),
        ("config", lambda m, p: mlstm.train(3)),
        ("callbacks", lambda m, p: mlstm.train(m.config, callbacks=3)),
        ("runs", lambda m, p: mlstm.sweep(3, p / "x")),
        ("runs", lambda m, p: mlstm.sweep({"a": m.config}, p / "x")),
        ("runs", lambda m, p: mlstm.sweep({("a", "b"): 3}, p / "x")),
        ("out", lambda m, p: mlstm.sweep({("a", "b"): m.config}, 3)),
        ("devices", lambda m, p: mlstm.plan(m.config, "h200", devices=(1.5,))),
        ("devices", lambda m, p: mlstm.plan(m.config, "h200", devices="8")),
        ("corpus_bytes", lambda m, p: mlstm.plan(m.config, "h200", corpus_bytes=NAN)),
        ("corpus_bytes", lambda m, p: mlstm.plan(m.config, "h200", corpus_bytes=-1)),
        ("machine", lambda m, p: mlstm.plan(m.config, 3)),
        ("sources", lambda m, p: mlstm.prepare(3, p / "x")),
        ("sources", lambda m, p: mlstm.prepare({"train": 3}, p / "x")),
        ("out", lambda m, p: mlstm.prepare("a.csv", None)),
        ("options", lambda m, p: mlstm.prepare("a.csv", p / "x", 3)),
        ("runs", lambda m, p: mlstm.plot_metrics("runs/x")),
        ("live_seconds", lambda m, p: mlstm.plot_metrics(["x"], live_seconds="x")),
        ("config", lambda m, p: mlstm.vary(3, a=1)),
    ],
)  # fmt: skip
def test_a_mistake_names_the_argument_and_leaves_nothing(
    name: str, call: Callable[..., object], model: mlstm.TrainedModel, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"\b{name}\b|^none\.csv") as error:
        call(model, tmp_path)
    assert "--" not in str(error.value)
    assert not list(tmp_path.iterdir())
