"""The same text always gives the same corpus, each document once, and all of it or nothing."""

import errno
import fcntl
import itertools
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlstm_jax import cli
from mlstm_jax.corpora import prepare as preparation
from mlstm_jax.corpora.documents import clean
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.data.stream import TrainStream
from mlstm_jax.errors import FileError, KnownError, UserError
from mlstm_jax.options import SPLITS
from mlstm_jax.output import atomic_directory, atomic_file, remove_leftovers, temporary_folder
from tests.tables import attributes, column

from .written import contents, documents, in_order, jsonl, write_parquet

REPOSITORY = Path(__file__).parents[2]


def some(count: int, start: int = 0) -> list[dict[str, object]]:
    return [{"text": f"review {n} é", "rating": n % 5} for n in range(start, start + count)]


def test_order_of_files_and_lines(tmp_path, capfd) -> None:
    first = some(60)
    second = some(50, start=30)  # the middle is in both
    second += [{"text": "review 0 é", "rating": -0.0}, {"text": "review 2 é"}, {}]
    sources = [jsonl(tmp_path / "a.jsonl", first), jsonl(tmp_path / "b.jsonl", second)]
    prepare(sources, tmp_path / "one", split=(8, 1, 1), show_progress=True)
    assert capfd.readouterr() == ("", "")  # a log file gets no progress bar
    jsonl(tmp_path / "a.jsonl", first[::-1])
    jsonl(tmp_path / "b.jsonl", second[::-1])
    prepare(sources[::-1], tmp_path / "two", split=(8, 1, 1))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert len(contents(tmp_path / "one")) == 10


def test_order_of_splits(tmp_path: Path) -> None:
    records = [*some(95), *some(20)]
    out = tmp_path / "out"
    prepare([jsonl(tmp_path / "a.jsonl", records)], out, split=(8, 1, 1), seed=7, dedupe="exact")
    found = [documents(out, name) for name in ("test", "valid", "train")]
    assert [*map(len, found)] == [10, 10, 75]
    cleaned = [(clean(text, "radford"), 0.0) for text in column(records, "text")]
    assert [*itertools.chain(*found)] == column(in_order(cleaned, 7, "exact"), 0)


def test_counts(tmp_path: Path) -> None:
    odd = [{"text": "review 1 &eacute; "}, {"text": "&nbsp;"}, {"text": ""}, {"rating": "5"}]
    first = [*some(10), *odd]
    sources = [jsonl(tmp_path / "b.jsonl", some(4)), jsonl(tmp_path / "a.jsonl", first)]
    manifest = prepare(sources, tmp_path / "out").manifest
    assert (manifest.records, manifest.without_text, manifest.blank) == (18, 1, 2)
    assert manifest.duplicates == 5
    assert sum(attributes(manifest.splits.values(), "documents")) == 10
    assert attributes(manifest.sources, "name") == ["a.jsonl", "b.jsonl"]
    assert attributes(manifest.sources, "documents") == [11, 4]
    assert attributes(manifest.sources, "without_text") == [1, 0]
    assert attributes(manifest.sources, "blank") == [2, 0]
    assert open_corpus(tmp_path / "out").manifest == manifest


@pytest.mark.parametrize(
    ("count", "split", "expected"),
    [
        (10, (1000, 1, 1), (8, 1, 1)),
        (10, (3, 1, 0), (8, 2, 0)),
        (10, (0, 1, 3), (0, 2, 8)),
        (10, (0.45, 0.35, 0.2), (4, 4, 2)),  # floats would make it (5, 3, 2)
        (80, None, (72, 4, 4)),
    ],
)
def test_sizes_of_splits(tmp_path, count, split, expected):
    source = jsonl(tmp_path / "a.jsonl", some(count))
    manifest = prepare([source], tmp_path / "out", split=split).manifest
    found = [manifest.splits[name] for name in SPLITS]
    assert attributes(found, "documents") == [*expected]
    assert preparation.usual_split(99_999) == (20, 1, 1)
    assert preparation.usual_split(100_000) == (1000, 1, 1)


def test_test_set_alone(tmp_path, monkeypatch, capsys) -> None:
    source = jsonl(tmp_path / "a.jsonl", some(10))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    cli.main(["prepare", source, "--split", "0,0,1", "--out", "."])
    assert str(here) in capsys.readouterr().out
    cli.main(["inspect", str(here)])
    assert capsys.readouterr().out
    with pytest.raises(UserError, match="the train split has 0 bytes in 0 documents"):
        TrainStream(open_corpus(here).split("train"), batch=2, window=8)


