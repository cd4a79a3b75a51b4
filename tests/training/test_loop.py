"""Whole runs: killed and resumed, interrupted, diverged, refused."""

import dataclasses
import gc
import json
import os
import pty
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlstm_jax import environment, run
from mlstm_jax.checkpoints.checkpoint import Checkpoints
from mlstm_jax.checkpoints.meta import steps_in
from mlstm_jax.config import Config, Data, Devices, Model, Optimizer, Precision, Train
from mlstm_jax.data.stream import TrainStream
from mlstm_jax.errors import UserError
from mlstm_jax.training import loop, metrics, phases, run_folder
from mlstm_jax.training.reporter import Diverged
from tests.training.runs import (
    assert_same_run,
    lines_without_time,
    make_config,
    short,
    start,
    wait_for_step,
)


def test_killed_twice_it_ends_as_if_never_killed(
    corpus: Path, undisturbed: Path, tmp_path: Path, command_environment: dict[str, str]
) -> None:
    config = make_config(corpus, tmp_path / "run")
    random = np.random.default_rng()
    kills = sorted(random.integers(1, 290, 2))
    print("kills after steps", kills)
    for step in kills:
        process = start(config, tmp_path, command_environment)
        wait_for_step(process, tmp_path / "run", int(step))
        time.sleep(random.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL
    process = start(config, tmp_path, command_environment)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output.decode()
    assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 0),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
def test_a_signal_stops_it_with_a_checkpoint_and_it_goes_on(
    number: signal.Signals,
    code: int,
    corpus: Path,
    undisturbed: Path,
    tmp_path: Path,
    command_environment: dict[str, str],
) -> None:
    config = make_config(corpus, tmp_path / "run")
    process = start(config, tmp_path, command_environment)
    wait_for_step(process, tmp_path / "run", 63)
    process.send_signal(number)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == code, output.decode()
    assert f"{number.name}: stopping with a checkpoint after this step" in output.decode()
    assert f"{number.name}: stopped at step" in output.decode()
    events = [
        line
        for line in metrics.read_metrics(tmp_path / "run/metrics.jsonl")
        if line["kind"] == "event"
    ]
    assert events[-1]["event"] == "interrupted"
    checkpoints = Checkpoints(tmp_path / "run", read_only=True)
    assert checkpoints.latest() == events[-1]["step"]
    checkpoints.close()

    process = start(config, tmp_path, command_environment)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output.decode()
    assert_same_run(tmp_path / "run", undisturbed)


def test_the_run_folder_holds_what_it_says(undisturbed: Path) -> None:
    lines = metrics.read_metrics(undisturbed / "metrics.jsonl")
    train = [line for line in lines if line["kind"] == "train"]
    evals = [line for line in lines if line["kind"] == "eval"]
    assert [line["step"] for line in train] == list(range(5, 301, 5))
    assert [line["step"] for line in evals] == [60, 120, 180, 240, 300]
    assert set(train[0]) == {
        *("kind", "step", "epoch", "bytes_seen", "loss", "bpc", "learning_rate", "grad_norm"),
        *("loss_scale", "skipped", "bytes_per_second", "data_wait_fraction", "seconds"),
        *("noise_scale", "gradient_signal", "gradient_trace"),
    }
    # A little less than 8 rows of 16 bytes a step: some are padding at the end of a shard.
    assert 0.99 * 300 * 8 * 16 < train[-1]["bytes_seen"] < 300 * 8 * 16
    assert train[-1]["bpc"] == pytest.approx(train[-1]["loss"] / np.log(2))
    assert evals[-1]["bpc"] < evals[0]["bpc"] < 8
    environment = json.loads((undisturbed / "environment.json").read_text())
    assert environment["platform"] == "cpu"
    assert environment["versions"]["jax"] == jax.__version__
    assert run.read_config(undisturbed) is not None
    assert list((undisturbed / "tensorboard").glob("events.*"))


