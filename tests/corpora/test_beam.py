"""Beam gives the corpus of the local engine, byte for byte."""

import os
from pathlib import Path

import pytest

from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.errors import UserError

from .test_dirty import GOOD
from .test_sources import write_layouts
from .written import contents, in_order, jsonl, write_parquet

pytest.importorskip("apache_beam")

# In this process, without a server; the default may fetch one.
LOCAL = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"


def test_same_corpus(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_layouts(folder)
    write_parquet(
        folder / "many.parquet",
        "SELECT (i % 5)::FLOAT AS rating, 'Many  é ' || (i % 1000) AS text FROM range(3000) t(i)",
    )
    rows = map("MANY é {},1\n".format, range(700))
    (folder / "more.csv").write_text("".join(["text,stars\n", *rows]))
    rows = map('"{0} begins\t1\n{0} ends"\t2\n'.format, range(200))
    (folder / "stray.tsv").write_text("".join(["text\tn\n", *rows]))
    twice = b'{"text": "a", "text": "b"}\n'
    (folder / "dirty.jsonl").write_bytes(b"".join([*GOOD, b"bad\n", twice]))
    # Of near-duplicates the one that is kept has no rating, where the other has.
    copies: list[dict[str, object]] = []
    for n in range(20):
        two = {f"\n twice {n} ".encode(), f"\n TWICE {n} ".encode()}
        ((kept, _),) = in_order(zip(two, (0.0, 0.0), strict=True), 5, "normalized")
        (other,) = two - {kept}
        copies += [{"text": kept.decode().strip()}, {"text": other.decode().strip(), "rating": 5}]
    sources = [str(folder), jsonl(tmp_path / "rated.jsonl", copies)]
    options = {"seed": 5, "split": (8, 1, 1), "max_reject_fraction": 0.01}
    prepare(sources, tmp_path / "local", **options)
    rejects = (tmp_path / "local.rejects.jsonl").read_text()
    prepare(sources[::-1], tmp_path / "beam", engine="beam", beam_options=LOCAL, **options)
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")
    assert (tmp_path / "beam.rejects.jsonl").read_text() == rejects
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (LOCAL, r"a\.jsonl: none of its 1 records has text in text"),
        ("--runner=Nope", "Beam could not run the pipeline: .*Nope"),
        ("'", "Beam could not run the pipeline: .*No closing quo"),
    ],
)
def test_refused_sources_and_options(options: str, why: str, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", [{"body": "text"}])
    with pytest.raises(UserError, match=why):
        prepare([source], tmp_path / "out", engine="beam", beam_options=options)
    assert os.listdir(tmp_path) == ["a.jsonl"]
