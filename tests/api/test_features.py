"""Features in scikit-learn: its own checks, and what people put transformers into."""

import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import mlstm_jax as mlstm
from mlstm_jax.errors import Note
from tests.tables import praise_and_blame

TEXTS = praise_and_blame(0, 12)
LABELS = [1, 0] * 12


def passed_checks(estimator: Any) -> set[str]:
    results = check_estimator(estimator, on_fail="raise")
    return {one["check_name"] for one in results if one["status"] == "passed"}


def test_checks_of_scikit_learn(model: mlstm.TrainedModel) -> None:
    with warnings.catch_warnings():
        # It has no data for texts, and says so; its own CountVectorizer gets the same checks.
        warnings.simplefilter("ignore", SkipTestWarning)
        passed = passed_checks(mlstm.Features(model))
        assert passed >= passed_checks(CountVectorizer()) > set()


def test_pipeline(model: mlstm.TrainedModel, tmp_path: Path) -> None:
    """It is kept in a file, and its clones share the model."""
    features = mlstm.Features(model, state="c", batch_size=np.int64(8))
    np.testing.assert_array_equal(features.fit_transform(TEXTS), model.encode(TEXTS, "c"))
    assert clone(features).model is model
    assert clone(features).get_params() == features.get_params()
    logistic = LogisticRegression(max_iter=1000)
    pipeline = make_pipeline(mlstm.Features(model), logistic).fit(TEXTS, LABELS)
    assert pipeline.score(TEXTS, LABELS) > 0.9
    joblib.dump(pipeline, tmp_path / "pipeline.joblib")
    again = joblib.load(tmp_path / "pipeline.joblib")
    np.testing.assert_array_equal(again.predict_proba(TEXTS), pipeline.predict_proba(TEXTS))


def test_names_and_data_frames(model: mlstm.TrainedModel) -> None:
    pandas = pytest.importorskip("pandas")
    features = mlstm.Features(model, all_layers=True).set_output(transform="pandas")
    names = features.fit_transform(TEXTS[:3]).columns
    assert [*names[:2], names[-1]] == ["layer0_c_0", "layer0_c_1", "layer1_mean_h_63"]
    assert mlstm.Features(model, state="c").get_feature_names_out()[5] == "c_5"
    both = mlstm.Features(model).fit(TEXTS)
    assert both.get_feature_names_out()[[5, 64 + 5]].tolist() == ["c_5", "mean_h_5"]
    # A table keeps its index: `remainder="passthrough"` would join the features of other rows.
    for rows in (
        pandas.Index([5, 2, 9]),
        pandas.Index([7, 7, 1]),
        pandas.MultiIndex.from_tuples([("x", 2), ("x", 1), ("w", 2)]),
    ):
        table = pandas.DataFrame({"text": TEXTS[:3], "stars": [1, 2, 3]}, index=rows)
        columns = ColumnTransformer([("text", both, "text")], remainder="passthrough")
        joined = columns.set_output(transform="pandas").fit_transform(table)
        pandas.testing.assert_index_equal(joined.index, rows)
        assert joined["remainder__stars"].tolist() == [1, 2, 3]
        np.testing.assert_array_equal(joined.iloc[:, :-1], model.encode(iter(TEXTS[:3])))


def test_path_loaded_once(model: mlstm.TrainedModel, tmp_path: Path) -> None:
    path = model.export(tmp_path / "m.safetensors")
    expected = mlstm.load(path).encode(TEXTS)
    features = mlstm.Features(str(path)).fit(TEXTS)
    path.unlink()
    np.testing.assert_array_equal(features.transform(TEXTS), expected)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [("good", "bad"), (3, 12)])
def test_fine_tuned_classifier(model, tmp_path, classes) -> None:
    labels = np.array(classes)[LABELS].tolist()
    options = mlstm.FinetuneOptions(epochs=20, batch=8, learning_rate=1e-2, window=32)
    made = mlstm.FineTuned(model, options=options)
    assert clone(made).get_params() == made.get_params()
    with pytest.raises(NotFittedError):
        made.predict(TEXTS)
    without_text = "worse" if isinstance(classes[0], str) else 1
    with pytest.warns(Note, match="1 of 25 records have no text"):
        assert made.fit([*TEXTS, " "], [*labels, without_text]) is made
    assert made.classes_.tolist() == sorted(classes)
    with pytest.raises(ValueError, match=r"^texts\[1\] is blank and has no class"):
        made.predict([TEXTS[0], "&nbsp;"])
    with pytest.warns(Note) as notes:
        made.predict_proba([*TEXTS[:2], "half \ud800"])
    (note,) = notes
    assert "in 1 of 3 texts, the first number 3;" in str(note.message)
    shares = made.predict_proba(TEXTS)
    np.testing.assert_array_equal(made.predict(TEXTS), made.classes_[shares.argmax(axis=1)])
    assert made.score(TEXTS, labels) > 0.9
    assert not shares.argmax(axis=1).all()
    with pytest.raises(ValueError, match="fit with `out`"):
        joblib.dump(made, tmp_path / "made.joblib")
    kept = mlstm.FineTuned(model, out=tmp_path / "out", options=options).fit(TEXTS, labels)
    joblib.dump(kept, tmp_path / "kept.joblib")
    again = joblib.load(tmp_path / "kept.joblib")
    np.testing.assert_array_equal(again.predict_proba(TEXTS), shares)
    # A fit that fails leaves it as it was.
    kept.set_params(out=tmp_path / "other", options=mlstm.FinetuneOptions(batch=10_000))
    with pytest.raises(ValueError, match=r"batch is .* at most 3, the windows of"):
        kept.fit(TEXTS, ["x", "y"] * 12)
    np.testing.assert_array_equal(kept.predict(TEXTS), made.predict(TEXTS))


@pytest.mark.filterwarnings("ignore::mlstm_jax.errors.Note")
def test_refused_labels() -> None:
    for labels, message in (
        (["1", "1.0"], "y has classes with one name as text"),
        ([1, "1", "x"], "y has classes with one name as text"),
        ([True, 1, 0], "or equal ones"),
        ([0.5, 0.7], "continuous"),
        ((np.arange(9) / 7).tolist(), "^y has 9 different labels .*numbers, not classes"),
    ):
        with pytest.raises(ValueError, match=message):
            mlstm.FineTuned("no model").fit(["a"] * len(labels), labels)
