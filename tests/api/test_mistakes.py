"""Mistakes in Python: each is a UserError that names the argument, or gives the right result."""

from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax.api.arguments import as_labelled
from mlstm_jax.errors import Note, UserError
from tests.tables import praise_and_blame
from tests.tolerance import assert_close

NAN = float("nan")
TEXTS = praise_and_blame(0, 5)
LABELS = [1, 0] * 5


@pytest.fixture(scope="module")
def classifier(model: mlstm.TrainedModel) -> Any:
    return model.transfer(*[(TEXTS, LABELS)] * 3)


def test_what_is_no_list_of_texts(model, classifier) -> None:
    for texts, message in (
        ("one", r"texts is a single str; pass a list of texts, \[text\]"),
        (b"x", "texts is a single bytes"),
        (["a", 3], r"texts\[1\] has type int"),
        (["a", NAN], r"texts\[1\] has type float"),
        (np.array([["a"]]), "type ndarray, .*such as one column of a table"),
        (np.array("a"), "texts has type ndarray"),
        (np.array([b"a"]), r"texts\[0\] has type bytes_"),
        ({"a"}, "texts has type set"),
        ({"a": "b"}, "texts has type dict"),
        (None, "texts has type NoneType"),
    ):
        for read in (
            model.encode,
            model.bits_per_character,
            mlstm.Features(model).fit_transform,
            partial(model.classify, classifier=classifier),
        ):
            with pytest.raises(UserError, match=message):
                read(texts)


def test_kinds_of_lists_and_files(model, classifier, tmp_path) -> None:
    pandas = pytest.importorskip("pandas")
    two = TEXTS[:2]
    table = pandas.DataFrame({"review": two}, index=[7, 3])
    pytest.importorskip("pyarrow")
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_json(tmp_path / "a.jsonl.gz", orient="records", lines=True)
    table.to_parquet(tmp_path / "a.parquet")
    features = model.encode(two)
    answers = model.classify(two, classifier)
    for texts in (np.array(two), np.array(two, object), table["review"], tuple(two), iter(two)):
        np.testing.assert_array_equal(model.encode(texts), features)
    for path in sorted(tmp_path.iterdir()):
        np.testing.assert_array_equal(model.encode(path, text_column="review"), features)
        assert model.classify(path, classifier, text_column="review") == answers
    with pytest.raises(UserError, match=r"none\.csv: there is no such file"):
        model.encode(tmp_path / "none.csv")
    assert model.classify([], classifier) == []
    with pytest.warns(Note, match="1 of 3 texts, the first number 2, is blank") as notes:
        some = model.classify([two[0], " ", two[1]], classifier)
    assert notes[0].filename == __file__
    assert some.pop(1) == {}
    # A product with other rows may sum in another order. Its terms are larger than the sum.
    terms_NK = np.abs(features) @ np.abs(classifier.classifier.weights_KD.T)
    assert_close(some, answers, features.shape[1] * round(terms_NK.max() + 1), "float64")


def test_half_of_a_character(model, classifier, tmp_path) -> None:
    text = "\ud800 a"
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "\\ud800 a"}\n')
    with pytest.warns(Note, match=r"in 1 of 2 texts of .*a\.jsonl, the first number 2;"):
        model.encode(tmp_path / "a.jsonl")
    labelled = ([*TEXTS, text], [*LABELS, 1])
    for read, given in (
        (model.encode, [text]),
        (model.bits_per_character, [text]),
        (mlstm.Features(model).fit_transform, [text]),
        (partial(model.classify, classifier=classifier), [text]),
        (partial(model.spans, spans=[[(2, 3)]]), [text]),
        (partial(model.heatmap, unit=3), text),
        (partial(model.generate, bytes=1), text),
        (model.states, text),
        (model.log_probabilities, text),
        (partial(model.transfer, valid=(TEXTS, LABELS)), labelled),
    ):
        with pytest.warns(Note, match="half of a character .* reads it as '?'"):
            read(given)


