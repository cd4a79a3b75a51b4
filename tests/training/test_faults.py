"""What can go wrong in one process: damaged checkpoints, full disks, divergence, other rows."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mlstm_jax import cli, digest, options, run, weights
from mlstm_jax.arrays import fingerprint
from mlstm_jax.checkpoint import CheckpointFailed
from mlstm_jax.config import Config, Model, Optimizer, Precision, Train, vary
from mlstm_jax.errors import Note, UserError
from mlstm_jax.record import read_record, steps_in
from mlstm_jax.training import metrics, run_folder
from mlstm_jax.training.report import Diverged
from mlstm_jax.training.resume import require_new
from mlstm_jax.training.train import Session
from mlstm_jax.training.train import train as run_train
from mlstm_jax.weights import ModelWeights
from tests.limits import limited
from tests.marks import FAILED_READS
from tests.tables import column
from tests.tolerance import assert_close
from tests.training import runs
from tests.training.runs import assert_same_run, config_of, lines_of, train_line, write_lines

pytestmark = FAILED_READS


def cut_short(folder: Path, *steps: int) -> None:
    """Cut the largest file of checkpoints in half, as a crash of a file system may."""
    for step in steps:
        sizes = {}
        for path in (folder / f"checkpoints/{step}").rglob("*"):
            if path.is_file():
                sizes[path.stat().st_size] = path
        largest = sizes[max(sizes)]
        os.truncate(largest, largest.stat().st_size // 2)


def lose(folder: Path, name: str) -> None:
    shutil.move(folder / name, folder.parent / "lost")


FORMER = {"model.units": "model.hidden", "data.width": "data.window"}


def write_former_names(folder: Path) -> None:
    """In the config, in what a checkpoint tells of its rows, and of the model's function."""
    for file in [folder / "config.json", *folder.glob("checkpoints/*/meta/metadata")]:
        text = file.read_text().replace('"hidden":', '"units":').replace('"window":', '"width":')
        digest.write_json(file, json.loads(text))


def lose_first_save(folder: Path) -> None:
    """As a kill before the first checkpoint is whole."""
    lose(folder, "checkpoints")
    log = folder / metrics.FILE
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))


def fill_disk(folder: Path) -> None:
    """No file can grow beyond 30 kB: the metrics fit, the parameters do not."""
    config = config_of(Path(run.read_config(folder).data.corpus), folder, 40)
    file = runs.write_config(config, folder.parent / "config.py")
    with limited(resource.RLIMIT_FSIZE, 30_000), pytest.raises(SystemExit, match="1"):
        cli.main(["train", str(file)])


def take_identity(folder: Path) -> None:
    """Of another run."""
    sibling = folder.parent / "sibling"
    run_folder.write_folder(Config(out=str(sibling)), "another")
    shutil.copy(sibling / run.ENVIRONMENT, folder)


@pytest.mark.parametrize(
    ("harm", "where", "told"),
    [
        (cut_short, [], "resuming at step 30 of 40"),
        (write_former_names, [], "resuming at step 30 of 40"),
        (cut_short, [30], r"step 30 cannot be read(?s:.*)resuming from step 20, the newest comp"),
        (lose_first_save, [], "training 40 steps"),
        (fill_disk, [], "could not be written to .*from the checkpoint of step 30"),
    ],
)
def test_exact_resumes(harm, where, told, corpus, straight, stopped, monkeypatch, capfd) -> None:
    """It ends as the run that nothing happened to; what is damaged is kept."""
    harm(stopped, *where)
    for old, new in FORMER.items():
        monkeypatch.setitem(options.RENAMED, old, new)
    run_train(config_of(corpus, stopped, 40))
    said = capfd.readouterr().err
    assert re.search(told, said)
    assert "Traceback" not in said
    assert steps_in(stopped) == [10, 20, 30, 40]
    assert_same_run(stopped, straight)
    assert [*stopped.glob("set-aside/*")] == [stopped / "set-aside/30"] * len(where)


