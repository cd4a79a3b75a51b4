"""What is checked before a run: the folder's lock, where the file system has none, and memory."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import pytest

import mlstm_jax as mlstm
from mlstm_jax import host, run
from mlstm_jax.checkpoint import Checkpoints
from mlstm_jax.config import BERT, Config, Model, Transformer, differences, to_json, vary
from mlstm_jax.config.resolve import Hardware, resolve
from mlstm_jax.errors import UserError
from mlstm_jax.record import FOLDER, read_record, steps_in
from mlstm_jax.training import run_folder
from mlstm_jax.training.train import Session
from mlstm_jax.training.train import train as run_train
from tests.training.runs import config_of, copy_until, make_config, train_line, write_lines


@pytest.mark.parametrize("error", ["ENOSYS", "EOPNOTSUPP", "EACCES", "EPERM", "EIO"])
def test_file_system_without_locks(error, tmp_path, monkeypatch, capsys) -> None:
    """But where one refuses a lock, another process may have it."""
    number = getattr(errno, error)

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = tmp_path / "run"
    has_locks = number not in (errno.ENOSYS, errno.EOPNOTSUPP)
    refused = pytest.raises(UserError, match=r"cannot be locked .* another process is training in")
    with (
        refused if has_locks else contextlib.nullcontext(),
        run_folder.lock(Config(out=str(folder)), resume=False),
    ):
        assert folder.exists()
    assert not folder.exists()
    warning = f"the file system of {folder} has no locks .*make sure that no other run trains"
    assert bool(re.search(warning, capsys.readouterr().err)) != has_locks


def test_refused_start(tmp_path: Path) -> None:
    """What the message advises, such as another batch, can be done in the same folder."""
    for name in (".lock", "config.partial"):
        (tmp_path / name).touch()
    for batch in (8192, 8, 16):
        config = vary(Config(out=str(tmp_path)), data__batch=batch)
        with run_folder.lock(config, resume=False):
            run_folder.write_folder(config)
        # Orbax's name of a checkpoint that is not complete.
        (tmp_path / "checkpoints/50.orbax-checkpoint-tmp").mkdir(parents=True, exist_ok=True)


def test_positions_of_a_transformer(tmp_path: Path) -> None:
    plain = Config(out=str(tmp_path))
    config = vary(plain, model=Transformer(hidden=8, embedding=8, heads=2), data__window=16)
    shorter = vary(config, data__window=8)
    before = resolve(config, Hardware())
    assert resolve(shorter, Hardware(), before).model.longest_window == 16
    longer = resolve(vary(config, data__window=32), Hardware(), before)
    assert longer.model.longest_window == 32
    assert differences(before, longer).forbidden == ["model.positions: 16 → 32"]
    for other in (plain, vary(shorter, model=BERT(hidden=8, heads=2))):
        assert resolve(other, Hardware(), before) == resolve(other, Hardware())
    assert run_folder.config_of(tmp_path) is None
    run_folder.write_folder(before)
    assert run_folder.config_of(tmp_path) is None  # not yet a run that resumes
    write_lines(tmp_path, train_line(1))
    assert run_folder.config_of(tmp_path) == before
    with run_folder.lock(resolve(shorter, Hardware(), before), resume=False) as changed:
        assert changed == ["data.window: 16 → 8"]


@pytest.mark.parametrize(
    ("fields", "capability", "kernels"),
    [
        ({"model__hidden": 4096}, (9, 0), "pallas"),
        ({"model__hidden": 4096}, (8, 0), "xla"),  # compiled, not measured
        ({"model__hidden": 4096}, None, "xla"),
        ({"model__hidden": 64}, (9, 0), "xla"),
        ({"model": Transformer()}, (9, 0), "xla"),
        ({"devices__kernels": "xla"}, (9, 0), "xla"),
        ({"precision__recurrent": "fp8"}, (8, 9), "pallas"),
        ({"precision__recurrent": "fp8_emulated"}, None, "xla"),
    ],
)
def test_chosen_kernels(fields, capability, kernels) -> None:
    config = vary(Config(), precision__compute="bf16", **fields)
    made = resolve(config, Hardware(capability=capability))
    assert made.devices.kernels == kernels
    assert resolve(config, Hardware(), made) == made


def test_chosen_compute_type() -> None:
    config = Config(model=Model(hidden=48))
    # So few units are hardly faster in bf16.
    assert resolve(config, Hardware(fastest=host.fastest_compute)).precision.compute == "fp32"
    made = resolve(config, Hardware(fastest=lambda units: "bf16"))
    assert made.precision.compute == "bf16"
    assert resolve(config, Hardware(), made) == made


@pytest.mark.parametrize(("hidden", "rows"), [(1_000_000, 8), (64, 10**9)])
def test_too_large_run(hidden, rows, corpus, tmp_path) -> None:
    config = make_config(corpus, tmp_path / "run", model=Model(hidden=hidden))
    config = vary(config, data__batch=rows)
    with pytest.raises(UserError, match=r"needs about [0-9.,]+ GB, but .* is [0-9.]+ GB"):
        run_train(config, Session(quiet=True))
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def bert(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model whose heads are no part of any shape."""
    model = BERT(hidden=8, embedding=8, layers=1, heads=2)
    folder = tmp_path_factory.mktemp("bert") / "run"
    return run_train(config_of(corpus, folder, 2, model=model))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("bert", {"model__heads": 4}, "model.heads is 4, not 2"),
        (
            "straight",
            {"precision__compute": "bf16", "precision__recurrent": "fp8_emulated"},
            "precision.compute is bf16, not fp32, precision.recurrent is fp8_emulated, not compute",
        ),
        ("straight", {"precision__cell": "compute"}, "precision.cell is compute, not fp32"),
        ("straight", {"model__hidden": 64}, "model.hidden is 64, not 48"),
    ],
)
def test_config_of_a_sibling(name, change, said, request, tmp_path) -> None:
    folder = shutil.copytree(request.getfixturevalue(name), tmp_path / "run")
    before = vary(run.read_config(folder), out=str(folder), train__steps=50)
    (folder / "config.json").write_text(to_json(vary(before, **change)))
    message = rf"config\.json does not belong to .*: {re.escape(said)}"
    with pytest.raises(UserError, match=message):
        run.load_run(folder)
    with pytest.raises(UserError, match=message):
        run_train(vary(before, **change))


