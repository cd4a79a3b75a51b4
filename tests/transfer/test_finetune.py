"""Fine-tuning: a start from another run, the label head, and the whole command."""

import csv
import dataclasses
import json
import os
import re
import signal
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mlstm_jax import cli, weights
from mlstm_jax.arrays import flatten
from mlstm_jax.config import Compute, Config, Data, Train, vary
from mlstm_jax.corpora.rated import write_rated
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.errors import UserError
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.options import FinetuneOptions
from mlstm_jax.run import Run, as_weights, load_run
from mlstm_jax.training import resume
from mlstm_jax.training.rows import open_rows
from mlstm_jax.training.state import fresh_state
from mlstm_jax.training.train import Session
from mlstm_jax.training.train import train as run_train
from mlstm_jax.transfer import finetune, words
from mlstm_jax.transfer.classifier import Classifier, Examples
from mlstm_jax.transfer.features import Featurizer
from mlstm_jax.transfer.labels import Labelled, read_labelled
from mlstm_jax.transfer.sets import with_held_out
from tests.tables import column
from tests.tolerance import assert_close
from tests.training.runs import COMMAND, lines_of, wait_for_step
from tests.transfer.pieces import COLUMNS, write_reviews
from tests.transfer.test_kinds import draw

pytestmark = pytest.mark.numeric


def first_parameters(config: Config) -> dict[str, Any]:
    model = LanguageModel(config.model, config.precision.types)
    start = resume.load_start(config)
    return fresh_state(config, model, flatten(start.params)).params


def test_first_parameters(run: Run, tmp_path: Path) -> None:
    model = dataclasses.replace(run.config.model, classes=3)
    config = Config(model=model, train=Train(start_from=str(run.folder)))
    params = first_parameters(config)
    assert set(map(type, jax.tree.leaves(params))) == {np.ndarray}
    np.testing.assert_array_equal(params["embedding"], run.params["embedding"])
    np.testing.assert_array_equal(params["layer_1"]["wh_v"], run.params["layer_1"]["wh_v"])
    assert params["label_kernel"].shape == (64, 3)
    transformer = draw("transformer")
    weights.save(tmp_path / "t.safetensors", as_weights(transformer))
    start = Train(start_from=str(tmp_path / "t.safetensors"))
    of_transformer = Config(model=transformer.config.model, train=start)
    for base, changes, message in (
        (config, {"model__hidden": 1}, "has the shape"),
        (config, {"model__layers": 1}, "this run lacks layer_1/b"),
        (of_transformer, {"model__positions": 32}, r"input/positions has the shape .* \(32, 12\);"),
    ):
        with pytest.raises(UserError, match=message):
            first_parameters(vary(base, **changes))


def test_corpus_of_labelled_texts(tmp_path: Path) -> None:
    train = [(b"\n a b ", 0.0), (b"\n c ", 1.0), (b"\n a b ", 1.0)]
    for _ in range(2):
        documents = {"train": train, "valid": [(b"\n d ", 1.0)]}
        write_rated(tmp_path / "c", documents, "radford")
        opened = open_corpus(tmp_path / "c", verify=True)
        split = opened.split("train")
        found = {}
        for at, rating in enumerate(split.ratings.tolist()):
            text = split.bytes[split.offsets[at] : split.offsets[at + 1]].tobytes()
            found.setdefault(text, []).append(rating)
        assert found == {b"\n a b ": [0.0, 1.0], b"\n c ": [1.0]}
    with pytest.raises(UserError, match="was made from different texts or labels"):
        write_rated(tmp_path / "c", documents | {"valid": [(b"\n e ", 1.0)]}, "radford")
    assert open_corpus(tmp_path / "c").identity == opened.identity
    assert os.listdir(tmp_path) == ["c"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (FinetuneOptions(batch=500, window=4), "batch is 500, but it must be at most"),
        (FinetuneOptions(window=100_000), "window is 100000, but it must be at most"),
    ],
)
def test_a_refused_call_leaves_no_folder(options, message, run, tmp_path) -> None:
    some = Labelled(["good", "bad", "fine", "poor"], ["x", "y", "x", "y"])
    sets = with_held_out({"train": some, "valid": some, "test": some}, "radford", "test")
    with pytest.raises(UserError, match=message):
        finetune.finetune(run, sets, tmp_path / "out", options)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("count", [2, 3])
