"""Measure a linear support vector machine on TF-IDF, with the tweets that `sentiment` was given.

    python results/sentiment/tfidf.py DATA

It prints the mean recall of three classes, and the accuracy of positive against negative, for the
held-out tweets and for SemEval's development part. Logistic regression (C = 4), which was tried,
too, is 1.0 and 0.3 points lower; nothing else was.
"""

import sys
from pathlib import Path

import numpy as np
import texts
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import recall_score
from sklearn.pipeline import make_pipeline, make_union
from sklearn.svm import LinearSVC


def main(data: Path) -> None:
    """Fit and print."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    characters = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=3
    )
    machine = LinearSVC(C=0.1, class_weight="balanced")
    model = make_pipeline(make_union(words, characters), machine)
    train = texts.read_training(data)["tweet"]
    model.fit([text.text for text in train], [text.label for text in train])
    negative, _, positive = texts.CLASSES
    columns = list(model.classes_)
    parts = {"held out": texts.validation(data), "development": texts.tests(data)}
    for name, some in parts.items():
        tweets = some["tweets"]
        labels = np.array([text.label for text in tweets])
        scores = model.decision_function([text.text for text in tweets])
        answers = np.array(columns)[scores.argmax(axis=1)]
        recall = recall_score(labels, answers, average="macro")
        is_positive = scores[:, columns.index(positive)] > scores[:, columns.index(negative)]
        is_polar = np.isin(labels, (negative, positive))
        accuracy = (is_positive == (labels == positive))[is_polar].mean()
        print(f"{name}: {len(tweets):,} tweets, mean recall {recall:.4f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
