"""What several files of tests of training share."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlstm_jax import checkpoint
from tests.training.runs import finish, make_config, start


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
    """A run in a process of its own, with one CPU device, never disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "NPROC"))}
    finish(start(make_config(corpus, folder / "run"), folder, environment))
    return folder / "run"
