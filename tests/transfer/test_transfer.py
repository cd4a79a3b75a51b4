"""Text, heat maps of units and of scores (test_view.py has the page), and the report."""

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlstm_jax import cli
from mlstm_jax.api.model import load
from mlstm_jax.api.report import compressed_bpc, report_of
from mlstm_jax.config import to_json, vary
from mlstm_jax.corpora.documents import prompt_bytes
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.errors import UserError
from mlstm_jax.model.numpy_sampling import Sampling
from mlstm_jax.options import HeatmapOptions, SamplingOptions
from mlstm_jax.run import Run, load_run, with_compute
from mlstm_jax.training.evaluation import Score
from mlstm_jax.transfer.classifier import Classifier, Description
from mlstm_jax.transfer.device_bytes import _sample
from mlstm_jax.transfer.features import Featurizer
from mlstm_jax.transfer.heatmap import Heatmap, as_html, characters, colour, heat, ink, score_heat
from mlstm_jax.transfer.trace import Tracer, as_text, generate
from tests.tolerance import bound
from tests.transfer.pieces import whole
from tests.transfer.test_features import one_device
from tests.transfer.test_kinds import draw

pytestmark = pytest.mark.numeric


def test_generated_text(run: Run) -> None:
    read = Tracer(run)

    def write(seed: int, bytes: int = 130, temperature: float = 0.5) -> bytes:
        how = SamplingOptions(seed=seed, bytes=bytes, temperature=temperature)
        (text,) = whole(generate(read, "the guitar", how))
        return text

    assert write(1) == write(1) != write(2)
    # A prefix of a longer text, since the blocks are the same.
    assert write(1, bytes=70) == write(1)[:70]
    assert write(3, temperature=1e-4) == write(3, temperature=0) == write(4, temperature=0)
    known = "the this my guitar strap tuner cable café is was good".encode().split()
    assert len(set(known) & set(write(5, bytes=1000).split())) >= 6
    assert len(whole(generate(read, "", SamplingOptions(bytes=70)))[0]) == 70


def test_samples_and_stops(run: Run) -> None:
    read = Tracer(run)
    how = SamplingOptions(bytes=200, seed=5, temperature=1.0, samples=3)
    three = whole(generate(read, "my ", how))
    assert three[:1] == whole(generate(read, "my ", dataclasses.replace(how, samples=1)))
    assert len(set(three)) == 3
    # Some of these come in one block of 64 bytes and not in each that follows.
    for stop in (".", "c", "v", r"\x31"):
        stopped = whole(generate(read, "my ", dataclasses.replace(how, stop=stop)))
        byte = stop.encode().decode("unicode_escape").encode()
        for text, begun in zip(three, stopped, strict=True):
            assert begun == text.partition(byte)[0]
        assert len(set(map(len, stopped))) > 1


def test_top_k_and_top_p(random: np.random.Generator) -> None:
    """Against the definitions in NumPy, over many draws from one distribution."""
    logits = random.normal(size=256).astype(np.float32) * 6
    falling = np.argsort(-logits)
    halved = np.exp((logits - logits.max()) / 2)  # at temperature 2
    shares = halved / halved.sum()
    enough = int((np.cumsum(shares[falling]) < 0.6).sum()) + 1
    keys = jax.random.split(jax.random.key(0), 3000)
    draw = jax.jit(jax.vmap(_sample, (0, None, None)))
    for top_k, top_p, allowed in ((3, 2.0, 3), (256, 0.6, enough), (1, 0.6, 1), (256, 1e-9, 1)):
        how = Sampling(jnp.float32(2), jnp.int32(top_k), jnp.float32(top_p))
        drawn = np.asarray(draw(keys, jnp.asarray(logits), how))
        assert set(drawn) == set(falling[:allowed])
        expected = shares[falling[0]] / shares[falling[:allowed]].sum()
        assert (drawn == falling[0]).mean() == pytest.approx(expected, abs=0.04)


