"""Keras: Model.fit with BackupAndRestore, with PyTorch as its backend.

KERAS_SAVE_FREQ: `epoch`, its default, or a number of batches; these with `double_checkpoint`.
"""

import os
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
from shared import BATCH, DROPOUT, EPOCHS, LENGTH, SEED, Reads, examples, finish


class Bytes(keras.layers.Layer):
    """Passes on the bytes of an example, and notes its number."""

    def __init__(self, note: Any) -> None:
        """Take a function of the numbers of a batch."""
        super().__init__()
        self.note = note

    def call(self, example: Any, training: bool = False) -> Any:
        """Take examples, int [B, 17], and return all bytes but the last."""
        if training:
            self.note(example[:, 0])
        return example[:, 1:-1]


def run(folder: Path) -> None:
    """Train to the end, from the backup if there is one."""
    reads = Reads(folder)
    frequency = os.environ.get("KERAS_SAVE_FREQ", "epoch")
    keras.utils.set_random_seed(SEED)

    def note(numbers: Any) -> None:
        reads.note(int(model.optimizer.iterations) + 1, numbers)

    inputs = keras.Input((LENGTH + 1,), dtype="int64")
    x = keras.layers.Embedding(64, 32)(Bytes(note)(inputs))
    x = keras.layers.Dropout(DROPOUT)(x)
    x = keras.layers.GRU(32, return_sequences=True)(x)
    x = keras.layers.Dropout(DROPOUT)(x)
    model = keras.Model(inputs, keras.layers.Dense(64)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, jit_compile=False)
    backup = keras.callbacks.BackupAndRestore(
        folder / "out",
        frequency if frequency == "epoch" else int(frequency),
        double_checkpoint=frequency != "epoch",
    )
    rows = examples()
    model.fit(rows, rows[:, 2:], BATCH, EPOCHS, verbose=0, callbacks=[backup])
    finish(folder, {variable.path: variable.numpy() for variable in model.trainable_variables})