BAD_OPTIONS = [
    ({"split": (9, -1, 1)}, r"split is \(9, -1, 1\)"),
    ({"split": (1, math.nan, 1)}, r"split is \(1, nan, 1\)"),
    ({"split": "8,1,1"}, r"split is .* a tuple"),
    ({"split": (9, 1)}, r"split is .* a tuple"),
    ({"split": (8, 1, "1")}, r"split is .* a tuple"),
    ({"split": (1, 1, 1)}, r"only 2 distinct documents, .*`split` 1,1,1 .*`document` line"),
    ({"workers": 0}, "workers is 0"),
    ({"seed": 10**30}, "seed is 10+, but it must be a whole number of at most 64 bits"),
    ({"max_reject_fraction": 1.5}, r"max_reject_fraction is 1\.5"),
    ({"dedupe": "fuzzy"}, "dedupe is 'fuzzy', .*exact, normalized, none"),
    ({"rating_column": "mark"}, "no record has a number in `rating_column` 'mark'"),
    ({"rating_column": ""}, "no record has a number in `rating_column` ''"),
    ({"delimiter": ";;"}, "delimiter is ';;', but it must be one character"),
    ({"delimiter": '"'}, "delimiter is '\"', but it must be one character"),
    ({"text_column": "body"}, r"a\.jsonl: none of its 3 records has text in body"),
    ({"sources": ["twice.jsonl"], "text_column": "body"}, "line 1: its field body occurs more"),
    ({"beam_options": "--runner=X"}, "beam_options is .* without `engine` beam"),
    ({"out": Path("a.jsonl/deep/out")}, r"cannot be .*a\.jsonl is a file"),
    ({"out": Path("loop")}, "loop cannot be created.*choose another"),
    ({"out": Path("x" * 250)}, "File name too long"),
]
for _name in ("none", "loop", "x" * 256, "a.jsonl"):
    _told = "temp_dir is .* must be a writable folder"
    BAD_OPTIONS.append(({"temp_dir": Path(_name)}, _told))