def test_held_units(run: Run) -> None:
    """The likeliest text is the one found by setting these units in the carry before each byte."""
    held = dict.fromkeys(range(0, 64, 4), -5.0) | dict.fromkeys(range(2, 64, 4), 5.0)
    how = SamplingOptions(bytes=40, temperature=0, set_unit=held)
    (found,) = whole(generate(Tracer(run), "my ", how))
    apply = jax.jit(run.model.apply)
    carry = run.model.init_carry(1)
    expected = b""
    prompt = prompt_bytes("my ", run.cleaning)
    carry, logits, *_ = apply({"params": run.params}, np.frombuffer(prompt, np.uint8)[None], carry)
    for _ in range(40):
        byte = int(logits[0, -1].argmax())
        expected += bytes([byte])
        c = np.array(carry.c)
        c[0, -1, list(held)] = list(held.values())
        text_BT = np.array([[byte]], np.uint8)
        carry, logits, *_ = apply({"params": run.params}, text_BT, carry._replace(c=c))
    assert found == expected
    assert found != whole(generate(Tracer(run), "my ", dataclasses.replace(how, set_unit=None)))[0]


def test_cleaned_prompts() -> None:
    for prompt, cleaning, expected in (
        ("", "radford", b"\n "),
        ("a &amp; b\nc", "radford", b"\n a & b c"),
        ("trailing ", "radford", b"\n trailing "),
        ("caf\u00e9", "none", b"caf\xc3\xa9"),
        ("", "none", b"\n"),
    ):
        assert prompt_bytes(prompt, cleaning) == expected


def test_characters() -> None:
    text = "naïve — 日本".encode()
    assert "".join(as_text(iter([text[:3], text[3:7], text[7:], b"\xff"]))) == "naïve — 日本�"
    texts, ends = characters("é日".encode() + b"\xffa\xe6\x97")
    assert texts == ["é", "日", "�", "a", "�", "�"]
    assert ends == [1, 4, 5, 6, 7, 8]


SCORE = Score(loss=1.0, bpc=1.4, bytes_scored=100, seconds=1.0)
HEAT_TEXT = "my café is <great> & good $5"


def test_page_of_a_heat_map(run: Run) -> None:
    """Nothing to fetch, nothing to run, the text escaped."""
    made = heat(Tracer(run), HEAT_TEXT, 7)
    page = as_html(made)
    assert "&lt;" in page
    assert "<great>" not in page
    assert not re.search(r"<script|src=|href=|url\(|@import", page)
    assert page.count("<span style") == len(made.texts)
    largest = int(np.abs(made.values).argmax())
    full = "rgb({},{},{})".format(*colour(float(made.values[largest]), made.scale))
    assert page.split("<span style")[largest + 1].startswith(f'="background:{full}')


def test_ink() -> None:
    """Orange and white are too bright for white text (contrast of WCAG 2.2)."""
    for value, expected in ((-1, "#fff"), (-0.2, "#111"), (0, "#111"), (1, "#111")):
        assert ink(colour(value, 1.0)) == expected


def test_scale_and_outliers(run: Run) -> None:
    made = heat(Tracer(run), "my guitar is good " * 30, 3)
    assert made.scale < np.abs(made.values).max()
    assert (np.abs(made.values) > made.scale).mean() <= 0.01


@contextmanager
def compiled_programs() -> Iterator[list[str]]:
    """The names of the programs that JAX compiles meanwhile."""
    compiled: list[str] = []

    def note(event: str, seconds: float, **about: Any) -> None:
        if "backend_compile" in event:
            compiled.append(about.get("fun_name", event))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


