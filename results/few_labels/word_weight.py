"""Compare rules for the weight of words beside states, on draws of few labels.

    python results/few_labels/word_weight.py MODEL TRAIN TEST [LABELS,...] [DRAWS]

MODEL is a run or reviews-1024; TRAIN and TEST are files of texts with labels. The states are c and
the mean of h; their classifier is that of `transfer`, with every other C. A line has the test
accuracies in %, means over the draws: states, words, and both with the weight that each rule takes.
"""

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import mlstm_jax as mlstm
from mlstm_jax import shipped
from mlstm_jax.transfer import words
from mlstm_jax.transfer.classifier import (
    Examples,
    Floats,
    Labels,
    load_classifier,
    nats,
    subset,
)
from mlstm_jax.transfer.labels import Labelled, codes, read_labelled
from mlstm_jax.transfer.logistic import best_fit

GRID = tuple(np.linspace(0, 1, 11))
Rule = Callable[[Floats, Floats, Labels], float]  # of states, words and labels: the weight of words


def errors(shares_NK: Floats, labels: Labels) -> Floats:
    """1 for each wrong answer."""
    return 1.0 * (shares_NK.argmax(axis=1) != labels)


def smallest(cost: Callable[[Floats, Labels], Floats], weights: tuple[float, ...]) -> Rule:
    """The rule that takes the weight of the smallest cost."""

    def rule(states_NK: Floats, words_NK: Floats, labels: Labels) -> float:
        costs = [cost((1 - w) * states_NK + w * words_NK, labels).mean() for w in weights]
        return weights[int(np.argmin(costs))]

    return rule


def former(states_NK: Floats, words_NK: Floats, labels: Labels) -> float:
    """The mean, unless one alone is better by more than a standard error."""
    mean_N = errors(states_NK + words_NK, labels)
    best = 0.5
    most = 0.0
    for weight, shares_NK in ((0.0, states_NK), (1.0, words_NK)):
        gain_N = mean_N - errors(shares_NK, labels)
        if gain_N.sum() > max(most, np.sqrt(np.count_nonzero(gain_N))):
            best = weight
            most = gain_N.sum()
    return best


def one_alone(least: int) -> Rule:
    """The better one, unless the mean is better by more than some standard errors."""

    def rule(states_NK: Floats, words_NK: Floats, labels: Labels) -> float:
        weight = smallest(errors, (0.0, 1.0))(states_NK, words_NK, labels)
        alone_N = errors(words_NK if weight else states_NK, labels)
        gain_N = alone_N - errors(states_NK + words_NK, labels)
        return 0.5 if gain_N.sum() > least * np.sqrt(np.count_nonzero(gain_N)) else weight

    return rule


RULES: dict[str, Rule] = {
    "mean": lambda states_NK, words_NK, labels: 0.5,
    "former": former,
    "right": smallest(errors, (0.5, 0.0, 1.0)),
    "loss": smallest(nats, (0.5, 0.0, 1.0)),
    "loss, 11 weights": smallest(nats, GRID),
    "one alone, 1": one_alone(1),
    "one alone, 2": words.best_weight,
}


def main(name: str, train: str, test: str, counts: str = "50,200,1000", draws: str = "10") -> None:
    """Print a line for each number of labels."""
    warnings.filterwarnings("ignore")
    model = mlstm.load(name)
    texts = read_labelled(train, None)
    tests = read_labelled(test, None)
    read = Examples(model.encode(texts.texts, state="c+mean_h"), codes(texts.labels, texts.classes))
    told = Examples(model.encode(tests.texts, state="c+mean_h"), codes(tests.labels, texts.classes))
    prior = None
    if place := shipped.classifier(Path(name)):
        own = load_classifier(place)
        weights_D = np.concatenate([np.zeros(model.hidden), own.weights_KD[0]])
        prior = own._replace(weights_KD=weights_D[None])
    places = Examples(np.arange(len(texts.texts), dtype=np.float32)[:, None], read.labels)
    for count in map(int, counts.split(",")):
        scores = defaultdict[str, list[float]](list)
        for seed in range(int(draws)):
            drawn = subset(places, count, seed).features[:, 0].astype(int).tolist()
            draw = subset(read, count, seed)
            with threadpool_limits(1, user_api="blas"):
                choice = best_fit(draw, None, texts.classes, prior)
                labels = [texts.labels[n] for n in drawn]
                labelled = Labelled([texts.texts[n] for n in drawn], labels)
                counted = words.fit(labelled, None, texts.classes)
            states_NK = choice.classifier.probabilities(told.features)
            words_NK = counted.words.probabilities(tests.texts)
            assert choice.held_out_NK is not None
            weights = {"states": 0.0, "words": 1.0}
            for rule_name, rule in RULES.items():
                held_out = choice.held_out_NK, counted.held_out_NK
                weights[rule_name] = rule(*held_out, draw.labels)
            for kind, weight in weights.items():
                wrong_N = errors((1 - weight) * states_NK + weight * words_NK, told.labels)
                scores[kind].append(100 * (1 - float(wrong_N.mean())))
        means = (f"{kind} {np.mean(reached):.1f}" for kind, reached in scores.items())
        print(name, train, count, *means, sep="; ", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
