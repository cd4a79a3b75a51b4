"""Texts of the further training of `reviews-1024`, its validation and its tests.

The folder given holds sst/, tweets/, imdb/ and amazon/ (README.md names the data sets). Of the
labelled reviews of IMDB, `reviews-1024` has read the first eight of every ten with their stars. The
ninth are for training here, but every fifth of them is for validation; the tenth are the test.
"""

import csv
import gzip
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import facts
import negation
import templates

HERE = Path(__file__).parent
CLASSES = ("negative", "neutral", "positive")
# Brackets and quotes as the treebank writes them, and marks that a space does not precede.
_TOKENS = {"-LRB-": "(", "-RRB-": ")", "``": '"', "''": '"', "\\/": "/", "\\*": "*"}
_BEFORE = re.compile(r" (n't|'s|'re|'ve|'ll|'d|'m|'|[.,:;!?%)\]]|--|\.\.\.)(?= |$)")


class Text(NamedTuple):
    """A labelled text; its source says how much it weighs."""

    text: str
    label: str
    source: str


def plain(tokens: list[str]) -> str:
    """Join tokens of the treebank as people write them."""
    joined = " ".join(tokens)
    for token, written in _TOKENS.items():
        joined = joined.replace(token, written)
    joined = joined.replace("( ", "(").replace("ca n't", "can't").replace("wo n't", "won't")
    joined = joined.replace("can not", "cannot").replace(" n't", "n't")
    joined = re.sub(r'" ([^"]*?) "', r'"\1"', joined)
    return _BEFORE.sub(r"\1", joined)


def phrases(line: str) -> Iterator[tuple[str, int]]:
    """Yield each phrase of a tree as text, with its grade; the sentence last."""
    starts: list[tuple[int, int]] = []  # grade, and the number of tokens before
    tokens: list[str] = []
    for part in re.findall(r"\(|\)|[^\s()]+", line):
        if part == "(":
            starts.append((-1, len(tokens)))
        elif part == ")":
            grade, first = starts.pop()
            yield plain(tokens[first:]), grade
        elif starts[-1][0] < 0:
            starts[-1] = (int(part), len(tokens))
        else:
            tokens.append(part)


def letters(text: str) -> str:
    """Return what two spellings of one text share."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def read_trees(path: Path, held_out: set[str]) -> tuple[list[Text], list[Text]]:
    """Return the sentences of a treebank and the other phrases, equal ones once.

    A tree whose sentence is held out (`letters`) is left out with all its phrases: the file of the
    training part also has the trees of the validation part.
    """
    sentences = {}
    others = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            *parts, (sentence, grade) = phrases(line)
            if letters(sentence) in held_out:
                continue
            sentences[sentence] = Text(sentence, CLASSES[1 + (grade > 2) - (grade < 2)], "sst")
            for text, grade in parts:
                if letters(text) not in held_out:
                    others[text] = Text(text, CLASSES[1 + (grade > 2) - (grade < 2)], "phrase")
    return list(sentences.values()), [x for x in others.values() if x.text not in sentences]


def read_sentences(path: Path) -> list[Text]:
    """Return the sentences of SST with two classes, as Radford et al. 2017 use them."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [Text(row["sentence"], CLASSES[2 * int(float(row["label"]))], "sst") for row in rows]


def read_csv(path: Path) -> list[Text]:
    """Return the texts of a table with the columns text and label."""
    with path.open(encoding="utf-8", newline="") as file:
        return [Text(row["text"], row["label"], "") for row in csv.DictReader(file)]


