"""A classifier of word counts: logistic regression on TF-IDF of words and pairs, by scikit-learn.

It is the baseline of `transfer`. With `words` the classifier that `transfer` or `finetune` saves
has it, too.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.errors import UserError
from mlstm_jax.transfer.labels import Labelled, Task

CS = (1.0, 4.0, 16.0, 64.0)
_FEW = 1000  # texts; of fewer, words that occur in a single one help (results/few_labels/)

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Words:
    """Scores are TF-IDF · weights + intercepts; with two classes, only of the second."""

    vocabulary: list[str]  # words and pairs, in the order of the columns
    idf_V: Floats
    weights_KV: Floats
    intercepts_K: Floats

    def probabilities(self, texts: Sequence[str]) -> Floats:
        """Return [texts, classes]; a text without a known word has those of the intercepts."""
        from scipy.special import softmax

        scores_NK = self._counts.transform(texts) @ self.weights_KV.T + self.intercepts_K
        if len(self.intercepts_K) == 1:
            scores_NK = np.concatenate([0 * scores_NK, scores_NK], axis=1)
        shares: Floats = softmax(scores_NK, axis=1)
        return shares

    @cached_property
    def _counts(self) -> Any:
        counts = _unfitted({word: column for column, word in enumerate(self.vocabulary)})
        counts.idf_ = self.idf_V
        return counts


def _unfitted(vocabulary: dict[str, int] | None = None, min_df: int = 1) -> Any:
    # Importing scikit-learn takes a second, and a classifier without words does not need it.
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        ngram_range=(1, 2), min_df=min_df, sublinear_tf=True, vocabulary=vocabulary
    )


def pipeline(C: float, texts: int) -> Any:
    """Return the unfitted estimator for so many texts."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    counts = _unfitted(min_df=1 if texts < _FEW else 2)
    return make_pipeline(counts, LogisticRegression(C=C, max_iter=1000))


def fit(train: Labelled, valid: Labelled | None, task: Task) -> tuple[Words, float, float]:
    """Return the classifier with the best C, this C, and its accuracy on validation texts.

    Without such texts, by cross-validation.

    Raises:
        ValueError: no word is left to count, such as of proteins, or a class has one text.
    """
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    labels = task.codes(train.labels)

    def unfitted(C: float) -> Any:
        return pipeline(C, len(train.texts))

    def score(C: float) -> float:
        if valid is None:
            folds = StratifiedKFold(min(3, *Counter(train.labels).values()))
            scores = cross_val_score(
                unfitted(C), train.texts, labels, cv=folds, error_score="raise"
            )
            return float(scores.mean())
        fitted = unfitted(C).fit(train.texts, labels)
        return float(fitted.score(valid.texts, task.codes(valid.labels)))

    scores = {C: score(C) for C in CS}
    best = max(scores, key=lambda C: scores[C])
    counts, logistic = unfitted(best).fit(train.texts, labels)
    vocabulary = counts.get_feature_names_out().tolist()
    return Words(vocabulary, counts.idf_, logistic.coef_, logistic.intercept_), best, scores[best]


def require_classes(task: Task) -> None:
    """Raise UserError for binary labels."""
    if task.several:
        raise UserError("words is for classes, not for binary labels; leave it out.")


def uncountable(why: str | None) -> UserError:
    """Return the error for texts that have no words."""
    return UserError(f"words cannot be counted in these texts ({why}); leave `words` out.")
