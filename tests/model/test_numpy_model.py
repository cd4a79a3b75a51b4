"""The NumPy twins of the recurrent models, read beside JAX; tests/model/test_language_model.py has
their equations in float64."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax import arrays, digest, options, weights
from mlstm_jax.errors import UserError
from mlstm_jax.loaded import SmallModel, load_small
from mlstm_jax.model.numpy_model import KINDS
from mlstm_jax.model.numpy_products import (
    blocked_product,
    controller,
    int8_product,
    with_one_thread,
)
from mlstm_jax.model.numpy_sampling import Sampling, draw, fold_in, gumbel, threefry
from mlstm_jax.run import WEIGHTS, as_weights, write_imported
from mlstm_jax.transfer.device_bytes import _sample
from mlstm_jax.transfer.features import Featurizer
from tests.tables import column
from tests.tolerance import assert_close
from tests.transfer.test_kinds import draw as draw_model

TEXTS = ["my guitar is good", "", "the café works very well as expected", "x" * 90, "bad"]
TERMS = 2 * 3 * 12 * 40  # products of two layers, in the steps that a state remembers


@pytest.fixture(autouse=True)
def strict_types() -> None:
    """No model is loaded where JAX is strict, as it is for the other tests of this folder."""


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[mlstm.TrainedModel, ...]:
    """An exported model, read by NumPy and by JAX."""
    write_imported(tmp_path / "run", as_weights(draw_model(request.param)))
    small = mlstm.load(tmp_path / "run", reader="numpy")
    assert isinstance(small.loaded, SmallModel)
    return small, mlstm.load(tmp_path / "run", compute="fp32", reader="jax")


def test_states_and_scores(both) -> None:
    """Of many texts in any batch, and of one byte by byte."""
    small, other = both
    architecture = other.config.model
    names = (*architecture.states, "mean_h", "max_h")
    found = Featurizer(small.loaded, states=names, all_layers=True)(TEXTS)
    expected = Featurizer(other.loaded, states=names, all_layers=True)(TEXTS)
    assert_close(found, expected, TERMS)
    for batch_size in (1, 2):
        again = small.encode(TEXTS, "mean_h", all_layers=True, batch_size=batch_size)
        assert_close(again, small.encode(TEXTS, "mean_h", all_layers=True), TERMS)
    assert small.bits_per_character(TEXTS) == pytest.approx(other.bits_per_character(TEXTS))
    for state in names:
        assert_close(small.states(TEXTS[2], state), other.states(TEXTS[2], state), TERMS)
        last = small.states(TEXTS[2], state)[-1:]
        assert_close(last, small.encode(TEXTS[2:3], state), TERMS)
    assert_close(small.log_probabilities(TEXTS[2]), other.log_probabilities(TEXTS[2]), TERMS + 12)
    whole = small.reader().feed(small.cleaned(TEXTS[2])).states
    pieces = small.reader()
    parts = [
        pieces.feed(small.cleaned(TEXTS[2])[place : place + 7]).states for place in range(0, 42, 7)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_generated_text(both) -> None:
    small, other = both
    held = {3: 2.0} if "c" in other.config.model.states else {}
    for how in ({}, {"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.5}, {"set_unit": held}):
        found = small.generate("my ", bytes=70, seed=7, **how)
        assert found == other.generate("my ", bytes=70, seed=7, **how)
    pieces = list(small.generate_pieces("my ", bytes=70, seed=7, samples=3))
    assert [*map(len, pieces[-1])] == [6, 6, 6]
    alone = list(small.generate_pieces("my ", bytes=70, seed=7))
    assert b"".join(column(pieces, 0)) == b"".join(column(alone, 0))


def test_random_numbers(random) -> None:
    key = jax.random.key(2**32 - 1, impl="threefry2x32")
    numbers = np.arange(4, dtype=np.uint32)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
    ours = fold_in((0, 2**32 - 1), numbers)
    np.testing.assert_array_equal(jax.random.key_data(keys), np.stack(ours, axis=1))
    expected = np.stack([jax.random.gumbel(one, (256,)) for one in keys])
    np.testing.assert_allclose(gumbel(ours), expected, rtol=1e-5, atol=1e-6)
    # The first example of Salmon et al. 2011.
    assert [*map(int, threefry((0, 0), (0, 0)))] == [0x6B200159, 0x99BA4EFE]
    logits_BV = random.normal(size=(4, 256)).astype(np.float32)
    hows = ((1, 256, 2), (0.5, 7, 2), (1, 256, 0.3), (0, 256, 2), (1e6, 7, 2), (1e6, 256, 0.3))
    for temperature, top_k, top_p in hows:
        how = Sampling(np.float32(temperature), np.int32(top_k), np.float32(top_p))
        theirs = jax.vmap(_sample, (0, 0, None))(keys, logits_BV, how)
        np.testing.assert_array_equal(draw(ours, logits_BV, how), theirs)


def write_units(weights_file: Path, out: Path) -> None:
    """Write weights as of another version, in which `hidden` has the name "units"."""
    metadata, stored = arrays.read_arrays(weights_file)
    text = metadata[weights.KEY].replace('"hidden":', '"units":')
    about = digest.sealed(json.loads(text))
    arrays.write_arrays(out, stored, {weights.KEY: json.dumps(about)})


def test_what_numpy_cannot_read(run, tmp_path) -> None:
    """A run with checkpoints; a Transformer; weights that were damaged: JAX's loader names them."""
    assert not isinstance(mlstm.load(run.folder).loaded, SmallModel)
    with pytest.raises(UserError, match="reader is 'numpy', but it must be auto or jax"):
        mlstm.load(run.folder, reader="numpy")
    write_imported(tmp_path / "transformer", as_weights(draw_model("transformer")))
    assert load_small(tmp_path / "transformer") is None
    file = tmp_path / "m.safetensors"
    weights.save(file, as_weights(run))
    assert load_small(file) is not None
    write_units(file, tmp_path / "other.safetensors")
    assert load_small(tmp_path / "other.safetensors") is None
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match="its arrays do not match its fingerprint"):
        mlstm.load(file)