def read_tweets(path: Path) -> list[Text]:
    """Return tweets of SemEval."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        next(file)
        rows = [line.rstrip("\n").split("\t", 1) for line in file]
    return [Text(text, label, "tweet") for label, text in rows]


def read_imdb(path: Path) -> dict[str, list[Text]]:
    """Return the reviews that `reviews-1024` has not read: for train, valid and test."""
    parts: dict[str, list[Text]] = {"train": [], "valid": [], "test": []}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file):
            row = json.loads(line)
            text = Text(row["text"], CLASSES[2 * row["label"]], "imdb")
            if number % 10 == 9:
                parts["test"].append(text)
            elif number % 10 == 8:
                parts["valid" if number % 50 == 8 else "train"].append(text)
    return parts


def read_amazon(folder: Path) -> tuple[list[Text], list[Text]]:
    """Return reviews of Amazon with the class of their stars, and their titles, each once."""
    reviews = {}
    titles = {}
    for path in sorted(folder.glob("*.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                label = CLASSES[int((row["overall"] > 3) - (row["overall"] < 3)) + 1]
                review = (row.get("reviewText") or "").strip()
                title = (row.get("summary") or "").strip()
                if len(review) > 20:
                    reviews[review] = Text(review, label, "amazon")
                if len(title) > 2 and not re.fullmatch(r"\w+ stars?", title, re.IGNORECASE):
                    titles[title] = Text(title, label, "title")
    return list(reviews.values()), list(titles.values())


def draw(texts: list[Text], label: str, count: int, random_: random.Random) -> list[Text]:
    """Draw at most `count` texts of a class."""
    some = [text for text in texts if text.label == label]
    return random_.sample(some, min(count, len(some)))


def held_out_letters(data: Path) -> set[str]:
    """Return the letters of all validation and test texts."""
    letters_ = set()
    for parts in (validation(data), tests(data)):
        for some in parts.values():
            letters_ |= {letters(text.text) for text in some}
    return letters_


def read_training(data: Path) -> dict[str, list[Text]]:
    """Return the texts of each source without validation and test texts."""
    held_out = held_out_letters(data)
    sentences, phrases_ = read_trees(data / "sst/trees_train.txt.gz", held_out)
    tweets = read_tweets(data / "tweets/train.tsv.gz")
    reviews, titles = read_amazon(data / "amazon")
    return {
        "sst": sentences,
        "phrase": phrases_,
        "tweet": [text for text in tweets if letters(text.text) not in held_out],
        "imdb": read_imdb(data / "imdb/train.jsonl.gz")["train"],
        "amazon": reviews,
        "title": titles,
    }


def training(data: Path, seed: int) -> list[Text]:
    """Return the texts of the first part of the training, each read once, in no order."""
    random_ = random.Random(seed)
    sources = read_training(data)
    chosen = 2 * sources["sst"] + sources["tweet"] + sources["imdb"]
    chosen += [text for text in sources["phrase"] if text.label != "neutral"]
    chosen += draw(sources["phrase"], "neutral", 20_000, random_)
    for label in CLASSES:
        chosen += draw(sources["amazon"], label, 1_200, random_)
        chosen += draw(sources["title"], label, 2_500, random_)
    chosen += [Text(text, label, "negation") for text, label in templates.texts(seed, 6_000)]
    return chosen


def second_training(data: Path, seed: int) -> list[Text]:
    """Return the texts of the second part: negations, and a share of each source of the first."""
    random_ = random.Random(seed)
    sources = read_training(data)
    chosen = list(sources["sst"])
    counts = {"imdb": 1_200, "tweet": 30_000, "phrase": 45_000, "amazon": 2_000, "title": 4_000}
    for source, count in counts.items():
        chosen += random_.sample(sources[source], count)
    held_out = held_out_letters(data)
    for text, label in negation.texts(seed, 60_000) + facts.texts(seed, 6_000):
        if letters(text) not in held_out:
            chosen.append(Text(text, label, "negation"))
    return chosen


def read_written() -> tuple[list[Text], list[Text]]:
    """Return the texts of written.tsv.gz for training, and the 1,500 that are held out."""
    found = {}
    with gzip.open(HERE / "written.tsv.gz", "rt", encoding="utf-8") as file:
        for line in file:
            label, text = line.rstrip("\n").split("\t")
            found[letters(text)] = Text(text, label, "written")
    every = list(found.values())
    random.Random(0).shuffle(every)
    return every[1_500:], every[:1_500]


def third_training(data: Path, seed: int) -> list[Text]:
    """Return the texts of the third part: most real ones, fewer negations, and written ones."""
    random_ = random.Random(seed + 77)
    sources = read_training(data)
    chosen = list(sources["sst"])
    counts = {"imdb": 1_900, "tweet": 42_000, "phrase": 60_000, "amazon": 3_000, "title": 6_000}
    for source, count in counts.items():
        chosen += random_.sample(sources[source], min(count, len(sources[source])))
    held_out = held_out_letters(data)
    for text, label in negation.texts(seed + 77, 45_000) + facts.texts(seed + 77, 6_000):
        if letters(text) not in held_out:
            chosen.append(Text(text, label, "negation"))
    written, _ = read_written()
    chosen += [text for text in written if letters(text.text) not in held_out]
    return chosen


def validation(data: Path) -> dict[str, list[Text]]:
    """Return the held-out texts that choose a model, by name."""
    tweets = read_tweets(data / "tweets/train.tsv.gz")
    random.Random(0).shuffle(tweets)
    return {
        "sst": read_sentences(data / "sst/dev_binary_sent.csv"),
        "tweets": tweets[:3_000],
        "imdb": read_imdb(data / "imdb/train.jsonl.gz")["valid"],
        "negation": read_csv(HERE / "negation_valid.csv"),
    }


def tests(data: Path) -> dict[str, list[Text]]:
    """Return the texts of the figures, by name."""
    return {
        "sst": read_sentences(data / "sst/test_binary_sent.csv"),
        "tweets": read_tweets(data / "tweets/dev.tsv.gz"),
        "imdb": read_imdb(data / "imdb/train.jsonl.gz")["test"],
        "negations": read_csv(HERE / "negations.csv"),
        "neutral": read_csv(HERE / "neutral.csv"),
        "messages": read_csv(HERE / "messages.csv"),
        "written": read_written()[1],
    }