def test_head(random: np.random.Generator, count: int) -> None:
    """Its probabilities follow from the model's own logits at the text's end."""
    run = draw("mlstm", layers=1)
    config = vary(run.config, model__classes=count)
    params = run.params | {
        "label_kernel": random.normal(size=(12, count)).astype(np.float32),
        "label_bias": random.normal(size=count).astype(np.float32),
    }
    model = LanguageModel(config.model, config.precision.types)
    tuned = dataclasses.replace(run, config=config, params=params, model=model)
    text = "my guitar is great"
    bytes_BT = np.frombuffer(f"\n {text} ".encode(), np.uint8)[None]
    read = jax.jit(model.apply)({"params": params}, bytes_BT, model.init_carry(1))
    classes = [*map(str, range(count))]
    found = finetune.head(tuned, classes).probabilities(Featurizer(tuned, states=("h",))([text]))
    # Three products over 12 units, and the head.
    assert_close(found[0], jax.nn.softmax(read.labels_BTK[0, -1]), terms=4 * 12)


def test_calibration(random) -> None:
    features = random.normal(size=(4000, 3)).astype(np.float32)
    weights_KD = np.array([[1.0, -2.0, 0.5]])
    scores_N = features @ weights_KD[0] + 0.5
    labels = (random.random(4000) < 1 / (1 + np.exp(-scores_N))).astype(np.int64)
    valid = Examples(features, labels)
    right = Classifier(weights_KD, np.full(1, 0.5), ["no", "yes"], 1.0)
    sure = right._replace(weights_KD=4 * weights_KD, intercepts_K=4 * right.intercepts_K)
    found = finetune.calibrated(sure, valid)
    # A step is a factor of 2^¼; the deviation of the best factor is about 0.03.
    np.testing.assert_allclose(found.weights_KD, weights_KD, rtol=2**0.25 - 1)
    assert found.loss(valid) < sure.loss(valid) - 0.3
    unsure = right._replace(weights_KD=weights_KD / 4, intercepts_K=right.intercepts_K / 4)
    np.testing.assert_array_equal(finetune.calibrated(unsure, valid).weights_KD, weights_KD / 4)


def write_model(folder: Path, factor: float = 1) -> Path:
    """A model so small that word counts tell classes better."""
    base = as_weights(draw("mlstm", layers=1))
    path = folder / f"{factor}.safetensors"
    params = jax.tree.map(partial(np.multiply, factor), base.params)
    weights.save(path, base._replace(params=params))
    return path


