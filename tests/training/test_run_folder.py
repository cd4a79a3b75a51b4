"""What is checked before a run: the folder's lock, where the file system has none, and memory."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from mlstm_jax import environment
from mlstm_jax.config import BERT, Config, Data, Model, Transformer, resolve_batch, vary
from mlstm_jax.errors import UserError
from mlstm_jax.training import loop, run_folder
from tests.training.runs import make_config


@pytest.fixture
def flock_fails(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    def flock(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.usefixtures("flock_fails")
@pytest.mark.parametrize(
    "flock_fails", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP], indirect=True
)
def test_a_file_system_without_locks_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_folder.lock(Config(out=str(tmp_path / "run")), resume=False):
        assert (tmp_path / "run/config.json").is_file()
    said = capsys.readouterr().err
    assert f"the file system of {tmp_path / 'run'} has no locks" in said
    assert "make sure that no other run trains" in said


@pytest.mark.usefixtures("flock_fails")
@pytest.mark.parametrize("flock_fails", [errno.EACCES, errno.EPERM, errno.EIO], indirect=True)
def test_a_lock_that_is_refused_may_be_held_by_another(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"cannot be locked .* Another process may be training"),
        run_folder.lock(Config(out=str(tmp_path / "run")), resume=False),
    ):
        pass
    assert not (tmp_path / "run/config.json").exists()


def test_a_transformer_that_resumes_keeps_its_positions(tmp_path: Path) -> None:
    model = Transformer(hidden=8, embedding=8, heads=2)
    config = Config(out=str(tmp_path), model=model, data=Data(window=16))
    run_folder.write_folder(resolve_batch(config, 1))
    shorter, longer = (vary(config, data__window=window) for window in (8, 32))
    assert run_folder.with_positions(shorter) == shorter  # not yet a run that resumes
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    assert run_folder.with_positions(shorter).model.longest_window == 16
    assert run_folder.with_positions(longer) == longer
    with run_folder.lock(
        resolve_batch(run_folder.with_positions(shorter), 1), resume=True, reset_carry=True
    ) as changed:
        assert changed == ["data.window: 16 → 8"]
    for other in (Config(out=str(tmp_path)), vary(shorter, model=BERT(hidden=8, heads=2))):
        assert run_folder.with_positions(other) == other


@pytest.mark.parametrize(
    ("hidden", "limit"),
    [(1_000_000, None), (64, 1e6)],
)
def test_a_run_that_the_memory_cannot_hold_is_refused_before_its_folder_is_made(
    hidden: int,
    limit: float | None,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if limit:
        monkeypatch.setattr(environment, "memory_limits", lambda: {"it": limit, "other": 1e12})
    config = make_config(corpus, tmp_path / "run", model=Model(hidden=hidden))
    with pytest.raises(UserError, match=rf"model\.hidden {hidden:,}.* GB .* is [0-9.]+ GB"):
        loop.train(config, quiet=True)
    assert not (tmp_path / "run").exists()
