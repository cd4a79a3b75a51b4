"""The commands of the docs, and the Python code of tutorials."""

import asyncio
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from mlstm_jax import cli, shipped

ROOT = Path(__file__).parent.parent
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md")), *ROOT.glob("docs/**/*.md")]
TAGS = ("DET", "NOUN", "VERB", "ADJ")


def blocks(page: str, heading: str = "") -> list[str]:
    """The Python code of a page of the docs, from a heading on."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"(?s)```python\n(.*?)```", text[text.index(heading) :])


@pytest.fixture
def here(run, tmp_path, monkeypatch) -> None:
    """An empty folder with the model runs/log."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/log").symlink_to(run.folder)


def test_byte_by_byte(here, text_file, capsys) -> None:
    """A line of another kind surprises most, and words of a simple grammar are tagged."""
    lines = text_file.read_text(encoding="utf-8").splitlines()[:60]
    lines[40] = "kernel: Out of memory: Killed process 4242"
    Path("today.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = [line.split()[:4] for line in lines if line != lines[40]]
    rows = [[f"{w}\t{t}" for w, t in zip(one, TAGS, strict=True)] for one in words]
    Path("tagged.tsv").write_text("\n\n".join(map("\n".join, rows)), encoding="utf-8")
    surprise, tagger = blocks("tutorials/byte_by_byte.md")
    names: dict[str, Any] = {}
    exec(surprise, names)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.endswith(f"bits per byte in line 41: {lines[40]}")
    assert len(others) == 4
    assert float(first.split()[0]) > 1.5 * float(others[0].split()[0])
    exec(tagger, names)
    assert capsys.readouterr().out.endswith("% of the words of 12 sentences\n")
    # A tag that each word has alone: what is left is to read the right byte.
    assert names["accuracy"] > 0.9
    assert np.shape(names["vectors"][0]) == (4, 1024)


def test_several_labels(here) -> None:
    """A rare label and a common one, on texts that the model has not seen labelled."""
    recipe, *_ = blocks("transfer.md", "## Several labels ")
    recipe = recipe.replace("reviews-1024", "runs/log")
    recipe = recipe.replace('scoring="f1"', 'scoring="f1", thresholds=10')  # of 100
    generator = np.random.default_rng(0)
    nouns = generator.choice(["piano", "guitar", "cable", "strap"], 160, p=[0.1, 0.3, 0.3, 0.3])
    ends = generator.choice(["good", "great", "bad"], 160)
    texts, labels, lines = [], [], []
    for noun, end in zip(nouns, ends, strict=True):
        texts.append(f"my {noun} is {end} {len(texts)}.")
        labels.append(["piano"] * (noun == "piano") + ["praise"] * (end != "bad"))
        lines.append(json.dumps({"text": texts[-1], "label": labels[-1]}))
    Path("train.jsonl").write_text("\n".join(lines[:110]), encoding="utf-8")
    names: dict[str, Any] = {}
    with threadpool_limits(1, user_api="blas"):
        exec(recipe, names)
    assert names["names"].classes_.tolist() == ["piano", "praise"]
    predicted = names["classifier"].predict(texts[110:])
    expected = names["names"].transform(labels[110:])
    assert (predicted == expected).mean(axis=0).min() > 0.9
    thresholds = [one.best_threshold_ for one in names["classifier"][-1].estimators_]
    assert thresholds[0] != 0.5


def test_numbers(here, random) -> None:
    recipe, *_ = blocks("transfer.md", "## Numbers\n")
    ends = random.choice(["good", "great", "bad"], 120)
    texts = [f"my guitar is {end} {number}." for number, end in enumerate(ends)]
    numbers = 4.5 - 3.2 * (ends == "bad") + 0.1 * random.normal(size=120)
    names: dict[str, Any] = {"texts": texts[:90], "numbers": numbers[:90]}
    with threadpool_limits(1, user_api="blas"):
        exec(recipe.replace("reviews-1024", "runs/log"), names)
    assert names["model"].score(texts[90:], numbers[90:]) > 0.9


@pytest.mark.filterwarnings("ignore:1 of . texts:mlstm_jax.errors.Note")
def test_recipes(here, text_file, monkeypatch, capsys) -> None:
    """Each program of the page, the service through Starlette and the log from standard input."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("starlette")
    from starlette.requests import Request

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'["I loved it.", ""]', "more_body": False}

    log = [*text_file.read_bytes().splitlines(keepends=True)[:20], b"kernel: Killed 4242\n"]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=log))
    frames, joined, labelled, watch, service, books, layers = blocks("recipes.md")
    names: dict[str, Any] = {"frame": pandas.DataFrame({"text": ["I loved it.", ""]})}
    exec(frames, names)
    assert names["frame"]["positive"][0] > 0.9
    assert names["frame"]["positive"].isna().tolist() == [False, True]
    Path("new.csv").write_text("id,text,label\n7,I loved it.,1\n8,,2\n9,It broke.,3\n", "utf-8")
    cli.run(["classify", "sentiment", "new.csv", "--out", "labels.csv"])
    exec(joined, names)
    assert names["table"]["id"].tolist() == [7, 8, 9]
    assert names["table"]["found label"].fillna("").tolist() == ["positive", "", "negative"]
    texts = text_file.read_text(encoding="utf-8").splitlines()[:40]
    labels = ["bad" if "bad" in text else "good" for text in texts]
    names["frame"] = pandas.DataFrame({"text": texts, "label": labels})
    exec(labelled, names)
    answer = names["model"].classify(texts[:1], names["fit"])[0]
    assert max(answer, key=answer.get) == labels[0]
    capsys.readouterr()
    exec(watch, {})
    assert capsys.readouterr().out.endswith("kernel: Killed 4242\n")
    names["document"] = "I loved it.\n\nIt broke after a week.\n\n"
    exec(books, names)
    assert 0.1 < names["positive"] < 0.9
    exec(layers, names)
    assert names["h_BTH"].shape == (8, 100, 64)
    exec(service, names)
    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    response = asyncio.run(names["classify"](request))
    first, blank = json.loads(response.body)
    assert first["positive"] > 0.9
    assert blank == {}


def test_commands_of_the_docs(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Which a reader has written.
    Path("small_512.py").write_bytes(shipped.files("config")["small_512"].read_bytes())
    lines = set()
    for page in (*PAGES, *shipped.files("model").values()):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"(?m)^ *mlstm-jax ([a-z]+(?: .*)?)$", text):
            words = shlex.split(line, comments=True)
            if ">" in words:  # the shell's
                words = words[: words.index(">")]
            if not {"...", "${options[@]}"} & set(words):
                lines.add(tuple(words))
    assert len(lines) > 40
    for command, *words in lines:
        cli.parse(command, words)
