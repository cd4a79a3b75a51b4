"""Classifiers of features: what scikit-learn fits, the choice of C, and the prior."""

import math
from collections.abc import Iterator
from itertools import product, starmap
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from mlstm_jax.errors import UserError
from mlstm_jax.transfer import experiment, logistic, transfer
from mlstm_jax.transfer.classifier import Classifier, Description, Examples, subset
from mlstm_jax.transfer.features import Column
from mlstm_jax.transfer.logistic import CS, best_fit, fit
from tests.tables import column


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As `transfer` fits: with two threads of OpenBLAS small fits take several times as long.

    The limit holds for the libraries that are loaded by then: scikit-learn is imported above.
    """
    with threadpool_limits(1, user_api="blas"):
        yield


OTHER = ["No", "yes"]


def a_prior(weights_D: Any, intercept: float, classes: list[str]) -> Classifier:
    return Classifier(weights_D[None], np.array([intercept]), classes, 1.0)


NAMES = {2: ["0", "1"], 3: ["bad", "good", "so so"]}


def make(random: np.random.Generator, count: int, classes: int = 2) -> Examples:
    """Features in which unit 17 + k alone tells class k from the others."""
    labels = random.integers(0, classes, count)
    values = random.normal(size=(count, 40)).astype(np.float32)
    for label in range(1 if classes == 2 else 0, classes):
        own = 4.0 * (labels == label) - 2
        values[:, 17 + label] = own + 0.5 * random.normal(size=count)
    return Examples(values, labels)


@pytest.mark.parametrize(("classes", "validated"), [(2, True), (3, True), (3, False)])
def test_ranking(classes, validated, random) -> None:
    valid = make(random, 100, classes) if validated else None
    train = make(random, 200, classes)
    choice = best_fit(train, valid, NAMES[classes])
    found = choice.classifier
    test = make(random, 400, classes)
    assert min(found.score(test), choice.accuracy) > 0.95
    telling = [18] if classes == 2 else [17, 18, 19]
    assert sorted(found.ranking[: len(telling)].tolist()) == telling
    assert (found.weights_KD == 0).all(axis=0).any()
    np.testing.assert_allclose(found.probabilities(test.features).sum(axis=1), 1)


def test_best_unit(random: np.random.Generator) -> None:
    data = make(random, 400)
    data.features[:, 18] *= 1e-3  # small, and so of little weight
    data.features[:, 3] = 7  # never moves
    assert experiment._best_unit(data) == 18
    # A unit that is the same within each class tells most.
    data.features[:, 7] = data.labels
    assert experiment._best_unit(data) == 7
    data.features[:] = 7  # as of texts that are all the same
    assert experiment._best_unit(data) == 0
    counts = experiment._histogram(data, 0, ["0", "1"])["counts"]
    assert sum(counts["0"]) == (data.labels == 0).sum()
    assert fit(data, ["0", "1"], 0.5).score(data) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("count", [300, 30])
def test_probabilities(count: int, random: np.random.Generator) -> None:
    """With an L1 penalty; with an L2 penalty of fewer examples than the 40 features."""
    data = make(random, count)
    # Units of any scale and place, and one that never moves.
    data.features[:, 20:] = data.features[:, 20:] * 0.01 + 5
    data.features[:, 30] = 2
    found = fit(data, ["0", "1"], 0.5)
    penalty: dict[str, Any] = {"l1_ratio": 1.0, "solver": "liblinear", "random_state": 0}
    logistic = LogisticRegression(C=0.5, max_iter=1000, **(penalty if count == 300 else {}))
    wide = data.features.astype(np.float64)
    expected = make_pipeline(StandardScaler(), logistic).fit(wide, data.labels).predict_proba(wide)
    # Both solvers stop at a tolerance of 1e-4.
    np.testing.assert_allclose(found.probabilities(data.features), expected, atol=1e-4)
    assert found.ranking[0] == 18
    assert (found.weights_KD == 0).sum() > (1 if count == 300 else 0)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("rows", [1, 3])
def test_others_change_no_bit(rows: int, order: Any, random: np.random.Generator) -> None:
    """Of a text's answer, however its features lie in memory."""
    names = NAMES[max(rows, 2)]
    made = Classifier(random.normal(size=(rows, 1024)), np.zeros(rows), names, 1.0)
    features = np.asarray(random.normal(size=(50, 1024)) / 20, np.float32, order=order)
    for count in (1, 7):
        np.testing.assert_array_equal(
            made.probabilities(features[:count]), made.probabilities(features)[:count]
        )


