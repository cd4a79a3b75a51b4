"""What several files of tests of training share."""

from pathlib import Path

import pytest

from mlstm_jax.training import train
from tests.training import runs


@pytest.fixture(scope="package")
def straight(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints at 10, 20, 30 and 40, its end, that nothing happens to."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    return train.train(runs.config_of(corpus, folder, 40))


@pytest.fixture
def stopped(straight: Path, tmp_path: Path) -> Path:
    """The same run, killed after its checkpoint of step 30."""
    return runs.copy_until(straight, 30, tmp_path / "run")
