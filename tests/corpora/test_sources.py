"""Sources by name, folder and pattern, of every layout; what is said of those that cannot be."""

import gzip
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlstm_jax.corpora import local
from mlstm_jax.corpora.documents import Recipe
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.corpora.readers import read_source
from mlstm_jax.corpora.sources import Source, find_sources, manifest_names
from mlstm_jax.errors import Note, UserError
from tests.tables import attributes

from .written import rated, write_parquet

# The three layouts in which McAuley's group has published Amazon's reviews.
LAYOUTS = {
    "2014.json.gz": [
        {"reviewerID": "A", "asin": "B", "helpful": [0, 0], "reviewText": "a", "overall": 5.0},
        {"reviewerID": "A", "asin": "C", "helpful": [2, 3], "reviewText": "b", "overall": 1.0},
    ],
    "2018.json.gz": [
        {"overall": 4.0, "verified": True, "style": {"Size:": " L"}, "reviewText": "c"},
        {"overall": 3.0, "verified": False, "vote": "2", "image": ["x.jpg"]},
    ],
    "2023.jsonl.gz": [
        {"rating": 2.0, "title": "t", "text": "d", "images": [], "helpful_vote": 0},
        {"rating": 1.0, "title": "t", "text": "", "images": [], "helpful_vote": 0},
    ],
}


