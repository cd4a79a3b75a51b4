"""A corpus opens as it was written, and says so when it is not what was written."""

import json
from pathlib import Path

import numpy as np
import pytest

from mlstm_jax import run
from mlstm_jax.data.corpus import (
    FORMAT_VERSION,
    SPLITS,
    Manifest,
    differing,
    format_corpus,
    is_corpus,
    open_corpus,
)
from mlstm_jax.data.prepare import prepare
from mlstm_jax.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "reviews.csv"
    rows = "".join(f"review {i} é,{i % 5}\n" for i in range(40))
    source.write_text("text,rating\n" + rows, encoding="utf-8")
    prepare([str(source)], tmp_path / "corpus", split=(8, 1, 1), seed=3)
    return tmp_path / "corpus"


def test_offsets_cut_the_documents_and_ratings_stay_beside_them(folder: Path) -> None:
    corpus, documents = open_corpus(folder), {}
    for name in SPLITS:
        split = corpus.split(name)
        assert (split.bytes.dtype, split.offsets.dtype) == (np.uint8, np.uint64)
        assert split.ratings is not None
        assert split.ratings.dtype == np.float32
        assert not split.bytes.flags.writeable
        cuts = [int(offset) for offset in split.offsets]
        assert (cuts[0], cuts[-1]) == (0, len(split.bytes))
        for start, end, rating in zip(cuts[:-1], cuts[1:], split.ratings, strict=True):
            documents[split.bytes[start:end].tobytes().decode()] = float(rating)
    assert documents == {f"\n review {i} é ": i % 5 for i in range(40)}


def test_a_manifest_survives_json(folder: Path) -> None:
    manifest = open_corpus(folder).manifest
    assert Manifest.from_json(manifest.to_json(), folder) == manifest
    assert manifest.seed == 3
    assert manifest.split == (8, 1, 1)
    assert manifest.sources[0].name == "reviews.csv"
    assert str(folder.parent) not in manifest.to_json()


def test_identity_is_of_contents_and_cleaning(folder: Path) -> None:
    source, identity = str(folder.parent / "reviews.csv"), open_corpus(folder).identity
    options = {"same": {}, "seed": {"seed": 4}, "clean": {"clean": "none"}}
    identities = {}
    for name, changed in options.items():
        out = folder.parent / name
        prepare([source], out, **({"split": (8, 1, 1), "seed": 3} | changed))
        identities[name] = open_corpus(out).identity
    assert identities["same"] == identity
    assert len({*identities.values()}) == 3


def test_an_empty_split_is_an_empty_array(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "one", "rating": 1}\n{"text": "two"}\n')
    prepare([str(source)], tmp_path / "corpus", split=(1, 0, 0))
    split = open_corpus(tmp_path / "corpus").split("test")
    assert (len(split.bytes), split.offsets.tolist()) == (0, [0])
    assert split.ratings is not None
    assert len(split.ratings) == 0


def test_verify_names_what_differs_or_is_missing(folder: Path) -> None:
    corpus = open_corpus(folder)
    assert differing(corpus) == []
    data = bytearray((folder / "train.bin").read_bytes())
    data[7] ^= 1
    (folder / "train.bin").write_bytes(data)
    (folder / "test.ratings.npy").unlink()
    assert differing(corpus) == ["train.bin", "test.ratings.npy"]
    with pytest.raises(
        UserError, match=r"match its manifest in train\.bin, test\.ratings\.npy; run"
    ):
        open_corpus(folder, verify=True)


@pytest.mark.parametrize("name", ["valid.bin", "valid.offsets.npy", "valid.ratings.npy"])
@pytest.mark.parametrize("kept", [None, 0, 40, -1])
def test_a_split_cut_short_is_refused(folder: Path, name: str, kept: int | None) -> None:
    path = folder / name
    data = path.read_bytes()
    path.unlink()
    if kept is not None:
        path.write_bytes(data[:kept])
    with pytest.raises(UserError, match=r"valid split is truncated or damaged .*run prepare again"):
        open_corpus(folder).split("valid")
    open_corpus(folder).split("train")


def test_a_shorter_file_of_bytes_is_told_by_its_size(folder: Path) -> None:
    data = (folder / "valid.bin").read_bytes()
    (folder / "valid.bin").write_bytes(data[:-1])
    with pytest.raises(UserError, match=rf"valid\.bin has {len(data) - 1} bytes, not {len(data)}"):
        open_corpus(folder).split("valid")


