"""A classifier of word counts: logistic regression on TF-IDF by scikit-learn.

It counts words and pairs of words or, if that is better on held-out texts, sequences of one to five
characters: they also suit languages that put no spaces between words or have many endings.

It is the baseline of `transfer`. With `words` the classifier that `transfer` or `finetune` saves
has it, too: it answers as the better one on held-out texts does, or with the mean of both if
that is clearly better.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from mlstm_jax.transfer.known import Digests
from mlstm_jax.transfer.labels import Labelled, codes
from mlstm_jax.transfer.sets import folds

CS = (1.0, 4.0, 16.0, 64.0)
MEAN = 0.5  # the weight of words in the mean of both probabilities
_FEW = 1000  # texts; of fewer, words that occur in a single one help (results/few_labels/)
_FOLDS = 3
# Characters of the texts, times the scores of a text: with more, sequences would take minutes.
_MOST_CHARACTERS = 1 << 24

Counted = Literal["words", "characters"]
COUNTED: dict[Counted, str] = {
    "words": "words and pairs",
    "characters": "sequences of characters",
}
_OPTIONS: dict[Counted, dict[str, Any]] = {
    "words": {"ngram_range": (1, 2)},
    "characters": {"ngram_range": (1, 5), "analyzer": "char_wb"},
}

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Words:
    """Scores are TF-IDF · weights + intercepts; with two classes, only of the second."""

    counted: Counted
    vocabulary: list[str]  # what is counted, in the order of the columns
    idf_V: Floats
    weights_KV: Floats
    intercepts_K: Floats
    weight: float  # of their probabilities, beside 1 - weight for the states

    def __repr__(self) -> str:
        return f"{len(self.vocabulary):,} {COUNTED[self.counted]}"

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
        counts = unfitted(self.counted, vocabulary=self.vocabulary)
        counts.idf_ = self.idf_V
        return counts


def unfitted(counted: Counted, texts: int = 0, vocabulary: list[str] | None = None) -> Any:
    """Return a TF-IDF to be fitted to a number of texts, or with a vocabulary."""
    # Importing scikit-learn takes a second, and a classifier without words does not need it.
    from sklearn.feature_extraction.text import TfidfVectorizer

    least = 1 if texts < _FEW else 2
    options = _OPTIONS[counted]
    return TfidfVectorizer(sublinear_tf=True, min_df=least, vocabulary=vocabulary, **options)


def _logistic(C: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=C, max_iter=1000)


class Fit(NamedTuple):
    """The classifier with the best counts and C, and how well it does on texts held out from it."""

    words: Words
    C: float
    accuracy: float
    held_out_NK: Floats  # probabilities of the classes


@contextmanager
def fitting() -> Iterator[None]:
    """Fit with one thread of BLAS: two of OpenBLAS take several times as long for few texts."""
    import sklearn.linear_model  # noqa: F401  the limit holds for libraries that are loaded

    with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
        # scikit-learn warns of classes with two or three texts; `require_classes` refuses too many.
        warnings.filterwarnings("ignore", "The number of unique classes is greater", UserWarning)
        yield


@fitting()
def fit(
    train: Labelled, valid: Labelled | None, classes: Sequence[str], alike_N: Digests | None = None
) -> Fit:
    """Fit with the counts and the C of most right answers, on `valid` or by cross-validation.

    `alike_N` are digests of the training texts, for the folds; every class needs two texts. Of
    equal counts words are taken, and the smaller C.
    """
    labels_N = codes(train.labels, classes)
    texts = np.array(train.texts, object)
    true_N = labels_N
    if valid is None:
        parts = list(folds(labels_N, alike_N, _FOLDS).split())
    else:
        true_N = codes(valid.labels, classes)
        texts = np.append(texts, np.array(valid.texts, object))
        parts = [np.split(np.arange(len(texts)), [len(labels_N)])]
    size = sum(map(len, texts)) * (1 if len(classes) == 2 else len(classes))
    best = None
    for counted in COUNTED:
        if best is not None and size > _MOST_CHARACTERS:
            break
        try:
            tried = _held_out(counted, texts, labels_N, parts)
        except ValueError:  # no word occurs in these texts
            continue
        for C, shares_NK in tried.items():
            accuracy = float((shares_NK.argmax(axis=1) == true_N).mean())
            if best is None or accuracy > best[0]:
                best = accuracy, counted, C, shares_NK
    assert best is not None  # the space is a sequence of every text
    accuracy, counted, C, held_out_NK = best
    counts = unfitted(counted, len(train.texts))
    logistic = _logistic(C).fit(counts.fit_transform(train.texts), labels_N)
    vocabulary = counts.get_feature_names_out().tolist()
    weight = 1.0  # alone, as they are measured here; beside states: `best_weight`
    words = Words(counted, vocabulary, counts.idf_, logistic.coef_, logistic.intercept_, weight)
    return Fit(words, C, accuracy, held_out_NK)


def _held_out(
    counted: Counted, texts: NDArray[Any], labels_N: NDArray[np.int64], parts: Sequence[Any]
) -> dict[float, Floats]:
    """The probabilities of all held-out texts, for each C; a part: indices to fit, and held out."""
    places = np.concatenate([held_out for _, held_out in parts])
    shares: dict[float, Floats] = {}
    for fitted, held_out in parts:
        counts = unfitted(counted, len(labels_N))
        fitted_NV = counts.fit_transform(texts[fitted])
        held_out_NV = counts.transform(texts[held_out])
        for C in CS:
            logistic = _logistic(C).fit(fitted_NV, labels_N[fitted])
            shares_NK = shares.setdefault(C, np.zeros((len(texts), len(logistic.classes_))))
            shares_NK[held_out] = logistic.predict_proba(held_out_NV)
    return {C: shares_NK[np.sort(places)] for C, shares_NK in shares.items()}


def best_weight(states_NK: Floats, words_NK: Floats, labels_N: NDArray[np.int64]) -> float:
    """The weight of words: 0 or 1, states or words alone; 1/2, the mean, if it is clearly better.

    That is by more than two standard errors of the difference in right answers of held-out texts:
    with a weak model the mean is far worse (results/few_labels/).
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
