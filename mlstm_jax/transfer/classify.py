"""A linear classifier on frozen features: regularised logistic regression by scikit-learn.

Puri et al. 2018, section VI, after Radford et al. 2017: an L1 penalty, whose C is the best of
2^-8 ... 2^0 on validation data; then a second classifier is fitted on the k units of largest
|weight| alone. With more than two classes, each is classified against the rest. A classifier is
saved as numbers and names (classifier_file.py).

# Paper: unscaled features. Here each feature is divided by its standard deviation for the fit, and
the weights are then converted back to unscaled features. The cell state of a small model has a
standard deviation of about 0.1, so the same values of C would shrink all of its weights to zero.
# Paper: an L1 penalty, and C by accuracy. With fewer examples than features the penalty is L2, and
C has the smallest loss: so few cannot tell which units matter (results/few_labels/).
# Paper: no prior. A model of the package comes with a classifier. With fewer examples than
features, its log-odds are one more feature, whose weight the penalty hardly shrinks: without the
prior, a fit to a few examples is worse than that classifier, which needs none.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.errors import UserError
from mlstm_jax.transfer.features import Features
from mlstm_jax.transfer.words import Words

_SHOWN = 10  # names of classes
_PRIOR_SCALE = 10
_FEW = 50  # examples; see `Prior.errors`
_FOLDS = 5

CS = tuple(2.0**power for power in range(-8, 1))

Labels = NDArray[np.int64]  # see `labels.codes`


class Examples(NamedTuple):
    """Features [texts, D], or texts [texts], and the label of each."""

    features: Features
    labels: Labels


class Prior(NamedTuple):
    """Log-odds, features · weights + intercept, which become one more feature of a fit."""

    weights_D: NDArray[np.float64]
    intercept: float
    classes: Sequence[str]  # the log-odds are those of the second

    def column(self, features: Any) -> Any:
        """Return the feature, [texts, 1], so large that the penalty hardly shrinks its weight."""
        return _PRIOR_SCALE * (features @ self.weights_D[:, None] + self.intercept)

    def errors(self, examples: Examples, classes: Sequence[str]) -> int:
        """Return how many standard errors from the smallest loss a candidate may be.

        With few examples, all classified correctly, the standard error is underestimated. So with
        fewer than 50, and the prior's own class names, the evidence against it must be stronger.
        """
        same = [name.casefold() for name in classes] == [name.casefold() for name in self.classes]
        return 3 if same and len(examples.labels) < _FEW else 1


def _nats(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    return -np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))


def named(classes: Sequence[str]) -> str:
    """Return how many classes there are, and the first few names."""
    more = ", ..." if len(classes) > _SHOWN else ""
    return f"{len(classes)} classes: {', '.join(classes[:_SHOWN])}{more}"


class Classifier(NamedTuple):
    """Scores are features · weights + intercepts; with two classes, only of the second."""

    weights_KD: NDArray[np.float64]
    intercepts_K: NDArray[np.float64]
    classes: list[str]
    C: float  # infinite for a head without a penalty
    softmax: bool = False  # over more than two classes; otherwise one against the rest
    deviations_D: NDArray[np.float64] | None = None  # of the features, in the texts of the fit
    words: Words | None = None  # its weight says how both probabilities are combined
    texts: NDArray[np.uint32] | None = None  # digests of those that it was fitted to (known.py)

    def __repr__(self) -> str:
        words = f" and {len(self.words.vocabulary):,} words and pairs" if self.words else ""
        features = f"{self.weights_KD.shape[1]} features{words}"
        return f"{type(self).__name__} of {features}: {named(self.classes)}"

    def require_no_words(self, name: str) -> None:
        """Raise UserError if it has words, with the name of what needs one without."""
        if self.words:
            raise UserError(
                f"{name} is for a classifier of states alone, and this one also counts words; fit "
                "one without `words`."
            )

    def probabilities(self, features: Features, texts: Sequence[str] = ()) -> NDArray[np.float64]:
        """Return [texts, classes]; those of one-against-rest classifiers are scaled to sum to 1.

        With words it needs the texts.
        """
        if not self.words or not len(features):
            return self._feature_probabilities(features)
        if len(texts) != len(features):
            raise UserError(f"texts has {len(texts):,}, but features has {len(features):,} rows.")
        weight = self.words.weight
        of_words_NK = weight * self.words.probabilities(texts)
        return (1 - weight) * self._feature_probabilities(features) + of_words_NK

    def _feature_probabilities(self, features: Features) -> NDArray[np.float64]:
        scores_NK = self._linear(features)
        if self.softmax:
            yes_NK = np.exp(scores_NK - scores_NK.max(axis=1, keepdims=True))
        else:
            yes_NK = 1 / (1 + np.exp(-np.clip(scores_NK, -500, 500)))
        if len(self.classes) == 2:
            return np.concatenate([1 - yes_NK, yes_NK], axis=1)
        return yes_NK / yes_NK.sum(axis=1, keepdims=True)

    def scores(self, features: Features) -> NDArray[np.float64]:
        """Return the log-odds of each class [texts, classes]: above 0 it is more likely than not.

        Without `softmax`, of more than two: the log-odds of each one-against-rest classifier.
        """
        self.require_no_words("the score after each character")
        scores_NK = self._linear(features)
        if len(self.classes) == 2:
            return np.concatenate([-scores_NK, scores_NK], axis=1)
        if self.softmax:
            log_odds_NK = np.empty_like(scores_NK)
            for k in range(len(self.classes)):
                others_NK = np.delete(scores_NK, k, axis=1)
                log_odds_NK[:, k] = scores_NK[:, k] - np.logaddexp.reduce(others_NK, axis=1)
            return log_odds_NK
        return scores_NK

    def _linear(self, features: Features) -> NDArray[np.float64]:
        scores: NDArray[np.float64] = features.astype(np.float64) @ self.weights_KD.T
        return scores + self.intercepts_K

    def predict(self, features: Features, texts: Sequence[str] = ()) -> Labels:
        """Return the class of each text, an index; of equally likely ones, the first."""
        return self.probabilities(features, texts).argmax(axis=1)

    def loss(self, examples: Examples) -> float:
        """Return the mean cross-entropy of the labels, nats."""
        shares_NK = self.probabilities(examples.features)
        every = np.arange(len(examples.labels))
        return float(_nats(shares_NK[every, examples.labels]).mean())

    def score(self, examples: Examples, texts: Sequence[str] = ()) -> float:
        """Return the fraction of texts that it classifies correctly."""
        return float((self.predict(examples.features, texts) == examples.labels).mean())

    @property
    def ranking(self) -> NDArray[np.int64]:
        """The features by their largest |weight| per standard deviation, the largest first."""
        scaled_KD = self.weights_KD
        if self.deviations_D is not None:
            scaled_KD = self.weights_KD * self.deviations_D
        return np.argsort(-np.abs(scaled_KD).max(axis=0), kind="stable")


def _pipeline(examples: Examples, classes: int, C: float, prior: Prior | None) -> Any:
    """Return the unfitted estimator, with the penalty for so many examples and features.

    More than two classes are classified one against the rest.
    """
    # Importing scikit-learn takes a second, and applying a classifier does not need it.
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    if _is_few(examples):
        logistic = LogisticRegression(C=C, max_iter=1000)  # L2
    else:
        # l1_ratio=1 is the L1 penalty; the seed fixes the order of liblinear's coordinates.
        logistic = LogisticRegression(
            l1_ratio=1.0, C=C, solver="liblinear", random_state=0, max_iter=1000
        )
    inputs = StandardScaler()  # gives a constant feature the scale 1
    if prior:
        inputs = make_union(inputs, FunctionTransformer(prior.column))
    return make_pipeline(inputs, logistic if classes == 2 else OneVsRestClassifier(logistic))


def fit(examples: Examples, classes: list[str], C: float, prior: Prior | None = None) -> Classifier:
    """Fit a classifier; every class must occur. With a prior it is linear in the features, too.

    With a prior of two classes C may be 0: it is the prior as it is.
    """
    values = examples.features.astype(np.float64)
    if prior and not C:
        weights_KD = prior.weights_D[None]
        intercepts_K = np.array([prior.intercept])
        return Classifier(weights_KD, intercepts_K, classes, C, deviations_D=values.std(axis=0))
    inputs, logistic = _pipeline(examples, len(classes), C, prior).fit(values, examples.labels)
    scaler = inputs.transformer_list[0][1] if prior else inputs
    fitted = [logistic] if len(classes) == 2 else logistic.estimators_
    coefficients_KD = np.concatenate([one.coef_ for one in fitted])
    weights_KD = coefficients_KD[:, : values.shape[1]] / scaler.scale_
    intercepts_K = np.concatenate([one.intercept_ for one in fitted]) - weights_KD @ scaler.mean_
    if prior:
        slope_K = _PRIOR_SCALE * coefficients_KD[:, -1]
        weights_KD += slope_K[:, None] * prior.weights_D
        intercepts_K += slope_K * prior.intercept
    return Classifier(weights_KD, intercepts_K, classes, C, deviations_D=scaler.scale_)


def best_fit(
    train: Examples,
    valid: Examples | None,
    classes: list[str],
    prior: Prior | None = None,
    Cs: Sequence[float] = CS[::2],
    on_fit: Callable[[int], None] = lambda count: None,
) -> tuple[Classifier, float, Prior | None]:
    """Return the best fit, its accuracy on held-out examples, and the prior that it has.

    The held-out examples are those of `valid`, or of a cross-validation. The best C has the fewest
    errors or, with fewer examples than features, the smallest loss, which varies less by chance.

    With a prior the candidates are ordered by how much they change it: the prior as it is (C = 0,
    two classes only), then fits with it, then fits without it, each in order of increasing C. The
    first whose loss is within one standard error of the smallest is chosen (Breiman et al. 1984,
    section 3.4.3), or within three (`Prior.errors`). The error is that of the mean difference over
    the same examples.

    `on_fit` is called with the number of values of C tried so far.

    If some class has a single example, cross-validation is impossible, and the accuracy is NaN:
    then the first candidate with a prior is chosen, or the weakest penalty.
    """
    prior = prior if _is_few(train) else None
    candidates: list[tuple[Prior | None, float]] = [(None, C) for C in Cs]
    if prior:
        as_is = [0.0] if len(classes) == 2 else []
        candidates = [(prior, C) for C in [*as_is, *Cs]] + candidates
    if valid is None and np.bincount(train.labels).min() < 2:
        one, C = candidates[0 if prior else -1]
        return fit(train, classes, C, one), np.nan, one
    costs = []
    right = []
    for count, (one, C) in enumerate(candidates, 1):
        loss_N, right_N = _held_out(train, valid, classes, C, one)
        costs.append(loss_N if _is_few(train) else 1.0 - right_N)
        right.append(right_N)
        on_fit(count * len(Cs) // len(candidates))
    # Of equal costs the first: the smallest C, and so the fewest weights.
    chosen = int(np.argmin([cost_N.mean() for cost_N in costs]))
    if prior:
        limit = prior.errors(train, classes) / np.sqrt(len(costs[0]))
        more = [cost_N - costs[chosen] for cost_N in costs]
        chosen = [one_N.mean() <= limit * one_N.std() for one_N in more].index(True)
    used, C = candidates[chosen]
    return fit(train, classes, C, used), float(right[chosen].mean()), used


def _is_few(examples: Examples) -> bool:
    """Return whether there are fewer examples than features."""
    return len(examples.labels) < examples.features.shape[1]


def _held_out(
    train: Examples, valid: Examples | None, classes: list[str], C: float, prior: Prior | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the loss of each held-out example in nats, and whether the answer is right."""
    shares_NK, labels = held_out(train, valid, classes, C, prior)
    right_N = shares_NK.argmax(axis=1) == labels
    return _nats(shares_NK[np.arange(len(labels)), labels]), right_N


