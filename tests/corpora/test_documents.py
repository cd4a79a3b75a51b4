"""Files of every kind become documents, and every mistake in one is named with its place."""

import csv
import gzip
import io
import json
import random
import sys
import warnings
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path

import pytest

from mlstm_jax.corpora import readers
from mlstm_jax.corpora.documents import Document, Recipe, clean
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.corpora.readers import read_documents
from mlstm_jax.corpora.sources import FORMATS, STDIN, Source
from mlstm_jax.errors import Note, UserError


def write(path: Path, text: str | bytes) -> Source:
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return Source(str(path))


def documents(source: Source, **options: object) -> list[Document | None]:
    return list(read_documents(source, Recipe(**options)))


def texts(source: Source, **options: object) -> list[str | None]:
    return [found and found.text for found in documents(source, **options)]


def lines(*records: object) -> str:
    return "\n".join([*map(json.dumps, records), ""])


_FIELDS = {"text": None, "sentence": "default", "body": "named", "stars": 2, "mark": "3.5"}
NO_RATINGS = ["good", None, True, [5], "", "nan", 1e39, 10**400, "inf"]


@pytest.mark.parametrize(
    ("record", "options", "expected"),
    [
        ({"reviewText": "", "overall": 1.0}, {}, Document("", 1.0)),  # blank
        ({"reviewText": None}, {}, None),
        ({"overall": 4.0}, {}, None),
        (_FIELDS, {}, Document("default", 2.0)),
        (_FIELDS, {"text_column": "body", "rating_column": "mark"}, Document("named", 3.5)),
        *(({"text": "t", "rating": rating}, {}, Document("t", None)) for rating in NO_RATINGS),
    ],
)
def test_text_and_rating(tmp_path, record, options, expected):
    source = write(tmp_path / "a.jsonl", lines(record, {"text": "end", "body": "end"}))
    found = documents(source, **options)
    assert found == [expected, Document("end", None)]


TEXTS = ["café", "日本"]
LONG = "x" * 200_000
UNITS = "one\r\ntwo\r\n \r\n\r\n three\n"
MARKED = b'\xef\xbb\xbf{"text": "marked"}\n{"text": "half \\ud800 \\u0000"}\n'
REPEATED = b'{"id": 1, "id": 2, "text": "a \\"text\\"", "x": {"text": ""}, "y": ["text", "text"]}\n'
JOINED = 'text\tn\n"begins\t1\nends"\t2\nsay "so"\t3\n'
SPACED = '"n"\ttext\n1\t" ""a ""b"" c"""\n2\t"two\nlines"\n3\t" """""\n'
QUOTED = 'text,n\n"one,\nline, and, ""more""",1\n'
YES = {"quoting": "yes"}
NO = {"quoting": "no"}


