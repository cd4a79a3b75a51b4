"""Keras as in keras_fit.py, with JAX and DataParallel over the devices of one process."""

import os
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
from shared import BATCH, DROPOUT, EPOCHS, LENGTH, SEED, Reads, examples, finish


class Noted(keras.Model):
    """Notes the examples of each update: `note` is called with their numbers, outside of JAX."""

    note: Any = None

    def make_train_function(self, force: bool = False) -> None:
        """Put the call before Keras' own function."""
        if self.train_function is not None and not force:
            return
        super().make_train_function(force)
        inner = self.train_function

        def train(state: Any, iterator: Any) -> Any:
            data = next(iterator)
            self.note(data[0][:, 0])
            return inner(state, iter([data]))

        self.train_function = train


class Steps(keras.callbacks.Callback):
    """Counts the updates, from the backup's on."""

    def __init__(self, reads: Reads) -> None:
        """Take the log."""
        super().__init__()
        self.reads = reads
        self.step = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Take the number of updates of the backup, which is restored before."""
        self.step = int(self.model.optimizer.iterations)

    def note(self, numbers: Any) -> None:
        """Add an update."""
        self.step += 1
        self.reads.note(self.step, numbers)


def run(folder: Path) -> None:
    """Train to the end, from the backup if there is one."""
    steps = Steps(Reads(folder))
    keras.utils.set_random_seed(SEED)
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    inputs = keras.Input((LENGTH + 1,), dtype="int32")
    x = keras.layers.Embedding(64, 32)(inputs[:, 1:-1])
    x = keras.layers.Dropout(DROPOUT)(x)
    x = keras.layers.GRU(32, return_sequences=True)(x)
    x = keras.layers.Dropout(DROPOUT)(x)
    model = Noted(inputs, keras.layers.Dense(64)(x))
    model.note = steps.note
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss)
    backup = keras.callbacks.BackupAndRestore(folder / "out")
    rows = examples()
    model.fit(rows, rows[:, 2:], BATCH, EPOCHS, verbose=0, callbacks=[backup, steps])
    finish(folder, {variable.path: variable.numpy() for variable in model.trainable_variables})