@pytest.mark.parametrize(
    ("harm", "where", "changes", "message"),
    [
        (cut_short, [], {"model__hidden": 50}, r"another model\.hidden: 48 → 50"),
        (cut_short, [], {"precision__compute": "bf16"}, r"another precision\.compute: fp32 → bf16"),
        (cut_short, [], {"precision__recurrent": "fp8_emulated"}, r"\.recurrent: compute → fp8_"),
        (cut_short, [], {"data__batch": 4}, r"data.batch: 8 → 4.*`reset_carry`"),
        (cut_short, [], None, "trained on another corpus"),
        (cut_short, [10, 20, 30], {}, r"step 30 cannot be read .* step 20 .* step 10 "),
        (lose, ["checkpoints"], {}, r"checkpoints of .* are missing, .* 40 steps\. Restore"),
        (lose, [run.ENVIRONMENT], {}, r"environment\.json"),
        (take_identity, [], {}, r"checkpoints/30 .*"),
    ],
)
def test_refused_resumes(harm, where, changes, message, corpus, rated_corpus, stopped) -> None:
    """Nothing is begun or deleted."""
    harm(stopped, *where)
    before = (steps_in(stopped), (stopped / metrics.FILE).read_bytes(), run.read_config(stopped))
    config = config_of(rated_corpus if changes is None else corpus, stopped, 50)
    with pytest.raises(UserError, match=message):
        run_train(vary(config, **changes or {}))
    after = (steps_in(stopped), (stopped / metrics.FILE).read_bytes(), run.read_config(stopped))
    assert after == before


def test_lost_identity(stopped) -> None:
    lose(stopped, run.ENVIRONMENT)
    with pytest.warns(Note, match=r"environment\.json"):
        run.load_run(stopped)


def test_damaged_metrics(corpus, stopped, capfd) -> None:
    path = stopped / metrics.FILE
    path.write_bytes(path.read_bytes().replace(b'"bpc": 7', b'"bpc": 6', 1))
    with pytest.raises(UserError, match=r"metrics\.jsonl.*checkpoint of step 30"):
        metrics.read_metrics(path)
    run_train(config_of(corpus, stopped, 40))
    assert "goes on with new metrics" in capfd.readouterr().err
    assert (stopped / "set-aside" / metrics.FILE).exists()
    assert column(lines_of(stopped)["train"], "step") == [35, 40]


