"""A small trained model."""

from pathlib import Path

import pytest

from mlstm_jax.config import Config, Data, Model, Optimizer, Train
from mlstm_jax.run import Run, load
from mlstm_jax.training import loop


@pytest.fixture(scope="session")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small model that has learned the made-up reviews; two layers."""
    config = Config(
        out=str(tmp_path_factory.mktemp("model") / "run"),
        model=Model(hidden=64, embedding=16, layers=2),
        data=Data(corpus=str(corpus), batch=16, window=32),
        optimizer=Optimizer(learning_rate=1e-2),
        train=Train(steps=300, epochs=None, eval_every=300, checkpoint_every=300),
    )
    return load(loop.train(config))