def test_columns_of_a_table(model) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"stars": LABELS, "review": TEXTS})
    options = mlstm.TransferOptions(state="mean_h")
    given = {"options": options, "text_column": "review", "label_column": "stars"}
    found = model.transfer(table, valid=table, **given).result
    both = (TEXTS, LABELS)
    assert found == model.transfer(both, valid=both, options=options).result
    for missing in ("text", "label"):
        given[f"{missing}_column"] = None
        with pytest.raises(UserError, match=f"no {missing} among .*stars, review.*{missing}_col"):
            model.transfer(table, **given)
        table[missing] = table["review"]
    bare = pandas.DataFrame({0: LABELS, 1: TEXTS})  # of a file without a header
    (labelled,) = as_labelled({"train": bare}, "1", "0").values()
    assert labelled.texts == TEXTS
    assert labelled.labels == list(map(str, LABELS))


def features(model: mlstm.TrainedModel, given: Any = None, **options: Any) -> None:
    mlstm.Features(given or model, **options).fit(["a"])


def fine_tuned(model: mlstm.TrainedModel, y: Any) -> None:
    mlstm.FineTuned(model).fit(["a", "b"], y)


def trained(model: mlstm.TrainedModel, **options: Any) -> None:
    mlstm.train(model.config, **options)


def varied(model: mlstm.TrainedModel, **changes: Any) -> None:
    mlstm.vary(model.config, **changes)


def feed(model: mlstm.TrainedModel, piece: Any) -> None:
    model.reader().feed(piece)


OWN = {one.__name__: one for one in (features, fine_tuned, trained, varied, feed)}


def call(model: mlstm.TrainedModel, method: str, arguments: dict[str, Any]) -> None:
    if method in OWN:
        OWN[method](model, **arguments)
    else:
        getattr(model if hasattr(model, method) else mlstm, method)(**arguments)


def refused(method: str, given: dict[str, Any], **mistakes: Any) -> Any:
    """Calls with one argument that must be refused, and its name."""
    for name, values in mistakes.items():
        for value in values:
            yield name, method, given | {name: value}


def of_labels(message: str, *labels: Any) -> tuple[str, str, dict[str, Any]]:
    """A call of `transfer` with as many texts."""
    return message, "transfer", {"train": (["a", "b"][: len(labels)], [*labels])}


