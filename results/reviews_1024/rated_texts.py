"""Write the digests of the texts that reviews-1024 and its classifier have learned from.

    python results/reviews_1024/rated_texts.py corpora/reviews_1024 texts/sentiment_train.jsonl

Both inputs are made as texts.py says. The digests of all texts that the model has read with their
ratings, and that have 40 bytes or more, go to models/reviews-1024/rated_texts.npy in the package;
shorter ones, such as "Great product", are written by many people. Those of the texts that the
classifier was fitted to go to its own file.
"""

import json
import sys
from pathlib import Path

import numpy as np

from mlstm_jax import shipped
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.transfer.classifier import load_classifier
from mlstm_jax.transfer.known import digest_of, digests

LEAST = 40  # bytes


def main(corpus: Path, fitted: Path) -> None:
    """Write both files."""
    split = open_corpus(corpus).split("train")
    assert split.ratings is not None
    found = set()
    for number in np.flatnonzero(~np.isnan(split.ratings)):
        start, end = split.offsets[number : number + 2]
        text = bytes(split.bytes[int(start) : int(end)])
        if len(text) >= LEAST:
            found.add(digest_of(text))
    model = shipped.model(Path("reviews-1024"))
    folder = model / "sentiment"
    np.save(model / "rated_texts.npy", np.array(sorted(found), np.uint32))

    lines = fitted.read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    classifier = load_classifier(folder)
    classifier = classifier._replace(texts=np.unique(digests(texts, "radford")))
    classifier.save(folder)
    print(f"{len(found):,} texts read with their ratings, {len(classifier.texts):,} of the fit")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
