"""What `inspect` says of a corpus, against plain Python."""

import json
from pathlib import Path

import numpy as np

from mlstm_jax import cli
from mlstm_jax.corpora.inspect import format_summary, inspect
from mlstm_jax.corpora.prepare import prepare

from .written import jsonl

TEXTS = [
    ("good strap", 1234568),
    ("almost as good", 1234567),
    ("a café, an endless story " * 30, 4.1),
    ("bad", 4.1),
    ("so so", None),
]


def test_summary(tmp_path: Path, capsys) -> None:
    records = [{"text": text, "rating": rating} for text, rating in [*TEXTS, TEXTS[0]]]
    made = tmp_path / "corpus"
    prepare([jsonl(tmp_path / "a.jsonl", records)], made, split=(1, 0, 0))
    found = inspect(made, batch=1, window=8, samples=2)
    data = (made / "train.bin").read_bytes()
    cleaned = [f"\n {text.strip()} ".encode() for text, _ in TEXTS]
    bytes_N = np.frombuffer(data, np.uint8)
    assert found["byte_counts"] == np.bincount(bytes_N, minlength=256).tolist()
    lengths = sorted(map(len, cleaned))
    assert found["document_bytes"] == {
        "shortest": lengths[0],
        "median": lengths[2],
        "mean": sum(lengths) / 5,
        "longest": lengths[4],
    }
    counts = {"4.1": 2, "1234567": 1, "1234568": 1}
    assert found["ratings"] == {"counts": counts, "other": 0, "without": 1}
    assert found["duplicates"] == 1
    assert found["epoch"]["steps"] > 0
    assert len(found["samples"]) == 2
    text = format_summary(found)
    assert "4.1            2 ####" in text
    assert "sample: " in text
    too_large = inspect(made, batch=100_000, window=256)
    assert "too few" in format_summary(too_large)

    cli.main(["inspect", str(made), "--json", "--verify", "--batch", "1", "--window", "8"])
    found = json.loads(capsys.readouterr().out)
    assert found["epoch"]["window"] == 8
    assert found["checksums"] == "all agree"
    cli.main(["inspect", str(made), "--samples", "1"])
    assert capsys.readouterr().out.count("sample: ") == 1