@pytest.mark.parametrize("several_in_bf16", [False, True])
def test_programs_of_a_first_answer(several_in_bf16: bool) -> None:
    # Of sizes of its own, so that no other test has compiled its programs.
    run = draw("mlstm", hidden=20 + 8 * several_in_bf16, layers=1)
    if several_in_bf16:
        run = dataclasses.replace(run, batch_model=with_compute(run, "bf16").model)
    with compiled_programs() as compiled:
        whole(generate(Tracer(run), "the guitar", SamplingOptions(bytes=130)))  # three blocks
    # Weights, for bf16 again; the window of the prompt; the block.
    assert len(compiled) == 3 + several_in_bf16
    with compiled_programs() as compiled:
        Featurizer(run)(["the guitar"])
    assert len(compiled) == 1  # a window of one row; the weights are known


def test_programs_of_all_lengths(run: Run) -> None:
    with compiled_programs() as compiled:
        read = Tracer(run)
        longest = "my cable sounds great " * 9
        for prompt in (longest, "", "the guitar"):
            seen = len(compiled)
            whole(generate(Tracer(run), prompt, SamplingOptions(bytes=70)))
            read(prompt_bytes(prompt, run.cleaning))
            Featurizer(run)([prompt] * 8)
            assert prompt == longest or compiled[seen:] == []


def test_corpus_prepared_anew(run, text_file, corpus, tmp_path, capsys, refused):
    """The same place, another seed: what was trained on may be in any split now."""
    shutil.copytree(run.folder, folder := tmp_path / "run")
    shutil.copytree(corpus, own := tmp_path / "corpus")
    config = vary(run.config, data__corpus=str(own))
    (folder / "config.json").write_text(to_json(config))
    text = load(folder).report()
    valid = (own / "valid.bin").read_bytes()
    compressed = f"gzip -9{compressed_bpc(valid)['gzip -9']:13.3f}"
    for words in ("not used for training", f"{len(valid):,} validation bytes", compressed,
                  "this model", str(folder)):  # fmt: skip
        assert words in text
    prepare([str(text_file)], own, split=(20, 1, 1), seed=5, overwrite=True)
    for command in ("evaluate", "report"):
        assert "is not the corpus that" in refused(command, folder)
    cli.main(["evaluate", str(folder), "--corpus", str(own)])
    assert "note: the model was trained on a different corpus" in capsys.readouterr().out
    assert "not the training corpus" in report_of(load(folder).run, own, SCORE, "")


def test_moved_run(run, tmp_path, monkeypatch, refused) -> None:
    """Its corpus stayed where it was: the user has not typed the name that the run keeps."""
    shutil.copytree(run.folder, tmp_path / "d")
    monkeypatch.chdir(tmp_path)
    Path("d/config.json").write_text(to_json(vary(run.config, data__corpus="corpora/mine")))
    told = "the run d was trained on corpora/mine, which is not here; name the corpus with"
    for command in ("evaluate", "report"):
        assert f"{told} --corpus." in refused(command, "d")
    given = ["--data.corpus", "corpora/mine", "--out", "d"]
    assert "there is no corpus corpora/mine" in refused("train", *given)
    for words in ([], ["--resume"]):
        assert "d holds a run on corpora/mine" in refused("train", *words, "--out", "d")
    assert not Path("corpora").exists()