@pytest.mark.parametrize(
    ("message", "method", "arguments"),
    [
        *refused(
            "generate", {}, bytes=(-1, 1.5, True, "3", 10**12), seed=(-1, 2**40), top_k=(0, 1.5),
            temperature=(NAN, -1, None, 1e7), top_p=(0, NAN, "x"),
            stop=("ab", "é", "\ud800", b"a", None), samples=(0, 2, 1001),
            set_unit=({9999: 1}, {-1: 1}, {0: NAN}, {True: 1}, {"3": 1}, {3: "a"}, [3], {3: 1e39}),
            prompt=(None, b"x", 3),
        ),
        *refused(
            "heatmap", {"text": "a", "unit": 1}, unit=(-1, 64, True, 1.5), layer=(2, "x"),
            state=("x", "c+mean_h", 3), scale=(0, -1, NAN, "0"), label=("good",), text=("", None),
        ),
        *refused(
            "transfer", {"test": (TEXTS, LABELS)}, train=(
                None, 3, [("a", 1)], (TEXTS, LABELS, LABELS), (TEXTS, None), (TEXTS, 1),
                (TEXTS, "ab" * 5), ("a", [1]), (TEXTS, [*LABELS, 1]), (TEXTS, [None] * 10),
                ([], []), (["a", None], [1, 0]), (TEXTS, {1: LABELS}), (TEXTS, {"a": 3}),
            ),
        ),
        *refused("transfer", {"train": (TEXTS, LABELS)}, out=(3,), test=((["a"], [7]), ([], []))),
        *refused("heatmap", {"text": "a", "score": "x"}, layer=(1,), score=(3,), label=(3,)),
        *refused("classify", {"texts": ["a"]}, classifier=(3,)),
        *refused("evaluate", {"split": "test"}, split=("dev",), corpus=(3,)),
        *refused("encode", {"texts": ["a"]}, state=("mean",), batch_size=(0,)),
        *refused("features", {}, state=("cc",)),
        ("model", "features", {"given": 3}),
        (r"^none\.csv", "transfer", {"train": "none.csv"}),
        ("only the label 1", "transfer", {"train": (["a", "b"], [1, 1]), "test": (["a"], [1])}),
        ("class '3' has only one text", "transfer", {
            "train": ([*TEXTS, "c"], [*LABELS, 3]), "test": (TEXTS, LABELS),
            "options": mlstm.TransferOptions(words=True),
        }),
        (r"^train is .* both in one tuple, \(", "transfer", {"train": TEXTS, "test": LABELS}),
        of_labels(r"\[1\], text 1: the label must be", 1, None),
        of_labels("text 0: the label .* it is nan", NAN),
        of_labels("text 0: the label must be", Decimal("sNaN")),
        of_labels("text 0: the label .* it is a list", [1]),
        (r"train\[1\]", "transfer", {"train": (["a"], np.array([[1, 0]]))}),
        (r"y\[1\]", "fine_tuned", {"y": [1, None]}),
        (r"y\[1\]", "fine_tuned", {"y": [1, NAN]}),
        (r"y\[1\]", "fine_tuned", {"y": np.array([1, NAN])}),
        (r"y\[1\]", "fine_tuned", {"y": ["a", [1]]}),
        *refused("fine_tuned", {}, y=(np.array([[1], [0]]), None)),
        *refused("finetune", {"train": (TEXTS, LABELS), "out": "x"}, out=(None,), options=(3,)),
        *refused(
            "FinetuneOptions", {}, epochs=(-1,), batch=(0, "3"), window=(-3,),
            learning_rate=(NAN,), dropout=(1,),
        ),
        *refused("TransferOptions", {}, state=("x", 3, ("c", 3)), words=(1,)),
        *refused("export", {"out": "x.safetensors"}, out=(3,), dtype=("int4",)),
        *refused("load", {"path": "reviews-1024"}, path=(None,), checkpoint=(3.5,)),
        *refused("train", {}, config=(3,)),
        ("smal_512 .* did you mean small_512", "train", {"config": "smal_512"}),
        *refused("trained", {}, callbacks=(3, [3])),
        *refused(
            "sweep", {"runs": {("a", "b"): mlstm.Config()}, "out": "x"}, out=(3,),
            runs=(3, {"a": mlstm.Config()}, {("a", "b"): 3}, {("..", "b"): mlstm.Config()}),
        ),
        *refused(
            "plan", {"config": "small_512", "machine": "h200"}, devices=((1.5,), "8", iter([])),
            corpus_bytes=(NAN,), machine=(3,),
        ),
        *refused(
            "prepare", {"sources": "a.csv", "out": "x"}, out=(None,), options=(3,),
            sources=(3, {"train": 3}, np.array(["a text"])),
        ),
        *refused("plot_metrics", {"runs": ["x"]}, runs=("runs/x", [], iter([])), x=("hours",)),
        *refused("vary", {}, config=(3,)),
        *refused("feed", {}, piece=("text",)),
        ("no field 'dat'; did you mean", "varied", {"dat__batch": 1}),
        (r"mean data__batch\?", "varied", {"data.batch": 1}),
        (r"did you mean hidden\?", "varied", {"model__units": 1}),
        ("no field 'bacth'; did you mean", "varied", {"data__bacth": 1}),
    ],
)  # fmt: skip
def test_mistakes(message, method, arguments, model, tmp_path, monkeypatch) -> None:
    """And leaves nothing."""
    monkeypatch.chdir(tmp_path)
    pattern = rf"\b{message}\b" if message.isidentifier() else message
    with pytest.raises(UserError, match=pattern) as error:
        call(model, method, arguments)
    assert "--" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_labels_and_paths_are_checked_before_jax_starts(model, tmp_path) -> None:
    path = model.export(tmp_path / "m.safetensors")
    model = mlstm.load(path, reader="numpy")
    path.unlink()  # JAX would read it again
    (tmp_path / "file").touch()
    tuned = {"out": tmp_path / "tuned"}
    for call, texts, message in (
        (model.transfer, (TEXTS, np.arange(10) / 7), "numbers, not classes"),
        (model.transfer, (TEXTS, [1, *[0] * 9]), "'1' has only one text"),
        (partial(model.transfer, out=tmp_path / "file"), (TEXTS, LABELS), "file is a file"),
        (partial(model.finetune, **tuned), (TEXTS, np.arange(10) / 7), "numbers, not classes"),
        (partial(model.finetune, **tuned), (TEXTS, [1] * 10), "only the label 1"),
        (partial(model.finetune, out=tmp_path / "file"), (TEXTS, LABELS), "file is a file"),
    ):
        with pytest.raises(UserError, match=message):
            call(texts)
    assert not (tmp_path / "tuned").exists()
