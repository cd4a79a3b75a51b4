"""The baseline of the transfer experiment: logistic regression on TF-IDF of words and word pairs.

It shows how well the same labels can be predicted without a language model.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlstm_jax.transfer import thresholds
from mlstm_jax.transfer.labels import Labelled, Task
from mlstm_jax.transfer.thresholds import Fitted, LabelScore, macro

_CS = (1.0, 4.0, 16.0, 64.0)


@dataclass(frozen=True)
class Baseline:
    """Accuracies of the TF-IDF baseline, as fractions; of several labels, the macro F1."""

    C: float | list[float]
    train: float
    valid: float
    test: float
    labels: list[LabelScore] = field(default_factory=list)  # of test


def measure(
    train: Labelled, valid: Labelled | None, test: Labelled, task: Task
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
            found = cross_val_score(model(C), *train[:2], cv=folds, error_score="raise")
            return float(found.mean())
        return float(model(C).fit(*train[:2]).score(*valid[:2]))

    def fit_yes(texts: Any, answers: thresholds.Answers, C: float) -> Fitted:
        fitted = model(C).fit(texts, answers)
        return Fitted(fitted, lambda inputs: fitted.predict_proba(inputs)[:, 1])

    try:
        if task.several:
            return _of_labels(fit_yes, train, valid, test, task), None
        scores = {C: score(C) for C in _CS}
        best = max(scores, key=lambda C: scores[C])
        fitted = model(best).fit(*train[:2])
        reached = (float(fitted.score(*part[:2])) for part in (train, test))
    except ValueError as error:  # raised by scikit-learn where no word is left to count
        return None, str(error).partition("\n")[0]
    on_train, on_test = reached
    return Baseline(best, on_train, scores[best], on_test), None


def _of_labels(
    fit_yes: Any, train: Labelled, valid: Labelled | None, test: Labelled, task: Task
) -> Baseline:
    def examples(part: Labelled) -> tuple[Any, thresholds.Answers]:
        return np.array(part.texts, object), task.codes(part.labels)

    chosen = thresholds.choose(
        fit_yes, _CS, examples(train), examples(valid) if valid else None, task.names
    )

    def scores(part: Labelled) -> list[LabelScore]:
        texts, answers_NK = examples(part)
        yes_NK = np.stack([one.fitted.yes(texts) for one in chosen], axis=1)
        return thresholds.measure(answers_NK, yes_NK, [c.threshold for c in chosen], task.names)

    return Baseline(
        [one.C for one in chosen],
        train=macro(scores(train))["f1"],
        valid=float(np.mean([one.f1 for one in chosen])),
        test=macro(scores(test))["f1"],
        labels=scores(test),
    )