def test_incomplete_runs(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        load_run(tmp_path)
    exported = tmp_path / "mine.npz"
    exported.touch()
    with pytest.raises(UserError, match=r"mine\.npz is not a model.* \.safetensors"):
        load_run(exported)
    for wanted in ("\u00b2", "9" * 5000, "+1", "1_0", "-1"):
        with pytest.raises(UserError, match="only 150; choose one of these steps"):
            load_run(run.folder, wanted)
    file = tmp_path / "config.json"
    text = (run.folder / "config.json").read_text()
    for config in (text, json.dumps(json.loads(text), sort_keys=True)):
        file.write_text(config)
        with pytest.raises(UserError, match="has no checkpoint"):
            load_run(tmp_path)
    edits = ('"batch": ', '"batch": 1'), ('"crc32": "', '"crc32": "0'), ("crc32", "crc33")
    for old, new in edits:
        file.write_text(text.replace(old, new))
        with pytest.raises(UserError, match=r"config\.json cannot be read .*crc32.*options of"):
            load_run(tmp_path)


TEXT = "my café is good, but 5 < 6 & bad"


def classifier_of(width: int, classes: int = 2, **fields: object) -> Classifier:
    random = np.random.default_rng(0)
    rows = 1 if classes == 2 else classes
    names = ["negative", "positive", "neither"][:classes]
    weights = random.normal(size=(rows, width))
    return Classifier(weights, random.normal(size=rows), names, 1.0, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("classes", "fields"), [(2, {}), (3, {}), (3, {"softmax": True})])
def test_log_odds(classes: int, fields: dict) -> None:
    classifier = classifier_of(8, classes, **fields)
    features = np.random.default_rng(1).normal(size=(50, 8)).astype(np.float32)
    scores = classifier.scores(features)
    shares = classifier.probabilities(features)
    if classes == 2 or classifier.softmax:
        expected = np.log(shares / (1 - shares))
    else:
        expected = scores
        np.testing.assert_array_equal(scores.argmax(axis=1), shares.argmax(axis=1))
    np.testing.assert_allclose(scores, expected, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "state", "all_layers"),
    [
        (None, "c", False),
        (None, "h", True),
        (None, "mean_h", False),
        (None, "c+mean_h", True),
        ("lstm", "mean_h", False),
        ("transformer", "mean_h", False),
    ],
)
def test_last_score(run, kind, state, all_layers) -> None:
    """And that after each character is what it answers to the text up to there."""
    read = draw(kind) if kind else run
    featurizer = Featurizer(read, states=(state,), all_layers=all_layers, devices=one_device())
    classifier = classifier_of(len(featurizer.columns))
    about = Description(state, all_layers, "abc", None)
    made = score_heat(Tracer(read), TEXT, classifier._replace(about=about))
    assert "".join(made.texts) == f"\n {TEXT} "
    features = featurizer([TEXT, TEXT[:7]])
    whole, part = classifier.scores(features)[:, 1]
    # Two layers of three products over 64 units, and the classifier's sum.
    limit = bound(2 * 3 * 64) * np.abs(classifier.weights_KD).sum() * np.abs(features).max()
    assert abs(made.values[-1] - whole) <= limit
    # The newline, the space, seven characters and the space after them.
    assert made.texts[9] == " "
    assert abs(made.values[9] - part) <= limit
    is_space = np.array(made.texts) == " "
    ends = 2 + np.flatnonzero(is_space[3:] & ~is_space[2:-1])
    assert made.scale == np.abs(made.values[ends]).max()
    how = HeatmapOptions(label="negative")
    negative = score_heat(Tracer(read), TEXT, classifier._replace(about=about), how)
    np.testing.assert_array_equal(negative.values, -made.values)


def test_score_after_each_word() -> None:
    texts = list("\n so bad ")
    values = np.array([0, 0, 1, 2.26, 0, -0.5, -1, -3.04, 0])
    made = Heatmap(texts, values, 3.0, "Score of <good>", "log-odds of <good>", "run", by_word=True)
    page = as_html(made)
    assert re.findall(r"<rt>(.*?)</rt>", page) == ["+2.3", "−3.0"]
    shown = page.split('class="text">')[1].split("</p>")[0]
    assert re.sub(r"<rt>.*?</rt>|<[^>]*>", "", shown) == "↵ so bad "
    assert page.count("<span style") == len(texts)
    assert "<good>" not in page
    (points,) = re.findall(r'<polyline points="(.*?)"', page)
    heights = [*map(float, re.findall(r",(\S+)", points))]  # downwards
    assert (np.argmin(heights), np.argmax(heights)) == (3, 7)
    assert "<rt>" not in as_html(made._replace(by_word=False))
