"""A corpus opens as it was written, and says so when it is not what was written."""

import json
import os
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlstm_jax import digest, run
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.data.checked_bytes import CheckedBytes
from mlstm_jax.data.corpus import FORMAT_VERSION, is_corpus, open_corpus
from mlstm_jax.errors import FileError, UserError
from tests.limits import limited


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("corpora") / "reviews.csv"
    rows = map("review {} é,3\n".format, range(40))
    source.write_text("".join(["text,rating\n", *rows]), encoding="utf-8")
    prepare([str(source)], source.parent / "corpus", split=(8, 1, 1), seed=3)
    return source.parent


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A corpus beside its source."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path / "corpus"


def test_printed_corpus(folder: Path) -> None:
    corpus = open_corpus(folder)
    lines = repr(corpus).splitlines()
    size = corpus.manifest.splits["train"].bytes
    assert lines[:2] == [
        f"corpus {folder}",
        "40 records: 0 without text, 0 blank, 0 duplicates (normalized), 0 unreadable",
    ]
    assert f"identity {corpus.identity}" in lines
    assert ["train", "32", f"{size:,}"] in [*map(str.split, lines)]
    assert lines[-1].split() == ["reviews.csv", "40", "0"]


def test_identity(folder: Path) -> None:
    source = str(folder.parent / "reviews.csv")
    identities = {open_corpus(folder).identity}
    for seed, clean in ((3, "radford"), (4, "radford"), (3, "none")):
        out = folder.parent / f"{seed}{clean}"
        made = prepare([source], out, split=(8, 1, 1), seed=seed, clean=clean)
        identities.add(made.identity)
    assert len(identities) == 3


@pytest.mark.parametrize("name", ["valid.bin", "valid.offsets.npy", "valid.ratings.npy"])
def test_missing_or_changed_file(folder: Path, name: str) -> None:
    corpus = open_corpus(folder, verify=True)
    content = (folder / name).read_bytes()
    flipped = bytes([content[0] ^ 1]) + content[1:]
    for changed in (None, b"", content[:40], content[:-1], flipped):
        (folder / name).unlink(missing_ok=True)
        if changed is not None:
            (folder / name).write_bytes(changed)
        with pytest.raises(UserError, match=r"valid.*(truncated or damaged|checksum)"):
            open_corpus(folder, verify=True)
        corpus.split("train")
        with pytest.raises(UserError, match=r"valid split is truncated or damaged|checksum"):
            corpus.split("valid").bytes[:]


CUTS = np.arange(5, dtype=np.uint64) * 30  # of four documents in 120 bytes
CLAIMS_8_TB = {"descr": "<u8", "fortran_order": False, "shape": (10**12,)}
WRONG_OFFSETS = {
    "objects": CUTS.astype(object),
    "floats": CUTS.astype(np.float64),
    "one by one": CUTS[None],
    "empty": CUTS[:0],
    "short": CUTS[:-1],
    "reversed": CUTS[::-1].copy(),
    "beyond the end": CUTS + np.uint64(30),
    "not from 0": CUTS.clip(1),
    "falling": CUTS[[0, 2, 1, 3, 4]],
    "a header of 8 TB": None,
}


@pytest.mark.parametrize("kind", WRONG_OFFSETS)
def test_offsets_of_a_stranger(kind: str, folder: Path) -> None:
    """The manifest is sealed again, so that the checksums are right."""
    path = folder / "valid.offsets.npy"
    manifest = open_corpus(folder).manifest
    (folder / "valid.bin").write_bytes(b"x" * 120)
    if (offsets := WRONG_OFFSETS[kind]) is None:
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, CLAIMS_8_TB)
            file.write(CUTS.tobytes())
    else:
        np.save(path, offsets, allow_pickle=True)
    sums = manifest.splits["valid"].crc32
    for name in sums:
        sums[name] = digest.of_blocks((folder / name).read_bytes())
    valid = replace(manifest.splits["valid"], documents=4, bytes=120, crc32=sums)
    splits = manifest.splits | {"valid": valid}
    (folder / "manifest.json").write_text(replace(manifest, splits=splits).to_json())
    for verify in (False, True):
        with pytest.raises(UserError, match=r"valid split .*valid\.offsets\.npy"):
            open_corpus(folder, verify=verify).split("valid")


