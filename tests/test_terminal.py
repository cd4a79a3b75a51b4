r"""What strangers wrote is shown with escapes: in a real terminal, nothing but \n, \t and text."""

import contextlib
import io
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from mlstm_jax import arrays, cli, config, run, terminal, weights
from mlstm_jax.parallel import Parallel
from mlstm_jax.terminal import ProgressLine
from mlstm_jax.transfer import windows
from mlstm_jax.transfer.classifier import Classifier, Description
from mlstm_jax.weights import ModelWeights
from tests.corpora.written import jsonl
from tests.tables import draw_arrays

# It clears the screen, sets the title, deletes a line, and turns the direction.
HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b2K\r\x7f\u202e"
SHOWN = r"\x1b[2J\x1b]0;title\x07\x9b2K\r\x7f\u202e"


def steers(text: str) -> set[str]:
    return {c for c in text if not c.isprintable() and c not in "\n\t" and not c.isspace()} | {
        c for c in text if c in "\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\u2028\u2029"
    }


def test_printable_text() -> None:
    text = "a\tb\nc é 漢字 \u200f\u05d0 👩\u200d🚀\ufeff"
    assert terminal.printable(text) == text
    assert terminal.one_line("a\tb\nc") == r"a\tb\nc"
    assert terminal.message("a\nb: c") == "a\n  b: c"


def test_escapes() -> None:
    every = "".join(map(chr, [*range(32), *range(127, 160), *range(0x2028, 0x202F)]))
    every += "\u2066\u2069\ud800\udfff"
    shown = terminal.printable(every)
    assert not steers(shown)
    assert shown.encode().decode() == shown  # lone surrogates are gone, too
    assert terminal.printable(HOSTILE) == SHOWN
    assert terminal.printable("\x00\udc80\u2066") == r"\x00\udc80\u2066"


@pytest.fixture
def hostile_run(tmp_path: Path) -> Path:
    """A model that writes an escape, and nothing else, whatever it has read."""
    model = config.Model(hidden=2, embedding=2)
    shapes = weights.expected_shapes(model)
    flat = draw_arrays(np.random.default_rng(0), shapes, spread=0)
    flat["decoder_bias"][0x1B] = 100
    made = ModelWeights(model, "none", arrays.unflatten(flat), HOSTILE)
    run.write_imported(tmp_path / "run", made)
    return tmp_path / "run"


def test_terminal_and_pipe(hostile_run, tmp_path, monkeypatch, printed) -> None:
    """Of what a model writes, and of labels."""
    made = Classifier(np.ones((1, 2)), np.zeros(1), [HOSTILE, "a\nb"], 1.0)
    fingerprint = arrays.fingerprint(run.load_run(hostile_run).params)
    (tmp_path / "dir").mkdir()
    about = Description("c", False, fingerprint, None)
    made._replace(about=about).save(tmp_path / "dir")
    (tmp_path / "a.txt").write_text("one\n" * 11 + HOSTILE)
    write = ["generate", str(hostile_run), "--prompt", "a\x1bb\nc\t", "--bytes", "3"]
    label = ["classify", str(hostile_run), str(tmp_path / "dir"), str(tmp_path / "a.txt")]
    assert printed(*write) == "a\x1bb\nc\t\x1b\x1b\x1b\n"
    assert HOSTILE in printed(*label)
    for name in ("new/folder/out.csv", "out.jsonl"):
        cli.main([*label, "--out", str(tmp_path / name)])
    assert HOSTILE.encode() in (tmp_path / "new/folder/out.csv").read_bytes()
    written = (tmp_path / "out.jsonl").read_text()
    assert not steers(written)
    last = json.loads(written.splitlines()[-1])
    assert (last["record"], last["text"], last["label"]) == (12, HOSTILE, HOSTILE)

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert printed(*write) == "a\\x1bb\nc\t" + r"\x1b" * 3 + "\n"
    table = printed(*label).splitlines()
    assert table[0].split() == ["record", "label", "p", "text"]
    assert table[1].split() == ["1", SHOWN, "0.5000", "one"]
    assert len(table) == 1 + 10 + 1
    assert table[-1].startswith("10 of 12 texts; for all,")


def test_name_of_a_file(tmp_path, printed) -> None:
    source = tmp_path / f"{HOSTILE}\nforged.jsonl"
    out = str(tmp_path / "corpus")
    jsonl(source, [{"text": f"{HOSTILE} {n}"} for n in range(50)])
    for words in (["prepare", str(source), "--out", out], ["inspect", out]):
        assert f"{SHOWN}\\nforged.jsonl" in printed(*words)
    assert json.loads(printed("inspect", out, "--json"))["sources"][0]["name"] == source.name