@pytest.mark.parametrize(
    ("name", "content", "options", "expected", "note"),
    [
        ("a.jsonl", '{"text": "café"}\n\n{"text": "日本"}\n', {}, TEXTS, None),
        ("a.json", '\n {"text": "café"}\n{"text": "日本"}', {}, TEXTS, None),
        ("array.json", '\n[{"text": "café"},\n {"text": "日本"}]\n', {}, TEXTS, None),
        ("a.csv", "\ufefftext,label\r\ncafé,1\r\n\r\n日本,0\r\n", {}, TEXTS, None),
        ("a.tsv", "label\ttext\n1\tcafé\n0\t日本\n", {}, TEXTS, None),
        ("a.txt", "\ufeffcafé\r\n\n  \n日本", {}, TEXTS, None),
        ("ctrl_z.csv", "text\r\ncafé\r\n日本\r\n\x1a", {}, TEXTS, None),
        ("A.TXT", "café\n日本\n", {}, TEXTS, None),
        ("a.csv", f'n,text,m\r\n1,"a ""b"",\r\nc",4\r\n2,{LONG}\r\n3,end,,\r\n', {},
         ['a "b",\r\nc', LONG, "end"], None),
        ("a.txt", UNITS, {}, ["one", "two", " three"], None),
        ("a.txt", UNITS, {"document": "paragraph"}, ["one\r\ntwo", " three"], None),
        ("a.txt", UNITS, {"document": "file"}, [UNITS], None),
        # One file behind another; and a field that is there twice matters only where it is read.
        ("a.jsonl", MARKED + MARKED, {}, ["marked", "half \ud800 \0"] * 2, None),
        ("a.jsonl", REPEATED, {}, ['a "text"'], None),
        # The delimiter is that with which the header has a text.
        ("a.csv", "label;text\n1;one, two\n", {}, ["one, two"], "delimiter ';'"),
        ("a.csv", "label\ttext\n1\tone, two\n", {}, ["one, two"], r"delimiter '\\t'"),
        ("a.tsv", 'label,text\n1,"one, two"\n', {}, ["one, two"], "delimiter ','"),
        ("a.csv", "text|label\none, two|1\n", {}, ["one, two"], r"delimiter '\|'"),
        ("a.csv", "sep=|\r\ntext|label\r\none, two|1\r\n", {}, ["one, two"], None),
        ("a.tsv", "sep=|\r\ntext|label\r\none, two|1\r\n", {}, ["one, two"], None),
        ("a.csv", "label^text\n1^a, b; c\n", {"delimiter": "^"}, ["a, b; c"], None),
        ("a.csv", "text,n;text\na,1;b\n", {"delimiter": ";"}, ["b"], None),
        ("a.tsv", 'text;n\n"a;\tb";1\n', {"delimiter": ";"}, ["a;\tb"], None),
        ("a.csv", "text\tn,text\na\t1,b\n", {"delimiter": "\t"}, ["a"], None),
        # Separated by tabs and not quoted: every line is a record.
        ("a.tsv", JOINED, {}, ['"begins', 'ends"', 'say "so"'], None),
        ("a.tsv", 'text\tn\n"all"\t1\nsay "so"\t2\n', {}, ['"all"', 'say "so"'], None),
        ("a.tsv", 'text\tn\n5" and 6"\t1\n"\t2\n', {}, ['5" and 6"', '"'], None),
        ("a.tsv", 'text\t"n" x\nplain\t1\n', {}, ["plain"], None),
        # Records without a label, or stray quotes, show no line break in a field.
        ("a.tsv", 'text\tn\n"a" b\t0\nfine\n', {}, ['"a" b', "fine"], None),
        ("a.tsv", 'text\tn\n"a\t0\nb\nc"\t1\n', {}, ['"a', "b", 'c"'], None),
        ("a.tsv", 'text\tn\n"a\nb"\t1\nfine\n', {}, ['"a', 'b"', "fine"], None),
        # Quoted, as only then every record has the header's columns, or every quote is one.
        ("a.tsv", 'text\tn\n"a\tb"\t1\n"say ""so"""\t2\n', {}, ["a\tb", 'say "so"'], None),
        ("a.tsv", 'n\ttext\n1\t"two\nlines"\n2\tplain\n', {}, ["two\nlines", "plain"], None),
        ("a.tsv", '"text"\t"n"\n"a"\t"1"\n', {}, ["a"], None),
        ("a.tsv", '"text"\t"n"\n"a"\nsay "so"\t"1"\n', {}, ["a", 'say "so"'], None),
        ("a.tsv", 'text\tn\n"say ""so"""\t1\n"b\tc"\t2\nd\n', {}, ['say "so"', "b\tc", "d"], None),
        ("a.tsv", 'text\tn\n"Bad.\nTwice."\t0\nfine\t1\n', {}, ["Bad.\nTwice.", "fine"], None),
        ("a.tsv", 'text\tn\n"a ""b""\n\nc\nd"\t0\n', {}, ['a "b"\n\nc\nd'], None),
        ("a.tsv", SPACED, YES, [' "a "b" c"', "two\nlines", ' ""'], None),
        ("a.csv", SPACED.replace("\t", ","), YES, [' "a "b" c"', "two\nlines", ' ""'], None),
        # A quote may have joined records, in a file with stray quotes only.
        ("a.tsv", JOINED, YES, ["begins\t1\nends", 'say "so"'], "line 2: a field .* line 3, and"),
        ("a.csv", JOINED.replace("\t", ","), {}, ["begins,1\nends", 'say "so"'], "line 2: a field"),
        ("a.csv", JOINED.replace("\t", ","), NO, ['"begins', 'ends"', 'say "so"'], None),
        ("a.csv", QUOTED, {}, ['one,\nline, and, "more"'], None),
        # Headers that are no records.
        ("a.csv", "text,n\na,1\ntext,n\nb,2\ntext,n\n", {}, ["a", "b"], "line 3: the header"),
        ("a.tsv", "n\ttext\n1\ta\nn\ttext\n2\tb\n", {}, ["a", "b"], "line 3: the header"),
        ("a.csv", "text,n\nstring,int64\na,1\n", {}, ["a"], "line 2: the types of the columns"),
        ("a.csv", "text,n\nvarchar(20),int\na,1\n", {}, ["a"], "line 2: the types"),
        ("a.csv", "text,n\na,1\nstring,int\n", {}, ["a", "string"], None),
        ("a.csv", "\ufefftext,n\na,1\n\ufefftext,n\nb,2\n", {}, ["a", "b"], "line 3: the header"),
        ("a.csv", "text,n\na,1\nText,N\nb,2\n", {}, ["a", "b"], "line 3: the header"),
        ("a.csv", "text\nText\n", {}, ["Text"], None),
        # Values that are names of columns, or like columns without one.
        ("a.csv", "text,0,1\na,0,1\nb,1,0\n", {}, ["a", "b"], None),
        ("a.csv", ",text,n\n0,a,r\n1,text,\n2,b,y\n", {}, ["a", "text", "b"], None),
        ("a.csv", ",text,0,1\n5,a,0,1\n6,,0,1\n", {}, ["a", ""], None),
        ("a.csv", "text,n,\na,n,\ntext,1,\n", {}, ["a", "text"], None),
        ("a.txt", "\ufeffa\n\ufeffb\n", {}, ["a", "b"], None),
        ("a.csv", "text\ntext a\nstring\n", {}, ["text a", "string"], None),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_texts_and_notes(tmp_path, name, content, options, expected, note):
    for path in (tmp_path / name, tmp_path / f"{name}.gz"):
        noted = pytest.warns(Note, match=f"{path.name}.*{note}") if note else nullcontext()
        with noted:
            assert texts(write(path, content), **options) == expected


def test_pydoc() -> None:
    paragraphs = texts(Source("pydoc:"))
    topics = texts(Source("pydoc:"), document="file")
    assert len(paragraphs) > 10 * len(topics) > 500
    assert "" not in paragraphs
    assert "\n\n" not in "|".join(paragraphs)
    assert max(map(str.count, paragraphs, repeat("\n"))) > 5
    assert " ".join(paragraphs).split() == " ".join(topics).split()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.odt", "x", r"unknown kind \(\.odt\); known kinds are \.json, .*\.txt, each also"),
        ("README", "x", r"unknown kind \(its name has no suffix\)"),
        ("a.jsonl", gzip.compress(b"{}", mtime=0), r"gzip; rename it to a\.jsonl\.gz"),
        ("a.json", '[{"text": "t"}, 5]', r"element 2 of its array: 5 is not a record"),
        ("a.json", '[{"text": "t"},\n}]', r"line 2: not JSON"),
        ("a.txt", b"fine\nPK\0\1", r"line 2: it has a NUL byte, as binary files have"),
        ("a.csv", "id,body\n1,t\n", r"no column text or .*columns are id, body\. .*`text_column`"),
        ("a.csv", 'text,n\n"a \\"b\\" c",1\n', r"line 2: .*which a backslash does not replace"),
        ("a.csv", 'n,text\n1,a\n2,"b"\n3, "c"\n', r"line 4: a space before a quoted field"),
        ("a.csv", '"n", "text"\n1, "a"\n', r"no column text .*columns are n, \"text\"\."),
        ("a.csv", "text,text\n1,2\n", r"has 2 columns named text; rename"),
        ("a.csv", "id,stars,text,stars\n1,2,3,4\n", r"has 2 columns named stars"),
        ("a.csv", "text,n\na,1\nn,text\n2,b\n", r"line 3: a header unlike the first, n,text;"),
        ("a.csv", "text,n,z\na,1,2\ntext,n\n", r"line 3: a header unlike the first, text,n;"),
        ("a.csv", "text,n,y\na,1,2\ntext,n,z\n", r"line 3: a header unlike the first, text,n,z;"),
        ("a.csv", "review;n\na;1\n", r"its columns are review, n\. .* delimiter ';'"),
        ("a.csv", "", r"has no record"),
        ("a.csv", "text\n \n", r"none of its 1 records has text in text \(blank in 1\)"),
        ("a.csv", "1,t\n0,u\n", r"first line was taken for the header, .* ',': '1,t'\. If the"),
        ("a.csv", "Text,Label\nt,1\n", r"`text_column`; did you mean Text\?"),
        ("a.csv", '"text,label\nt,1\n', r"line 1: the header: not CSV"),
        ("a.csv", "text\nt\n".encode("utf-16"), r"line 1: it looks like UTF-16.*iconv"),
        ("a.txt", "one\rtwo\rthree\r", r"a carriage return without a newline"),
        ("a.jsonl", lines({"text": {"body": "b", "lang": "c"}}, {"text": ""}),
         r"\(an object with the fields body, lang in 1, blank in 1\); the .*\. Write strings"),
        ("a.jsonl", lines({"text": ["a"]}, {"text": 7}), r"\(a list in 1, a number in 1\)"),
        ("a.jsonl", lines({"Text": "t"}), r"fields seen are Text\..* did you mean Text\?"),
        ("a.jsonl", '{"body": "t"}\n{"id": 1}\n', r"none of its 2 records .*seen are body, id\."),
    ],
)  # fmt: skip
def test_unusable_files(tmp_path, name, content, message):
    source = write(tmp_path / name, content)
    with pytest.raises(UserError, match=f"(?s){name}.*{message}"):
        documents(source)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz"])