def write_layouts(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, records in LAYOUTS.items():
        with gzip.open(folder / name, "wt") as file:
            file.write("\n".join([*map(json.dumps, records), ""]))


def found_names(*names: str) -> list[str]:
    return attributes(find_sources(names), "name")


def texts(folder: Path) -> dict[str, float]:
    found = {}
    for text, rating in rated(folder):
        found[text.decode().strip()] = rating
    return found


def test_layouts_of_amazons_reviews(tmp_path: Path) -> None:
    folder = tmp_path / "in/rating=4/text=x"  # which are no columns
    write_layouts(folder)
    write_parquet(
        folder / "2023.parquet",
        "SELECT {'text': 'no', 'x': [{'rating': 1}]} AS details, rating, text "
        "FROM (VALUES (3.0, 'e é'), (1, NULL), (5, ' d')) t(rating, text)",
    )
    manifest = prepare([str(tmp_path / "in")], tmp_path / "out", split=(1, 0, 0)).manifest
    assert texts(tmp_path / "out") == {"a": 5.0, "b": 1.0, "c": 4.0, "d": 2.0, "e é": 3.0}
    assert (manifest.without_text, manifest.blank, manifest.duplicates) == (2, 1, 1)


def test_folders_and_patterns(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_layouts(Path("in/deep"))
    Path("in/.hidden").mkdir()
    for name in ("in/_SUCCESS.txt", "in/.hidden/a.json"):
        Path(name).write_text("no text of ours")
    Path("in/part-1.json").touch()
    odd = f"{tmp_path}/in/a[1]*.jsonl"
    Path(odd).write_text('{"text": "odd name"}\n')
    names = [*map(f"{tmp_path}/in/deep/{{}}".format, sorted(LAYOUTS))]
    assert found_names(f"{tmp_path}/in/**/20*.gz") == names
    # A file with two names is read once.
    Path("link.json.gz").symlink_to(names[0])
    found = found_names(f"{tmp_path}/in", names[0], "link.json.gz", "pydoc:")
    assert sorted(found) == sorted([odd, *names[1:], "link.json.gz", "pydoc:"])
    write_parquet(Path("a.parquet"), "SELECT 'in no home folder' AS text")
    Path("a.parquet").rename("~a.parquet")
    assert list(read_source(Source("~a.parquet"), Recipe()))
    assert prepare([odd], tmp_path / "out", split=(1, 0, 0)).manifest.sources[0].documents == 1
    # What is in the corpus is no source of it.
    for _ in range(2):
        made = prepare(["in"], Path("in/corpus"), split=(1, 0, 0), overwrite=True)
        names = attributes(made.manifest.sources, "name")
        assert names == [*sorted(LAYOUTS), "a[1]*.jsonl"]


def test_files_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_layouts(folder)
    for name in ("a.jsonl.Z", "part-00003", "b.jsonl.bz2", "notes.md"):
        (folder / name).write_text("text")
    left_out = "in: 4 of its files were left out, .*: a.jsonl.Z, b.jsonl.bz2, notes.md, part-00003"
    with pytest.warns(Note, match=left_out):
        assert len(find_sources([str(folder)])) == 3
    with pytest.raises(UserError, match="unknown kind"):
        find_sources([f"{folder}/*"])


def small(path: Path) -> Path:
    """A text file of three documents."""
    path.write_text("one\ntwo\nthree\n")
    return path


def test_room_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\n" * 1000)
    message = r"kB may be needed here, but only 42.0 kB is free; .*`temp_dir`"
    for number, sources in enumerate(([str(path)], {"train": [str(path)]})):
        room = SimpleNamespace(free=41_999)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, room=room: room)
        with pytest.raises(UserError, match=message):
            prepare(sources, tmp_path / str(number))
        room.free = 42_000
        prepare(sources, tmp_path / str(number))


# What happens in a worker that reads b.txt, and what is said.
WORKERS = [
    ("os.kill(os.getpid(), 9)", r"b\.txt: the process that reads it, or .*, has ended"),
    ("raise MemoryError", "^$"),
    ("raise OSError(28, 'No space left on device')", "No space left on device"),
    ("raise UserError('b.txt is bad')", "b.txt is bad"),
]


@pytest.mark.parametrize(("what", "message"), WORKERS)
def test_a_worker_fails(what: str, message: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(local, "_BYTES_A_WORKER", 1)
    program = (
        "import os; from mlstm_jax.corpora.engine import SourceCounts\n"
        "from mlstm_jax.errors import UserError\n"
        "def read(counts, *others):\n"
        "    if counts.source.name.endswith('b.txt'):\n"
        f"        {what}\n"
        "    return real(counts, *others)\n"
        "real, SourceCounts.read = SourceCounts.read, read\n"
    )
    monkeypatch.setattr(local, "_PROGRAM", program + local._PROGRAM)
    sources = [str(small(tmp_path / name)) for name in ("a.txt", "b.txt", "c.txt")]
    with pytest.raises(Exception, match=message):
        prepare(sources, tmp_path / "out", workers=2)
    assert set(os.listdir(tmp_path)) == {"a.txt", "b.txt", "c.txt"}


def test_names_in_the_manifest(tmp_path: Path) -> None:
    for place in ("a/1", "a/2", "b/2"):
        (tmp_path / place).mkdir(parents=True)
        small(tmp_path / place / "text.txt")
    small(tmp_path / os.fsdecode(b"caf\xe9.txt"))
    manifest = prepare([str(tmp_path)], tmp_path / "out", split=(1, 0, 0)).manifest
    names = ["1/text.txt", "a/2/text.txt", "b/2/text.txt", "caf?.txt"]
    assert attributes(manifest.sources, "name") == names
    # A whole path would reveal whose machine it was.
    apart = [Source("/home/ann/1/text.txt"), Source("/data/2/text.txt"), Source("pydoc:")]
    assert manifest_names(apart) == ["1/text.txt", "2/text.txt", "pydoc:"]
    # Lines have no ratings.
    assert len(list((tmp_path / "out").iterdir())) == 7


ANY = ("a.txt", "a.csv", "a.jsonl.gz", "a.parquet")


@pytest.mark.parametrize(
    ("names", "content", "message"),
    [
        # What git leaves in place of a file, or an office program writes, is no text.
        (ANY, "version https://git-lfs.github.com/spec/v1\noid 0\n", "pointer of Git LFS; run"),
        (ANY, "/annex/objects/MD5E-s5--0.txt\n", "pointer of git-annex; run `git annex get`"),
        (ANY, "PK\x03\x04", "it is not a text, but a zip archive, such as .docx"),
        (["pipe.jsonl"], Path("../pipe"), "it is a folder, a pipe, a socket or a device"),
        (["a.jsonl"], Path("nowhere"), "it is a broken link"),
        (["b.jsonl"], Path("b.jsonl"), "Too many levels of symbolic links"),
        (["zero.txt"], Path("/dev/zero"), "it is a folder, a pipe"),
    ],
)
def test_unreadable_files(names, content, message, tmp_path) -> None:
    """Whether they are named or found; a path as the content is where a link leads."""
    write_layouts(tmp_path / "in")
    os.mkfifo(tmp_path / "pipe")
    for name in names:
        file = tmp_path / "in" / name
        if isinstance(content, Path):
            file.symlink_to(content)
        else:
            file.write_text(content)
        for source in (file.parent, file, f"{tmp_path}/*/{name}", f"{tmp_path}/**/{name}"):
            with pytest.raises(UserError, match=rf"in/{name}: .*{message}"):
                find_sources([str(source)])
        file.unlink()


def test_unreadable_subfolder(tmp_path, monkeypatch):
    write_layouts(tmp_path / "in/secret")
    (tmp_path / "in/.hidden").mkdir()
    scandir = os.scandir

    def refuse(path: str) -> object:  # as to a user who is not root
        if str(path).endswith(("secret", ".hidden")):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    for source in (f"{tmp_path}/in", f"{tmp_path}/**/*.gz"):
        with pytest.raises(UserError, match=r"in/secret: this folder cannot be read: Permission"):
            find_sources([source])


def test_links_to_folders(tmp_path: Path) -> None:
    write_layouts(tmp_path / "elsewhere")
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / name).symlink_to(folder)
    (folder / "data").symlink_to(tmp_path / "elsewhere")
    wanted = [*map(f"{folder}/data/{{}}".format, sorted(LAYOUTS))]
    for source in (folder, f"{folder}/**/*.gz", f"{folder}/**", f"{tmp_path}/in/**/**/20*"):
        assert sorted(found_names(str(source))) == wanted


@pytest.mark.parametrize(
    ("names", "row", "expected"),
    [
        (["Rating", "rating", "text"], [1.0, 4.0, "a"], ("a", 4.0)),
        (["Text", "text", "Label"], ["wrong", "a", "x"], ("a", None)),
        (["text", "reviewText", "Stars"], ["a", "wrong", 3.0], ("a", None)),
        (["label", "TEXT", "x"], ["1", "a", "b"], "no column text or .* did you mean TEXT"),
        (["text", "text", "label"], ["a", "b", "1"], "has 2 columns named text; rename all but"),
        (["stars", "text", "stars"], [1.0, "a", 2.0], "has 2 columns named stars; rename"),
    ],
)
def test_one_table_in_two_formats(tmp_path, names, row, expected) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    arrays = map(pyarrow.array, zip(row, strict=True))
    table = pyarrow.Table.from_arrays([*arrays], names)
    parquet.write_table(table, tmp_path / "a.parquet")
    lines = [",".join(names), ",".join(map(str, row)), ""]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    for path in (tmp_path / "a.parquet", tmp_path / "a.csv"):
        source = Source(str(path))
        if isinstance(expected, str):
            with pytest.raises(UserError, match=expected):
                list(read_source(source, Recipe()))
        else:
            (found,) = read_source(source, Recipe())
            assert (found.text, found.rating) == expected
