"""Each bad record is counted, placed and written down; the rest is as if it were not."""

import gzip
import json
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlstm_jax.corpora import local, parts
from mlstm_jax.corpora.documents import CleanDocument, Document, Recipe
from mlstm_jax.corpora.engine import SourceCounts
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.corpora.readers import read_source
from mlstm_jax.corpora.rejects import Reject
from mlstm_jax.corpora.sources import Source
from mlstm_jax.errors import UserError
from tests.tables import attributes, column

from .written import in_order, jsonl, rated, write_parquet

GOOD = [b'{"text": "good %d", "rating": %d}\n' % (n, n % 5) for n in range(20)]


def expected(sources: list[str], recipe: Recipe) -> list[CleanDocument]:
    """The corpus by the readers alone, in memory: what the engines must give."""
    documents: list[CleanDocument] = []
    for source in sources:
        documents += SourceCounts(Source(source)).read(recipe, lambda reject: None)
    return in_order(documents, recipe.seed, recipe.dedupe)


def comparable(documents: list[CleanDocument]) -> list[str]:
    """A rating that is NaN is not equal to itself."""
    return [*map(repr, documents)]


# The name of a file, what is in its middle, and the reject: kind, place, message.
BAD = [
    ("a.jsonl", b'{"text": "cut\n', "not JSON", ", line 11", "not JSON"),
    ("a.jsonl", b'{"text": "a",}\n', "not JSON", ", line 11", "not JSON"),
    ("a.jsonl", b"[1]\n", "not a JSON object", ", line 11", "is not a record"),
    ("a.jsonl", b'{"text": 7}\n', "text of another type", ", line 11", "its text is 7, not a"),
    ("a.jsonl", b'{"text": "a", "text": "b"}\n', "field twice", ", line 11", "field text"),
    ("a.jsonl", b'{"stars": 1, "text": "", "stars": 1}\n', "field twice", ", line 11", "stars"),
    ("a.jsonl", b'{"text" : "a: b", "te\\u0078t": 1}\n', "field twice", ", line 11", "field text"),
    ("a.jsonl", b'{"text": "caf\xe9"}\n', "not UTF-8", ", line 11", r"byte 0xe9"),
    ("a.jsonl", b'{"text": "a\0"}\n', "NUL byte", ", line 11", "NUL byte"),
    ("a.jsonl.gz", b"", "gzip cut short or damaged", ", after record", "cut short or damaged"),
    ("a.csv", b'1,"a" b\n', "CSV quote", ", line 12", "quote is stray or not closed"),
    ("a.csv", b'1,"never closed\n', "CSV quote", ", line 12", "quote is stray or not closed"),
    ("a.csv", b"1,a,b,c\n", "CSV columns", ", line 12", "4 columns where the header has 2"),
    ("a.csv", b"1,a\r2,b\n", "CSV line end", ", line 12", r"tr '\r' '\n'"),
    ("a.csv", b"1,caf\xe9\n", "not UTF-8", ", line 12", "byte 0xe9"),
    ("a.txt", b"caf\xe9\n", "not UTF-8", ", line 11", "byte 0xe9"),
]


