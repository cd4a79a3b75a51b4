"""What the tests write as sources, and read from corpora."""

import hashlib
import json
from collections.abc import Iterable
from itertools import pairwise
from math import isnan
from pathlib import Path
from typing import Any

import duckdb

from mlstm_jax.corpora.documents import CleanDocument
from mlstm_jax.data.corpus import Dedupe, open_corpus
from mlstm_jax.options import SplitName


def jsonl(path: Path, records: Iterable[Any]) -> str:
    """Write a file of records; its path."""
    lines = map(json.dumps, records)
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return str(path)


def write_parquet(path: Path, query: str, *damaged: bytes) -> None:
    """Write a table, with some of its texts no longer UTF-8."""
    with duckdb.connect() as con:
        con.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet, COMPRESSION uncompressed)")
    data = path.read_bytes()
    for text in damaged:
        assert text in data
        data = data.replace(text, b"\xff" + text[1:])
    path.write_bytes(data)


def documents(folder: Path, name: SplitName = "train") -> list[bytes]:
    split = open_corpus(folder, verify=True).split(name)
    data = split.bytes[:].tobytes()
    return [data[a:b] for a, b in pairwise(split.offsets.tolist())]


def rated(folder: Path) -> list[tuple[bytes, float]]:
    """The documents for training with their ratings; NaN for none."""
    texts = documents(folder)
    ratings = open_corpus(folder).split("train").ratings
    known = [float("nan")] * len(texts) if ratings is None else ratings.tolist()
    return list(zip(texts, known, strict=True))


def in_order(documents: list[CleanDocument], seed: int, dedupe: Dedupe) -> list[CleanDocument]:
    """The documents to keep, in order: sorted in memory as a whole."""

    def md5(text: bytes) -> str:
        return hashlib.md5(f"{seed}:".encode() + text).hexdigest()

    keyed = []
    for text, rating in documents:
        key = text
        if dedupe == "normalized":
            key = " ".join(text.decode().split()).casefold().encode()
        keyed.append((md5(key), md5(text), text, isnan(rating), rating))
    kept = []
    before = ""
    for order, _, text, _, rating in sorted(keyed):
        if dedupe == "none" or order != before:
            kept.append((text, rating))
        before = order
    return kept


def contents(folder: Path) -> dict[str, bytes]:
    """What is in each file of a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found
