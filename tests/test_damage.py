"""What is written and damaged is refused, or read as it was; never as something else.

Files of strangers have no checksums: whatever is in them, they are read or refused in words.
"""

import gzip
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mlstm_jax import arrays, openai, run, weights
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.data.stream import EvaluationStream, TrainStream
from mlstm_jax.digest import of_array
from mlstm_jax.errors import KnownError
from mlstm_jax.options import SPLITS
from mlstm_jax.training import metrics
from mlstm_jax.training.train import train as run_train
from mlstm_jax.transfer.classifier import Classifier, Description, load_classifier
from mlstm_jax.transfer.features import Featurizer, read_features, write_features
from mlstm_jax.transfer.words import Words
from tests.marks import FAILED_READS
from tests.training.runs import config_of, final_state
from tests.weights.test_weights import write_openai

pytestmark = FAILED_READS

LOGS = ("tensorboard",)  # have no checksums, and nothing here reads them
OF_STRANGERS = ("openai", "sources")


def plain(value: Any) -> Any:
    """A value that == compares: each array is its checksum."""

    def seen(leaf: Any) -> Any:
        return of_array(leaf) if isinstance(leaf, np.ndarray) else repr(leaf)

    return jax.tree.map(seen, value)


def read_corpus(folder: Path) -> Any:
    """All windows and labels of all splits, as training and evaluation read them."""
    opened = open_corpus(folder)
    found: list[Any] = [opened.identity, opened.manifest.cleaning]
    for name in SPLITS:
        split = opened.split(name)
        stream = TrainStream(split, batch=2, window=256, shards=2, labels="ratings")
        found += map(stream.batch, range(stream.steps_per_epoch))
        scored = EvaluationStream(split, window=64)
        for step in range(scored.steps):
            found.append(scored.batch(step, scored.rows))
    return found


def read_run(folder: Path) -> Any:
    """The model, what the run resumes from, what a sweep compares, and the metrics."""
    loaded = run.load_run(folder)
    about = (loaded.config, loaded.step, loaded.cleaning, loaded.corpus)
    state = final_state(folder, 8)
    # The event of the end comes after the last checkpoint, which seals the lines before it.
    lines = metrics.by_kind(metrics.read_metrics(folder / metrics.FILE))
    return [about, loaded.params, state, run.id_of(folder), lines["train"], lines["eval"]]


def read_weights(folder: Path) -> Any:
    found = weights.load_weights(folder / "a.safetensors")
    return [found.architecture, found.cleaning, found.source, found.params]


def read_classifier(folder: Path) -> Any:
    found = load_classifier(folder)
    return [found._replace(words=None), vars(found.words)]


def read_sources(folder: Path) -> Any:
    """The corpus that is made of a folder."""
    out = folder.parent / "of_sources"
    prepare([str(folder / "files")], out, split=(1, 0, 0), max_reject_fraction=1, overwrite=True)
    return open_corpus(out).identity


def read_kept_features(folder: Path) -> Any:
    """A file that differs is written anew."""
    return read_features(folder / "a.npz", "key")


def read_openai(folder: Path) -> Any:
    return openai.read_openai(folder / "files").params


READERS: dict[str, Callable[[Path], Any]] = {
    "corpus": read_corpus,
    "run": read_run,
    "safetensors": read_weights,
    "classifier": read_classifier,
    "features": read_kept_features,
    "openai": read_openai,
    "sources": read_sources,
}


@pytest.fixture(scope="module")
def written(rated_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of each kind, as the commands write them."""
    folder = tmp_path_factory.mktemp("damage")
    shutil.copytree(rated_corpus, folder / "corpus")
    run_train(config_of(folder / "corpus", folder / "run", 10))
    loaded = run.load_run(folder / "run")
    draw = np.random.default_rng(0)
    for name in ("safetensors", "classifier", "features", "openai", "sources/files"):
        (folder / name).mkdir(parents=True)
    weights.save(folder / "safetensors/a.safetensors", run.as_weights(loaded))
    counts = Words(
        "words", ["good", "so good"], np.ones(2), draw.normal(size=(3, 2)), np.zeros(3), weight=0.5
    )
    weights_KD = draw.normal(size=(3, 16))
    made = Classifier(weights_KD, np.zeros(3), ["a", "b", "c"], 1.0, words=counts)
    about = Description("h", False, arrays.fingerprint(loaded.params), None)
    made._replace(about=about).save(folder / "classifier")
    values = draw.normal(size=(9, 16)).astype(np.float32)
    featurizer = Featurizer(loaded, states=["h"])
    write_features(folder / "features/a.npz", 9, [values], featurizer, key="key")
    write_openai(folder / "openai/files", draw)
    lines = ["text,rating", *map('"a, {}",3'.format, range(30))]
    (folder / "sources/files/b.csv").write_text("\n".join(lines))
    lines = [*map('{{"text": "é {}", "rating": 4}}'.format, range(30))]
    (folder / "sources/files/a.jsonl").write_text("\n".join(lines))
    (folder / "sources/files/c.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n" * 30))
    return folder


def damaged(content: bytes, draw: random.Random) -> bytes:
    """A bit flipped, the end cut off, two ranges swapped, or a range of zeros."""
    changed = bytearray(content)
    size = len(content)
    length = draw.randrange(1, max(2, size // 4))
    first = draw.randrange(max(1, size - length))
    second = draw.randrange(max(1, size - length))
    match draw.randrange(4):
        case 0:
            changed[first] ^= 1 << draw.randrange(8)
        case 1:
            del changed[first:]
        case 2:
            changed[first : first + length] = content[second : second + length]
            changed[second : second + length] = content[first : first + length]
        case 3:
            changed[first : first + length] = bytes(length)
    return bytes(changed)


@pytest.mark.filterwarnings("ignore::mlstm_jax.errors.Note")
@pytest.mark.parametrize("count", [100, pytest.param(600, marks=pytest.mark.slow)])
def test_damage(count, written) -> None:
    draw = random.Random(count)
    outcomes: Counter[tuple[str, str]] = Counter()
    groups: dict[str, list[Path]] = {}  # run/config.json, run/checkpoints/10/params, ...
    for kind in READERS:
        for path in sorted((written / kind).rglob("*")):
            parts = path.relative_to(written / kind).parts[: 1 if kind in OF_STRANGERS else 3]
            if path.is_file() and path.stat().st_size and parts[0] not in LOGS:
                groups.setdefault("/".join([kind, *parts]), []).append(path)
    whole = {}
    for kind, read in READERS.items():
        whole[kind] = plain(read(written / kind))
    silent = []
    for number in range(count):
        group = list(groups)[number % len(groups)]
        kind = group.partition("/")[0]
        path = draw.choice(groups[group])
        content = path.read_bytes()
        while (changed := damaged(content, draw)) == content:
            pass
        path.write_bytes(changed)
        try:
            is_same = plain(READERS[kind](written / kind)) == whole[kind]
            outcome = "silent"
            if kind in OF_STRANGERS:
                outcome = "read"
            elif is_same:
                outcome = "same"
            elif kind == "features":  # They are computed again.
                outcome = "refused"
        except KnownError:
            outcome = "refused"
        finally:
            path.write_bytes(content)
        outcomes[group, outcome] += 1
        silent += [(number, path)] * (outcome == "silent")
    print(*sorted(outcomes.items()), sep="\n")
    assert not silent