def test_former_name_of_a_field(run, tmp_path, monkeypatch) -> None:
    """Of a file, and of a folder with a config."""
    monkeypatch.setitem(options.RENAMED, "model.units", "model.hidden")
    weights.save(tmp_path / "m.safetensors", as_weights(run))
    write_imported(tmp_path / "run", as_weights(run))
    for file in (tmp_path / "m.safetensors", tmp_path / "run" / WEIGHTS):
        write_units(file, file)
    assert load_small(tmp_path / "m.safetensors") is not None
    assert weights.load_weights(tmp_path / "m.safetensors").architecture.hidden == 64
    assert load_small(tmp_path / "run") is not None
    config = tmp_path / "run/config.json"
    digest.write_json(config, json.loads(config.read_text().replace('"hidden":', '"units":')))
    assert load_small(tmp_path / "run") is not None


def test_choice_of_the_reader(monkeypatch, tmp_path) -> None:
    write_imported(tmp_path / "run", as_weights(draw_model("mlstm")))
    monkeypatch.setattr("mlstm_jax.api.choice._WORTH_JAX", 11)
    monkeypatch.setattr("mlstm_jax.api.choice._multiplies_bf16", lambda: True)
    for how, readers in (("auto", [True, False]), ("numpy", [True]), ("jax", [False])):
        model = mlstm.load(tmp_path / "run", reader=how)
        assert model.encode(["good"]).shape == model.encode(["my guitar is good"]).shape
        assert column(model._featurizers, 0) == readers


@pytest.mark.parametrize(
    ("how", "several"),
    [({}, "bf16"), ({"reader": "numpy"}, None), ({"compute": "int8"}, None)],
)
def test_types_in_jax(how, several, monkeypatch, tmp_path) -> None:
    """What JAX reads to fit a classifier, NumPy reads to apply it."""
    monkeypatch.setattr("mlstm_jax.host.fastest_compute", lambda units: "bf16")
    write_imported(tmp_path / "run", as_weights(draw_model("mlstm")))
    model = mlstm.load(tmp_path / "run", **how)
    assert isinstance(model.loaded, SmallModel)
    assert model.run.precision == ("fp32", "fp32", several)


@pytest.mark.parametrize("shape", [(40, 128), (40, 100), (2_000, 64)])
def test_blocked_products(shape, random) -> None:
    """In blocks, with rows beside whole groups, and where blocks do not fit."""
    v_IO = random.normal(size=shape).astype(np.float32)
    scale_O = np.geomspace(0.01, 10, shape[1], dtype=np.float32)
    product = blocked_product(v_IO, scale_O)
    w_IO = v_IO.astype(np.float64) * scale_O
    for rows in (1, 7, 8, 9, 16, 21):
        x = random.normal(size=(rows, shape[0])).astype(np.float32)
        assert_close(product(x) / scale_O, x @ w_IO / scale_O, shape[0])


