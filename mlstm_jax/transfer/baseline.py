"""The baseline of the transfer experiment: logistic regression on TF-IDF of words and word pairs.

It shows how well the same labels can be predicted without a language model.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from mlstm_jax.transfer.labels import Labelled


@dataclass(frozen=True)
class Baseline:
    """Accuracies of the TF-IDF baseline, as fractions."""

    C: float
    train: float
    valid: float
    test: float


def measure(
    train: Labelled, valid: Labelled | None, test: Labelled
) -> tuple[Baseline | None, str | None]:
    """Return the baseline, or why it cannot be fitted, such as on proteins, which have no words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline

    def model(C: float) -> Any:
        words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
        return make_pipeline(words, LogisticRegression(C=C, max_iter=1000))

    def score(C: float) -> float:
        if valid is None:
            fewest = min(Counter(train.labels).values())
            folds = StratifiedKFold(min(3, fewest))
            found = cross_val_score(model(C), *train, cv=folds, error_score="raise")
            return float(found.mean())
        return float(model(C).fit(*train).score(*valid))

    try:
        scores = {C: score(C) for C in (1.0, 4.0, 16.0, 64.0)}
        best = max(scores, key=lambda C: scores[C])
        fitted = model(best).fit(*train)
        reached = (float(fitted.score(*part)) for part in (train, test))
    except ValueError as error:  # raised by scikit-learn where no word is left to count
        return None, str(error).partition("\n")[0]
    on_train, on_test = reached
    return Baseline(best, on_train, scores[best], on_test), None