BAD_SOURCES = [
    ("none.txt", r"none\.txt: there is no such file"),
    ("none*.jsonl", r"none\*\.jsonl: no file matches"),
    ("blank.jsonl", r"blank\.jsonl: no text is left after cleaning"),
    ("empty", r"empty: this folder has no file of a known kind .*; known kinds are \.json, "),
    ("hollow", r"hollow: this folder has no file of a known kind that is not empty"),
    ("bad.parquet", r"bad\.parquet cannot be read as Parquet"),
    ("columns.parquet", r"no column text or .*its columns are id, body.*`text_column`"),
    ("numbers.parquet", r"numbers\.parquet: none of .* has text in text \(a number in 1\)"),
    ("A text, not a file.", r"there is no such file; check the name"),
    ("", "'' names no file"),
    ("-", "'-' names no file; write standard input"),
    ("x" * 256 + ".txt", r"x\.txt: File name too long"),
    ("x" * 256 + "*.txt", r"x\*\.txt: File name too long"),
    (os.fsdecode(b"caf\xe9.parquet"), r"parquet cannot be read as Parquet: .*encode"),
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *BAD_OPTIONS,
        ({"sources": []}, "no source given"),
        ({"sources": {"training": "a.jsonl"}}, "sources is .* one of train, valid, test"),
        *(({"sources": ["a.jsonl", source]}, message) for source, message in BAD_SOURCES),
    ],
)
def test_bad_options_and_sources(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    jsonl(Path("a.jsonl"), [*some(2), *some(1)])
    jsonl(Path("blank.jsonl"), [{"text": "&nbsp;"}])
    Path("twice.jsonl").write_text('{"text": "a", "body": "b", "body": "c"}\n{"text": "d"}\n')
    Path("loop").symlink_to("loop")
    Path("empty").mkdir()
    Path("hollow").mkdir()
    for name in ("hollow/a.txt", os.fsdecode(b"caf\xe9.parquet")):
        Path(name).touch()
    Path("bad.parquet").write_bytes(b"PAR1 and no more")
    write_parquet(Path("columns.parquet"), "SELECT 1 AS id, 'x' AS body")
    write_parquet(Path("numbers.parquet"), "SELECT 1 AS text")
    there = sorted(tmp_path.iterdir())
    with pytest.raises(KnownError, match=message):
        prepare(**{"sources": ["a.jsonl"], "out": Path("out")} | options)
    assert sorted(tmp_path.iterdir()) == there


def test_overwrite(tmp_path: Path) -> None:
    old = jsonl(tmp_path / "5.jsonl", some(5))
    new = jsonl(tmp_path / "6.jsonl", some(6))
    out = tmp_path / "deep" / "corpus"
    out.mkdir(parents=True)
    prepare([old], out)
    with pytest.raises(UserError, match=r"corpus exists; .*or replace it with `overwrite`"):
        prepare([new], out)
    assert open_corpus(out).manifest.records == 5
    prepare([new], out, overwrite=True)
    assert open_corpus(out).manifest.records == 6
    assert os.listdir(out.parent) == ["corpus"]
    (out / "notes.txt").write_text("mine")
    for other in (out, tmp_path, Path(new)):
        with pytest.raises(UserError, match=r"is not a corpus, or has other files in it"):
            prepare([old], other, overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"


def test_delimiter_of_a_command(tmp_path, capsys) -> None:
    (tmp_path / "a.csv").write_text("text\tn,text\na, b\t1\n")
    out = tmp_path / "out"
    words = ["prepare", f"{tmp_path}/a.csv", "--split", "1,0,0", "--out", str(out)]
    cli.main([*words, "--delimiter", "\\t"])
    assert documents(out) == [b"\n a, b "]


@pytest.fixture
def source(tmp_path: Path) -> str:
    return jsonl(tmp_path / "a.jsonl", some(9))


@pytest.fixture
def out(tmp_path: Path, source: str) -> Path:
    """The corpus of `source`."""
    prepare([source], tmp_path / "out")
    return tmp_path / "out"


def test_failure_of_a_rename(tmp_path, monkeypatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").touch()
    rename = os.rename

    def fail(old: Path, new: Path) -> None:
        if new == out and old.name == "new":
            raise OSError(28, "No space left on device")
        rename(old, new)

    monkeypatch.setattr(os, "rename", fail)
    message = "out cannot be written: No space left on device"
    with pytest.raises(FileError, match=message), atomic_directory(out) as partial:
        (partial / "new").touch()
    assert [*tmp_path.rglob("*")] == [out, out / "old"]


def prepare_killed(source: str, out: Path, where: str) -> None:
    """Prepare in another process, which `where`, a line of Python, makes call `kill`."""
    program = (
        "import os, shutil, signal, sys; from pathlib import Path\n"
        "from mlstm_jax.corpora.prepare import prepare\n"
        "kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"{where}\n"
        "prepare([sys.argv[1]], Path(sys.argv[2]), seed=1, overwrite=True)\n"
    )
    result = subprocess.run([sys.executable, "-c", program, source, out], cwd=REPOSITORY)
    assert result.returncode == -9


def test_killed(source, tmp_path) -> None:
    out = tmp_path / "out"
    prepare_killed(source, out, "os.fsync = kill")
    left = [*tmp_path.glob(".out.partial-*")]
    assert left
    assert not out.exists()
    other = left[0].name.replace(".out", ".outer")
    elsewhere = tmp_path / "elsewhere"
    for folder in (tmp_path / other, elsewhere / left[0].name):
        shutil.copytree(left[0], folder)
    with temporary_folder(out) as alive:
        prepare([source], out, temp_dir=elsewhere)
        kept = {"a.jsonl", "out", other, "elsewhere", alive.name}
        assert set(os.listdir(tmp_path)) == kept
    assert not list(elsewhere.iterdir())


def test_two_writers(tmp_path) -> None:
    """Of one file, or of corpora with one name, whose temporary folders are in one place."""
    out = tmp_path / "out"
    with atomic_file(out) as partial:
        partial.write_text("first")
        with (
            pytest.raises(UserError, match=r"is writing .*out; wait"),
            atomic_file(out),
        ):
            pass
    assert out.read_text() == "first"
    with temporary_folder(out) as one, temporary_folder(out) as other:
        assert one.is_dir()
        assert one != other
    assert os.listdir(tmp_path) == ["out"]


def test_writers_without_locks(source, tmp_path, monkeypatch) -> None:
    """Where the file system refuses them, also with an error such as NFS's."""

    def flock(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(fcntl, "flock", flock)
    with atomic_file(tmp_path / "file") as partial:
        partial.write_text("whole")
    prepare([source], tmp_path / "out")
    assert set(os.listdir(tmp_path)) == {"a.jsonl", "file", "out"}


def test_killed_while_it_removes(source, out, tmp_path):
    after_one = "[kill(file.unlink()) for file in Path(folder).glob('replaced/train.*')]"
    removed = f"lambda folder, **how: {after_one} or rmtree(folder, **how)"
    prepare_killed(source, out, f"rmtree, shutil.rmtree = shutil.rmtree, {removed}")
    assert open_corpus(out).manifest.seed == 1
    shutil.rmtree(out)
    remove_leftovers(out)
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_killed_between_two_renames(out, tmp_path) -> None:
    before = contents(out)
    left = tmp_path / ".out.partial-01234567"
    left.mkdir()
    (left / "lock").touch()
    out.rename(left / "old")
    (tmp_path / "b.jsonl").touch()
    with pytest.raises(UserError, match=r"has no record"):
        prepare([str(tmp_path / "b.jsonl")], out, overwrite=True)
    assert contents(out) == before
    assert not list(tmp_path.glob(".out.*"))