def test_odd_names_of_runs(corpus, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "thesis [2024]*?\\ é" / os.fsdecode(b"a\xff") / "run"
    folder.parent.mkdir(parents=True)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    def clean(_: object) -> None:
        """As a machine does with what is old."""
        for path in temporary.iterdir():
            shutil.rmtree(path)

    run_train(config_of(corpus, folder, 10), Session(callbacks=(clean,)))
    run_train(config_of(corpus, folder, 20))
    assert run.load_run(folder).step == 20
    assert steps_in(folder) == [10, 20]


def test_unreadable_first_checkpoint(corpus, tmp_path, monkeypatch) -> None:
    """With the path as it is Orbax writes this one, but cannot read it."""
    monkeypatch.setattr("mlstm_jax.output.plain_path", nullcontext)
    with pytest.raises(CheckpointFailed, match=r"of step 10, .*read back"):
        run_train(config_of(corpus, tmp_path / "[1]", 40))


@pytest.mark.parametrize(
    ("every", "events", "lost"),
    [
        # Nothing is reported after the first save before that checkpoint is whole.
        (40, [], False),
        (39, [], True),
        (1000, ["finished"], True),
        (1000, ["resumed"], True),
        (1000, ["resumed", "diverged"], False),
    ],
)
def test_metrics_without_checkpoints(every, events, lost, tmp_path) -> None:
    train = Train(eval_every=1000, checkpoint_every=every)
    config = Config(out=str(tmp_path), train=train)
    write_lines(tmp_path, train_line(40))
    for event in events:
        write_lines(tmp_path, {"kind": "event", "step": 40, "event": event})
    with pytest.raises(UserError, match="checkpoints") if lost else nullcontext():
        assert require_new(tmp_path, config) == (0 if "diverged" in events else 40)


def stop_at(step: int) -> Callable[[dict[str, Any]], None]:
    """A callback that raises at a step."""

    def stop(line: dict[str, Any]) -> None:
        if line["step"] >= step:
            raise RuntimeError("killed")

    return stop


def test_divergence_at_once(corpus, tmp_path) -> None:
    """Every checkpoint is from after the divergence, so none is left; a short run ends so, too."""
    wild = Optimizer(learning_rate=3.0, decay_steps=10**6)  # the loss stays above 50 bits
    for steps, patience in ((3, 100), (40, 4)):
        config = config_of(corpus, tmp_path, steps, optimizer=wild, train__checkpoint_every=3)
        with pytest.raises(Diverged, match=r"no checkpoint.*starts over\. Lower"):
            run_train(vary(config, train__divergence_steps=patience))
        assert lines_of(tmp_path)["event"][-1]["event"] == "diverged"
        assert steps_in(tmp_path) == []
    run_train(config_of(corpus, tmp_path, 20, train__checkpoint_every=8))
    assert steps_in(tmp_path) == [8, 16, 20]
    assert lines_of(tmp_path)["eval"][-1]["bpc"] < 8


def test_start_without_a_checkpoint(corpus, stopped, tmp_path) -> None:
    """The command that resumes may leave `start_from` out, also before the first checkpoint."""
    start = {"train__start_from": str(stopped), "train__start_optimizer": True}
    config = config_of(corpus, tmp_path / "child", 6, **start)
    with pytest.raises(RuntimeError, match="killed"):
        run_train(vary(config, train__log_every=1), Session(callbacks=[stop_at(2)]))
    run_train(config_of(corpus, tmp_path / "child", 6))
    run_train(vary(config, out=str(tmp_path / "straight")))
    made = [run.load_run(tmp_path / name) for name in ("child", "straight")]
    assert made[0].config.train == made[1].config.train
    assert made[0].fingerprint == made[1].fingerprint


def test_count_of_high_losses(corpus: Path, tmp_path: Path) -> None:
    high = {"train__divergence_bpc": 0.01, "train__divergence_steps": 9}  # always too high
    config = config_of(corpus, tmp_path / "run", 80, train__checkpoint_every=3, **high)
    with pytest.raises(RuntimeError, match="killed"):
        run_train(config, Session(callbacks=[stop_at(5)]))
    with pytest.raises(Diverged) as resumed:
        run_train(config)
    assert resumed.value.step == 9


def test_other_initial_parameters(corpus, stopped, tmp_path):
    """Those at the same path may have been trained further."""
    first = run.as_weights(run.load_run(stopped))
    later = first._replace(params=jax.tree.map(lambda x: x + 1, first.params))

    def train(folder: Path, steps: int, name: str | None, model: ModelWeights) -> None:
        start_from = name and str(tmp_path / f"{name}.safetensors")
        if start_from:
            weights.save(Path(start_from), model)
        run_train(config_of(corpus, folder, steps, train__start_from=start_from))

    before = (stopped / "config.json").read_text()
    with pytest.raises(UserError, match=r"other parameters .* Leave `train\.start_from` out"):
        train(stopped, 40, "other", first)
    assert (stopped / "config.json").read_text() == before

    folder = tmp_path / "second"
    train(folder, 2, "other", first)
    with pytest.raises(UserError, match=r"other parameters .* Leave `train\.start_from` out"):
        train(folder, 6, "another", later)
    (tmp_path / "other.safetensors").unlink()  # nor need it be there any longer
    run_train(config_of(corpus, folder, 4, train__start_from=str(tmp_path / "other.safetensors")))
    train(folder, 6, None, later)
    assert read_record(folder, 6).meta.start == fingerprint(first.params)


def test_divergence(corpus, tmp_path, capfd) -> None:
    """The seventh update, of a session with a high rate; five losses tell, from the eighth on."""
    chosen = Optimizer(learning_rate=5e-3, schedule="constant", clip_norm=None)
    config = config_of(corpus, tmp_path, 49, optimizer=chosen)
    run_train(vary(config, train__steps=6))
    with pytest.raises(Diverged, match=r"train\.divergence_bpc.* step 6\b") as stopped:
        run_train(vary(config, optimizer__learning_rate=1e4))
    assert (stopped.value.step, stopped.value.last_good_step) == (12, 6)
    last = lines_of(tmp_path)["event"][-1]
    assert last["event"] == "diverged"
    assert last["reason"] in stopped.value.reason
    assert steps_in(tmp_path) == [6]
    run_train(vary(config, train__steps=10))
    assert "resuming at step 6 of 10" in capfd.readouterr().err


@pytest.mark.fp16
def test_overflow(corpus, tmp_path) -> None:
    precision = Precision(compute="fp16", max_consecutive_skips=6)
    model = Model(hidden=16, embedding=8, embedding_std=1e6)
    config = config_of(corpus, tmp_path, 80, model=model, precision=precision)
    config = vary(config, train__divergence_steps=100)
    with pytest.raises(Diverged, match="the last 6 updates were skipped") as stopped:
        run_train(config)
    (last,) = lines_of(tmp_path)["event"]
    assert (last["event"], last["step"], stopped.value.exit_code) == ("diverged", 6, 1)


def test_other_rows(corpus, stopped, tmp_path, capfd):
    shutil.copytree(stopped, tmp_path / "straight")
    before = [line for line in runs.lines_without_time(stopped) if line["step"] <= 30]
    config = config_of(corpus, stopped, 40, data__batch=4)
    run_train(config, Session(reset_carry=True))
    assert "is reset at step 30, for other rows (data.batch: 8 → 4)" in capfd.readouterr().err
    # Given again, it changes nothing: these rows are the run's own now.
    longer = vary(config, train__steps=50)
    run_train(longer, Session(reset_carry=True))
    assert "reset" not in capfd.readouterr().err
    run_train(vary(longer, out=str(tmp_path / "straight")), Session(reset_carry=True))
    lines = runs.lines_without_time(stopped)
    assert lines[: len(before)] == before
    assert lines[-1]["step"] == 50
    # The last window of each of four shards is not full.
    assert 0 <= 30 * 8 * 16 + 20 * 4 * 16 - lines[-1]["bytes_seen"] < 4 * 16
    # Half the rows read half as much of the text in as many steps.
    epochs = column(lines_of(stopped)["train"], "epoch")
    expected = np.array([1, 2, 3, 4, 5, 6, 6.5, 7, 7.5, 8]) * epochs[0]
    np.testing.assert_allclose(epochs, expected, rtol=0.02)
    assert_same_run(stopped, tmp_path / "straight", batch=4)


@pytest.mark.parametrize("count", [1, 4])
def test_moved_run(count, corpus, straight, stopped, tmp_path, capfd) -> None:
    """Copied with its corpus, on any number of devices it ends as if it had stayed."""
    moved = shutil.copytree(stopped, tmp_path / "elsewhere/run")
    copied = shutil.copytree(corpus, tmp_path / "elsewhere/corpus")
    run_train(config_of(copied, moved, 40, devices__count=count))
    assert ("devices.count: 1 → " in capfd.readouterr().err) == (count > 1)
    ends = [column(lines_of(folder)["train"], "bpc") for folder in (moved, straight)]
    # 40 steps of 8 rows of 16 bytes, and the products of 48 units and 16 inputs, there and back.
    assert_close(*ends, terms=40 * (8 * 16 + 2 * (2 * 48 + 16)))
    if count == 1:
        assert_same_run(moved, straight)


WATCHED = """
import time
from mlstm_jax.guard import Watchdog

def stuck():
    time.sleep(600)

watchdog = Watchdog(2.0)
watchdog.beat()
time.sleep(2.5)  # It begins with its context.
with watchdog:
    for _ in range(5):
        time.sleep(0.5)
        watchdog.beat()
time.sleep(2.5)
print("alive", flush=True)
with watchdog:
    stuck()
"""


@pytest.mark.parametrize("stream", [subprocess.PIPE, None])
def test_watchdog(stream) -> None:
    """Also if standard error is closed."""
    closed = [] if stream else ["sh", "-c", 'exec "$@" 2>&-', "sh"]
    command = [*closed, sys.executable, "-c", WATCHED]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stream, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "alive\n")
    if stream:
        assert re.search(r"Timeout \(0:00:02\)!\n.*line 6 in stuck", done.stderr, re.DOTALL)
