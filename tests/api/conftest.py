"""The small trained model of tests/transfer."""

import pytest

import mlstm_jax as mlstm
from mlstm_jax.run import Run
from tests.transfer.conftest import run

__all__ = ["model", "run"]


@pytest.fixture(scope="session")
def model(run: Run) -> mlstm.TrainedModel:
    return mlstm.load(run.folder)
