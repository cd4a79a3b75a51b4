"""What `prepare` says beside the counts: advice that does what it promises, and nothing silent."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mlstm_jax import cli

Prepare = Callable[..., str]


@pytest.fixture
def prepare(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    before = signal.getsignal(signal.SIGTERM)

    def run(*words: object) -> str:
        cli.main(["prepare", *map(str, words), "--out", str(tmp_path / "out"), "--overwrite"])
        return capsys.readouterr().out

    yield run
    signal.signal(signal.SIGTERM, before)


def test_the_split_that_is_advised_is_large_enough(prepare: Prepare, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"It is sentence {n} of a long row of them.\n" for n in range(20_000)))
    said = prepare(path, "--split", "100,1,1")
    assert "the valid split has only" in said
    advised = re.search(r"--split (\d+,1,1) gives", said)
    assert advised
    assert "note" not in prepare(path, "--split", advised[1])
    # No split of so little text is large enough, so none is advised.
    path.write_text("".join(f"It is sentence {n} of a long row of them.\n" for n in range(2000)))
    assert "so add more text" in prepare(path, "--split", "8,1,1")


def test_wrapped_prose_and_files_of_no_known_kind_are_told(prepare, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    line = "where prose is wrapped at some seventy bytes, a line ends anywhere {}\n"
    (folder / "a.txt").write_text("".join(line.format(n) for n in range(300)))
    (folder / "notes.md").write_text("not read")
    said = prepare(folder)
    assert "1 file(s) in the folders are of an unknown kind and were not read: notes.md" in said
    assert "--document paragraph or file" in said
    assert "--document paragraph or file" not in prepare(folder / "a.txt", "--document", "line")
    (folder / "a.txt").write_text(
        "".join(f"Sentence {n} is a whole document.\n" for n in range(300))
    )
    assert "--document paragraph or file" not in prepare(folder / "a.txt")