def test_messages(refused: Callable[..., str]) -> None:
    for words in (
        ("train", f"{HOSTILE}.py"),
        ("train", f"--data.window={HOSTILE}"),
        ("generate", HOSTILE),
        ("inspect", f"{HOSTILE}\nmlstm-jax: all is well"),
        ("plan", f"--{HOSTILE}"),
    ):
        said = refused(*words)
        assert r"\x1b[2J" in said
        assert not steers(said)
        assert "\nmlstm-jax: all is well" not in said


def fail(text: str) -> None:
    raise RuntimeError


FULL = SimpleNamespace(write=fail, flush=str)
TERMINAL = SimpleNamespace(write=fail, flush=str, isatty=lambda: True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that sets the time of `time.monotonic`; it is 0 at first."""
    now = 0.0

    def turn(seconds: float) -> None:
        nonlocal now
        now = seconds

    monkeypatch.setattr("time.monotonic", lambda: now)
    return turn


@pytest.mark.parametrize("stream", ["without isatty", FULL, TERMINAL, "closed", None])
def test_any_stream(stream, clock, monkeypatch, capsys):
    written: list[str] = []
    if stream == "without isatty":
        stream = SimpleNamespace(write=written.append, flush=str)
    elif stream == "closed":
        stream = io.StringIO()
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressLine("train", 3) as progress:
        progress.say(f"changed: {HOSTILE}")
        clock(60.0)
        progress.update(2)
    terminal.tell("told")
    terminal.leave()
    if written:
        assert "".join(written) == f"changed: {SHOWN}\ntrain  2/3  -:--:-- left\ntold\n"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("of_bytes", "steps", "first", "second"),
    [
        (False, 101, 1, "train  11/101  0:02:15 left"),  # 90 steps of 1.5 s
        (True, 3_000_000, 500_000, "train  1.5/3.0 MB  66.7 kB/s  0:00:23 left"),  # 1.5 MB
    ],
)
def test_time_left(of_bytes, steps, first, second, clock, capsys):
    with ProgressLine("train", steps, of_bytes=of_bytes) as progress:
        clock(60.0)
        progress.advance(first)
        clock(75.0)
        progress.advance(1_000_000 if of_bytes else 10)
    before, after = capsys.readouterr().err.splitlines()
    assert "-:--:-- left" in before
    assert after == second


def test_heat_map_of_an_odd_folder(hostile_run, tmp_path, capsys):
    """A lone surrogate of a file name ends no page."""
    odd = tmp_path / "run $\\frac{ \udcff\x1b"
    hostile_run.rename(odd)
    words = ["heatmap", str(odd), "--unit", "1", "--text", HOSTILE]
    cli.main([*words, "--out", str(tmp_path / "h.html")])
    page = (tmp_path / "h.html").read_text(encoding="utf-8")
    assert r"run $\frac{ \udcff\x1b, imported" in page
    assert not steers(page)
    assert ">\u241b</span>" in page  # the symbol for escape


def test_report_of_odd_labels(hostile_run, tmp_path, capsys) -> None:
    names = [HOSTILE, "$\\frac{", "a|b\nc", "lone \ud800", "<img src=x> *b* [c](d) `e` R&B"]
    records = [{"text": f"word {n % 7} text", "label": names[n % 5]} for n in range(20)]
    texts = jsonl(tmp_path / "texts.jsonl", records)
    words = ["transfer", str(hostile_run), "--out", str(tmp_path / "out")]
    cli.main([*words, "--train", texts, "--valid", texts, "--test", texts])
    report = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    for text in (capsys.readouterr().out, report):
        assert not steers(text)
        assert SHOWN.replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]") in text
        assert r"| **a\|b\\nc** |" in text
        assert r"&lt;img src=x&gt; \*b\* \[c\](d) \`e\` R&amp;B" in text
    found = json.loads((tmp_path / "out/report.json").read_text())
    assert set(found["classes"]) == set(names)


def test_slow_work(monkeypatch, capsys) -> None:
    before = {*threading.enumerate()}
    with terminal.told_if_slow("too quick"):  # for a test's SLOW_SECONDS
        (timer,) = {*threading.enumerate()} - before
    timer.join(60)
    assert not timer.is_alive()
    monkeypatch.setattr(terminal, "SLOW_SECONDS", 0.0)
    with terminal.told_if_slow("known", unless=True):
        assert {*threading.enumerate()} == before
    with terminal.told_if_slow("compiling it"):
        for timer in {*threading.enumerate()} - before:
            timer.join(600)
    assert capsys.readouterr().err == "compiling it\n"


def test_announced_programs(model, monkeypatch) -> None:
    said: list[str] = []

    def told_if_slow(text: str, *, unless: bool) -> contextlib.AbstractContextManager[None]:
        if not unless:
            said.append(text)
        return contextlib.nullcontext()

    monkeypatch.setattr(windows, "told_if_slow", told_if_slow)
    read = windows.WindowReader(model.run, Parallel(jax.devices()[:1]))
    for _ in range(2):
        list(read.read([b"a text"]))
    assert said == ["compiling the program that reads texts, 1 at a time"]