def command(folder: Path, model: Path) -> list[str]:
    files = f"--train {folder}/60.csv --valid {folder}/30.csv --out {folder}/out"
    how = "--epochs 2 --batch 4 --window 32 --label-weight 300 --learning-rate 3e-2 --words"
    return ["finetune", str(model), *COLUMNS, *files.split(), *how.split()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the command was called; what it wrote is in `said`."""
    folder = tmp_path_factory.mktemp("finetuned")
    random = np.random.default_rng(0)
    write_reviews(folder / "60.csv", random, 60)
    write_reviews(folder / "30.csv", random, 30)
    with (folder / "said").open("w") as said, redirect_stdout(said), redirect_stderr(said):
        cli.main(command(folder, write_model(folder)))
    return folder


def read_report(folder: Path) -> Any:
    return json.loads((folder / "out/report.json").read_text())


def test_best_epoch(folder) -> None:
    """It has the smallest loss of the labels; word counts do better."""
    said = (folder / "said").read_text()
    assert re.search(r"validation bpc \d\.\d+  label loss \d\.\d{3}  accuracy \d\.\d{3}", said)
    assert "accuracy train 1.000, valid 1.000; Classifier of 12 features and " in said
    report = read_report(folder)
    tuned = load_run(folder / "out/run")
    lines = lines_of(tuned.folder)
    assert min(column(lines["train"], "label_loss")) > 0
    scores = lines["eval"]
    assert len(scores) == 3  # of two epochs, and the last step
    best = min(scores, key=itemgetter("label_loss"))
    assert best["step"] == tuned.step == report["step"]
    assert best["accuracy"] == report["without_words"]["valid"] < report["accuracy"]["valid"] == 1
    assert (report["classes"], report["word_weight"]) == (["fair", "fine", "poor"], 1)
    assert tuned.config.train.start_from == str(folder / "1.safetensors")
    assert tuned.config.train.label_weight == 300


def test_answers_of_words(folder, printed) -> None:
    train = read_labelled(folder / "60.csv", "review", "verdict")
    valid = read_labelled(folder / "30.csv", "review", "verdict")
    answers = printed("classify", folder / "out/run", folder / "out/classifier", folder / "30.csv")
    rows = list(csv.DictReader(answers.splitlines()))
    assert column(rows, "label") == valid.labels
    counts = words.fit(train, valid, valid.classes).words.probabilities(valid.texts)
    for name, shares_N in zip(valid.classes, counts.T, strict=True):
        found = np.array(column(rows, f"p({name})"), float)
        np.testing.assert_allclose(found, shares_N, rtol=0, atol=1e-4)  # of four decimals


def test_same_command_again(folder, capsys, refused) -> None:
    """It finds the run finished; with another model or other rows it is refused."""
    metrics = folder / "out/run/metrics.jsonl"
    before = (metrics.read_text(), read_report(folder))
    cli.main(command(folder, folder / "1.safetensors"))
    assert "steps. To train for more, raise" in capsys.readouterr().err
    error = refused(*command(folder, write_model(folder, 2)))
    assert "began with other parameters (" in error
    again = command(folder, folder / "1.safetensors")
    for name, was, now in (("batch", 4, 8), ("window", 32, 64)):
        error = refused(*again, f"--{name}", now)
        assert f"--{name} is {now}, but the run in {folder}/out was begun with {was}; rep" in error
    assert (metrics.read_text(), read_report(folder)) == before


def test_sigterm(tmp_path, random, launcher) -> None:
    """It stops with a checkpoint, and with no success: there is no classifier."""
    train = write_reviews(tmp_path / "60.csv", random, 60)
    words = ["finetune", write_model(tmp_path), "--train", train, *COLUMNS]
    words += ["--out", tmp_path / "out", "--epochs", 10_000, "--batch", 4, "--window", 32]
    process = launcher.call(COMMAND, *words)
    wait_for_step(process, tmp_path / "out/run", 1)
    process.send_signal(signal.SIGTERM)
    (text,) = launcher.ended(128 + signal.SIGTERM)
    assert "with a checkpoint; the same command resumes from there" in text


def test_batches_of_few_texts() -> None:
    for size, devices, rows in ((9999, 1, 32), (9999, 6, 36), (160, 1, 4), (47, 1, 2), (1, 1, 1)):
        assert finetune._rows(size, devices) == rows


def test_given_parameters(run, tmp_path, monkeypatch) -> None:
    """Even if `start_from` would take a better checkpoint, or a path has become another's."""
    doubled = jax.tree.map(partial(np.multiply, 2), run.params)
    other = dataclasses.replace(run, params=doubled)
    for name, one in (("a", run), ("b", other)):
        weights.save(tmp_path / name / "w.safetensors", as_weights(one))
    monkeypatch.chdir(tmp_path / "a")
    given = load_run(Path("w.safetensors"))
    assert finetune._start(given, tmp_path) == given.folder
    monkeypatch.chdir(tmp_path / "b")
    documents = [(b"\n my guitar is good ", 0.0), (b"\n my piano is bad ", 1.0)] * 20
    write_rated(tmp_path / "corpus", {"train": documents, "valid": documents}, "radford")
    for one in (run, other, given):
        start = finetune._start(one, tmp_path)
        config = finetune.make_config(one, start, tmp_path, 2, FinetuneOptions(window=16))
        params = first_parameters(config)
        np.testing.assert_array_equal(params["embedding"], one.params["embedding"])
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["transformer", "bert"])
def test_windows_of_single_documents(kind, corpus, tmp_path) -> None:
    """The documents around one tell nothing: classes alternate at random."""
    base = Config(
        out=str(tmp_path / "base"),
        model=Architecture.kinds[kind](hidden=16, embedding=16, layers=1, positions=48),
        data=Data(corpus=str(corpus), batch=8, window=48),
        train=Train(steps=1, epochs=None),
    )
    run = load_run(run_train(base, Session(show_progress=False)), "latest")
    random = np.random.default_rng(0)

    def draw(count: int) -> Labelled:
        labels = random.choice(["no", "yes"], count)
        texts = []
        for label in labels:
            text = "".join(random.choice(list("abcdefg "), random.integers(0, 70)))
            texts.append(f"{text[:9]}{'+++' if label == 'yes' else '---'}{text[9:]}")
        return Labelled(texts, list(labels))

    texts = {"train": draw(300), "valid": draw(60)}
    compute: Compute | None = "bf16" if kind == "bert" else None
    options = FinetuneOptions(epochs=8, learning_rate=1e-2, batch=8, dropout=0.0, compute=compute)
    sets = with_held_out(texts, run.cleaning, "valid")
    tuned = finetune.finetune(run, sets, tmp_path / "out", options)
    assert tuned.run.config.data.window == 48
    assert tuned.run.config.precision.compute == (compute or "fp32")
    stream = open_rows(tuned.run.config, open_corpus(tmp_path / "out/corpus")).stream
    labels_BT = stream.batch(0).labels_BT
    assert labels_BT is not None
    np.testing.assert_array_equal((~np.isnan(labels_BT)).sum(axis=1), 1)
    assert tuned.classifier.about.state == ("mean_h" if kind == "bert" else "h")
    # By chance 0.5, with a standard deviation of 0.065.
    assert tuned.accuracy["valid"] > 0.8
