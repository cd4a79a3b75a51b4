"""Fit a classifier to frozen features: regularised logistic regression by scikit-learn.

Puri et al. 2018, section VI, after Radford et al. 2017: an L1 penalty, whose C is the best of
2^-8 ... 2^0 on validation data; then a second classifier is fitted on the k units of largest
|weight| alone. With more than two classes, each is classified against the rest.

# Paper: unscaled features. Here each feature is divided by its standard deviation for the fit, and
the weights are then converted back to unscaled features. The cell state of a small model has a
standard deviation of about 0.1, so the same values of C would shrink all of its weights to zero.
# Paper: an L1 penalty, and C by accuracy. With fewer examples than features the penalty is L2, and
C has the smallest loss: so few cannot tell which units matter (results/few_labels/).
# Paper: no prior. A pretrained model comes with a classifier. With fewer examples than
features, its log-odds are one more feature, whose weight the penalty hardly shrinks: without the
prior, a fit to a few examples is worse than that classifier, which needs none.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mlstm_jax.transfer.classifier import Classifier, Examples, Floats, nats
from mlstm_jax.transfer.sets import folds

CS = tuple(2.0**power for power in range(-8, 1))

_PRIOR_SCALE = 10
_FEW = 50  # examples
_FOLDS = 5


class Choice(NamedTuple):
    """The classifier with the best C, and how well it does on held-out examples."""

    classifier: Classifier
    has_prior: bool  # whether it is the prior, or was fitted with it
    accuracy: float  # NaN: nothing could be held out
    held_out_NK: Floats | None  # probabilities of the classes


def _oriented(prior: Classifier, examples: Examples, classes: Sequence[str]) -> Classifier:
    """A prior of two classes as a classifier of these, by its own names or the smaller loss."""
    own = [name.casefold() for name in prior.classes]
    given = [name.casefold() for name in classes]
    prior = prior._replace(classes=list(classes))
    reverse = prior._replace(weights_KD=-prior.weights_KD, intercepts_K=-prior.intercepts_K)
    if given == own:
        return prior
    if given == own[::-1] or reverse.loss(examples) < prior.loss(examples):
        return reverse
    return prior


def _is_few(examples: Examples) -> bool:
    return len(examples.labels) < examples.features.shape[1]


def _pipeline(examples: Examples, classes: int, C: float, prior: Classifier | None) -> Any:
    """The unfitted estimator; more than two classes are classified one against the rest."""
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
    if classes > 2:
        logistic = OneVsRestClassifier(logistic)
    inputs = StandardScaler()  # gives a constant feature the scale 1
    if prior:

        def log_odds(features: Any) -> Any:
            """So large that the penalty hardly shrinks their weight."""
            return _PRIOR_SCALE * (features @ prior.weights_KD.T + prior.intercepts_K)

        inputs = make_union(inputs, FunctionTransformer(log_odds))
    return make_pipeline(inputs, logistic)


def fit(
    examples: Examples, classes: list[str], C: float, prior: Classifier | None = None
) -> Classifier:
    """Fit a classifier; every class must occur.

    The log-odds of the prior, a classifier of two classes, are one more feature. If these classes
    are also two, C may be 0: the prior as it is.
    """
    values = examples.features.astype(np.float64)
    if prior and not C:
        known = _oriented(prior, examples, classes)
        return known._replace(C=C, deviations_D=values.std(axis=0))
    inputs, logistic = _pipeline(examples, len(classes), C, prior).fit(values, examples.labels)
    scaler = inputs.transformer_list[0][1] if prior else inputs
    fitted = getattr(logistic, "estimators_", [logistic])  # one for each class, or one for both
    coefficients_KD = np.concatenate([estimator.coef_ for estimator in fitted])
    weights_KD = coefficients_KD[:, : values.shape[1]] / scaler.scale_
    intercepts_K = np.concatenate([estimator.intercept_ for estimator in fitted])
    intercepts_K = intercepts_K - weights_KD @ scaler.mean_
    if prior:
        slope_K = _PRIOR_SCALE * coefficients_KD[:, -1]
        weights_KD += slope_K[:, None] * prior.weights_KD
        intercepts_K += slope_K * prior.intercepts_K
    return Classifier(weights_KD, intercepts_K, classes, C, deviations_D=scaler.scale_)


def best_fit(
    train: Examples,
    valid: Examples | None,
    classes: list[str],
    prior: Classifier | None = None,
    Cs: Sequence[float] = CS[::2],
    on_fit: Callable[[int], None] = lambda count: None,
) -> Choice:
    """Fit with the best C, on the examples of `valid` or by cross-validation.

    The best C has the fewest errors or, with fewer examples than features, the smallest loss, which
    varies less by chance.

    With a prior the candidates are ordered by how much they change it: the prior as it is (C = 0,
    two classes only), then fits with it, then fits without it, each in order of increasing C. The
    first whose loss is within one standard error of the smallest is chosen (Breiman et al. 1984,
    section 3.4.3), or within three. Where nothing can be held out, the first candidate
    is chosen if there is a prior, otherwise the weakest penalty.
    """
    is_few = _is_few(train)
    prior = prior if is_few else None
    candidates: list[tuple[Classifier | None, float]] = [(None, C) for C in Cs]
    if prior:
        candidates = [(prior, C) for C in Cs] + candidates
        if len(classes) == 2:
            candidates.insert(0, (prior, 0.0))
    if valid is None and folds(train.labels, train.alike, _FOLDS) is None:
        used, C = candidates[0 if prior else -1]
        return Choice(fit(train, classes, C, used), used is not None, np.nan, None)
    labels = (valid or train).labels
    held_out = []
    costs = []
    for count, (used, C) in enumerate(candidates, 1):
        shares_NK = _held_out(train, valid, classes, C, used)
        held_out.append(shares_NK)
        is_wrong_N = 1.0 * (shares_NK.argmax(axis=1) != labels)
        costs.append(nats(shares_NK, labels) if is_few else is_wrong_N)
        on_fit(count * len(Cs) // len(candidates))
    # Of equal costs the first: the smallest C, and so the fewest weights.
    best = int(np.argmin(np.mean(costs, axis=1)))
    if prior:
        above = np.array(costs) - costs[best]
        # Of few examples, all classified correctly, the standard error is underestimated. So
        # against a prior with the same class names the evidence must then be stronger.
        is_own = {*map(str.casefold, classes)} == {*map(str.casefold, prior.classes)}
        is_underestimated = is_own and len(train.labels) < _FEW
        errors = 3 if is_underestimated else 1
        limit = errors / np.sqrt(len(labels))
        best = int(np.argmax(above.mean(axis=1) <= limit * above.std(axis=1)))
    used, C = candidates[best]
    accuracy = float((held_out[best].argmax(axis=1) == labels).mean())
    chosen = fit(train, classes, C, used)
    return Choice(chosen, used is not None, accuracy, held_out[best])


def _held_out(
    train: Examples, valid: Examples | None, classes: list[str], C: float, prior: Classifier | None
) -> Floats:
    """Return the probabilities of the classes of the held-out examples."""
    if valid or not C:  # With C = 0 nothing is fitted, so all are held out.
        return fit(train, classes, C, prior).probabilities((valid or train).features)
    from sklearn.model_selection import cross_val_predict

    shares_NK: Floats = cross_val_predict(
        _pipeline(train, len(classes), C, prior),
        train.features.astype(np.float64),
        train.labels,
        cv=folds(train.labels, train.alike, _FOLDS),
        method="predict_proba",
    )
    return shares_NK