def write_bad(folder: Path) -> list[Path]:
    """A file of each bad record: before and behind it are 20 good ones, or half a .gz file."""
    paths = []
    rows = b'1,"long\n line"\n' * 5 + b"2,good\n" * 15
    good = {"csv": b"rating,text\n" + rows, "txt": b"good\n" * 20}
    for number, (name, content, *_) in enumerate(BAD):
        path = folder / f"{number}{name}"
        lines = good.get(name[2:], b"".join(GOOD)).splitlines(keepends=True)
        before = 11 if name == "a.csv" else 10  # lines of 6 records
        path.write_bytes(b"".join([*lines[:before], content, *lines[before:]]))
        if path.suffix == ".gz":
            numbers = random.Random(0).choices(range(10**9), k=3000)
            whole = gzip.compress("".join(map('{{"text": "{}"}}\n'.format, numbers)).encode())
            path.write_bytes(whole[: len(whole) // 2])
        paths.append(path)
    return paths


def test_rejects_of_other_json(tmp_path: Path) -> None:
    """Their beginning is JSON, as in the file, and no advice is about tables."""
    line = json.dumps([True, None, "a long string of which the middle must stay"])
    source = tmp_path / "lists.jsonl"
    source.write_text(f'{{"text": "good"}}\n{line}\n')
    with pytest.raises(UserError, match="1 of 2 records cannot be read") as told:
        prepare([str(source)], tmp_path / "out")
    assert "quoting" not in str(told.value)
    assert json.loads((tmp_path / "out.rejects.jsonl").read_text())["excerpt"] == line


def test_rejects(tmp_path: Path) -> None:
    paths = write_bad(tmp_path)
    sources = list(map(str, paths))
    out = tmp_path / "out"
    rejects = tmp_path / "out.rejects.jsonl"
    kinds = Counter(column(BAD, 2))
    with pytest.raises(UserError, match=r"16 of [\d,]+ records cannot be read.*fract") as told:
        prepare(sources, out, split=(1, 0, 0), max_reject_fraction=0)
    for kind, count in kinds.items():
        assert f"{count} {kind}: {tmp_path}/" in str(told.value)
    assert str(rejects) in str(told.value)
    assert not out.exists()
    manifest = prepare(sources, out, split=(1, 0, 0), max_reject_fraction=0.05).manifest
    assert manifest.rejected == kinds
    assert comparable(rated(out)) == comparable(expected(sources, Recipe()))
    found = {}
    for reject in map(json.loads, rejects.read_text().splitlines()):
        found[reject["place"].partition(",")[0]] = reject
    assert len(found) == len(BAD)
    for path, (_, _, kind, place, message) in zip(paths, BAD, strict=True):
        reject = found[str(path)]
        assert reject["place"].startswith(f"{path}{place}")
        assert reject["kind"] == kind
        assert message in reject["message"]
        kept = [*map(type, read_source(Source(str(path)), Recipe()))].count(Document)
        assert kept == 20 if path.suffix != ".gz" else 500 < kept < 3000
    # Without rejects, the list of an earlier time is not left to mislead.
    paths[0].write_bytes(b"".join(GOOD))
    prepare(sources[:1], out, overwrite=True)
    assert not rejects.exists()


_SPACES = [*filter(str.isspace, map(chr, range(0x3001)))]
_PIECES = [*["good", "Good", "\r\n", "&amp;"] * 3, *' éÉßẞ\0"\\Z[_\x7f' * 3, *_SPACES]
_RATINGS = [None, 0, 4.5, -0.0, 1e39, " 4.5\n", "nan", "good"]


@pytest.mark.parametrize("dedupe", ["normalized", "none"])
def test_parts_and_memory_agree(tmp_path: Path, monkeypatch, dedupe: Any) -> None:
    """In many parts, each in many pieces; read by three processes and by one."""
    monkeypatch.setattr(parts, "_BYTES_A_PART", 1 << 14)
    monkeypatch.setattr(local, "_BYTES_A_WORKER", 1 << 14)
    monkeypatch.setattr(parts, "_DOCUMENTS_AT_ONCE", 100)
    draw = random.Random(0)
    records: list[dict[str, object]] = [{"other": 1}, {"text": "last"}]
    for _ in range(6000):
        text = "".join(draw.choices(_PIECES, k=draw.choice([0, 1, 2, 3, 5])))
        records.append({"text": text, "rating": draw.choice(_RATINGS)})
    sources = [jsonl(tmp_path / f"{n}.jsonl", records[n::4]) for n in range(4)]
    for source in sources:
        with Path(source).open("a") as file:
            file.write("bad\n")
    how = {"split": (1, 0, 0), "seed": 3, "dedupe": dedupe, "max_reject_fraction": 0.01}
    for workers in (1, 3):
        out = tmp_path / str(workers)
        manifest = prepare(sources, out, workers=workers, **how).manifest
        wanted = expected(sources, Recipe(seed=3, dedupe=dedupe))
        assert len(wanted) > 500
        assert comparable(rated(out)) == comparable(wanted)
        assert manifest.rejected == {"not JSON": 4}
        assert out.with_name(f"{workers}.rejects.jsonl").exists()


def test_another_file_of_rejects(tmp_path: Path) -> None:
    other = Path(jsonl(tmp_path / "out.rejects.jsonl", [{"text": "good"}]))
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    with pytest.raises(UserError, match=r"would be both read and written"):
        prepare([str(other)], tmp_path / "out")
    for content in (b"".join(GOOD), b"[" * 100_000):
        other.write_bytes(content)
        with pytest.raises(UserError, match=r"out\.rejects\.jsonl: .* another file exists; move"):
            prepare([str(tmp_path / "a.txt")], tmp_path / "out")
        assert other.read_bytes() == content


def test_deeply_nested_records(tmp_path: Path) -> None:
    lines = ['{"text": "good"}']
    limit = sys.getrecursionlimit()
    for depth in range(limit - 200, limit):
        nested = "[" * depth + "]" * depth
        lines += [nested, f'{{"text": {nested}}}', f'{{"text": {nested}, "text": 1}}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    good, *others = read_source(Source(str(tmp_path / "a.jsonl")), Recipe())
    assert isinstance(good, Document)
    assert [*map(type, others)] == [Reject] * 3 * 200


@pytest.mark.parametrize("value", ["'good ' || i || ' é'", "encode('good ' || i)"])
def test_parquet_that_is_not_utf8(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.parquet"
    query = f"SELECT {value} AS text, (i % 5)::VARCHAR AS stars FROM range(10000) t(i)"
    write_parquet(path, query, b"good 7234", b"good 9999")
    with pytest.raises(UserError, match=r"a\.parquet cannot be read as Parquet.*JSON lines"):
        prepare([str(path)], tmp_path / "out")
    assert os.listdir(tmp_path) == ["a.parquet"]


def test_types_of_parquet(tmp_path: Path) -> None:
    """Texts without the mark of UTF-8."""
    good = "SELECT encode('good ' || i) AS text, (i / 10)::FLOAT AS label FROM range(3) t(i)"
    write_parquet(tmp_path / "a.parquet", good)
    found = list(read_source(Source(f"{tmp_path}/a.parquet"), Recipe(label_column="label")))
    assert attributes(found, "text") == ["good 0", "good 1", "good 2"]
    assert column(attributes(found, "record"), "label") == [0, 0.1, 0.2]


def test_keys_of_equal_halves() -> None:
    """Two keys whose first halves are equal are two documents; two equal keys are one."""
    draw = random.Random(0)
    keys = [(draw.randrange(3), draw.randrange(40)) for _ in range(200)]
    texts = [b"%d,%02d;" % key for key in keys]
    rows = np.zeros(len(keys), parts._ROW)
    rows["key"] = keys
    rows["size"] = len(texts[0])
    piece = parts.in_order(parts.Piece(rows, b"".join(texts)), Recipe())
    assert piece.text == b"".join(sorted(set(texts)))
    assert parts.kept(rows, Recipe()) == len(piece.rows)
