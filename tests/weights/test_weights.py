"""Other people's weights: each layout against a forward pass of its own in NumPy; round trips."""

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax import arrays, cli, digest, openai, run, weights
from mlstm_jax.errors import KnownError, UserError
from mlstm_jax.loaded import load_small
from mlstm_jax.training import run_folder
from mlstm_jax.transfer.classifier import Classifier
from tests.limits import limited
from tests.tables import attributes, draw_arrays
from tests.tolerance import assert_close

E, H = 5, 7


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def normalised(w: np.ndarray, g: np.ndarray) -> np.ndarray:
    """TensorFlow's l2_normalize over axis 0, times the gain."""
    return w / np.sqrt(np.maximum((w.astype(np.float64) ** 2).sum(axis=0), 1e-12)) * g


def cell(
    x: np.ndarray, h: np.ndarray, c: np.ndarray, p: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """OpenAI's cell, in float64."""
    m = (x @ normalised(p["wmx"], p["gmx"])) * (h @ normalised(p["wmh"], p["gmh"]))
    z = x @ normalised(p["wx"], p["gx"]) + m @ normalised(p["wh"], p["gh"]) + p["b"]
    i, f, o, u = np.split(z, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
    return sigmoid(o) * np.tanh(c), c


def draw_cell(random: np.random.Generator, inputs: int) -> dict[str, np.ndarray]:
    shapes = {"wx": (inputs, 4 * H), "wh": (H, 4 * H), "wmx": (inputs, H), "wmh": (H, H)}
    shapes |= {"b": (4 * H,), "gx": (4 * H,), "gh": (4 * H,), "gmx": (H,), "gmh": (H,)}
    return draw_arrays(random, shapes)


def write_openai(folder: Path, random: np.random.Generator) -> Callable[[bytes], Any]:
    p = draw_cell(random, E)
    embedding = random.normal(size=(256, E)).astype(np.float32)
    decoder = random.normal(size=(H, 256))
    bias = random.normal(size=256)
    files = [embedding, p["wx"], *np.split(p["wh"], 4, axis=1), p["wmx"], p["wmh"], p["b"]]
    files += [p["gx"], p["gh"], p["gmx"], p["gmh"], decoder, bias]
    folder.mkdir()
    for number, array in enumerate(files):
        np.save(folder / f"{number}.npy", array.astype(np.float32))

    def forward(text: bytes) -> tuple[np.ndarray, np.ndarray]:
        h = c = np.zeros(H)
        for byte in text:
            h, c = cell(embedding[byte], h, c, p)
        return c, h @ decoder.astype(np.float32) + bias.astype(np.float32)

    return forward


@pytest.fixture
def found(folder: Path) -> weights.ModelWeights:
    return openai.read_openai(folder)


def test_forward_pass(tmp_path, random) -> None:
    """The imported run, read from its folder, against the layout's own forward pass."""
    forward = write_openai(tmp_path / "given", random)
    run.write_imported(tmp_path / "run", openai.read_openai(tmp_path / "given"))
    loaded = run.load_run(tmp_path / "run")
    text = "\n A café: 7 é ".encode()
    bytes_BT = np.frombuffer(text, np.uint8)[None]
    apply = jax.jit(loaded.model.apply)
    carry, logits, *_ = apply({"params": loaded.params}, bytes_BT, loaded.model.init_carry(1))
    c, expected = forward(text)
    # Three products in each step; the weights are so large that the gates let go of little.
    terms = 3 * H * len(text)
    assert_close(carry.c[0, -1], c, terms)
    assert_close(logits[0, -1], expected, terms + H)


def test_round_trip(tmp_path, found, capsys) -> None:
    """And in float16 the half of them, rounded once."""
    a = tmp_path / "a"
    b = tmp_path / "b"
    cli.main(["import", "openai", str(tmp_path / "o"), "--out", str(a)])
    assert "1 x 7 units" in capsys.readouterr().out
    whole = tmp_path / "whole.safetensors"
    again = tmp_path / "again.safetensors"
    half = tmp_path / "half.safetensors"
    half_again = tmp_path / "half_again.safetensors"
    cli.main(["export", str(a), "--out", str(whole)])
    cli.main(["import", "mlstm", str(whole), "--out", str(b)])
    assert (a / run.WEIGHTS).read_bytes() == (b / run.WEIGHTS).read_bytes()
    mlstm.load(b).export(again)
    assert again.read_bytes() == whole.read_bytes()
    assert weights.load_weights(whole).source == "openai/generating-reviews-discovering-sentiment"

    cli.main(["export", str(a), "--out", str(half), "--dtype", "float16"])
    exact = arrays.flatten(found.params)
    rounded = arrays.flatten(weights.load_weights(half).params)
    saved = sum(attributes(exact.values(), "nbytes")) // 2
    # The header has other places of arrays, and is padded.
    assert abs(whole.stat().st_size - half.stat().st_size - saved) <= 64 * (len(exact) + 1)
    for name, array in exact.items():
        twice = array.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(rounded[name], twice, strict=True)
    weights.save(half_again, weights.load_weights(half), "float16")
    assert half_again.read_bytes() == half.read_bytes()
    found.params["decoder_bias"][0] = 1e6
    with pytest.raises(UserError, match="decoder_bias has values too large for float16"):
        weights.save(tmp_path / "no.safetensors", found, "float16")
    assert not (tmp_path / "no.safetensors").exists()


def test_int8(tmp_path, found) -> None:
    """V is |W| within half a unit of its column; what was read gives the same file again."""
    first = tmp_path / "first.safetensors"
    again = tmp_path / "again.safetensors"
    weights.save(first, found, "int8")
    read = weights.load_weights(first)
    weights.save(again, read, "int8")
    assert first.read_bytes() == again.read_bytes()
    _, stored = arrays.read_arrays(first)
    assert (np.abs(stored["layer_0/wh_v"].astype(int)).max(axis=0) == 127).all()
    exact = arrays.flatten(found.params)
    for name, array in arrays.flatten(read.params).items():
        if name.endswith("_v"):
            gains = np.abs(read.params["layer_0"][name.removeprefix("layer_0/")[:-1] + "g"])
            w = normalised(exact[name], gains)
            unit = np.abs(w).max(axis=0) / 127
            # |V| changes by at most half a unit an entry.
            shift = 0.5 * unit * np.sqrt(len(w)) / gains
            most = 0.5 * unit * (1 + np.sqrt(len(w)) * np.abs(w) / gains) / (1 - shift)
            assert (np.abs(array - w) <= most * (1 + 1e-5)).all()
        else:
            np.testing.assert_array_equal(array, exact[name].astype(np.float16))
    small = load_small(first)
    assert small is not None
    assert small.fingerprint == arrays.fingerprint(read.params)
    with pytest.raises(UserError, match="int8 is for models with weight normalisation"):
        weights.to_int8({"layer_0/wh": exact["layer_0/wh_v"]})


def test_umask(tmp_path, found) -> None:
    made = Classifier(np.ones((1, 3)), np.zeros(1), ["a", "b"], 1.0)
    before = os.umask(0o027)
    try:
        run.write_imported(tmp_path / "run", found)
        weights.save(tmp_path / "m.safetensors", found)
        made.save(tmp_path)
    finally:
        os.umask(before)
    written = ["run/config.json", f"run/{run.WEIGHTS}", "m.safetensors", "classifier.safetensors"]
    for name in written:
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o640


def test_full_disk(tmp_path, found) -> None:
    message = r"m\.safetensors cannot be written: File too large"
    with limited(resource.RLIMIT_FSIZE, 1000), pytest.raises(KnownError, match=message):
        weights.save(tmp_path / "m.safetensors", found)
    assert os.listdir(tmp_path) == ["o"]


class Opens:
    """What a pickle of a stranger may do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return open, (str(self._path), "w")


def test_pickle_of_a_stranger(folder: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    pickled = np.array([Opens(trap)], object)
    with (folder / "0.npy").open("wb") as file:
        np.save(file, pickled, allow_pickle=True)
    with pytest.raises(UserError, match=r"0\.npy is not a \.npy file of numbers"):
        openai.read_openai(folder)
    assert not trap.exists()


def test_imported_run(found, tmp_path, refused) -> None:
    """Neither trained over, nor of another model than their config; without a corpus."""
    imported = tmp_path / "run"
    run.write_imported(imported, found)
    before = (imported / run.WEIGHTS).read_bytes()
    with pytest.raises(UserError, match="exists; choose another"):
        run.write_imported(imported, found)
    with pytest.raises(UserError, match="contains imported weights"):
        run_folder.require_resumable(run.Config(out=str(imported)), None, resume=False)
    assert (imported / run.WEIGHTS).read_bytes() == before
    assert "name one with --corpus" in refused("evaluate", imported)
    for path in (imported, imported / run.WEIGHTS):
        assert "has weights, and no checkpoint 7;" in refused("generate", path, "--checkpoint", "7")
    file = imported / "config.json"
    digest.write_json(file, json.loads(file.read_text().replace('"hidden": 7', '"hidden": 8')))
    with pytest.raises(UserError, match=r"config\.json and weights\.safetensors are from diff"):
        run.load_run(imported)
