"""Bits per character of texts, each read on its own from a zero state.

A text is cleaned as the corpus was. Every byte is scored except a text's first, which nothing
predicts. A short text therefore costs more per byte than the same bytes inside a corpus.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlstm_jax.config import Devices
from mlstm_jax.model.language_model import Carry, LanguageModel, Parameters
from mlstm_jax.run import Run
from mlstm_jax.training import parallel
from mlstm_jax.transfer.windows import batches, windows

_ROWS = 64  # on each device
_WINDOW = 128


class TextScore(NamedTuple):
    """Total loss of a model on texts."""

    nats: float
    bytes_scored: int

    @property
    def bits_per_character(self) -> float:
        """Mean bits per scored byte; NaN if nothing was scored."""
        return self.nats / np.log(2) / self.bytes_scored if self.bytes_scored else float("nan")


class Scorer:
    """Scores texts with one compiled step."""

    def __init__(self, run: Run) -> None:
        run.config.model.require_next_byte("scoring a text")
        self._run = run
        self._devices = parallel.local(Devices())
        self._rows = _ROWS * self._devices.count
        self._params = self._devices.replicate(run.params)
        self._step = self._devices.map(_make_step(run.model), donate=(1,))

    def __call__(
        self, texts: Sequence[str], on_text: Callable[[int], None] = lambda count: None
    ) -> TextScore:
        """Score texts of any number and length.

        Args:
            texts: before cleaning.
            on_text: called with the number of texts done, for a progress bar.
        """
        cleaned = self._run.cleaned(texts)
        nats, done = 0.0, 0
        for chosen in batches(cleaned, self._rows):
            nats += self._batch([cleaned[place] for place in chosen])
            done += len(chosen)
            on_text(done)
        return TextScore(nats, sum(max(len(text) - 1, 0) for text in cleaned))

    def _batch(self, texts: list[bytes]) -> float:
        devices, rows = self._devices, self._rows
        zero = self._run.model.reading_carry(rows)
        state = devices.split_rows((zero, np.zeros(rows, np.float32)))
        width = self._run.config.model.reading_window(_WINDOW)
        inputs = windows([text[:-1] for text in texts], rows, width)
        targets = windows([text[1:] for text in texts], rows, width)
        for read, told in zip(inputs, targets, strict=True):
            batch = devices.split_rows((read.bytes_BT, told.bytes_BT, read.left_B))
            state = self._step(self._params, state, batch)
        return float(np.asarray(devices.fetch_rows(state)[1], np.float64).sum())


def _make_step(model: LanguageModel) -> Callable[..., Any]:
    """Return the step of one device: it reads a window and adds each row's nats of its targets."""

    def step(
        params: Parameters,
        state: tuple[Carry, jax.Array],
        batch: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[Carry, jax.Array]:
        (before, nats_B), (bytes_BT, targets_BT, left_B) = state, batch
        mask_BT = jnp.arange(bytes_BT.shape[1])[None, :] < left_B[:, None]
        after, logits_BTV, *_ = model.apply({"params": params}, bytes_BT, before, ~mask_BT)
        log_BTV = jax.nn.log_softmax(logits_BTV)
        chosen = jnp.take_along_axis(log_BTV, targets_BT[..., None].astype(jnp.int32), axis=-1)
        return after, nats_B - jnp.sum(jnp.where(mask_BT, chosen[..., 0], 0.0), axis=1)

    return step