def test_int8_products(random) -> None:
    """Of many rows and of each alone, on any processor, also where the sums are largest."""
    pytest.importorskip("onnxruntime")
    shape = (96, 40)
    v_IO = random.normal(size=shape).astype(np.float32)
    scale_O = np.geomspace(0.01, 10, shape[1], dtype=np.float32)
    v_IO[:, 0] = 0
    v_IO[:, 1] = 1
    x = random.normal(size=(7, shape[0])).astype(np.float32)
    x *= np.geomspace(1e-3, 1e3, len(x), dtype=np.float32)[:, None]
    x[2] = 0
    x[3] = 1
    product = int8_product(v_IO, scale_O)
    found = product(x)
    w_IO = v_IO * scale_O
    x_error = np.abs(x).max(axis=1, keepdims=True) / 127 / 2
    w_error = np.abs(w_IO).max(axis=0) / 127  # of pairs
    bound = x_error * np.abs(w_IO).sum(axis=0) + np.abs(x).sum(axis=1, keepdims=True) * w_error
    bound += shape[0] * x_error * w_error
    assert (np.abs(found - x @ w_IO) <= bound * (1 + 1e-5) + 1e-25).all()
    for row, expected in zip(x, found, strict=True):
        np.testing.assert_array_equal(product(row[None])[0], expected)


def test_int8_texts(both) -> None:
    pytest.importorskip("onnxruntime")
    small, _ = both
    int8 = mlstm.load(small.path, compute="int8")
    found = int8.encode(TEXTS, "mean_h", all_layers=True)
    expected = small.encode(TEXTS, "mean_h", all_layers=True)
    assert 0 < np.abs(found - expected).max() < 0.05
    for n, text in enumerate(TEXTS):
        np.testing.assert_array_equal(int8.encode([text], "mean_h", all_layers=True)[0], found[n])
    assert int8.generate("my ", bytes=9) == small.generate("my ", bytes=9)
    np.testing.assert_array_equal(int8.states(TEXTS[0]), small.states(TEXTS[0]))
    assert "several texts in int8" in repr(int8)


def test_threads_of_blas() -> None:
    """Two readings that overlap leave BLAS with the threads that it had."""
    begun = threading.Event()
    overlapped = threading.Event()

    def threads() -> list[int]:
        return [library["num_threads"] for library in controller().select(user_api="blas").info()]

    def limit(limits: Any) -> None:
        # In a thread that ends, for OpenBLAS obeys only the first of several that live.
        setting = threading.Thread(target=controller().limit, kwargs={"limits": limits})
        setting.start()
        setting.join()

    def first() -> Iterator[int]:
        begun.set()
        assert overlapped.wait(60)
        yield threads()[0]

    def second() -> Iterator[int]:
        overlapped.set()
        other.join(60)
        yield 0

    found: list[int] = []
    other = threading.Thread(target=lambda: found.extend(with_one_thread(first())))
    before = controller().info()
    limit(2)
    try:
        other.start()
        assert begun.wait(60)
        list(with_one_thread(second()))
        assert found == [1]
        assert set(threads()) == {2}
    finally:
        limit(before)


def test_what_int8_cannot_read(run, tmp_path, monkeypatch) -> None:
    for folder, reader in ((run.folder, "auto"), ("reviews-1024", "jax")):
        with pytest.raises(UserError, match="compute is 'int8', but"):
            mlstm.load(folder, compute="int8", reader=reader)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"pip install 'mlstm-jax\[int8\]'"):
        mlstm.load("reviews-1024", compute="int8").encode(["good"])


WITHOUT_JAX = """
import sys
import mlstm_jax as mlstm
mlstm.load
files = [name for name in sys.modules if name.startswith("mlstm_jax")]
assert len(files) <= 45, len(files)
sys.modules.update(dict.fromkeys(["jax", "jaxlib", "flax", "optax", "sklearn", "scipy"]))
model = mlstm.load("reviews-1024")
assert model.classify(["I loved it."])[0]["positive"] > 0.9
assert model.encode(["I loved it."]).shape == (1, 2048)
assert len(model.generate("This", bytes=9)) > 4
model.heatmap("good", unit=236)
model.heatmap("good", score="reviews-1024/sentiment")
from mlstm_jax import cli

cli.main(["classify", "reviews-1024", "new.csv", "--out", "labels.csv"])
cli.main(["generate", "reviews-1024", "--bytes", "5"])
"""


def test_reading_without_jax(tmp_path) -> None:
    """Nothing is compiled, and no cache is made."""
    (tmp_path / "new.csv").write_text("text\nI loved it.\n", encoding="utf-8")
    root = Path(mlstm.__file__).parents[1]
    environment = os.environ | {"MLSTM_JAX_CACHE": str(tmp_path / "c"), "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", WITHOUT_JAX]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment, timeout=120)
    assert not (tmp_path / "c").exists()
    assert "positive" in (tmp_path / "labels.csv").read_text(encoding="utf-8")