def test_config_of_imported_weights(straight: Path, tmp_path: Path) -> None:
    folder = tmp_path / "imported"
    run.write_imported(folder, run.as_weights(run.load_run(straight)))
    config = run.read_config(folder)
    for load, change in (
        (run.load_run, {"model__embedding_std": 0.5}),
        (mlstm.load, {"model__embedding_std": 0.5}),  # NumPy would read it
        (run.load_run, {"precision__compute": "fp16"}),
    ):
        (folder / "config.json").write_text(to_json(vary(config, **change)))
        with pytest.raises(UserError, match="are from different models; import it again"):
            load(folder)


def test_kill_while_deleting(corpus, tmp_path, monkeypatch) -> None:
    """The first file of each deleted folder is gone when the process dies."""
    folder = tmp_path / "run"
    every = {"train__checkpoint_every": 5, "train__keep_checkpoints": 1, "train__eval_every": 30}
    config = config_of(corpus, folder, 30, **every, train__divergence_steps=1)
    config = vary(config, precision__max_consecutive_skips=1)
    remove = shutil.rmtree

    def die(path: Path, **options: bool) -> None:
        found = sorted(Path(path).rglob("meta"))
        if found:
            remove(found[0])
            raise SystemExit

    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(SystemExit):
        run_train(config)
    monkeypatch.undo()
    left = os.listdir(folder / FOLDER)
    assert "deleted" in left
    for step in steps_in(folder):
        read_record(folder, step)
    assert run.load_run(folder).step in steps_in(folder)
    run_train(config)
    assert run.load_run(folder).step == 30
    assert not (folder / FOLDER / "deleted").exists()


def test_checkpoint_that_vanishes(straight, tmp_path, monkeypatch) -> None:
    """A run that trains deletes the best checkpoint, for a better one."""
    folder = copy_until(straight, 40, tmp_path / "run")
    restore = Checkpoints.restore_params

    def vanish(self: Checkpoints, step: int, params: Any) -> Any:
        if step == 40:
            shutil.rmtree(folder / FOLDER / "40")
        return restore(self, step, params)

    monkeypatch.setattr(Checkpoints, "restore_params", vanish)
    assert run.load_run(folder).step == 20


def test_no_second_compilation(corpus, tmp_path, caplog) -> None:
    run_train(config_of(corpus, tmp_path / "one", 2))
    other = config_of(corpus, tmp_path / "two", 3, optimizer__learning_rate=1e-3)
    with jax.log_compiles():
        jax.jit(abs)(1)
        assert "Compiling" in caplog.text
        caplog.clear()
        run_train(vary(other, optimizer__warmup_steps=1))
    assert "Compiling" not in caplog.text
