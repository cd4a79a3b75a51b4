"""A run with fp8 operands: its history of maxima is part of its state, and of nothing else."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from mlstm_jax import run
from mlstm_jax.config import Config, Devices, Precision, vary
from mlstm_jax.errors import UserError
from mlstm_jax.record import FOLDER
from mlstm_jax.training.train import train as run_train
from tests.tolerance import assert_close
from tests.training.runs import (
    assert_same_run,
    copy_until,
    final_state,
    lines_of,
    make_config,
    short,
)
from tests.training.test_step import Trainer
from tests.training.test_step import make_config as step_config

pytestmark = pytest.mark.usefixtures("collected")


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    precision = Precision(compute="bf16", recurrent="fp8_emulated")
    train = short(steps=20, epochs=None, eval_every=10, checkpoint_every=10)
    folder = tmp_path_factory.mktemp("fp8") / "run"
    config = make_config(corpus, folder, precision=precision, train=train, devices=Devices(count=1))
    run_train(config)
    return config


def test_a_run_that_was_killed_ends_as_if_never_stopped(whole: Config, tmp_path: Path) -> None:
    folder = copy_until(Path(whole.out), 10, tmp_path / "run")
    run_train(vary(whole, out=str(folder)))
    assert_same_run(folder, Path(whole.out))
    state, _ = final_state(folder, 8)
    assert (state.maxima_U3 > 0).all()
    # Nothing that reads a run sees the history.
    assert "maxima" not in str(run.load_run(folder).params.keys())


def cut(folder: Path) -> None:
    """Halve the files of numbers."""
    for path in folder.rglob("d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_history_that_is_damaged_or_absent_is_named(whole, tmp_path) -> None:
    folder = copy_until(Path(whole.out), 20, tmp_path / "run")
    cut(folder / FOLDER / "20/maxima")
    run_train(vary(whole, out=str(folder)))
    (event,) = [one for one in lines_of(folder)["event"] if one["event"] == "resumed"]
    assert any("step 20 cannot be read (item maxima: " in note for note in event["notes"])
    for step in (10, 20):
        shutil.rmtree(folder / FOLDER / f"{step}/maxima")
    with pytest.raises(UserError, match=r"step 20 .*item maxima.* step 10 .*item maxima"):
        run_train(vary(whole, out=str(folder)))


def test_devices_and_micro_batches_share_the_maxima(corpus: Path) -> None:
    """A loss over half of the rows has gradients twice as large, and so half of the scale."""
    config = step_config(corpus, compute="bf16", recurrent="fp8_emulated")
    states = []
    for devices, micro_batches in ((1, 1), (2, 1), (1, 2)):
        trainer = Trainer(config, devices, micro_batches)
        trainer.run(0, 3)
        trainer.assert_replicas_are_equal()
        states.append(trainer.host_state)
    expected, *others = states
    for found in others:
        assert (np.asarray(found.maxima_U3[:3]) > 0).all()
        assert not np.asarray(found.maxima_U3[3:]).any()
        assert_close(found.maxima_U3, expected.maxima_U3, 3, "bfloat16")
        assert_close(found.params, expected.params, 3, "bfloat16")


def test_another_operand_type_is_refused(whole: Config) -> None:
    message = "precision.recurrent: fp8_emulated → compute"
    with pytest.raises(UserError, match=message):
        run_train(vary(whole, precision__recurrent="compute"))
    other = vary(whole, out=f"{whole.out}_other", precision__recurrent="compute")
    for field, value in (("precision__recurrent", "fp8"), ("devices__kernels", "pallas")):
        with pytest.raises(UserError, match=rf"{value}', .* JAX found none"):
            run_train(vary(other, **{field: value}))
