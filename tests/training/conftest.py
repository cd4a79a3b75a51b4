"""What several files of tests of training share."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mlstm_jax.config import Config, Train, vary
from mlstm_jax.training import evaluation, train
from tests.training import runs

# No step reads these fields, only the rates that follow from the length of a run.
AROUND = ("steps", "epochs", "eval_every", "checkpoint_every", "keep_checkpoints", "start_from")
AROUND += ("divergence_bpc", "divergence_steps")
SAME = {f"train__{name}": getattr(Train(steps=1, epochs=None), name) for name in AROUND}


@pytest.fixture(scope="package", autouse=True)
def traced_once() -> Iterator[None]:
    """Sessions with equal steps share one, since tracing is most of a short session's time."""
    make_step = train.make_train_step
    made: dict[Any, Any] = {}

    def shared_step(config: Config, model: Any, tx: Any, rate: Callable, axis_name: str) -> Any:
        rates = np.asarray(rate(np.arange(1000))).tobytes()
        key = (vary(config, out="", phases=(), **SAME), model, rates, axis_name)
        if key not in made:
            made[key] = make_step(config, model, tx, rate, axis_name)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "make_train_step", shared_step)
        make_evaluation_step = functools.cache(evaluation.make_evaluation_step)
        patch.setattr(evaluation, "make_evaluation_step", make_evaluation_step)
        patch.setattr(jax, "clear_caches", lambda: None)  # as a sweep does after each run
        yield


@pytest.fixture(scope="package")
def straight(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints at 10, 20, 30 and 40, its end, that nothing happens to."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    return train.train(runs.config_of(corpus, folder, 40))


@pytest.fixture
def stopped(straight: Path, tmp_path: Path) -> Path:
    """The same run, killed after its checkpoint of step 30."""
    return runs.copy_until(straight, 30, tmp_path / "run")
