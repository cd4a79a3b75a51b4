"""What is checked before a run: the folder's lock, where the file system has none, and memory."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

import pytest

from mlstm_jax import host
from mlstm_jax.config import BERT, Config, Distributed, Model, Transformer, resolve_batch, vary
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import UserError
from mlstm_jax.training import run_folder
from mlstm_jax.training.train import train as run_train
from tests.training.runs import make_config, train_line, write_lines


@pytest.mark.parametrize(
    "number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM, errno.EIO]
)
def test_a_file_system_without_locks_is_warned_of_but_a_refused_lock_may_be_another_s(
    number, tmp_path, monkeypatch, capsys
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = tmp_path / "run"
    has_locks = number not in (errno.ENOSYS, errno.EOPNOTSUPP)
    message = r"cannot be locked .* Another process may be training"
    with (
        pytest.raises(UserError, match=message) if has_locks else contextlib.nullcontext(),
        run_folder.lock(Config(out=str(folder)), resume=False),
    ):
        assert (folder / "config.json").is_file()
    assert (folder / "config.json").exists() != has_locks
    said = capsys.readouterr().err
    assert (f"the file system of {folder} has no locks" in said) != has_locks
    assert ("make sure that no other run trains" in said) != has_locks


def test_a_run_that_hung_before_it_had_a_config_starts_over(tmp_path: Path) -> None:
    """As its watchdog says, which has written the stacks; see `Watchdog`."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "stacks-12.txt").write_text("Thread 0x00007f (most recent call first):\n")
    with run_folder.lock(Config(out=str(folder)), resume=False):
        assert (folder / "config.json").is_file()


def with_run_values(config: Config, capability: tuple[int, int] | None = None) -> Config:
    return run_folder.with_run_values(config, Cluster(Distributed(), Path()), capability)


def begin(config: Config) -> None:
    """Leave what a run leaves that has begun."""
    run_folder.write_folder(config)
    write_lines(Path(config.out), train_line(1))


def test_a_transformer_that_resumes_keeps_its_positions(tmp_path: Path) -> None:
    resumed = with_run_values
    plain = vary(Config(out=str(tmp_path)), precision__compute="fp32", devices__kernels="xla")
    config = vary(plain, model=Transformer(hidden=8, embedding=8, heads=2), data__window=16)
    shorter, longer = (vary(config, data__window=window) for window in (8, 32))
    run_folder.write_folder(resolve_batch(config, 1))
    assert resumed(shorter) == shorter  # not yet a run that resumes
    begin(resolve_batch(config, 1))
    assert resumed(shorter).model.longest_window == 16
    assert resumed(longer) == longer
    own = resolve_batch(resumed(shorter), 1)
    with run_folder.lock(own, resume=True, reset_carry=True) as changed:
        assert changed == ["data.window: 16 → 8"]
    for other in (plain, vary(shorter, model=BERT(hidden=8, heads=2))):
        assert resumed(other) == other


@pytest.mark.parametrize(
    ("fields", "capability", "kernels"),
    [
        ({}, (9, 0), "pallas"),
        ({}, (8, 0), "xla"),  # compiled, not measured
        ({}, None, "xla"),
        ({"model__hidden": 64}, (9, 0), "xla"),
        ({"model": Transformer()}, (9, 0), "xla"),
        ({"devices__kernels": "xla"}, (9, 0), "xla"),
        ({"precision__recurrent": "fp8"}, (8, 9), "pallas"),
        ({"precision__recurrent": "fp8_emulated"}, None, "xla"),
    ],
)
def test_the_kernels_of_a_run_are_the_proven_ones_and_stay(fields, capability, kernels, tmp_path):
    config = vary(Config(out=str(tmp_path)), precision__compute="bf16", **fields)
    made = with_run_values(config, capability)
    assert made.devices.kernels == kernels
    begin(made)
    assert with_run_values(config).devices.kernels == kernels


def test_a_run_keeps_the_compute_type_that_was_fastest_at_first(tmp_path, monkeypatch) -> None:
    config = Config(out=str(tmp_path), model=Model(hidden=48))
    assert with_run_values(config).precision.compute == "fp32"  # so few are hardly faster in bf16
    monkeypatch.setattr(host, "fastest_compute", lambda units: "bf16")
    begin(with_run_values(config))
    monkeypatch.undo()
    assert with_run_values(config).precision.compute == "bf16"


@pytest.mark.parametrize(
    ("hidden", "rows", "limit", "cause"),
    [
        (1_000_000, 8, None, r"model\.hidden 1,000,000"),
        (64, 8, 1e6, r"model\.hidden 64"),
        (64, 100_000, 1e9, r"data\.batch 100,000"),
    ],
)
def test_a_run_that_the_memory_cannot_hold_is_refused_before_its_folder_is_made(
    hidden, rows, limit, cause, corpus, tmp_path, monkeypatch
) -> None:
    if limit:
        monkeypatch.setattr(host, "memory_limits", lambda: {"it": limit, "other": 1e12})
    config = make_config(corpus, tmp_path / "run", model=Model(hidden=hidden))
    config = vary(config, data__batch=rows)
    with pytest.raises(UserError, match=rf"{cause}.* GB .* is [0-9.]+ GB"):
        run_train(config, quiet=True)
    assert not (tmp_path / "run").exists()
