"""A model and its classifier as one program, with NumPy alone: the answers of `classify`."""

import contextlib
import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax.corpora.documents import clean
from mlstm_jax.corpora.sources import FORMATS
from mlstm_jax.errors import UserError
from mlstm_jax.loaded import Loaded
from mlstm_jax.model.numpy_model import KINDS
from mlstm_jax.transfer import standalone, zipapp
from mlstm_jax.transfer.classifier import Classifier, Description
from tests.tables import column
from tests.transfer.pieces import shares_of
from tests.transfer.test_kinds import draw

# The packages that an environment with Python and NumPy does not have.
BLOCKED = "import sys; sys.modules.update(jax=None, mlstm_jax=None, scipy=None, safetensors=None)"
TEXTS = ["I loved it.", "A dull,\r\n&quot;mess&quot; of a café. ", " \n", "\ud800 &#38;amp; é"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zipapp") / "sentiment.pyz"
    return mlstm.load("sentiment").export(path)


def lines_of(program: Path, code: str, folder: Path, given: str = "") -> list[str]:
    """What some code writes that imports the program as `one`."""
    start = f"{BLOCKED}\nimport json\nsys.path.insert(0, {str(program)!r})\n"
    start += f"import {program.stem} as one\n"
    command = [sys.executable, "-c", start + code]
    how = {"cwd": folder, "capture_output": True, "text": True, "timeout": 60}
    return subprocess.run(command, check=True, input=given, **how).stdout.splitlines()


def answers(program: Path, texts: list[str], folder: Path) -> Any:
    code = f"print(json.dumps(one.classify(json.loads({json.dumps(texts)!r}))))"
    (line,) = lines_of(program, code, folder)
    return json.loads(line)


@pytest.mark.filterwarnings("ignore::mlstm_jax.errors.Note")
@pytest.mark.parametrize(("name", "most"), [("reviews-1024", 13e6), ("sentiment", 6.5e6)])
def test_answers_of_classify(name: str, most: float, tmp_path: Path) -> None:
    """Of a model in float16, and of one in int8."""
    model = mlstm.load(name)
    program = model.export(tmp_path / "small.pyz")
    assert program.stat().st_size < most
    found = answers(program, TEXTS, tmp_path)
    for ours, theirs in zip(found, model.classify(TEXTS), strict=True):
        assert list(ours) == list(theirs)
        assert ours == pytest.approx(theirs, abs=1e-5)


JSON = '{"text": "I loved it."}\n{"text": "It broke\\rand smells."}\n{"text": ""}\n'
CONTENTS = {
    "table": 'n\ttext\n1\tI loved it.\n2\t"It broke,\nand smells."\n3\t\n',
    "json": JSON,
    "jsonl": JSON,
    "text": "I loved it.\n\nIt broke, and smells.\n",
}


@pytest.mark.parametrize("suffix", [one.suffix for one in FORMATS.values() if one.has_lines])
def test_labels_of_a_file(program: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"new{suffix}"
    form = FORMATS[suffix]
    content = CONTENTS[form.parser].replace("\t", form.delimiter)
    file.write_text(content, encoding="utf-8")
    run = [sys.executable, str(program)]
    done = subprocess.run([*run, file], check=True, capture_output=True, timeout=60)
    said = done.stdout.decode()
    assert said.startswith("record,text,label,p(negative),p(neutral),p(positive)\n1,I loved it.,")
    rows = [*csv.DictReader(io.StringIO(said, newline=""))]
    assert column(rows, "label") == ["positive", "negative", ""][: 2 + form.has_columns]
    assert column(rows, "text")[1].replace(",", "").split() == ["It", "broke", "and", "smells."]
    run += [file, "--column", "x"]
    wrong = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert ("name the texts with --column" in wrong.stderr) == (suffix != ".txt")
    assert bool(wrong.stdout) == (suffix == ".txt")


REFUSED = {
    "missing.csv": (None, "No such file"),
    "misspelt.cvs": (None, "unknown kind; known kinds are"),
    "empty.csv": (b"", "has no text"),
    "head.csv": (b"text\n", "has no text"),
    "latin.txt": (b"caf\xe9\n", "is not UTF-8"),
    "texts.csv.gz": (b"\x1f\x8b", "unknown kind"),
    "array.json": (b'[{"text": "a"},\n{"text": "b"}]\n', "line 1: write a JSON object"),
    "cut.jsonl": (b'{"text": "a"}\n{"te', "line 2: write a JSON object"),
    "number.jsonl": (b'{"text": 5}\n', "a text that is no string, but 5"),
    "twice.jsonl": (b'{"text": "a", "text": "b"}\n', "has text more than once"),
    "mac.txt": (b"a\rb", "carriage returns for newlines"),
    "wide.csv": (b"text,label\na, b,1\n", "line 2: 3 columns where the header has 2; put a field"),
    "space.csv": (b'label,text\n1, "a"\n', "line 2: a space before a quoted field; remove it"),
    "quote.csv": (b'text\n"a "b" c"\n', "line 2: not CSV .*; put a field .* in quotes, and double"),
    "other.csv": (b"id,words\n1,a\n", "no column text or .*, but id, words; name .* with --column"),
}


def run_all(program: Path, calls: list[list[str]], folder: Path, given: str = "") -> list[Any]:
    """The exit code or message of each call of a program, and what all wrote."""
    code = f"""said = []
for words in {calls!r}:
    try:
        said.append(one.main(words))
    except SystemExit as stop:
        said.append(stop.code)
print(json.dumps(said))"""
    *lines, said = lines_of(program, code, folder, given)
    return [json.loads(said), lines]


def test_files_that_cannot_be_read(program: Path, tmp_path: Path) -> None:
    for name, (content, _) in REFUSED.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    calls = [[name] for name in REFUSED]
    said, lines = run_all(program, [*calls, ["head.csv", "latin.txt"]], tmp_path)
    assert said.pop() == 2  # two files
    assert not lines
    for message, (name, (_, expected)) in zip(said, REFUSED.items(), strict=True):
        assert message.startswith(name)
        assert re.search(expected, message)


# Files that are read as `classify` reads them, or refused as by it; what `-` is given, too.
TWEETS = b'pos\t"Great film, loved it\nneg\tIt was terrible.\npos\t"Best" thing ever\n'
LIKE_CLASSIFY = {
    "quotes.tsv": b"label\ttext\n" + TWEETS,
    "joined.tsv": b'label\ttext\npos\t"I loved it.\nneg\tIt broke."\n',
    "quoted.tsv": b'label\ttext\npos\t"I\tloved it."\nneg\t"It\nbroke."\n',
    "doubled.tsv": b'text\tsize\n"A ""great"" film,\n really."\t5"\n7" of rain.\t\n',
    "a.csv": b'\xef\xbb\xbf\n text ,label\n"I, too,\nloved it.",pos\n\nIt "broke.\n,\ntext,label\n',
    "excel.csv": b"sep=;\r\nid;text\r\n1;It broke, sadly.\r\n",
    "types.csv": b"id,text,n\nint,str,float64\n1,I loved it.,2\nint,str,int\n",
    "case.csv": b"text,label\nI loved it.,pos\n Text,LABEL\n",
    "one.csv": b"text\nText\nint\nI loved it.\ntext\n",
    "order.csv": b"text,label\nI loved it.,pos\nlabel,text\n",
    "near.csv": b"text,label\nA label,text\nI loved it.,text\nlabel,pos\n",
    "numbers.csv": b"text,0,1\nI loved it.,1,0\nIt broke.,0,1\n",
    "pandas.csv": b",text,label\n0,I loved it.,pos\n1,text,\n2,It broke.,neg\n",
    "semicolons.csv": b"id;text\n1;It broke, sadly.\n",
    "null.jsonl": b'{"text": null, "reviewText": "I loved it."}\n{"text": ""}\n{"n": {"a": 1}}\n',
    "half.jsonl": b'{"text": "half \\ud83d of it"}\n\n {"text": "It \\u2028 broke."}\xc2\xa0\n',
    "lines.txt": b"I loved it, really\n\n \nIt broke\rtwice, sadly\r\n\x1a",
    "rule.txt": b"Signature " + 60 * b"_" + b" (name), the date\nI loved it.\n",
    "column.txt": b"text\nI loved it.\n",
    "list.txt": b"Apples, pears\nI loved both.\n",
    "twice.csv": b"text,text\nI loved it.,It broke.\n",
    "twice.jsonl": b'{"text": "a", "text": "b"}\n',
    "return.csv": b"label,text\npos,I \rloved it.\nneg,It broke.\n",
    "mac.txt": b"I loved it.\rIt broke.",
    "nul.txt": b"I loved it.\0\n",
    "wide.csv": b"text,label\nI loved it, really,pos\n",
    "space.csv": b'label,text\npos, "I loved it."\n',
    "short.csv": b"label,text\npos\nneg,It broke.\n",
    "unclosed.csv": b'text\n"I loved it.\nIt broke.\n',
    "number.jsonl": b'{"text": 5}\n{"text": "a"}\n',
    "blank.jsonl": b'{"text": ""}\n',
    "other.jsonl": b'{"words": "a"}\n',
    "words.csv": b"id,words\n1,a\n",
}


@pytest.mark.filterwarnings("ignore::mlstm_jax.errors.Note")
def test_records_of_classify(program: Path, tmp_path: Path, monkeypatch) -> None:
    """Of files, by name and as standard input."""
    model = mlstm.load("sentiment")
    expected = []
    for name, content in LIKE_CLASSIFY.items():
        (tmp_path / name).write_bytes(content)
        for source in (tmp_path / name, Path("-")):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
            written = io.StringIO(newline="")
            with contextlib.suppress(UserError):
                standalone.write_csv(written, model.classify_parts(source), ["a"])
            expected.append([name, source.name, *records_of(written.getvalue())])
    code = f"""import contextlib, io, os
for name in {[*LIKE_CLASSIFY]!r}:
    for source in (name, "-"):
        os.dup2(os.open(name, os.O_RDONLY), 0)
        written = io.StringIO(newline="")
        with contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
            one.main([source])
        print(json.dumps([name, source, written.getvalue()]))"""
    found = map(json.loads, lines_of(program, code, tmp_path))
    for (name, source, written), one in zip(found, expected, strict=True):
        assert [name, Path(source).name, *records_of(written)] == one


def records_of(written: str) -> list[list[str]]:
    """Number, text and label of each record."""
    return [row[:3] for row in csv.reader(io.StringIO(written, newline=""))]


def test_column_of_the_classifier(tmp_path: Path) -> None:
    """As `classify` by default: the one that it was fitted to."""
    model = mlstm.TrainedModel(draw("mlstm"))
    about = Description("h", False, model.loaded.fingerprint, "review")
    made = Classifier(np.ones((1, 12)), np.zeros(1), ["a", "b"], 1.0, about=about)
    program = model.export(tmp_path / "one.pyz", classifier=made)
    both = "text,review\nWrong,Good\n"
    (tmp_path / "both.csv").write_text(both)
    (tmp_path / "other.csv").write_text("text,id\nWrong,1\n")
    calls = [["both.csv"], ["other.csv"], ["-"], ["both.csv", "--column", "text"]]
    said, lines = run_all(program, calls, tmp_path, both)
    assert said[1].startswith("other.csv has no column review, but text, id; name the texts")
    written = records_of("\n".join(lines))
    assert [row[1] for row in written if row[0] == "1"] == ["Good", "Good", "Wrong"]
    (part,) = model.classify_parts(tmp_path / "both.csv", made)
    assert part[0] == ["Good"]
    with pytest.raises(UserError, match="no column review"):
        model.classify(tmp_path / "other.csv", made)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_characters_that_cannot_be_written(program: Path, tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "half \\ud83d"}\n{"text": "\\ud83d\\ude00 café"}\n', encoding="utf-8")
    how = {"encoding": encoding, "env": {"PYTHONIOENCODING": encoding, "LC_ALL": "C.UTF-8"}}
    for given in (str(file), "half ? 😀 café"):
        run = [sys.executable, str(program), given]
        said = subprocess.run(run, check=True, capture_output=True, timeout=60, **how).stdout
        assert "half ?" in said
        assert ("😀 café" if encoding == "utf-8" else "? café") in said


def test_texts_given_or_piped(program: Path, tmp_path: Path) -> None:
    long = "It was a good film. " * 20  # longer than the name of a file may be
    said, lines = run_all(program, [[long, "A bad end.csv"], ["-"]], tmp_path, "I loved it.\n")
    assert said == [None, None]
    assert [line.split()[0] for line in lines[:2]] == ["positive", "negative"]
    assert lines[-1].startswith("1,I loved it.,positive,")
    wrong = "try: one.classify(['a', None])\nexcept TypeError as error: print(error)"
    assert lines_of(program, wrong, tmp_path) == ["texts[1] is of type NoneType; pass strings."]


@pytest.mark.parametrize("cleaning", ["radford", "none"])
def test_cleaning(cleaning: Any) -> None:
    nasty = ["a\r\nb\rc\nd", " &amp;lt; ", f"&#{'1' * 5000};", "\u2028 a \x85", "&nbsp;"]
    for text in [*TEXTS, *nasty]:
        assert standalone.clean(text, cleaning) == clean(text, cleaning)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("softmax", [False, True])
def test_other_kinds_and_classifiers(kind: str, softmax: bool, tmp_path: Path) -> None:
    """Two layers, three classes, a path of states; the same model gives the same bytes."""
    model = mlstm.TrainedModel(draw(kind))
    random = np.random.default_rng(0)
    about = Description("h+mean_h+max_h", True, model.loaded.fingerprint, None)
    weights_KD = random.normal(size=(3, 72))
    made = Classifier(weights_KD, random.normal(size=3), [*"abc"], 1.0, softmax, about=about)
    first = model.export(tmp_path / "one.pyz", classifier=made)
    data = first.read_bytes()
    assert model.export(first, classifier=made, overwrite=True).read_bytes() == data
    texts = ["my guitar is good", "bad"]
    features = model.encode(texts, "h+mean_h+max_h", all_layers=True)
    expected = made.probabilities(features)
    found = shares_of(answers(first, texts, tmp_path))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_refused_packs(tmp_path: Path) -> None:
    made = Classifier(np.ones((1, 12)), np.zeros(1), ["a", "b"], 1.0)
    transformer: Loaded = draw("transformer")
    for name, loaded, message in (
        ("my model.pyz", draw("mlstm"), "out is .* letters, digits"),
        ("a.pyz", transformer, "this is a model:transformer"),
    ):
        with pytest.raises(UserError, match=message):
            zipapp.pack(tmp_path / name, loaded, made)
    assert not list(tmp_path.iterdir())