def test_too_many_open_files(folder: Path) -> None:
    corpus = open_corpus(folder)
    message = r"cannot be read: Too many open files.*ulimit -n"
    with limited(resource.RLIMIT_NOFILE, 0), pytest.raises(FileError, match=message):
        corpus.split("valid")


def test_blocks(tmp_path, random):
    """Of three blocks the middle one is damaged: only what touches it is refused."""
    data = random.integers(0, 256, 2 * digest.BLOCK + 100, np.uint8)
    sums = digest.of_blocks(data.data)
    path = tmp_path / "train.bin"
    data[digest.BLOCK + 7] ^= 1
    path.write_bytes(data.tobytes())
    opened = CheckedBytes(path, sums)
    starts = np.array([0, digest.BLOCK - 9, 2 * digest.BLOCK, len(data) - 3, len(data) + 5])
    found = opened.windows(starts, 9)
    for row, start in zip(found, starts, strict=True):
        np.testing.assert_array_equal(row, np.pad(data[start : start + 9], (0, 9))[:9])
    np.testing.assert_array_equal(opened[5 : digest.BLOCK], data[5 : digest.BLOCK])
    for start, width in ((digest.BLOCK - 9, 10), (2 * digest.BLOCK - 1, 9), (5, 1 << 21)):
        with pytest.raises(UserError, match="bytes 1,048,576 to 2,097,152 do not match"):
            opened.windows(np.array([0, start]), width)
    with pytest.raises(UserError, match="do not match their checksum"):
        opened[:]


def test_file_that_becomes_shorter(folder: Path) -> None:
    """A mapped one would end the process with SIGBUS."""
    split = open_corpus(folder).split("train")
    assert len(split.bytes[:]) == len(split.bytes)
    os.truncate(folder / "train.bin", 20)
    with pytest.raises(UserError, match=r"train\.bin became shorter .* ends at byte 20, not"):
        split.bytes.windows(np.array([0, 10]), 30)


def test_what_is_not_a_corpus(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "reviews.csv").touch()
    for path, message in (
        (tmp_path / "none", r"there is no corpus .*none\. .*make one with `mlstm-jax prepare"),
        (tmp_path / "reviews.csv", r"reviews\.csv is not a corpus\. .*make one"),
    ):
        with pytest.raises(UserError, match=message):
            open_corpus(path)
    with pytest.raises(UserError, match=r"is not a run folder: it has no config\.json"):
        run.load_run(folder)
    assert is_corpus(folder)
    (folder / "notes.txt").write_text("mine")
    assert not is_corpus(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, rf"format_version is 99, but it must be {FORMAT_VERSION}"),
        ({"seed": None}, r"not a valid manifest .*seed"),
        ({"splits": {"train": {}}}, r"not a valid manifest .*documents"),
        ({"records": "40"}, r"not a valid manifest .*records is '40', but it must be a whole"),
        ({"split": [1, 2]}, r"not a valid manifest .*split is \(1, 2\),"),
        ({"rejected": {"gzip": "1"}}, r"not a valid manifest .*rejected\.gzip is '1'"),
        ({"unknown": 1}, r"not a valid manifest .*unknown"),
        ("elsewhere", "splits must be train, valid, test, and name"),
        (b'{"crc32": "0"}', "content does not match its crc32"),
        (b"{", "is not a valid manifest"),
        (b"\xff", "is not a valid manifest"),
        (b"[" * 100_000, "is not a valid manifest"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_manifests(folder: Path, change: Any, message: str) -> None:
    path = folder / "manifest.json"
    fields = json.loads(path.read_text())
    if change == "elsewhere":
        fields["splits"]["train"]["crc32"]["../elsewhere"] = "0"
    elif isinstance(change, dict):
        fields |= change
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        if fields["seed"] is None:
            del fields["seed"]
        digest.write_json(path, fields)
    with pytest.raises(UserError, match=rf"manifest\.json.*{message}"):
        open_corpus(folder)
