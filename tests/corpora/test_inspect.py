"""What `inspect` says of a corpus, against plain Python."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mlstm_jax import cli
from mlstm_jax.corpora.inspect import format_summary, summarise
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.data.corpus import open_corpus

from .written import jsonl

TEXTS = [("good strap", 5), ("a café, an endless story " * 30, 1), ("bad", 1), ("so so", None)]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    records = [{"text": text, "rating": rating} for text, rating in [*TEXTS, TEXTS[0]]]
    prepare([jsonl(tmp_path / "a.jsonl", records)], tmp_path / "corpus", split=(1, 0, 0))
    return tmp_path / "corpus"


def test_a_summary_counts_what_is_there(made: Path) -> None:
    opened = open_corpus(made)
    found = summarise(opened, batch=1, window=8, samples=2)
    data = (made / "train.bin").read_bytes()
    cleaned = [f"\n {text.strip()} ".encode() for text, _ in TEXTS]
    assert found["byte_counts"] == [Counter(data)[byte] for byte in range(256)]
    assert found["not_ascii"] == pytest.approx(sum(b > 127 for b in data) / len(data))
    lengths = sorted(map(len, cleaned))
    median, mean = (lengths[1] + lengths[2]) / 2, sum(lengths) / 4
    numbers = {"shortest": lengths[0], "median": median, "mean": mean, "longest": lengths[-1]}
    assert found["document_bytes"] == numbers
    assert found["shortest"] == "\n bad "
    assert found["longest"] == cleaned[1][:200].decode()
    assert found["ratings"] == {"counts": {"1": 2, "5": 1}, "other": 0, "without": 1}
    assert found["duplicates"] == 1
    assert found["epoch"]["steps"] > 0
    assert len(found["samples"]) == 2
    assert 0 < found["bits_per_byte"] < 8
    text = format_summary(found)
    assert "1            2 ####" in text
    assert "shortest: bad" in text
    too_large = summarise(opened, batch=100_000, window=256)
    assert "too few" in format_summary(too_large)


def test_inspect_as_json(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["inspect", str(made), "--json", "--verify", "--batch", "1", "--window", "8"])
    found = json.loads(capsys.readouterr().out)
    assert found["epoch"]["window"] == 8
    assert found["checksums"] == "all agree"
    cli.main(["inspect", str(made), "--samples", "1"])
    assert capsys.readouterr().out.count("sample: ") == 1


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `prepare` says beside the counts."""

    def prepare(*words: object) -> str:
        cli.main(["prepare", *map(str, words), "--out", str(tmp_path / "out"), "--overwrite"])
        return capsys.readouterr().out

    return prepare


def numbered(path: Path, line: str, count: int) -> Path:
    """A file of one line so many times, each with its number."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(line.format(n) + "\n" for n in range(count)))
    return path


def test_prepare_says_how_much_looks_like_markup(tmp_path, told) -> None:
    page = numbered(tmp_path / "a.txt", '<div class="a"><p>{:0>12}</p></div>', 100)
    assert "65% of the train split's bytes are in tags" in told(page)
    line = "so good<br /> that I would, if a < b > c, buy it again and then once more {}"
    assert "tags" not in told(numbered(page, line, 100))


def test_the_split_that_is_advised_is_large_enough(told, tmp_path) -> None:
    line = "It is sentence {} of a long row of them."
    path = numbered(tmp_path / "a.txt", line, 20_000)
    said = told(path, "--split", "100,1,1")
    assert "the valid split has only" in said
    advised = re.search(r"--split (\d+,1,1) gives", said)
    assert "note" not in told(path, "--split", advised[1])
    # No split of so little text is large enough, so none is advised.
    assert "so add more text" in told(numbered(path, line, 2000), "--split", "8,1,1")


def test_wrapped_prose_and_files_of_no_known_kind_are_told(told, tmp_path) -> None:
    line = "where prose is wrapped at some seventy bytes, a line ends anywhere {}"
    path, advice = numbered(tmp_path / "in/a.txt", line, 300), "--document paragraph or file"
    path.with_name("notes.md").write_text("not read")
    said = told(path.parent)
    assert "1 file(s) in the folders are of an unknown kind and were not read: notes.md" in said
    assert advice in said
    assert advice not in told(path, "--document", "line")
    assert advice not in told(numbered(path, "Sentence {} is a whole document.", 300))
