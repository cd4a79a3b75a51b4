"""A prepare that is told to stop says so in one line, and leaves nothing behind."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mlstm_jax.commands.models
import mlstm_jax.commands.texts  # noqa: F401  # before a test replaces run.load_run
from mlstm_jax import cli, output, run
from mlstm_jax.corpora import duckdb_stage, records
from mlstm_jax.corpora import prepare as module
from mlstm_jax.guard import Interrupted, interruptible

REPOSITORY = Path(__file__).parents[2]
SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """As at a terminal: a shell's background job ignores SIGINT, and so does what it starts."""
    before = [signal.getsignal(number) for number in SIGNALS]
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_whatever_a_library_makes_of_it_the_signal_is_the_reason(number: signal.Signals) -> None:
    @interruptible(*SIGNALS)
    def work() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None

    with pytest.raises(Interrupted, match=f"interrupted by {number.name}") as told:
        work()
    assert told.value.exit_code == 128 + number


def test_the_exit_code_is_the_signals_when_it_comes_in_code_that_c_runs(tmp_path: Path) -> None:
    """Of `python -m`, which looks at what was noted; a file's `sys.exit` does not."""
    (tmp_path / "program.py").write_text(
        "import ctypes, signal, sys\n"
        "from mlstm_jax.guard import Interrupted, interruptible\n"
        "run = ctypes.pythonapi.PyRun_String\n"
        "run.restype, found = ctypes.py_object, ctypes.py_object\n"
        "run.argtypes = [ctypes.c_char_p, ctypes.c_int, found, found]\n"
        "try:\n"
        "    with interruptible(signal.SIGTERM):\n"
        "        run(b'import signal; signal.raise_signal(signal.SIGTERM)', 257, {}, {})\n"
        "except Interrupted as error:\n"
        "    sys.exit(error.exit_code)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    command = [sys.executable, "-m", "program"]
    made = subprocess.run(command, env=os.environ | {"PYTHONPATH": path})
    assert made.returncode == 128 + signal.SIGTERM


def test_a_second_signal_does_not_end_the_tidying_up() -> None:
    done = []

    @interruptible(*SIGNALS)
    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(Interrupted):
        work()
    assert done == [1]


def test_a_signal_that_a_callback_swallows_comes_again(tmp_path: Path) -> None:
    """As in the garbage collector's callback that JAX installs, where an exception is ignored."""
    (tmp_path / "program.py").write_text(
        "import gc, signal, time\n"
        "from mlstm_jax import cli\n"
        "def work(words, program):\n"
        "    gc.callbacks.append(lambda *_: signal.raise_signal(signal.SIGINT))\n"
        "    gc.collect()\n"
        "    gc.callbacks.clear()\n"
        "    time.sleep(5)\n"
        "cli.run = work\n"
        "cli.main()\n"
    )
    made = subprocess.run(
        [sys.executable, tmp_path / "program.py", "generate"],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert (made.returncode, made.stderr) == (130, "mlstm-jax generate: interrupted by SIGINT.\n")


@pytest.mark.parametrize("kept", [True, False])
def test_transfer_says_that_it_resumes_if_it_has_kept_features(kept, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.csv").write_text("text,label\ngood,1\nbad,0\n")

    def stop(*_: object) -> None:
        (tmp_path / "out/features").mkdir(parents=True)
        if kept:
            (tmp_path / "out/features/train.npz").write_bytes(b"")
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(run, "load_run", stop)
    files = ["--train", f"{tmp_path}/a.csv", "--test", f"{tmp_path}/a.csv"]
    with pytest.raises(SystemExit) as told:
        cli.main(["transfer", "run", *files, "--out", f"{tmp_path}/out"])
    assert told.value.code == 130
    said = capsys.readouterr().err
    assert "interrupted by SIGINT" in said
    assert ("the same command resumes" in said) == kept


def test_without_a_signal_errors_and_handlers_are_as_before() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]

    @interruptible(*SIGNALS)
    def work() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert [signal.getsignal(number) for number in SIGNALS] == before


def stopping(function: Callable, number: signal.Signals) -> Callable:
    def stop(*arguments: object, **options: object) -> object:
        signal.raise_signal(number)
        return function(*arguments, **options)

    return stop


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    ("where", "name"),
    [
        (duckdb_stage, "clean"),  # DuckDB makes an error of its own of it
        (duckdb_stage, "read_source"),
        (duckdb_stage, "kept"),
        (records, "_by_place"),  # while the file of rejects is written
        (module, "write_split"),
        (output.shutil, "rmtree"),  # while it tidies up
        (os, "rename"),
    ],
)
def test_one_line_and_nothing_left(tmp_path, monkeypatch, capsys, number, where, name):
    lines = [f"review {i} é &amp;\n".encode() for i in range(40)]
    (tmp_path / "a.txt").write_bytes(b"".join([*lines, b"caf\xe9\n", b"\xe9\n"]))
    out = tmp_path / "corpora" / "out"
    monkeypatch.setattr(where, name, stopping(getattr(where, name), number))
    words = ["prepare", f"{tmp_path}/a.txt", "--out", str(out), "--max-reject-fraction", "1"]
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 128 + number
    told = capsys.readouterr().err
    assert (
        told == f"mlstm-jax prepare: interrupted by {number.name}; no temporary files are left.\n"
    )
    assert not out.parent.exists() or not list(out.parent.iterdir())


def test_what_duckdb_calls_its_leaks_is_not_shown(tmp_path: Path) -> None:
    """They come when the interpreter is finalised: rarely by themselves, here always."""
    (tmp_path / "a.txt").write_text("review é &amp;\n")
    (tmp_path / "program.py").write_text(
        "import ctypes, signal\n"
        "from mlstm_jax import cli\n"
        "from mlstm_jax.corpora import duckdb_stage\n"
        "def read(stage):\n"
        "    ctypes.pythonapi.Py_IncRef(ctypes.py_object(stage._con))\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "duckdb_stage.Stage.read = read\n"
        "cli.main()\n"
    )
    command = [sys.executable, tmp_path / "program.py", "prepare", tmp_path / "a.txt"]
    made = subprocess.run(
        [*command, "--out", tmp_path / "out"],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    told = "mlstm-jax prepare: interrupted by SIGTERM; no temporary files are left.\n"
    assert (made.returncode, made.stdout, made.stderr) == (128 + signal.SIGTERM, "", told)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_sixteen_signals_at_random_moments(tmp_path: Path, command_environment: dict) -> None:
    generator = random.Random(1)
    words = [f"{generator.getrandbits(64):x}" for _ in range(5000)]
    texts = [" ".join(generator.choices(words, k=60)) + " é" * (i % 2) for i in range(20_000)]
    folder, out = tmp_path / "in", tmp_path / "corpora" / "out"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts[::2]))
    (folder / "b.txt").write_text("".join(f"{text}\n" for text in texts[1::2]), encoding="utf-8")
    command = [sys.executable, "-m", "mlstm_jax", "prepare", folder, "--out", out]

    def start() -> subprocess.Popen:
        return subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=command_environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    begun = time.monotonic()
    assert not start().communicate()[1]
    duration = time.monotonic() - begun
    stopped = 0
    for n in range(16):
        shutil.rmtree(out.parent)
        out.parent.mkdir()
        process, number = start(), SIGNALS[n % 2]
        while process.poll() is None and not list(out.parent.iterdir()):
            time.sleep(0.005)  # not before it works
        time.sleep(generator.uniform(0, 0.5) * duration)
        process.send_signal(number)
        told = process.communicate()[1]
        if out.exists():  # It was done before.
            assert {path.name for path in out.parent.iterdir()} == {"out"}
            continue
        stopped += 1
        assert (process.returncode, told.count("\n")) == (128 + number, 1), told
        assert not list(out.parent.iterdir())
    assert stopped > 4
