"""A classifier of word counts: logistic regression on TF-IDF of words and pairs, by scikit-learn.

It is the baseline of `transfer`. With `words` the classifier that `transfer` or `finetune` saves
has it, too: its probabilities are those of the better one on held-out texts, or the mean of both if
that is clearly better.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.errors import UserError, first_line
from mlstm_jax.transfer.labels import Labelled, codes

CS = (1.0, 4.0, 16.0, 64.0)
MEAN = 0.5  # the weight of words in the mean of both probabilities
_FEW = 1000  # texts; of fewer, words that occur in a single one help (results/few_labels/)

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Words:
    """Scores are TF-IDF · weights + intercepts; with two classes, only of the second."""

    vocabulary: list[str]  # words and pairs, in the order of the columns
    idf_V: Floats
    weights_KV: Floats
    intercepts_K: Floats
    weight: float = MEAN  # of their probabilities, beside 1 - weight of those of the states

    def probabilities(self, texts: Sequence[str]) -> Floats:
        """Return [texts, classes]; without a known word, the intercepts decide."""
        from scipy.special import softmax

        scores_NK = self._counts.transform(texts) @ self.weights_KV.T + self.intercepts_K
        if len(self.intercepts_K) == 1:
            scores_NK = np.concatenate([0 * scores_NK, scores_NK], axis=1)
        shares: Floats = softmax(scores_NK, axis=1)
        return shares

    @cached_property
    def _counts(self) -> Any:
        counts = _unfitted(self.vocabulary)
        counts.idf_ = self.idf_V
        return counts


def _unfitted(vocabulary: list[str] | None = None, min_df: int = 1) -> Any:
    # Importing scikit-learn takes a second, and a classifier without words does not need it.
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        ngram_range=(1, 2), min_df=min_df, sublinear_tf=True, vocabulary=vocabulary
    )


def pipeline(C: float, texts: int) -> Any:
    """Return the unfitted estimator for a number of texts."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    counts = _unfitted(min_df=1 if texts < _FEW else 2)
    return make_pipeline(counts, LogisticRegression(C=C, max_iter=1000))


class Fit(NamedTuple):
    """The classifier with the best C, and how well it does on texts held out from it."""

    words: Words
    C: float
    accuracy: float
    held_out_NK: Floats  # probabilities of the classes


def fit(train: Labelled, valid: Labelled | None, classes: Sequence[str]) -> Fit:
    """Fit with the C of most right answers, on validation texts or by cross-validation.

    Raises UserError if no word is left to count, or a class has one text.
    """
    try:
        return _fit(train, valid, classes)
    except ValueError as error:  # raised by scikit-learn
        raise UserError(
            f"words cannot be counted in these texts ({first_line(error)}); leave `words` out."
        ) from error


def _fit(train: Labelled, valid: Labelled | None, classes: Sequence[str]) -> Fit:
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    labels = codes(train.labels, classes)
    true = codes((valid or train).labels, classes)
    accuracies = []
    held_out = []
    for C in CS:
        estimator = pipeline(C, len(train.texts))
        if valid is None:
            folds = StratifiedKFold(min(3, *Counter(train.labels).values()))
            shares_NK = cross_val_predict(
                estimator, train.texts, labels, cv=folds, method="predict_proba"
            )
        else:
            shares_NK = estimator.fit(train.texts, labels).predict_proba(valid.texts)
        held_out.append(shares_NK)
        accuracies.append(float((shares_NK.argmax(axis=1) == true).mean()))
    best = int(np.argmax(accuracies))
    counts, logistic = pipeline(CS[best], len(train.texts)).fit(train.texts, labels)
    vocabulary = counts.get_feature_names_out().tolist()
    words = Words(vocabulary, counts.idf_, logistic.coef_, logistic.intercept_)
    return Fit(words, CS[best], accuracies[best], held_out[best])


def best_weight(states_NK: Floats, words_NK: Floats, labels_N: NDArray[np.int64]) -> float:
    """Return the weight of words: 0 or 1, states or words alone, or 1/2 if the mean is better.

    The mean must have more right answers than the better one alone, by more than two standard
    errors of the difference: with a weak model it is far worse (results/few_labels/). The
    probabilities are those of the classes of held-out texts, [texts, classes].
    """
    is_right_N = states_NK.argmax(axis=1) == labels_N
    by_words_N = words_NK.argmax(axis=1) == labels_N
    weight = 0.0
    if by_words_N.sum() > is_right_N.sum():
        is_right_N = by_words_N
        weight = 1.0
    by_both_N = (states_NK + words_NK).argmax(axis=1) == labels_N
    gain = int(by_both_N.sum()) - int(is_right_N.sum())
    differ = np.count_nonzero(by_both_N != is_right_N)
    return MEAN if gain > 2 * np.sqrt(differ) else weight