def test_offsets_of_other_documents_are_refused(folder: Path) -> None:
    path = folder / "valid.offsets.npy"
    offsets = np.load(path)
    assert len(offsets) == 5
    for wrong in (offsets[[0, -1]], offsets + np.uint64(1)):
        np.save(path, wrong)
        with pytest.raises(UserError, match=r"offsets or ratings do not match 4 documents"):
            open_corpus(folder).split("valid")


def test_what_is_not_a_corpus(tmp_path: Path, folder: Path) -> None:
    advice = r"make one with `mlstm-jax prepare SOURCE --out "
    with pytest.raises(UserError, match=rf"none: there is no such folder; {advice}"):
        open_corpus(tmp_path / "none")
    with pytest.raises(UserError, match=rf"not a corpus; {advice}"):
        open_corpus(tmp_path)
    with pytest.raises(
        UserError, match=r"a file, not a corpus; .*reviews\.csv --out corpora/reviews`"
    ):
        open_corpus(tmp_path / "reviews.csv")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"is a run, not a corpus. `mlstm-jax report"):
        open_corpus(tmp_path)
    with pytest.raises(UserError, match=r"is a corpus, not a run; train on it"):
        run.load_run(folder)
    assert is_corpus(folder)
    (folder / "notes.txt").write_text("mine")
    assert not is_corpus(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, rf"format_version is 99, but this program reads {FORMAT_VERSION}"),
        ({"seed": None}, r"not a valid manifest .*seed"),
        ({"splits": {"train": {}}}, r"not a valid manifest .*documents"),
        ({"splits": {}}, r"not a valid manifest .*train"),
        ({"records": "40"}, r"not a valid manifest .*records is '40', but it must be a whole"),
        ({"records": True}, r"not a valid manifest .*records is True"),
        (
            {"split": [1, 2]},
            r"not a valid manifest .*split is \[1, 2\], but it must be a list of 3",
        ),
        ({"rejected": {"gzip": "1"}}, r"not a valid manifest .*rejected\.gzip is '1'"),
        ({"cleaning": "soap"}, r"not a valid manifest .*cleaning is 'soap'"),
        ({"sources": [5]}, r"not a valid manifest .*sources\[0\] is 5"),
        ({"unknown": 1}, r"not a valid manifest .*unknown"),
    ],
)
def test_a_manifest_of_another_kind(folder: Path, change: dict, message: str) -> None:
    path = folder / "manifest.json"
    fields = json.loads(path.read_text()) | change
    path.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))
    with pytest.raises(UserError, match=rf"manifest\.json: .*{message}"):
        open_corpus(folder)
    for text in (b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(text)
        with pytest.raises(UserError, match=r"manifest\.json: is not a valid manifest"):
            open_corpus(folder)


def test_a_manifest_names_no_file_elsewhere(folder: Path) -> None:
    path = folder / "manifest.json"
    fields = json.loads(path.read_text())
    fields["splits"]["train"]["sha256"]["../elsewhere"] = "0"
    path.write_text(json.dumps(fields))
    with pytest.raises(UserError, match="sha256 names a file that is not part of a corpus"):
        open_corpus(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY\x01\x00\x10\x00{'descr': ('<u8'",  # tokenize.TokenError
        b"\x93NUMPY\x01\x00\x88\x13" + b"-" * 4999 + b"1",  # RecursionError
        b"PK\x03\x04",
    ],
    ids=["cut", "deep", "zip"],
)
def test_offsets_that_are_none_are_named(folder: Path, content: bytes) -> None:
    (folder / "train.offsets.npy").write_bytes(content)
    with pytest.raises(UserError, match="the train split is truncated or damaged"):
        open_corpus(folder).split("train")


def test_offsets_of_another_type_are_named(folder: Path) -> None:
    offsets = np.load(folder / "train.offsets.npy")
    np.save(folder / "train.offsets.npy", offsets.astype(float))
    with pytest.raises(UserError, match="the train split is truncated or damaged"):
        open_corpus(folder).split("train")


def test_a_path_that_cannot_be_one_is_named() -> None:
    with pytest.raises(UserError, match="embedded null byte"):
        open_corpus(Path("a\0b"))


def test_describe_counts(folder: Path) -> None:
    text = format_corpus(open_corpus(folder))
    assert "40 records: 0 without text, 0 blank, 0 duplicates" in text
    assert "cleaning radford, seed 3, split 8,1,1, ratings yes" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["reviews.csv", "40", "0"] in rows
    size = (folder / "train.bin").stat().st_size
    assert ["train", "32", str(size)] in rows
