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

from mlstm_jax import run
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.data.stream import EvaluationStream, TrainStream
from mlstm_jax.digest import of_array
from mlstm_jax.errors import KnownError
from mlstm_jax.interop import weights
from mlstm_jax.options import SPLITS
from mlstm_jax.training import metrics
from mlstm_jax.training.train import train as run_train
from mlstm_jax.transfer.classifier import Classifier, Description, load_classifier
from mlstm_jax.transfer.features import Featurizer, read_features, write_features
from mlstm_jax.transfer.words import Words
from tests.interop.test_weights import write_openai
from tests.marks import FAILED_READS
from tests.training.runs import config_of, final_state

pytestmark = FAILED_READS

Read = Callable[[], Any]

LOGS = ("tensorboard",)  # have no checksums, and nothing here reads them
OF_STRANGERS = ("openai", "sources")


def plain(value: Any) -> Any:
    """A value that == compares: each array is its checksum."""
    return jax.tree.map(lambda x: of_array(x) if isinstance(x, np.ndarray) else repr(x), value)


def read_corpus(folder: Path) -> Any:
    """All windows and labels of all splits, as training and evaluation read them."""
    opened, found = open_corpus(folder), []
    for name in SPLITS:
        split = opened.split(name)
        stream = TrainStream(split, batch=2, window=256, shards=2, labels="ratings")
        found += [stream.batch(step) for step in range(stream.steps_per_epoch)]
        scored = EvaluationStream(split, window=64)
        found += [scored.batch(step, scored.rows) for step in range(scored.steps)]
    return [opened.identity, opened.manifest.cleaning, *found]


def read_run(folder: Path) -> Any:
    """The model, what the run resumes from, what a sweep compares, and the metrics."""
    loaded = run.load_run(folder)
    about = (loaded.config, loaded.step, loaded.cleaning, loaded.corpus)
    state = final_state(folder, 8)
    # The event of the end comes after the last checkpoint, which seals the lines before it.
    lines = metrics.by_kind(metrics.read_metrics(folder / metrics.FILE))
    return [about, loaded.params, state, run.id_of(folder), lines["train"], lines["eval"]]


def read_weights(path: Path) -> Any:
    found = weights.load_weights(path)
    return [found.model, found.cleaning, found.source, found.params]


def read_classifier(folder: Path) -> Any:
    found = load_classifier(folder)
    return [found._replace(words=None), vars(found.words)]


def read_sources(folder: Path) -> Any:
    """The corpus that is made of a folder."""
    out = folder.parent / "of_sources"
    prepare([str(folder)], out, split=(1, 0, 0), max_reject_fraction=1, overwrite=True)
    return open_corpus(out).identity


@pytest.fixture(scope="module")
def written(rated_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each kind, as the commands write it."""
    folder = tmp_path_factory.mktemp("damage")
    shutil.copytree(rated_corpus, folder / "corpus")
    run_train(config_of(folder / "corpus", folder / "run", 10))
    loaded, draw = run.load_run(folder / "run"), np.random.default_rng(0)
    (folder / "safetensors").mkdir()
    weights.save(folder / "safetensors/a.safetensors", run.as_weights(loaded))
    (folder / "classifier").mkdir()
    counts = Words("words", ["good", "so good"], np.ones(2), draw.normal(size=(3, 2)), np.zeros(3))
    weights_KD = draw.normal(size=(3, 16))
    made = Classifier(weights_KD, np.zeros(3), ["a", "b", "c"], 1.0, words=counts)
    about = Description("h", False, weights.fingerprint(loaded.params), None)
    made._replace(about=about).save(folder / "classifier")
    (folder / "features").mkdir()
    values = draw.normal(size=(9, 16)).astype(np.float32)
    featurizer = Featurizer(loaded, states=["h"])
    write_features(folder / "features/a.npz", 9, [values], featurizer, key="key")
    for name in OF_STRANGERS:
        (folder / name).mkdir()
    write_openai(folder / "openai/files", draw)
    (folder / "sources/files").mkdir()
    for name, line in (("a.jsonl", '{"text": "é %d", "rating": 4}'), ("b.csv", '"a, %d",3')):
        lines = ["text,rating"] * name.endswith("csv") + [line % n for n in range(30)]
        (folder / "sources/files" / name).write_text("\n".join(lines))
    (folder / "sources/files/c.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n" * 30))
    return {path.name: path for path in folder.iterdir()}


def readers(written: dict[str, Path]) -> dict[str, Read]:
    return {
        "corpus": lambda: read_corpus(written["corpus"]),
        "run": lambda: read_run(written["run"]),
        "safetensors": lambda: read_weights(written["safetensors"] / "a.safetensors"),
        "classifier": lambda: read_classifier(written["classifier"]),
        # A file that differs is written anew.
        "features": lambda: read_features(written["features"] / "a.npz", "key"),
        "openai": lambda: weights.read_openai(written["openai"] / "files").params,
        "sources": lambda: read_sources(written["sources"] / "files"),
    }


def damaged(content: bytes, draw: random.Random) -> bytes:
    """A bit flipped, the end cut off, two ranges swapped, or a range of zeros."""
    changed, size = bytearray(content), len(content)
    length = draw.randrange(1, max(2, size // 4))
    first, second = (draw.randrange(max(1, size - length)) for _ in range(2))
    match draw.randrange(4):
        case 0:
            changed[first] ^= 1 << draw.randrange(8)
        case 1:
            del changed[first:]
        case 2:
            a, b = (content[at : at + length] for at in (first, second))
            changed[first : first + length], changed[second : second + length] = b, a
        case 3:
            changed[first : first + length] = bytes(length)
    return bytes(changed)


@pytest.mark.filterwarnings("ignore::mlstm_jax.errors.Note")
@pytest.mark.parametrize("count", [100, pytest.param(600, marks=pytest.mark.slow)])
def test_damage(count, written) -> None:
    draw = random.Random(count)
    outcomes: Counter[tuple[str, str]] = Counter()
    groups: dict[str, list[Path]] = {}  # run/config.json, run/checkpoints/10/params, ...
    for kind in readers(written):
        for path in sorted(written[kind].rglob("*")):
            parts = path.relative_to(written[kind]).parts[: 1 if kind in OF_STRANGERS else 3]
            if path.is_file() and path.stat().st_size and parts[0] not in LOGS:
                groups.setdefault("/".join([kind, *parts]), []).append(path)
    whole = {kind: plain(read()) for kind, read in readers(written).items()}
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
            is_same = plain(readers(written)[kind]()) == whole[kind]
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
