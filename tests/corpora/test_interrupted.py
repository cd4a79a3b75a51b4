"""A prepare that is told to stop says so in one line, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

import mlstm_jax
from mlstm_jax import cli
from mlstm_jax.guard import Interrupted, interruptible

from .written import contents

REPOSITORY = Path(__file__).parents[2]
PACKAGE = f"{Path(mlstm_jax.__file__).parent}{os.sep}"
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """As at a terminal: a shell's background job ignores SIGINT, and so does what it starts."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    yield
    sys.setprofile(None)
    for number, handler in before.items():
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


@dataclass
class Calls:
    """Counts the calls that files of the package make, and raises a signal at one of them."""

    files: tuple[str, ...]
    place: int = 0
    number: signal.Signals = signal.SIGTERM
    count: int = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename.removeprefix(PACKAGE)
        if "call" in event and name.startswith(self.files):
            self.count += 1
            if self.count == self.place:
                sys.setprofile(None)
                signal.raise_signal(self.number)


@pytest.mark.parametrize("kept", [True, False])
def test_transfer_resumes(kept, tmp_path, capsys) -> None:
    (tmp_path / "a.csv").write_text("text,label\ngood,1\nbad,0\n")
    if kept:
        (tmp_path / "out/features").mkdir(parents=True)
        (tmp_path / "out/features/train.npz").write_bytes(b"")
    files = ["--train", f"{tmp_path}/a.csv", "--test", f"{tmp_path}/a.csv"]
    sys.setprofile(Calls(("loaded.py",), 1))
    with pytest.raises(SystemExit) as told:
        cli.main(["transfer", "reviews-1024", *files, "--out", f"{tmp_path}/out"])
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("words", "files", "times"),
    [(PREPARE, ("corpora", "data", "output.py"), 8), (CLASSIFY, ("transfer/standalone.py",), 2)],
)
def test_one_line_and_nothing_changed(words, files, times, tmp_path, monkeypatch, capsys) -> None:
    """Wherever the signal comes: what is overwritten is there, as before or anew."""
    lines = "".join(map("review {} é &amp;\n".format, range(40)))
    (tmp_path / "a.txt").write_bytes(lines.encode() + b"caf\xe9\n\xe9\n")
    (tmp_path / "b.txt").write_text("good\n")
    monkeypatch.chdir(tmp_path)
    cli.main(PREPARE.split())
    before = contents(tmp_path / "new")
    assert "out.rejects.jsonl" in before
    calls = Calls(files)
    sys.setprofile(calls)
    cli.main(words.split())
    sys.setprofile(None)
    Path("new/out.csv").unlink(missing_ok=True)
    left = "; no temporary files are left" * (words == PREPARE)
    for time in range(1, times):
        number = SIGNALS[time % len(SIGNALS)]
        capsys.readouterr()
        sys.setprofile(Calls(files, time * calls.count // times, number))
        with pytest.raises(SystemExit) as stop:
            cli.main(words.split())
        assert stop.value.code == 128 + number
        told = f"mlstm-jax {words.split()[0]}: interrupted by {number.name}{left}.\n"
        assert capsys.readouterr().err == told
        assert contents(tmp_path / "new") == before
        assert sorted(os.listdir("new")) == ["out", "out.rejects.jsonl"]