def test_longest_line(tmp_path, monkeypatch, name):
    monkeypatch.setattr(readers, "LONGEST_LINE", 100)
    source = write(tmp_path / name, f"{'x' * 98}\n\n" + "x" * 101)
    with pytest.raises(UserError, match=rf"{name}, line 3 is longer than 100 bytes"):
        texts(source)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\ntwo", ["one", "two"]),
        (b'{"text": "a"}\n{"text": null}\n', ["a", None]),
        (b'\xef\xbb\xbf\r\n{"text": "a"}\n', ["a"]),
        (b'[{"text": "a"},\n {"text": "b"}, "c"]\n', ["a", "b", "c"]),
        (b"\xef\xbb\xbflabel,text\r\n1,a b\r\n0,c\r\n", ["a b", "c"]),
        (b'"text"\t"label"\n"a"\t"1"\n', ["a"]),
        (b'text\n"a, b"\n', ["a, b"]),
        (b"sep=|\r\ntext|n\r\na, b|1\r\n", ["a, b"]),
        (b"Well, yes\nno\n", ["Well, yes", "no"]),
        (b"Yes, I am.\nNo, not.\n", ["Yes, I am.", "No, not."]),
        (b"yes,no\nno\n", ["yes,no", "no"]),
    ],
)
def test_standard_input(monkeypatch, data, expected):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    copied = STDIN.repeatable()
    assert copied.copy
    with copied.copy:
        assert texts(copied) == texts(copied) == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert texts(STDIN) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (gzip.compress(b"text\na\n", mtime=0), "compressed with gzip; pipe it through gzip -dc"),
        (b"PAR1\x15", "Parquet; name its file"),
    ],
)
def test_no_text_on_standard_input(monkeypatch, data, message):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(UserError, match=f"^standard input: it is not a text, but {message}"):
        texts(STDIN)


