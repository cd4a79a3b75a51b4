"""A small trained model, and what several files do with it."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from filelock import FileLock

import mlstm_jax as mlstm
from mlstm_jax.config import Config, Data, Model, Optimizer, Train
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.run import Run, load_run
from mlstm_jax.training import loop


def whole(pieces: Iterable[list[bytes]]) -> list[bytes]:
    """The texts whose pieces `generate` yields."""
    return [b"".join(sample) for sample in zip(*pieces, strict=True)]


@pytest.fixture(scope="session")
def run(text_file: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Run:
    """A small model that has learned the made-up reviews; two layers. All workers share it."""
    shared = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        shared = shared.parent
    folder = shared / "shared_model"
    with FileLock(shared / "shared_model.lock"):
        if not (folder / "done").exists():
            # A corpus of its own, whose place does not go with one worker.
            prepare([str(text_file)], folder / "corpus", split=(20, 1, 1))
            loop.train(
                Config(
                    out=str(folder / "run"),
                    model=Model(hidden=64, embedding=16, layers=2),
                    data=Data(corpus=str(folder / "corpus"), batch=16, window=32),
                    optimizer=Optimizer(learning_rate=1e-2),
                    train=Train(steps=300, epochs=None, eval_every=300, checkpoint_every=300),
                )
            )
            (folder / "done").touch()
    return load_run(folder / "run")


@pytest.fixture(scope="session")
def model(run: Run) -> mlstm.TrainedModel:
    return mlstm.load(run.folder)