def held_out(
    train: Examples, valid: Examples | None, classes: list[str], C: float, prior: Prior | None
) -> tuple[NDArray[np.float64], Labels]:
    """Return the probabilities of the classes of held-out examples, and their labels.

    The examples are those of `valid`, or of a cross-validation.
    """
    if valid is None and C:
        from sklearn.model_selection import cross_val_predict

        estimator = _pipeline(train, len(classes), C, prior)
        values = train.features
        shares_NK = cross_val_predict(
            estimator,
            values.astype(np.float64),
            train.labels,
            cv=folds(train.labels, classes),
            method="predict_proba",
        )
        labels = train.labels
    else:  # nothing is fitted with C = 0, so the examples themselves are held out
        features, labels = valid or train
        shares_NK = fit(train, classes, C, prior).probabilities(features)
    return shares_NK, labels


def folds(labels: Labels, classes: Sequence[str]) -> Any:
    """Return the folds of cross-validation; UserError if a class has one text."""
    from sklearn.model_selection import StratifiedKFold

    counts = np.bincount(labels)
    if counts.min() < 2:
        raise UserError(
            f"class {classes[int(counts.argmin())]!r} has only one text, too few for "
            "cross-validation; add such texts, or give validation texts with `valid`."
        )
    return StratifiedKFold(min(_FOLDS, int(counts.min())), shuffle=True, random_state=0)


def columns(examples: Examples, units: Sequence[int]) -> Examples:
    """Return the examples with only these features."""
    return Examples(examples.features[:, list(units)], examples.labels)


def subset(examples: Examples, count: int, seed: int) -> Examples:
    """Return `count` examples at random, at least one of each class."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(examples.labels))
    first = [order[examples.labels[order] == label][0] for label in np.unique(examples.labels)]
    rest = order[~np.isin(order, first)]
    chosen = np.concatenate([first, rest])[:count]
    return Examples(examples.features[chosen], examples.labels[chosen])