def test_the_newest_checkpoints_and_the_best_are_kept(corpus: Path, tmp_path: Path) -> None:
    # A rate so high that the last evaluation is seldom the best.
    config = make_config(
        corpus,
        tmp_path / "run",
        optimizer=Optimizer(learning_rate=3.0, decay_steps=10**6),
        precision=Precision(max_consecutive_skips=1),
        train=short(
            steps=25,
            eval_every=10,
            checkpoint_every=5,
            keep_checkpoints=2,
            divergence_bpc=1000.0,
            divergence_steps=1,
        ),
    )
    loop.train(config)
    # What is best is known in another session, too.
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=50))
    loop.train(config)
    evals = {
        line["step"]: line["bpc"]
        for line in metrics.read_metrics(tmp_path / "run/metrics.jsonl")
        if line["kind"] == "eval"
    }
    best = min(evals, key=lambda step: evals[step])
    checkpoints = Checkpoints(tmp_path / "run", read_only=True)
    assert checkpoints.steps() == sorted({best, 45, 50})
    assert checkpoints.best() == best
    checkpoints.close()
    assert run.load_run(tmp_path / "run").step == best
    assert run.load_run(tmp_path / "run", "latest").step == 50
    with pytest.raises(UserError, match=r"checkpoint 7: .* has checkpoints at"):
        run.load_run(tmp_path / "run", "7")


