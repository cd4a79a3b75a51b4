"""Other people's weights: each layout against a forward pass of its own in NumPy; round trips."""

import json
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax import cli, digest, run
from mlstm_jax.corpora.options import PrepareOptions
from mlstm_jax.data.corpus import SPLITS
from mlstm_jax.errors import KnownError, UserError
from mlstm_jax.interop import published, weights
from mlstm_jax.training import run_folder
from mlstm_jax.transfer.classifier import Classifier
from mlstm_jax.transfer.features import Featurizer
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
    """OpenAI's and UniRep's cell, in float64."""
    m = (x @ normalised(p["wmx"], p["gmx"])) * (h @ normalised(p["wmh"], p["gmh"]))
    z = x @ normalised(p["wx"], p["gx"]) + m @ normalised(p["wh"], p["gh"]) + p["b"]
    i, f, o, u = np.split(z, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
    return sigmoid(o) * np.tanh(c), c


def draw_cell(random: np.random.Generator, inputs: int) -> dict[str, np.ndarray]:
    shapes = {"wx": (inputs, 4 * H), "wh": (H, 4 * H), "wmx": (inputs, H), "wmh": (H, H)}
    shapes |= {"b": (4 * H,), "gx": (4 * H,), "gh": (4 * H,), "gmx": (H,), "gmh": (H,)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_openai(folder: Path, random: np.random.Generator) -> Callable[[bytes], Any]:
    p = draw_cell(random, E)
    embedding = random.normal(size=(256, E)).astype(np.float32)
    decoder, bias = random.normal(size=(H, 256)), random.normal(size=256)
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


def write_unirep(
    folder: Path, random: np.random.Generator, layers: int, end: str = ":0.npy"
) -> Callable[[bytes], Any]:
    tokens = {letter: n for n, letter in enumerate("MRHKDESTNQCUGPAVIFYWLO", 1)}
    tokens |= dict.fromkeys("XBZJ", 23) | {"\x02": 24, "\x03": 25}
    embedding = random.normal(size=(26, E)).astype(np.float32)
    cells = [draw_cell(random, H if layer else E) for layer in range(layers)]
    kernel = random.normal(size=(H, 25)).astype(np.float32)
    bias = random.normal(size=25).astype(np.float32)
    folder.mkdir()
    files = {"embed_matrix": embedding, "fully_connected_weights": kernel}
    files["fully_connected_biases"] = bias
    for layer, p in enumerate(cells):
        stack = f"rnn_mlstm_stack_mlstm_stack{layer}_mlstm_stack{layer}_"
        prefix = stack if layers > 1 else "rnn_mlstm_mlstm_"
        files |= {prefix + name: array for name, array in p.items()}
    for name, array in files.items():
        np.save(folder / "x.npy", array)
        (folder / "x.npy").rename(folder / (name + end))

    def forward(text: bytes) -> tuple[np.ndarray, np.ndarray]:
        states = [(np.zeros(H), np.zeros(H)) for _ in cells]
        for letter in text.decode():
            x = embedding[tokens[letter]]
            for layer, p in enumerate(cells):
                states[layer] = cell(x, *states[layer], p)
                x = states[layer][0]
        logits = np.full(256, -np.inf)
        for letter, token in tokens.items():
            if letter not in "BZJ":
                logits[ord(letter)] = (x @ kernel + bias)[token - 1]
        return states[-1][1], logits

    return forward


def terms_of(loaded: run.Run, text: bytes) -> int:
    """Of the sums that a state passes through: three products a layer in each step.

    All steps count: the weights drawn here are so large that the gates let go of little.
    """
    sizes = loaded.config.model
    return 3 * sizes.layers * max(sizes.hidden, sizes.embedding) * len(text)


def assert_same_model(
    found: weights.ModelWeights, forward: Callable[[bytes], Any], text: bytes, folder: Path
) -> None:
    """The imported run, read from its folder, against the layout's own forward pass."""
    run.write_imported(folder, found)
    loaded = run.load_run(folder)
    bytes_BT = np.frombuffer(text, np.uint8)[None]
    apply = jax.jit(loaded.model.apply)
    carry, logits, *_ = apply({"params": loaded.params}, bytes_BT, loaded.model.init_carry(1))
    c, expected = forward(text)
    terms = terms_of(loaded, text)
    assert_close(carry.c[0, -1], c, terms)
    known = np.isfinite(expected)
    assert_close(logits[0, -1][known], expected[known], terms + H)
    assert (np.asarray(logits)[0, -1, ~known] < -9000).all()


@pytest.fixture
def found(folder: Path) -> weights.ModelWeights:
    return published.read_openai(folder)


TEXT = "\n A café: 7 é ".encode()
PROTEIN = b"\x02MKXLBZJO"


def test_weights_of_text(tmp_path, random) -> None:
    forward = write_openai(tmp_path / "given", random)
    assert_same_model(published.read_openai(tmp_path / "given"), forward, TEXT, tmp_path / "run")


def test_unirep(tmp_path: Path, random: np.random.Generator) -> None:
    """A stack of layers, in files whose names have no colon; the proteins below have one layer."""
    forward = write_unirep(tmp_path / "u", random, 2, "_0.npy")
    found = published.read_unirep(tmp_path / "u")
    assert_same_model(found, forward, PROTEIN, tmp_path / "run")
    loaded = run.load_run(tmp_path / "run")
    (row,) = Featurizer(loaded, states=("c",))(["mkx lbzjo\n"])
    assert_close(row, forward(PROTEIN)[0], terms_of(loaded, PROTEIN))


def test_proteins_of_a_fasta_cost_what_they_cost_unirep(tmp_path, random, capsys, refused) -> None:
    """Each from a zero state and its start token; its letters and its stop token are scored."""
    forward = write_unirep(tmp_path / "u", random, 1)
    np.save(tmp_path / "u/fully_connected_1_weights:0.npy", np.zeros((H, 1)))
    cli.main(["import", "unirep", str(tmp_path / "u"), "--out", str(tmp_path / "run")])
    assert "skipped because they are not part of" in (said := capsys.readouterr().err)
    assert "fully_connected_1_weights:0.npy" in said
    proteins = ["MKX", "LO" * 30, "RHKDEST" * 3 + "N", "VIFYWBZJX"]
    fasta = "".join(
        f">sp|{n}| name {n}\n{text[:50].lower()}\n{text[50:]}*\n" for n, text in enumerate(proteins)
    )
    (tmp_path / "p.fasta").write_text(fasta)
    corpus = ["prepare", str(tmp_path / "p.fasta"), "--split", "0,0,1"]
    cli.main([*corpus, "--clean", "protein", "--out", str(tmp_path / "c")])
    score = tmp_path / "score.json"
    command = ["evaluate", str(tmp_path / "run"), "--json", str(score), "--corpus"]
    cli.main([*command, str(tmp_path / "c")])
    letters, stops = [], []
    for text in proteins:
        # Four letters are one token, as inputs and as targets.
        whole = b"\x02" + re.sub("[BZJ]", "X", text).encode() + b"\x03"
        for end in range(1, len(whole)):
            logits = forward(whole[:end])[1]
            nats = stops if end == len(whole) - 1 else letters
            nats.append(np.log(np.exp(logits).sum()) - logits[whole[end]])
    found = json.loads(score.read_text())
    assert found["bytes_scored"] == len(letters + stops)
    assert found["loss"] == pytest.approx(np.mean(letters + stops), rel=1e-5)
    cli.main([*corpus, "--out", str(tmp_path / "d")])
    error = refused(*command, tmp_path / "d", "--overwrite")
    assert "prepare it with `clean` protein" in error


def test_a_byte_without_a_symbol_is_refused_by_name(tmp_path, random) -> None:
    write_unirep(tmp_path / "u", random, 1)
    run.write_imported(folder := tmp_path / "run", published.read_unirep(tmp_path / "u"))
    model = mlstm.load(folder)
    texts = ["MKV", "M-K*V*"]
    given = {name: tmp_path / f"{name}.txt" for name in SPLITS}
    for source in given.values():
        source.write_text("\n".join(texts * 4))
    mlstm.prepare(given, tmp_path / "c", PrepareOptions(clean="protein"))
    config = mlstm.vary(
        run.Config(out=str(tmp_path / "tuned"), model=model.config.model),
        data__corpus=str(tmp_path / "c"),
        data__batch=4,
        data__window=2,
        train__start_from=str(folder),
    )
    for call, place in (
        (lambda: model.bits_per_character(texts), "text 2"),
        (lambda: model.generate("M-K*"), "the prompt"),
        (lambda: model.generate("MK", stop="*"), "stop"),
        (lambda: model.evaluate(corpus=tmp_path / "c"), " split"),
        (lambda: mlstm.train(config), " split"),
    ):
        with pytest.raises(ValueError, match=rf"{place} has .* neither read .* b'[*-]'"):
            call()
    # At this temperature all symbols are equally likely.
    assert set(model.generate("MK", bytes=500, temperature=1e30)) <= set(
        map(chr, published._TOKENS)
    )


def test_import_export_import_gives_the_same_bytes(tmp_path, found, capsys) -> None:
    """And in float16 the half of them, rounded once."""
    a, b = tmp_path / "a", tmp_path / "b"
    cli.main(["import", "openai", str(tmp_path / "o"), "--out", str(a)])
    assert "1 x 7-d" in capsys.readouterr().out
    whole, again, half, half_again = (tmp_path / f"{n}.safetensors" for n in range(4))
    cli.main(["export", str(a), "--out", str(whole)])
    cli.main(["import", "mlstm", str(whole), "--out", str(b)])
    assert (a / run.WEIGHTS).read_bytes() == (b / run.WEIGHTS).read_bytes()
    mlstm.load(b).export(again)
    assert again.read_bytes() == whole.read_bytes()
    assert weights.load_weights(whole).source == "openai/generating-reviews-discovering-sentiment"

    cli.main(["export", str(a), "--out", str(half), "--dtype", "float16"])
    exact = weights.flatten(found.params)
    rounded = weights.flatten(weights.load_weights(half).params)
    saved = sum(array.nbytes for array in exact.values()) // 2
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


def test_a_file_may_be_read_by_those_whom_the_umask_lets(tmp_path, found) -> None:
    made = Classifier(np.ones((1, 3)), np.zeros(1), ["a", "b"], 1.0)
    before = os.umask(0o027)
    try:
        run.write_imported(tmp_path / "run", found)
        weights.save(tmp_path / "m.safetensors", found)
        made.save(tmp_path)
    finally:
        os.umask(before)
    written = [tmp_path / "run" / run.WEIGHTS, tmp_path / "run/config.json"]
    written += [tmp_path / "m.safetensors", tmp_path / "classifier.safetensors"]
    assert {path.stat().st_mode & 0o777 for path in written} == {0o640}


def test_an_export_that_cannot_be_written_leaves_nothing(tmp_path, found) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(KnownError, match=r"m\.safetensors: .*File too large"):
            weights.save(tmp_path / "m.safetensors", found)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["o"]


def test_the_file_that_is_missing_is_named(tmp_path, random) -> None:
    """Of a layer that is there, and of the second of ten million."""
    write_unirep(u := tmp_path / "u", random, 2)
    (one,) = u.glob("*stack1_wmx:0.npy")
    os.link(one, u / one.name.replace("stack1", "stack10000000"))
    with pytest.raises(UserError, match=r"stack2_wx:0\.npy: there is no such file"):
        published.read_unirep(u)
    one.unlink()
    with pytest.raises(UserError, match=f"{one.name}: there is no such file"):
        published.read_unirep(u)


class Opens:
    """What a pickle of a stranger may do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return open, (str(self._path), "w")


def test_a_strangers_pickle_is_not_executed(folder: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    pickled = np.array([Opens(trap)], object)
    with (folder / "0.npy").open("wb") as file:
        np.save(file, pickled, allow_pickle=True)
    with pytest.raises(UserError, match=r"0\.npy: is not a \.npy file of numbers"):
        published.read_openai(folder)
    assert not trap.exists()


def test_imported_weights_are_as_they_are(found, tmp_path, refused) -> None:
    """Neither trained over, nor of another model than their config; without a corpus."""
    imported = tmp_path / "run"
    run.write_imported(imported, found)
    before = (imported / run.WEIGHTS).read_bytes()
    with pytest.raises(UserError, match="exists; choose another"):
        run.write_imported(imported, found)
    with (
        pytest.raises(UserError, match="contains imported weights"),
        run_folder.lock(run.Config(out=str(imported)), resume=False),
    ):
        pass
    assert (imported / run.WEIGHTS).read_bytes() == before
    assert "give one with `corpus`" in refused("evaluate", imported)
    for path in (imported, imported / run.WEIGHTS):
        assert "has weights and no checkpoints" in refused("generate", path, "--checkpoint", "7")
    file = imported / "config.json"
    digest.write_json(file, json.loads(file.read_text().replace('"hidden": 7', '"hidden": 8')))
    with pytest.raises(UserError, match=r"config\.json and weights\.safetensors are from diff"):
        run.load_run(imported)
