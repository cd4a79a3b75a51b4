"""Write the texts of the model reviews-1024 and of its classifier, from the data sets' own files.

    mlstm-jax prepare amazon/*.json.gz imdb/unsup.jsonl.gz --split 400,1,1 --dedupe exact \
      --out corpora/reviews
    python results/reviews_1024/texts.py corpora/reviews imdb/train.jsonl.gz sst/ texts/
    mlstm-jax prepare --train texts/train.jsonl --valid texts/valid.jsonl --test texts/test.jsonl \
      --out corpora/reviews_1024

Of every ten labelled reviews of IMDB, in the order of the file, the model reads the first eight,
with their stars; the ninth is for validation, and the tenth for the test. Reviews with the same
text as one of these, or as one of the corpus' own validation and test splits, are left out; so are
those of IMDB's test part, if imdb/test.jsonl.gz is beside imdb/train.jsonl.gz: 266 of them are also
in its unlabelled part. (It was not there for reviews-1024.) The stars are on Amazon's scale.
In the unlabelled part of IMDB a rating of 0 means none. With a last argument `without-stars` IMDB's
stars are left out, as for the models of results/finetune.
"""

import csv
import gzip
import html
import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlstm_jax.corpora.documents import clean
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.options import SPLITS

NAMES = {0: "negative", 1: "positive"}


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def cleaned(text: str) -> str:
    """Return a text as a corpus has it."""
    return clean(text, "radford").decode()


def main(reviews: Path, imdb: Path, sst: Path, out: Path, starred: bool) -> None:
    """Write all files."""
    out.mkdir(exist_ok=True)
    corpus, documents = open_corpus(reviews), {}
    for name in SPLITS:
        split = corpus.split(name)
        edges = zip(split.offsets[:-1], split.offsets[1:], strict=True)
        assert split.ratings is not None
        documents[name] = [
            (bytes(split.bytes[start:end]).decode(), float(stars) if stars > 0 else None)
            for (start, end), stars in zip(edges, split.ratings, strict=True)
        ]
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in SPLITS}
    with gzip.open(imdb, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            parts[{8: "valid", 9: "test"}.get(number % 10, "train")].append(json.loads(line))
    never = {text for name in ("valid", "test") for text, _ in documents[name]}
    never |= {cleaned(row["text"]) for name in ("valid", "test") for row in parts[name]}
    tested = imdb.with_name("test.jsonl.gz")
    if tested.is_file():
        with gzip.open(tested, "rt", encoding="utf-8") as lines:
            never |= {cleaned(json.loads(line)["text"]) for line in lines}
    else:
        print(f"{tested} is missing: texts that are also in IMDB's test part are not left out")
    labelled = [
        (cleaned(row["text"]), 1 + (row["rating"] - 1) * 4 / 9 if starred else None)
        for row in parts["train"]
    ]
    read: dict[str, float | None] = {}
    for text, stars in labelled + documents["train"]:
        if text not in never:
            read.setdefault(text, stars)
    known = {text for text, _ in labelled + documents["train"]}
    print(f"left out of {len(known):,} texts: {len(known & never):,}")
    documents["train"] = list(read.items())
    random.Random(0).shuffle(documents["train"])
    for name, rows in documents.items():
        # `prepare` adds the padding and undoes the escapes.
        unpadded = ((html.escape(text[2:-1]), stars) for text, stars in rows)
        write(out / f"{name}.jsonl", ({"text": text, "rating": stars} for text, stars in unpadded))
    sentences = {}
    for name, file in (("train", "train"), ("valid", "dev"), ("test", "test")):
        with (sst / f"{file}_binary_sent.csv").open(encoding="utf-8", newline="") as lines:
            sentences[name] = [
                {"text": row["sentence"], "label": NAMES[int(float(row["label"]))]}
                for row in csv.DictReader(lines)
            ]
        rows = [{"text": row["text"], "label": NAMES[row["label"]]} for row in parts[name]]
        write(out / f"imdb_{name}.jsonl", rows)
        write(out / f"sst_{name}.jsonl", sentences[name])
        # The classifier of the package: sentences, and every fourth review.
        write(out / f"sentiment_{name}.jsonl", sentences[name] + rows[::4])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:5]), starred=sys.argv[5:] != ["without-stars"])
