"""Whatever lies in a folder: `prepare` makes a corpus or says what is wrong, and ends."""

import gzip
import os
import random
from pathlib import Path

import duckdb
import pytest

from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.data.corpus import differing, open_corpus
from mlstm_jax.errors import UserError

_SEEDS = 120
_LINES = [
    b'{"text": "good %d", "rating": %d}', b'{"text": "caf\xc3\xa9 &amp; %d", "overall": "%d"}',
    b'{"reviewText": "r %d", "stars": null, "id": %d}', b"good %d,%d", b'"quoted %d, %d"',
    b"<p>tag %d</p>\t%d", b"[%d, %d]", b'{"text": "half \\ud800 %d", "text": "%d"}',
]  # fmt: skip
_PIECES = [
    b"\xff", b"\0", b'"', b"\r", b"\n", b"\r\n", b"\n\n", b",", b"{", b"}", b"[", b"]", b"\t",
    b"\xef\xbb\xbf", b"&#0;", b"\\u0000", b"\xed\xa0\x80", b"\x1f\x8b", b"PAR1", b"1e999", b"null",
    b"text,text\n",
]  # fmt: skip
_NAMES = [
    b"a.jsonl", b"b.json", b"c.csv", b"d.tsv", b"e.txt", b"f.jsonl.gz", b"g.csv.gz", b"h.parquet",
    b"~i.txt", b"_j.txt", b"k*[1].jsonl", b"l\xe9.txt", b"m\n.csv", b"n'\".jsonl", b"o.html",
    b"P.JSON",
]  # fmt: skip


def _content(generator: random.Random, name: bytes) -> bytes:
    if name.endswith(b".parquet"):
        with duckdb.connect() as con:
            query = "SELECT 'text ' || (i % 30) AS text, i AS rating FROM range(60) t(i)"
            con.execute(f"COPY ({query}) TO 'temporary' (FORMAT parquet, COMPRESSION uncompressed)")
        data = bytearray(Path("temporary").read_bytes())
        os.unlink("temporary")
    else:
        lines = [generator.choice(_LINES) % (n, n % 5) for n in range(generator.randrange(40))]
        data = bytearray(b"text,rating\n" * generator.randrange(2) + b"\n".join(lines))
    for _ in range(generator.choice([0, 0, 1, 3])):
        place = generator.randrange(len(data) + 1)
        data[place : place + generator.randrange(3)] = generator.choice(_PIECES)
    if name.endswith(b".gz"):
        data = bytearray(gzip.compress(data))
    return bytes(data[: generator.randrange(len(data) + 1)] if generator.random() < 0.1 else data)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::mlstm_jax.errors.Note")
@pytest.mark.parametrize("start", range(0, _SEEDS, 20))
def test_a_corpus_or_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    made = 0
    for seed in range(start, start + 20):
        generator = random.Random(seed)
        folder = tmp_path / str(seed)
        (folder / "in" / "deep").mkdir(parents=True)
        monkeypatch.chdir(folder)
        for name in generator.sample(_NAMES, generator.choice([1, 1, 2, 4])):
            place = os.fsencode(generator.choice(["in", "in/deep"])) + b"/" + name
            with open(place, "wb") as file:
                file.write(_content(generator, name))
        if generator.random() < 0.2:
            os.symlink(generator.choice([".", "..", "nowhere", "x.txt"]), "in/x.txt")
        source = generator.choice(["in", "in/**", "in/**/*.*", "./in/"])
        out = Path("corpora/out")
        try:
            manifest = prepare(
                [source],
                out,
                seed=seed,
                clean=generator.choice(["radford", "none", "protein"]),
                dedupe=generator.choice(["exact", "normalized", "none"]),
                document=generator.choice([None, "line", "paragraph", "file"]),
                max_reject_fraction=generator.choice([0.001, 0.5, 1]),
                split=generator.choice([(1, 0, 0), (8, 1, 1)]),
            )
        except UserError:
            assert not out.exists()
        else:
            made += 1
            assert differing(open_corpus(out)) == []
            assert open_corpus(out).manifest == manifest
        left = {path.name for path in out.parent.iterdir()} if out.parent.exists() else set()
        assert left <= {"out", "out.rejects.jsonl"}
    assert 0 < made < 20
