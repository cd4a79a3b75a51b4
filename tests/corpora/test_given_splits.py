"""Splits that come as files: all of their documents, in their order, byte for byte if asked for."""

import gzip
import random
import re
from pathlib import Path

import pytest

from mlstm_jax.corpora.documents import clean
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.options import SPLITS

from .written import documents, jsonl, rated


def some_bytes(seed: int, count: int) -> bytes:
    """Bytes with lines of both ends, blank ones, cut characters, NULs and repetitions."""
    pieces = [b"caf\xc3\xa9 ", b"\n", b"\r\n", b"\n \n\n", b"\x00", b"\xff", b"== a ==\n"] * 2
    made = b"".join(random.Random(seed).choices(pieces, k=count))
    return b"\xa9" + made + b"\xc3"


@pytest.mark.parametrize("document", [None, "line", "paragraph", "file"])
def test_text_files_byte_for_byte(tmp_path, document):
    sources = {}
    texts = {}
    for seed, name in enumerate(SPLITS):
        count = 400 if name == "train" else 40
        plain = b"\n" + some_bytes(3 * seed, count)
        packed = some_bytes(3 * seed + 1, count)
        (tmp_path / f"{name}.txt").write_bytes(plain)
        (tmp_path / f"{name}2.txt.gz").write_bytes(gzip.compress(packed))
        sources[name] = [tmp_path / f"{name}.txt", tmp_path / f"{name}2.txt.gz"]
        texts[name] = plain + packed
    out = tmp_path / "out"
    manifest = prepare(sources, out, clean="none", document=document).manifest
    assert manifest.split is None
    for name, text in texts.items():
        found = documents(out, name)
        assert b"".join(found) == text
        inner = 0
        # Blank lines end documents, but for those that a file begins with.
        assert found[0].startswith(b"\n\xa9")
        for one in [found[0][1:], *found[1:]]:
            assert one.splitlines()[0].strip()
            if one[-1:] == b"\n":
                inner += 1
                assert document in ("paragraph", "file") or b"\n" not in one.strip()
        # A document ends with the end of a line, and the blank lines after it.
        assert len(found) == 2 if document == "file" else inner >= len(found) - 2 > 5


def test_kept_records(tmp_path: Path) -> None:
    texts = {"train": ["b", "aa", "b", "B "], "test": ["b", "zzz"]}
    sources = {}
    cleaned = {}
    for name, given in texts.items():
        records = [{"text": text, "rating": len(text)} for text in given]
        sources[name] = jsonl(tmp_path / f"{name}.jsonl", [{"text": " "}, {}, *records])
        cleaned[name] = [clean(text, "radford") for text in given]
    manifest = prepare(sources, tmp_path / "out").manifest
    assert (manifest.records, manifest.blank, manifest.without_text) == (10, 2, 2)
    assert (manifest.duplicates, manifest.dedupe) == (0, "none")
    assert rated(tmp_path / "out") == list(zip(cleaned["train"], [1, 2, 1, 2], strict=True))
    assert documents(tmp_path / "out", "test") == cleaned["test"]
    assert documents(tmp_path / "out", "valid") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train", "a.txt", "--valid", "./a.txt"], r"a.txt is in both --valid and"),
        (["a.txt", "--test", "b.txt"], r"a.txt is not assigned to a split; put it"),
        (["--train", "a.txt", "--seed", "3"], "--seed cannot be used with"),
        (["--train", "a.txt", "--split", "8,1,1"], "--split cannot be used with"),
        (["--train", "a.txt", "--dedupe", "exact"], "--dedupe cannot be used with"),
        (["--train", "a.txt", "--engine", "beam"], "--engine cannot be used with"),
        (["--train", "a.txt", "--valid", "none.txt"], "none.txt: there is no such file"),
        (["--train", "a.txt", "--valid", "empty.txt"], "empty.txt: no text is left"),
        (["--train", "cut.txt.gz", "--clean", "none"], "cut.txt.gz cannot be read: .*ended"),
    ],
)
def test_refused(arguments, message, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(f"{name}.txt").write_text("one\ntwo\n")
    Path("empty.txt").touch()
    Path("cut.txt.gz").write_bytes(gzip.compress(some_bytes(1, 3000))[:-20])
    there = sorted(Path().iterdir())
    assert re.search(message, refused("prepare", *arguments, "--clean", "none", "--out", "out"))
    assert sorted(Path().iterdir()) == there