def test_skipped_records(tmp_path: Path) -> None:
    good = [*map("1,text {}\n".format, range(999))]
    source = write(tmp_path / "a.csv", "".join(["label,text\n", *good, '1,"bad" quote\n']))
    with pytest.warns(Note, match=r"1 CSV quote: .*a\.csv, line 1,001"):
        found = documents(source, label_column="label")
    assert found.index(None) == len(found) - 1 == 999
    manifest = prepare([source.name], tmp_path / "out").manifest
    assert (manifest.records, manifest.rejected) == (999, {"CSV quote": 1})
    write(tmp_path / "a.csv", "".join(["label,text\n", *good[:998], '1,"bad" quote\n']))
    too_many = r"1 of 999 records cannot be read.*\n.*line 1,000"
    with pytest.raises(UserError, match=too_many):
        documents(source)
    with pytest.raises(UserError, match=too_many):
        prepare([source.name], tmp_path / "more")


@pytest.mark.parametrize("suffix", [one.suffix for one in FORMATS.values() if one.delimiter])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_csv_of_python(tmp_path, suffix, quoting):
    delimiter = FORMATS[suffix].delimiter
    pieces = ["a", "b ", '"', '""', "\n", "\r\n", "é", "'", delimiter]
    path = tmp_path / f"a{suffix}"
    draw = random.Random(0)
    for _ in range(40):
        made = []
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=delimiter, quoting=quoting)
            writer.writerow(["n", "text", "z"])
            for n in range(20):
                made.append("x" + "".join(draw.choices(pieces, k=draw.randrange(9))))
                writer.writerow([n, made[-1], "end"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Note)
            assert texts(Source(str(path))) == made


def test_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(b"plain text\n")
    with pytest.raises(UserError, match=r"a\.txt\.gz, after record 0: .*Not a gzipped file"):
        documents(Source(str(path)))
    whole = gzip.compress("\n".join([*map(str, range(900)), ""]).encode())
    cut = (whole[:-9], whole[:20], whole[:-8] + bytes(8), b"\x1f\x8b" + bytes(90))
    for damaged in (whole + b"more", *cut):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"a\.txt\.gz, after record \d+: the gzip data is cut"):
            documents(Source(str(path)))


