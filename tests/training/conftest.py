"""What several files of tests of training share."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlstm_jax import checkpoint
from mlstm_jax.config import Devices
from mlstm_jax.training.train import train
from tests.training.runs import make_config


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is damaged here stays so, however long one waits."""
    monkeypatch.setattr(checkpoint, "PAUSES", (0.01, 0.01))


@pytest.fixture(scope="module")
def collected() -> Iterator[None]:
    """Collect what failed restores leave, before it is charged to a test of another file.

    Orbax abandons the reads of a damaged checkpoint; when they are collected, each complains.
    """
    yield
    gc.collect()


@pytest.fixture(scope="session")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on one device that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return train(make_config(corpus, folder, devices=Devices(count=1)))
