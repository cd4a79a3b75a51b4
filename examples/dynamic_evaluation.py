"""Dynamic evaluation: score a text while the parameters learn from what is already scored.

    python examples/dynamic_evaluation.py RUN TEXT --train TRAIN --valid VALID
    python examples/dynamic_evaluation.py RUN TEXT --train TRAIN --rate 1e-3 --decay 0.01

Krause, Kahembwe, Murray, Renals 2018 (arXiv 1709.07432). RUN is a run folder or a model of the
package; the other arguments are files, whose bytes are read as they are. Each window is scored
first; then the parameters take one step of gradient descent on it. With theta_0 the trained
parameters and g the gradient of the window's loss in nats per byte::

    theta += -rate * g / (r + epsilon) + min(1, decay * r / mean r) * (theta_0 - theta)

r is the root of the mean of g^2 over windows of TRAIN, at theta_0, and epsilon is a tenth of its
mean. Without --train r is 1 and epsilon 0. Without --rate, rate and decay are those that score
VALID best. results/quickstart/README.md has results. The loss is not scaled, as fp16 would need.
"""

import argparse
import itertools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import mlstm_jax

STATISTICS_WINDOWS = 256
# Of 0.01, 0.1 and 1 times the mean of r, 0.1 scored the quickstart's validation split best. A
# parameter with an r near 0, such as the embedding of a rare byte, would else move far.
EPSILON = 0.1
RATES = {True: (1e-4, 3e-4, 1e-3, 3e-3), False: (0.03, 0.1, 0.3, 1.0)}  # with r, and without
DECAYS = (0.0, 0.01, 0.1, 0.3)


class DynamicEvaluation:
    """Scores texts with a model that learns from them; it starts each from the trained model."""

    def __init__(self, model: mlstm_jax.TrainedModel) -> None:
        self.module, self.trained = model.flax
        self.window = self.module.architecture.reading_window(model.config.data.window)
        self.r = jax.tree.map(np.ones_like, self.trained)
        self.mean, self.epsilon = np.float32(1), np.float32(0)
        self._gradient, self._update = jax.jit(self._gradient_of), jax.jit(self._updated)

    def _gradient_of(self, params: Any, carry: Any, window: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the gradient of a window, the nats of each byte [1, T], and the carry after it."""
        bytes_BT, next_BT, counted_BT = window

        def loss(params: Any) -> tuple[Any, Any]:
            read = self.module.apply({"params": params}, bytes_BT, carry)
            nats_BT = optax.softmax_cross_entropy_with_integer_labels(read.logits_BTV, next_BT)
            nats_BT = jnp.where(counted_BT, nats_BT, 0)
            return nats_BT.mean(), (nats_BT, read.carry)

        with self.module.product_precision():
            gradient, more = jax.grad(loss, has_aux=True)(params)
        return gradient, *more

    def _updated(self, params: Any, gradient: Any, rate: Any, decay: Any) -> Any:
        def update(p: Any, p0: Any, g: Any, r: Any) -> Any:
            back = jnp.minimum(1, decay * r / self.mean) * (p0 - p)
            return p - rate * g / (r + self.epsilon) + back

        return jax.tree.map(update, params, self.trained, gradient, self.r)

    def _window(self, text: bytes, at: int) -> tuple[np.ndarray, ...]:
        piece = np.frombuffer(text[at : at + self.window + 1], np.uint8).astype(np.int32)
        padded = np.pad(piece, (0, self.window + 1 - len(piece)))
        counted = np.arange(self.window) < len(piece) - 1
        return padded[None, :-1], padded[None, 1:], counted[None]

    def measure_scales(self, train: bytes) -> None:
        """Set r, its mean and epsilon by windows that are evenly spread over a text."""
        starts = range(0, len(train) - 1, self.window)
        places = np.linspace(0, len(starts) - 1, min(STATISTICS_WINDOWS, len(starts)))
        sums, carry = jax.tree.map(np.zeros_like, self.trained), self.module.reading_carry(1)
        for place in places.astype(int):
            window = self._window(train, starts[place])
            gradient, _, carry = self._gradient(self.trained, carry, window)
            sums = jax.tree.map(lambda total, g: total + g**2, sums, gradient)
        self.r = jax.tree.map(lambda total: jnp.sqrt(total / len(places)), sums)
        self.mean = np.mean(np.concatenate([np.ravel(x) for x in jax.tree.leaves(self.r)]))
        self.epsilon = np.float32(EPSILON * self.mean)
        self._update = jax.jit(self._updated)

    def nats(self, text: bytes, rate: float = 0.0, decay: float = 0.0) -> np.ndarray:
        """Return the nats of each byte of a text but the first."""
        params, carry, found = self.trained, self.module.reading_carry(1), []
        for at in range(0, len(text) - 1, self.window):
            window = self._window(text, at)
            gradient, nats_BT, carry = self._gradient(params, carry, window)
            found.append(np.asarray(nats_BT)[window[2]])
            if rate:
                params = self._update(params, gradient, np.float32(rate), np.float32(decay))
        return np.concatenate(found)

    def bpc(self, text: bytes, rate: float = 0.0, decay: float = 0.0) -> float:
        """Return bits per character; infinite if the rate was so high that the loss diverged."""
        bits = float(self.nats(text, rate, decay).mean(dtype=np.float64)) / math.log(2)
        return bits if math.isfinite(bits) else math.inf


def main(arguments: list[str] | None = None) -> None:
    """Score a text with the trained parameters, and with parameters that learn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run")
    parser.add_argument("text", type=Path)
    parser.add_argument("--train", type=Path, help="text whose gradients scale the steps")
    parser.add_argument("--valid", type=Path, help="text that rate and decay are chosen on")
    parser.add_argument("--rate", type=float)
    parser.add_argument("--decay", type=float, default=0.0)
    given = parser.parse_args(arguments)
    if (given.rate is None) == (given.valid is None):
        parser.error("give either --rate or --valid")
    if given.valid and given.decay:
        parser.error("--decay goes with --rate; with --valid both are chosen")
    evaluation = DynamicEvaluation(mlstm_jax.load(given.run))
    if given.train:
        evaluation.measure_scales(given.train.read_bytes())
    setting = given.rate, given.decay
    if given.valid:
        valid, scores = given.valid.read_bytes(), {}
        for rate, decay in [(0.0, 0.0), *itertools.product(RATES[bool(given.train)], DECAYS)]:
            scores[rate, decay] = evaluation.bpc(valid, rate, decay)
            print(f"rate {rate:g}, decay {decay:g}: validation bpc {scores[rate, decay]:.4f}")
        setting = min(scores, key=lambda one: scores[one])
    text = given.text.read_bytes()
    print(f"bpc {evaluation.bpc(text):.4f} with the trained parameters")
    print(
        f"bpc {evaluation.bpc(text, *setting):.4f} with rate {setting[0]:g}, decay {setting[1]:g}"
    )


if __name__ == "__main__":
    main()