@pytest.mark.parametrize(
    ("text", "radford", "none"),
    [
        ("plain", b"\n plain ", b"plain\n"),
        (" a\r\nb\nc\rd\n", b"\n a b c d ", b" a\r\nb\nc\rd\n\n"),
        ("Tom &amp; &eacute;&#39;", "\n Tom & é' ".encode(), b"Tom &amp; &eacute;&#39;\n"),
        ("日本", "\n 日本 ".encode(), "日本\n".encode()),
        ("half \ud83d", b"\n half ? ", b"half ?\n"),
        ("&#65; &#x41; &#0065;", b"\n A A A ", b"&#65; &#x41; &#0065;\n"),
        # Of no character, also where Python reads no number of so many digits.
        (f"&#{'9' * 4300};", "\n \ufffd ".encode(), b"&#%s;\n" % (b"9" * 4300)),
        (f"&#{'9' * 4301};", "\n \ufffd ".encode(), b"&#%s;\n" % (b"9" * 4301)),
        ("&nbsp;\n", b"", b"&nbsp;\n\n"),
        (" \t\n\u3000", b"", b""),
        ("", b"", b""),
    ],
)
def test_cleaning(text: str, radford: bytes, none: bytes) -> None:
    assert clean(text, "radford") == radford
    assert clean(text, "none") == none
