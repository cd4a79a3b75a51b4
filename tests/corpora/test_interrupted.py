"""A prepare that is told to stop says so in one line, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mlstm_jax.commands.models  # noqa: F401  # before a test replaces run.load_run
from mlstm_jax import cli, output, run
from mlstm_jax.corpora import parts, records, writer
from mlstm_jax.guard import Interrupted, interruptible
from mlstm_jax.transfer import standalone

from .written import contents

REPOSITORY = Path(__file__).parents[2]
SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """As at a terminal: a shell's background job ignores SIGINT, and so does what it starts."""
    numbers = [*SIGNALS, signal.SIGHUP]
    before = [*map(signal.getsignal, numbers)]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_two_signals(number) -> None:
    done = []

    @interruptible()
    def work() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
            done.append(1)
            raise RuntimeError("Query interrupted") from None

    with pytest.raises(Interrupted, match=f"interrupted by {number.name}") as told:
        work()
    assert told.value.exit_code == 128 + number
    assert done == [1]


# A signal in code that C runs; and one that a callback swallows, as the garbage collector's of JAX.
IN_C = """
import ctypes, signal, sys
from mlstm_jax.guard import Interrupted, interruptible
from mlstm_jax.transfer import standalone
run = ctypes.pythonapi.PyRun_String
run.restype, found = ctypes.py_object, ctypes.py_object
run.argtypes = [ctypes.c_char_p, ctypes.c_int, found, found]
try:
    with interruptible():
        run(b'import signal; signal.raise_signal(signal.SIGTERM)', 257, {}, {})
except Interrupted as error:
    sys.exit(error.exit_code)
"""
SWALLOWED = """
import gc, signal, time
from mlstm_jax import cli
def work(words):
    gc.callbacks.append(lambda *_: signal.raise_signal(signal.SIGINT))
    gc.collect()
    gc.callbacks.clear()
    time.sleep(5)
cli.run = work
cli.main()
"""


@pytest.mark.parametrize(
    ("program", "number", "told"),
    [
        (IN_C, signal.SIGTERM, ""),
        (SWALLOWED, signal.SIGINT, "mlstm-jax generate: interrupted by SIGINT.\n"),
    ],
)
def test_exit_codes(program, number, told, tmp_path: Path) -> None:
    """By `python -m`, which looks at what was noted, as a file's `sys.exit` does not."""
    (tmp_path / "program.py").write_text(program)
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    done = subprocess.run(
        [sys.executable, "-m", "program", "generate"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (128 + number, "")
    assert told in done.stderr


@pytest.mark.parametrize("kept", [True, False])
def test_transfer_resumes(kept, tmp_path, monkeypatch, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "a.csv").write_text("text,label\ngood,1\nbad,0\n")

    def stop(*_: object) -> None:
        (tmp_path / "out/features").mkdir(parents=True)
        if kept:
            (tmp_path / "out/features/train.npz").write_bytes(b"")
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(run, "load_run", stop)
    files = ["--train", f"{tmp_path}/a.csv", "--test", f"{tmp_path}/a.csv"]
    with pytest.raises(SystemExit) as told:
        cli.main(["transfer", f"{tmp_path}/run", *files, "--out", f"{tmp_path}/out"])
    assert told.value.code == 128 + signal.SIGTERM
    said = capsys.readouterr().err
    assert "interrupted by SIGTERM" in said
    assert ("the same command resumes" in said) == kept
    assert ("the same command begins again" in said) != kept


def test_without_a_signal() -> None:
    before = [*map(signal.getsignal, SIGNALS)]

    @interruptible()
    def work() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert [*map(signal.getsignal, SIGNALS)] == before


PREPARE = "prepare a.txt --out new/out --max-reject-fraction 1 --overwrite"
CLASSIFY = "classify reviews-1024 reviews-1024/sentiment b.txt --out new/out.csv"


def stopping(function: Callable, number: signal.Signals) -> Callable:
    def stop(*arguments: object, **options: object) -> object:
        signal.raise_signal(number)
        return function(*arguments, **options)

    return stop


@pytest.mark.parametrize(
    ("words", "where", "name", "number"),
    [
        (PREPARE, writer, "clean", signal.SIGINT),
        (PREPARE, parts, "in_order", signal.SIGINT),
        (PREPARE, records, "_source_of", signal.SIGTERM),  # while the file of rejects is written
        (PREPARE, writer, "write_split", signal.SIGTERM),
        (PREPARE, output.shutil, "rmtree", signal.SIGINT),  # while it tidies up
        (PREPARE, os, "rename", signal.SIGTERM),
        (CLASSIFY, standalone.csv, "writer", signal.SIGHUP),
    ],
)
def test_one_line_and_nothing_changed(tmp_path, monkeypatch, capsys, words, where, name, number):
    lines = "".join(map("review {} é &amp;\n".format, range(40)))
    (tmp_path / "a.txt").write_bytes(lines.encode() + b"caf\xe9\n\xe9\n")
    (tmp_path / "b.txt").write_text("good\n")
    monkeypatch.chdir(tmp_path)
    cli.main(PREPARE.split())
    before = contents(tmp_path / "new")
    assert "out.rejects.jsonl" in before
    capsys.readouterr()
    monkeypatch.setattr(where, name, stopping(getattr(where, name), number))
    with pytest.raises(SystemExit) as stop:
        cli.main(words.split())
    assert stop.value.code == 128 + number
    left = "; no temporary files are left" * (words == PREPARE)
    told = f"mlstm-jax {words.split()[0]}: interrupted by {number.name}{left}.\n"
    assert capsys.readouterr().err == told
    assert contents(tmp_path / "new") == before
    assert sorted(os.listdir("new")) == ["out", "out.rejects.jsonl"]