@pytest.mark.parametrize("classes", [2, 3])
def test_prior_and_few_labels(classes: int, random: np.random.Generator) -> None:
    """Its direction is dense: ten examples do not show it. Its sign is learned."""
    weights_D = random.normal(size=40)

    def examples(count: int) -> Examples:
        values = random.normal(size=(count, 40)).astype(np.float32)
        return Examples(values, np.digitize(values @ weights_D, [0, 4][: classes - 1]))

    few = examples(10 * classes)
    test = examples(500)
    names = NAMES[classes]
    is_first = test.labels == 0
    for prior in (a_prior(weights_D, 0.25, OTHER), a_prior(-weights_D, 0, OTHER)):
        found = fit(few, names, CS[0], prior)
        assert ((found.scores(test.features)[:, 0] > 0) == is_first).mean() > 0.9
        # The classifier is linear in the features, and has scikit-learn's probabilities.
        wide = few.features.astype(np.float64)
        seen = test.features.astype(np.float64)
        pipeline = logistic._pipeline(few, classes, 0.5, prior).fit(wide, few.labels)
        theirs = pipeline.predict_proba(seen)
        ours = fit(few, names, 0.5, prior).probabilities(test.features)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert fit(few, names, 0.5).score(test) < 0.8


def choice_by(
    monkeypatch, losses_of, *, count=60, features=80, names=NAMES[2], prior=None, is_validated=False
) -> logistic.Choice:
    """The choice among candidates that have these losses on the held-out examples."""
    labels = np.tile([0, 1], count // 2)

    def held_out(train: Any, valid: Any, classes: Any, C: float, prior: Classifier | None) -> Any:
        true_N = np.exp(-losses_of(C, prior) * np.ones(count))
        return np.where(labels[:, None] == [0, 1], true_N[:, None], 1 - true_N[:, None])

    monkeypatch.setattr(logistic, "_held_out", held_out)
    values = np.random.default_rng(0).normal(size=(count, features)).astype(np.float32)
    examples = Examples(values, labels)
    return best_fit(examples, examples if is_validated else None, names, prior)


def prior_of(features: int) -> Classifier:
    return a_prior(np.random.default_rng(1).normal(size=features), 2.0, OTHER)


# Losses above the least, at each C.
BARE = [1.0] * 5
FLAT = [0.0] * 5
ABOVE = [0.11] * 5


@pytest.mark.parametrize(
    ("count", "names", "as_is", "with_it", "without", "chosen"),
    [
        # Within one standard error of the best.
        (60, NAMES[2], 0.09, FLAT, BARE, (True, 0)),
        (60, NAMES[2], 0.11, [0.09, 0.0, 0.0, 0.0, 0.0], BARE, (True, CS[0])),
        (60, NAMES[2], 0.11, [0.11, 0.11, 0.0, 0.0, 0.0], BARE, (True, CS[4])),
        (60, NAMES[2], 0.11, [0.09] * 5, FLAT, (True, CS[0])),
        (60, NAMES[2], 0.11, ABOVE, [0.11, 0.0, 0.0, 0.0, 0.0], (False, CS[2])),
        (60, NAMES[2], 0.11, ABOVE, [0.09, 0.0, 0.0, 0.0, 0.0], (False, CS[0])),
        # Within three, with few labels of the prior's own names.
        (40, ["no", "Yes"], 0.29, FLAT, BARE, (True, 0)),
        (40, ["no", "Yes"], 0.31, FLAT, BARE, (True, CS[0])),
        (40, ["Yes", "no"], 0.29, FLAT, BARE, (True, 0)),
        (40, ["no", "so so"], 0.29, FLAT, BARE, (True, CS[0])),
        (60, ["no", "Yes"], 0.29, FLAT, BARE, (True, CS[0])),
    ],
)
@pytest.mark.parametrize("is_validated", [True, False])
def test_change_of_a_prior(
    count, names, as_is, with_it, without, chosen, is_validated, monkeypatch
) -> None:
    """Here each loss differs from the smallest with a standard error of 0.1."""
    noise_N = 0.1 * np.sqrt(count) * np.tile([-1.0, 1.0], count // 2)

    def losses_of(C: float, prior: Classifier | None) -> Any:
        above = as_is if not C else (with_it if prior else without)[CS[::2].index(C)]
        return 1 + above + bool(above) * noise_N

    prior = prior_of(80)
    given = {"names": names, "prior": prior, "is_validated": is_validated}
    choice = choice_by(monkeypatch, losses_of, count=count, **given)
    found = choice.classifier
    assert (choice.has_prior, found.C) == chosen
    losses_N = losses_of(found.C, prior if choice.has_prior else None)
    assert choice.accuracy == np.mean(losses_N < np.log(2))
    if not found.C:
        sign = found.intercepts_K / 2
        np.testing.assert_array_equal(found.weights_KD[0], sign * prior.weights_KD[0])
        assert sign == {"no": 1, "Yes": -1}.get(names[0], sign)


@pytest.mark.parametrize(("features", "best"), [(60, 2), (61, 3)])
def test_choice_of_C(features, best, monkeypatch) -> None:
    """The third C has the most right answers, and the fourth the smallest loss."""

    def losses_of(C: float, prior: Classifier | None) -> Any:
        number = CS[::2].index(C)
        losses_N = np.where(np.arange(60) < (50 if number == 2 else 40), 0.6, 2.0)
        return losses_N - 0.5 * (number == 3)

    # As many examples as features use no prior.
    prior = prior_of(60) if features == 60 else None
    choice = choice_by(monkeypatch, losses_of, features=features, prior=prior)
    assert (choice.has_prior, CS[::2].index(choice.classifier.C)) == (False, best)
    assert choice.accuracy == (50 if best == 2 else 40) / 60


@pytest.mark.parametrize("names", [["a", "b"], OTHER])
@pytest.mark.parametrize("count", [4, 6, 8, 60])
def test_order_of_classes(count, names, random) -> None:
    prior = a_prior(random.normal(size=80), 0.1, OTHER)
    values = random.normal(size=(count + 50, 80)).astype(np.float32)
    labels = np.tile([0, 1], count // 2)
    values[:count] += 0.1 * prior.weights_KD * (2 * labels[:, None] - 1)
    shares = []
    for turned in (0, 1):
        examples = Examples(values[:count], labels ^ turned)
        choice = best_fit(examples, None, names[:: 1 - 2 * turned], prior)
        shares.append(choice.classifier.probabilities(values)[:, turned])
    np.testing.assert_allclose(shares[0], shares[1], rtol=1e-6)


@pytest.mark.parametrize(("C", "is_validated"), [(0.0, False), (1.0, False), (1.0, True)])
def test_held_out_examples(C, is_validated, random) -> None:
    """It knows what 40 examples of 400 features cannot tell."""
    prior = a_prior(random.normal(size=400), 0.0, OTHER)
    values = random.normal(size=(80, 400)).astype(np.float32)
    labels = (values @ prior.weights_KD[0] > 0).astype(np.int64)
    train = Examples(values[::2], labels[::2])
    valid = Examples(values[1::2], labels[1::2]) if is_validated else None
    shares_NK = logistic._held_out(train, valid, NAMES[2], C, prior)
    accuracy = (shares_NK.argmax(axis=1) == (valid or train).labels).mean()
    assert accuracy > 0.9


@pytest.mark.parametrize(("prior", "C"), [(prior_of(40), 0), (None, CS[-1])])
def test_single_example(prior, C, random) -> None:
    alone = Examples(make(random, 4).features, np.array([1, 0, 0, 0]))
    choice = best_fit(alone, None, NAMES[2], prior)
    assert (choice.classifier.C, choice.has_prior) == (C, prior is not None)
    assert choice.held_out_NK is None
    assert math.isnan(choice.accuracy)


def of_three(random: np.random.Generator, features: int, classes: list[str]) -> Classifier:
    """Of three classes, by softmax."""
    weights_KD = random.normal(size=(3, features))
    return Classifier(weights_KD, random.normal(size=3), classes, math.inf, softmax=True)


@pytest.mark.parametrize("places", [[0, 2], [2, 0], [1, 2], [2, 1, 0], [1, 0]])
def test_choice_between_classes(places, random) -> None:
    every = of_three(random, 5, ["a", "b", "c"])
    if places == [1, 0]:
        every = a_prior(random.normal(size=5), 0.5, ["a", "b"])
    chosen = np.array(every.classes)[places].tolist()
    features = random.normal(size=(20, 5)).astype(np.float32)
    shares = every.probabilities(features)[:, places]
    expected = shares / shares.sum(axis=1, keepdims=True)
    found = every.between(chosen)
    assert found.classes == chosen
    # Sums of a few float64 numbers and a few exponentials.
    np.testing.assert_allclose(found.probabilities(features), expected, rtol=1e-12)


def test_prior_of_three_classes(random) -> None:
    about = Description("h+mean_h", False, "", None)
    own = of_three(random, 10, ["bad", "so so", "good"])._replace(about=about)
    units = [*starmap(Column, product(("c", "mean_h", "h"), [0], range(5)))]
    prior = transfer._prior(own, units)
    assert prior is not None
    assert prior.classes == ["bad", "good"]
    features = random.normal(size=(4, 15)).astype(np.float32)
    h_and_mean = np.concatenate([features[:, 10:], features[:, 5:10]], axis=1)
    expected = own.between(["bad", "good"]).probabilities(h_and_mean)
    np.testing.assert_allclose(prior.probabilities(features), expected, rtol=1e-12)
    assert transfer._prior(own, units[:10]) is None


@pytest.mark.parametrize("chosen", [["a"], ["a", "a"], ["a", "d"], []])
def test_refused_classes(chosen, random) -> None:
    every = of_three(random, 5, ["a", "b", "c"])
    with pytest.raises(UserError, match="classes"):
        every.between(chosen)
    one_against_rest = every._replace(softmax=False)
    with pytest.raises(UserError, match="classes"):
        one_against_rest.between(["a", "b"])


def test_subset() -> None:
    labels = np.array([0] * 95 + [1] * 4 + [2])
    data = Examples(np.arange(100.0, dtype=np.float32)[:, None], labels)
    for seed in range(5):
        few = subset(data, 10, seed)
        assert len(few.labels) == 10
        assert set(few.labels) == {0, 1, 2}
        np.testing.assert_array_equal(labels[few.features[:, 0].astype(int)], few.labels)


def test_learning_curve(random: np.random.Generator) -> None:
    train = make(random, 100)
    test = make(random, 500)
    strong = fit(train, NAMES[2], CS[0])
    curve = experiment._learning_curve(train, make(random, 200), test, strong, None)
    assert column(curve, "examples") == [10, 20, 50, 100]
    _, of_20, of_50, of_all = column(curve, "mean")
    assert 0.6 < of_20 < of_50
    assert of_all == strong.score(test)
    prior = a_prior(4.0 * (np.arange(40) == 18), 0.0, NAMES[2])
    few = Examples(train.features[:12], train.labels[:12])
    told = experiment._learning_curve(few, None, test, strong, prior)
    assert column(told, "examples")[0] == 10
    assert column(told, "mean")[0] > 0.95
