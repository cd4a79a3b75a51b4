"""What is checked before a run, such as the folder's lock; and its log of metrics."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mlstm_jax as mlstm
from mlstm_jax import host, run
from mlstm_jax.checkpoint import Checkpoints
from mlstm_jax.config import BERT, LSTM, Config, Model, Transformer, differences, to_json, vary
from mlstm_jax.config.resolve import Hardware, resolve
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.distributed import Cluster
from mlstm_jax.errors import InUse, UserError
from mlstm_jax.record import FOLDER, read_record, steps_in
from mlstm_jax.training import metrics, run_folder, tally
from mlstm_jax.training.rows import open_rows
from mlstm_jax.training.train import Session
from mlstm_jax.training.train import train as run_train
from tests.corpora.written import jsonl
from tests.training.runs import config_of, copy_until, train_line, write_lines


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
        run_folder.lock(folder),
    ):
        assert folder.exists()
    assert folder.exists() == has_locks  # It may be the other process's.
    warning = f"the file system of {folder} has no locks .*make sure that no other run trains"
    assert bool(re.search(warning, capsys.readouterr().err)) != has_locks


def test_processes_that_begin_together(tmp_path: Path) -> None:
    """The ones without the lock leave the folder to the one that has it."""
    starts = threading.Barrier(4)

    def begin(_: int) -> bool:
        starts.wait()
        with contextlib.suppress(InUse), run_folder.lock(tmp_path / "run"):
            time.sleep(0.005)
            return (tmp_path / "run/.lock").exists()
        return True

    with ThreadPoolExecutor(4) as pool:
        for _ in range(50):
            assert all(pool.map(begin, range(4)))


def test_refused_start(tmp_path: Path) -> None:
    """What the message advises, such as a smaller model, can be done in the same folder."""
    for name in (".lock", "config.partial"):
        (tmp_path / name).touch()
    for hidden in (8192, 8, 16):
        config = vary(Config(out=str(tmp_path)), model__hidden=hidden)
        before = run_folder.config_of(tmp_path)
        assert run_folder.require_resumable(config, before, resume=False) == []
        with run_folder.lock(tmp_path):
            run_folder.write_folder(config, "id")
        # Orbax's name of a checkpoint that is not complete.
        (tmp_path / "checkpoints/50.orbax-checkpoint-tmp").mkdir(parents=True, exist_ok=True)


def test_a_run_before_the_lock(tmp_path: Path) -> None:
    """Between the reading of a config and the lock another process has begun a run, and ended."""
    config = Config(out=str(tmp_path))
    cluster = Cluster(config.distributed, tmp_path)
    before = run_folder.config_of(tmp_path)
    run_folder.write_folder(vary(config, train__seed=1), "id")
    write_lines(tmp_path, train_line(1))
    with pytest.raises(InUse, match=r"has trained in .* again"), ExitStack() as stack:
        run_folder.lock_together(stack, cluster, config, before, resume=False)


def test_positions_of_a_transformer(tmp_path: Path) -> None:
    plain = Config(out=str(tmp_path))
    config = vary(plain, model=Transformer(hidden=8, embedding=8, heads=2), data__window=16)
    assert resolve(vary(config, model__positions=20), Hardware()).model.longest_window == 20
    shorter = vary(config, data__window=8)
    before = resolve(config, Hardware())
    assert resolve(shorter, Hardware(), before).model.longest_window == 16
    longer = resolve(vary(config, data__window=32), Hardware(), before)
    assert longer.model.longest_window == 32
    assert differences(before, longer).forbidden == ["model.positions: 16 → 32"]
    for other in (plain, vary(shorter, model=BERT(hidden=8, heads=2))):
        assert resolve(other, Hardware(), before) == resolve(other, Hardware())
    assert run_folder.config_of(tmp_path) is None
    run_folder.write_folder(before, "id")
    assert run_folder.config_of(tmp_path) is None  # not yet a run that resumes
    write_lines(tmp_path, train_line(1))
    assert run_folder.config_of(tmp_path) == before
    changed = resolve(shorter, Hardware(), before)
    said = run_folder.require_resumable(changed, before, resume=False)
    assert said == ["data.window: 16 → 8"]


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
        ({"precision__recurrent": "fp8_emulated"}, (9, 0), "xla"),
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
    assert resolve(config, Hardware(fastest=host.fastest_compute(48))).precision.compute == "fp32"
    made = resolve(config, Hardware(fastest="bf16"))
    assert made.precision.compute == "bf16"
    assert resolve(config, Hardware(), made) == made


# What follows is a run that goes on where another ended.
START = {"train__start_from": "straight", "train__start_optimizer": True}
RISES_ONLY = {"optimizer__warmup_steps": 20, "optimizer__decay_steps": None}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model__hidden": 1_000_000}, "GB"),
        ({"data__batch": 10**9}, "GB"),
        ({"precision__recurrent": "fp8"}, "precision.recurrent"),
        ({"devices__kernels": "pallas"}, "devices.kernels"),
        ({"optimizer__b2": 1 - 1e-9}, "optimizer.b2"),
        ({"optimizer__b2_half_life": 1e11}, "β2 is 1 in float32"),
        ({"train__deterministic": True}, "train.deterministic"),
        ({"data__corpus": "valid"}, "the valid split"),
        (START | {"optimizer__name": "lars"}, "optimizer.name is 'lars'"),
        (START | {"train__epochs": 1e-4}, "train.epochs is 0.0001"),
        (START | {"model__hidden": 8}, "has the shape"),
        (START | {"model__layers": 2}, "layer_1/b"),
        (START | {"model": LSTM(hidden=48, embedding=16)}, "lacks layer_0"),
        (START | RISES_ONLY, "optimizer.warmup_steps"),
    ],
)
def test_refused_runs(changes, named, corpus, straight, text_file, tmp_path) -> None:
    """They leave no folder, of which `evaluate` would say that it has no checkpoint."""
    if "data__corpus" in changes:
        prepare([str(text_file)], tmp_path / "all", split=(1, 0, 0))
        changes = {"data__corpus": str(tmp_path / "all")}
    if "train__start_from" in changes:
        changes = changes | {"train__start_from": str(straight)}
    with pytest.raises(UserError, match=re.escape(named)):
        mlstm.train(config_of(corpus, tmp_path / "run", 20, **changes), show_progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [5, -1, 2.5])
def test_ratings_that_are_no_classes(wrong: float, tmp_path: Path) -> None:
    """Stars from 1 to 5, for example: class 5 of five would be learned as no class at all."""
    records = [{"text": f"review {n}", "rating": wrong if n % 9 == 0 else 1} for n in range(180)]
    made = tmp_path / "corpus"
    prepare([jsonl(tmp_path / "a.jsonl", records)], made, split=(1, 0, 0))
    config = config_of(made, Path("unused"), 2, model__classes=5)
    with pytest.raises(UserError, match=rf"the train split has the rating {wrong}; .* 0 to 4\."):
        open_rows(config, open_corpus(made))


def test_no_run(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no checkpoint .* without `resume`"):
        run_train(config_of(corpus, tmp_path / "none", 2), Session(resume=True))
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="exists and is not a run"):
        run_train(config_of(corpus, tmp_path, 2))
    assert [*tmp_path.iterdir()] == [tmp_path / "letter.txt"]


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


# --- metrics, with and without TensorBoard

ROOT = Path(__file__).parents[2]
LINE = {"epoch": 0.5, "bpc": 3.0, "learning_rate": 0.1, "bytes_per_second": 9.0, "seconds": 2.0}


def write_log(folder: Path) -> list[dict]:
    log = metrics.MetricsLog(folder, 0)
    log.write("train", 1, **LINE, noise_scale=float("nan"))
    log.close()
    return metrics.read_metrics(folder / "metrics.jsonl")


def test_json_and_tensorboard(tmp_path, capsys) -> None:
    pytest.importorskip("tensorboard")
    assert write_log(tmp_path) == [{"kind": "train", "step": 1, **LINE, "noise_scale": None}]
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"train/bpc" in events.read_bytes()
    assert not capsys.readouterr().err


def test_without_tensorboard(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    assert len(write_log(tmp_path)) == 1
    assert not (tmp_path / "tensorboard").exists()
    assert capsys.readouterr() == ("", "")


WRONG = [b"\xff", b"[" * 100_000, b"{", b"[]", b'{"kind": "x", "step": 1}', b'{"kind": "eval"}']


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_lines(wrong, tmp_path) -> None:
    """By its number, by whatever reads it: the log of a run that resumes is one."""
    write_log(tmp_path)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(wrong + b"\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 is not .*remove or correct it"):
        metrics.MetricsLog(tmp_path, 3)


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 1.5), ("last", 7.0)])
def test_new_metric(reduction, expected, monkeypatch) -> None:
    """A tally, its line and the line of progress follow; the last step of these had no loss."""
    new = tally.Metric("new", reduction, shown="new {:.1f}")
    monkeypatch.setitem(tally.METRICS, "new", new)
    kept = tally.empty_tally()
    for value in (1.0, 2.0, 7.0):
        values = tally.empty_tally() | {"new": jnp.float32(value), "updates": jnp.int32(1)}
        kept = tally.add_to_tally(kept, values, has_loss=jnp.bool_(value < 7))
    line = tally.line_of(kept, labels=False)
    assert line["new"] == expected
    assert tally.shown_of(line)[-1] == f"new {expected}"
    assert kept["new"].dtype == jnp.float32


def test_documented_metrics() -> None:
    page = (ROOT / "docs/run_folder.md").read_text(encoding="utf-8")
    for name in tally.METRICS:
        assert f"`{name}`" in page
