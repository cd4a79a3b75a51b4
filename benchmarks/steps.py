"""The training step of a config, with its state and a batch of random bytes, for the benchmarks."""

from typing import Any

import jax
import numpy as np

from mlstm_jax.config import Config
from mlstm_jax.data.stream import Batch
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.model.stack import Loops
from mlstm_jax.parallel import Parallel
from mlstm_jax.training import schedule
from mlstm_jax.training.state import fresh_state
from mlstm_jax.training.step import make_train_step


class TrainingStep:
    """A step on some devices; each call continues from its last state and carry, as in training."""

    def __init__(self, config: Config, devices: Parallel, loops: Loops | None = None) -> None:
        rows = config.data.batch
        window = config.data.window
        model = LanguageModel(
            config.model, config.precision.types, config.train.recompute_every, loops
        )
        rates = schedule.rates_of(config.optimizer, rows, 1_000_000)
        step = make_train_step(config, model)
        self._now = [
            devices.replicate(fresh_state(config, model)),
            devices.split_rows(model.init_carry(rows)),
        ]
        text = np.random.default_rng(0).integers(0, 256, (rows, window + 1), np.uint8)
        targets = text[:, :-1] if config.model.masked else text[:, 1:]
        ones = np.ones(rows, np.float32)
        counts = np.full(rows, window, np.int32)
        batch = Batch(text[:, :-1], targets, np.zeros(rows, bool), None, counts, ones, ones)
        self._given = (devices.split_rows(batch), *devices.replicate((np.float32(0), rates)))
        mapped = devices.map(step, donate=(0, 1))
        self.compiled = mapped.lower(*self._now, *self._given).compile()

    def take(self, steps: int = 1) -> None:
        """Take some steps, and wait for the last one."""
        metrics: Any = None
        for _ in range(steps):
            *self._now[:], metrics = self.compiled(*self._now, *self._given)
        jax.block_until_ready((self._now, metrics))

    @property
    def temporary_bytes(self) -> int:
        """Return the bytes that it needs in addition to its arguments."""
        return self.compiled.memory_analysis().temp_size_in_bytes