@pytest.mark.parametrize(
    "precision",
    [
        Precision(),
        pytest.param(
            Precision(compute="bf16", cell="compute", all_reduce="compute"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["fp32", "bf16"],
)
def test_a_finished_run_is_left_alone_and_can_be_made_longer(
    precision: Precision, corpus: Path, tmp_path: Path
) -> None:
    twenty = short(steps=20, eval_every=10, checkpoint_every=10)
    config = make_config(corpus, tmp_path / "run", train=twenty, precision=precision)
    loop.train(config)
    before = lines_without_time(tmp_path / "run")
    loop.train(config)
    assert lines_without_time(tmp_path / "run") == before
    loop.train(
        dataclasses.replace(config, train=dataclasses.replace(twenty, steps=30)), resume=True
    )
    lines = lines_without_time(tmp_path / "run")
    assert lines[: len(before)] == before
    assert lines[-1]["step"] == 30


@pytest.mark.fp16
def test_a_run_that_overflows_for_ever_stops_and_says_so(corpus: Path, tmp_path: Path) -> None:
    config = make_config(
        corpus,
        tmp_path / "run",
        # An embedding this large overflows fp16 whatever the loss scale.
        model=Model(hidden=16, embedding=8, embedding_std=1e6),
        precision=Precision(compute="fp16", max_consecutive_skips=6),
    )
    with pytest.raises(Diverged, match="the last 6 updates were skipped"):
        loop.train(config)
    last = metrics.read_metrics(tmp_path / "run/metrics.jsonl")[-1]
    assert (last["kind"], last["event"], last["step"]) == ("event", "diverged", 6)
    assert Diverged.exit_code == 1


@pytest.fixture(scope="module")
def short_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    out = tmp_path_factory.mktemp("short") / "run"
    config = make_config(corpus, out, train=short(steps=4, checkpoint_every=2, eval_every=2))
    loop.train(config)
    return config


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("model", {"hidden": 50}, r"model\.hidden: 48 → 50"),
        ("data", {"batch": 4}, r"data\.batch: 8 → 4"),
        ("data", {"window": 8}, r"data\.window: 16 → 8"),
        ("precision", {"compute": "bf16"}, r"precision\.compute: fp32 → bf16"),
    ],
)
def test_a_resume_that_does_not_fit_is_refused(
    short_run: Config, section: str, changes: dict[str, Any], message: str
) -> None:
    changed = dataclasses.replace(getattr(short_run, section), **changes)
    before = (Path(short_run.out) / "config.json").read_text()
    with pytest.raises(UserError, match=f"cannot resume with another {message}"):
        loop.train(dataclasses.replace(short_run, **{section: changed}))
    assert (Path(short_run.out) / "config.json").read_text() == before


def test_a_resume_on_another_corpus_is_refused(
    short_run: Config, text_file: Path, tmp_path: Path
) -> None:
    from mlstm_jax.corpora.prepare import prepare

    prepare([str(text_file)], tmp_path / "other", split=(20, 1, 1), seed=5)
    data = dataclasses.replace(short_run.data, corpus=str(tmp_path / "other"))
    before = (Path(short_run.out) / "config.json").read_text()
    with pytest.raises(UserError, match="trained on another corpus"):
        loop.train(dataclasses.replace(short_run, data=data))
    assert (Path(short_run.out) / "config.json").read_text() == before


def test_resume_needs_a_run_and_a_run_needs_its_own_folder(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no run"):
        loop.train(make_config(corpus, tmp_path / "none"), resume=True)
    assert not (tmp_path / "none").exists()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/letter.txt").write_text("dear")
    with pytest.raises(UserError, match="exists and is not a run"):
        loop.train(make_config(corpus, tmp_path / "taken"))


def test_one_process_trains_in_a_folder(short_run: Config) -> None:
    with (
        run_folder.lock(short_run, resume=True),
        pytest.raises(UserError, match="another process is training in"),
    ):
        loop.train(short_run)
    loop.train(short_run)


def test_a_run_killed_before_its_config_was_written_can_start(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").touch()
    (tmp_path / "run/config.partial").write_text('{"out"')
    loop.train(make_config(corpus, tmp_path / "run", train=short(steps=2)))


def test_waiting_for_data_is_told(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes half a second a batch, where a step takes a few milliseconds."""
    plain = TrainStream.batch

    def slow(self: TrainStream, *arguments: Any) -> Any:
        time.sleep(0.5)
        return plain(self, *arguments)

    monkeypatch.setattr(TrainStream, "batch", slow)
    config = make_config(corpus, tmp_path / "run", train=short(steps=6, log_every=3))
    loop.train(config)
    lines = metrics.read_metrics(tmp_path / "run/metrics.jsonl")
    waits = [line["data_wait_fraction"] for line in lines if line["kind"] == "train"]
    assert all(0 <= wait <= 1 for wait in waits)
    assert waits[-1] > 0.1


def test_a_start_that_was_refused_leaves_no_run_behind(corpus: Path, tmp_path: Path) -> None:
    """What the message advises can be done in the same folder."""
    huge = make_config(corpus, tmp_path / "run", data=Data(corpus=str(corpus), batch=8192))
    with pytest.raises(UserError, match=r"lower data\.batch"):
        loop.train(huge)
    smaller = make_config(corpus, tmp_path / "run", train=short(steps=2))
    loop.train(smaller)
    config = run.read_config(tmp_path / "run")
    assert config is not None
    assert config.data.batch == 8


def test_a_device_holds_one_copy_of_the_state_and_a_save_may_move_it(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fresh run as in a resumed one. On GPUs Orbax copies through pinned memory."""
    held: list[int] = []
    whole = Checkpoints.save

    def save(self: Checkpoints, step: int, state: Any, *more: Any) -> None:
        jnp.add(jnp.ones(3), np.ones(3))  # an implicit transfer, which the loop forbids elsewhere
        new = {place: size for place, size in buffers().items() if place not in before}
        one = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        held.append(sum(new.values()) / one)
        whole(self, step, state, *more)

    def buffers() -> dict[int, int]:
        """The bytes of every buffer of one device."""
        gc.collect()
        device = jax.local_devices()[0]
        shards = (s.data for x in jax.live_arrays() for s in x.addressable_shards)
        return {x.unsafe_buffer_pointer(): x.nbytes for x in shards if device in x.devices()}

    before = buffers()
    monkeypatch.setattr(Checkpoints, "save", save)
    train = short(steps=4, checkpoint_every=2, eval_every=4)
    config = make_config(corpus, tmp_path / "run", train=train)
    loop.train(config)
    loop.train(dataclasses.replace(config, train=dataclasses.replace(train, steps=8)))
    assert len(held) == 4
    assert max(held) < 1.25, held  # the state once, carry and batches


def test_our_own_kernels_are_refused_where_there_is_no_gpu(corpus: Path, tmp_path: Path) -> None:
    config = make_config(corpus, tmp_path / "run", train=short(steps=2))
    config = dataclasses.replace(config, devices=Devices(kernels="pallas"))
    with pytest.raises(UserError, match=r"needs an NVIDIA GPU.*but JAX found none"):
        loop.train(config)


def test_kernels_that_repeat_are_asked_for_before_jax_starts(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = short(steps=2, deterministic=True)
    config = make_config(corpus, tmp_path / "run", train=train)
    with pytest.raises(UserError, match=r"JAX has started without it; set XLA_FLAGS to --xla_gpu"):
        loop.train(config)
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=")
    monkeypatch.delitem(sys.modules, "jax")
    environment.prepare(Devices(), deterministic=True)
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to= --xla_gpu_deterministic_ops=true"


@pytest.mark.slow
def test_a_run_of_kernels_that_repeat(
    corpus: Path, tmp_path: Path, command_environment: dict[str, str]
) -> None:
    train = short(steps=2, deterministic=True)
    config = make_config(corpus, tmp_path / "run", train=train)
    process = start(config, tmp_path, command_environment | {"XLA_FLAGS": "--xla_dump_to="})
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output.decode()
    flags = json.loads((tmp_path / "run/environment.json").read_text())["xla_flags"]
    assert flags == "--xla_dump_to= --xla_gpu_deterministic_ops=true"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"XLA_CLIENT_MEM_FRACTION": "0.92"}),
        ({"XLA_CLIENT_MEM_FRACTION": "0.5"}, {"XLA_CLIENT_MEM_FRACTION": "0.5"}),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}, {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}),
    ],
)
def test_a_run_takes_the_memory_that_a_plan_counts_with(
    given: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX refuses to start where both names are set."""
    names = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment.prepare(Devices())
    assert {name: os.environ[name] for name in names if name in os.environ} == expected


def test_length_of_a_run() -> None:
    assert phases.total_steps(Train(steps=100_000, epochs=3), 5000) == 15_000
    assert phases.total_steps(Train(steps=100, epochs=3), 5000) == 100
    assert phases.total_steps(Train(steps=100, epochs=None), 7) == 100
    assert phases.total_steps(Train(epochs=0.5), 7) == 4
    assert phases.total_steps(Train(steps=5, epochs=1e300), 10**9) == 5
    with pytest.raises(UserError, match=r"train\.epochs is 1e\+300, .* most 2,147,483,647 steps"):
        phases.total_steps(Train(epochs=1e300), 10**9)


def test_a_closed_terminal_stops_it_with_a_checkpoint(
    corpus: Path, tmp_path: Path, command_environment: dict[str, str]
) -> None:
    """The kernel sends SIGHUP, and whatever is printed from then on fails."""
    config = make_config(corpus, tmp_path / "run", train=short(steps=100_000, epochs=None))
    ours, theirs = pty.openpty()
    # Makes the terminal its own, as a login does; these tests may run under nohup.
    login = ("env", "--default-signal=HUP", "setsid", "--ctty")
    process = start(config, tmp_path, command_environment, login, terminal=theirs)
    os.close(theirs)
    deadline = time.monotonic() + 120
    while not metrics.read_metrics(tmp_path / "run/metrics.jsonl") and time.monotonic() < deadline:
        if select.select([ours], [], [], 0.01)[0]:
            os.read(ours, 65536)
    os.close(ours)
    assert process.wait(timeout=300) == 0
    last = metrics.read_metrics(tmp_path / "run/metrics.jsonl")[-1]
    assert (last["event"], last["signal"]) == ("interrupted", "SIGHUP")
    assert steps_in(tmp_path / "run")[-1] == last["step"]


def test_proteins_are_learned_one_by_one_and_their_stop_with_them(tmp_path: Path) -> None:
    from mlstm_jax.corpora.prepare import prepare

    letters = np.random.default_rng(0).choice(list("ACDE"), (4000, 8))
    text = "".join(f">{n}\n{''.join(protein)}\n" for n, protein in enumerate(letters))
    (tmp_path / "p.fasta").write_text(text)
    prepare(
        [str(tmp_path / "p.fasta")],
        tmp_path / "corpus",
        split=(20, 1, 1),
        clean="protein",
    )
    data = Data(corpus=str(tmp_path / "corpus"), batch=8, window=16)
    loop.train(make_config(tmp_path / "corpus", tmp_path / "run", data=data))
    lines = metrics.read_metrics(tmp_path / "run/metrics.jsonl")
    (last,) = [line for line in lines if line["kind"] == "eval" and line["step"] == 300]
    # Eight letters of two bits and a stop that is certain once nine bytes were counted; without
    # that it would cost 3.2 bits, one in nine, and a stop never seen costs 8 or more.
    assert 16 / 9 - 0.05 < last["bpc"] < 16 / 9 + 0.15
    assert [line["bytes_seen"] for line in lines if line["kind"] == "train"][-1] == 300 * 8 * 9
