"""What a trained model is used for: features, a classifier on them, and text."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlstm_jax.errors import UserError
from mlstm_jax.report import compressed_bpc, report
from mlstm_jax.run import Run, load
from mlstm_jax.transfer.generate import as_text, generate, prompt_bytes


def test_generated_text_is_of_the_corpus_and_of_the_seed(run: Run) -> None:
    def write(seed: int, **options: float) -> bytes:
        values = {"length": 300, "temperature": 0.5} | options
        return b"".join(generate(run, "the guitar", seed=seed, **values))

    assert write(1) == write(1) != write(2)
    # A prefix of a longer text, since the blocks are the same.
    assert write(1, length=150) == write(1)[:150]
    assert write(3, temperature=0) == write(4, temperature=0)
    known = "the this my guitar strap tuner cable café is was good".encode().split()
    assert len(set(known) & set(write(5).split())) >= 6
    assert len(b"".join(generate(run, "", length=70, temperature=1.0, seed=0))) == 70


def test_generation_draws_from_the_model(run: Run) -> None:
    """The first byte's frequencies over many seeds are softmax of the logits."""
    prompt = prompt_bytes("the guitar ", run.cleaning)
    context = np.frombuffer(prompt, np.uint8)[None]
    _, logits, *_ = run.model.apply({"params": run.params}, context, run.model.init_carry(1))
    expected = np.asarray(jax.nn.softmax(logits[0, -1] / jnp.float32(2.0)))
    drawn = [
        next(iter(generate(run, "the guitar ", length=1, temperature=2.0, seed=seed)))[0]
        for seed in range(300)
    ]
    likeliest = int(expected.argmax())
    share = np.mean(np.array(drawn) == likeliest)
    sigma = np.sqrt(expected[likeliest] * (1 - expected[likeliest]) / 300)
    assert abs(share - expected[likeliest]) < 4 * sigma


@pytest.mark.parametrize(
    ("prompt", "cleaning", "expected"),
    [
        ("", "radford", b"\n "),
        ("a &amp; b\nc", "radford", b"\n a & b c"),
        ("trailing ", "radford", b"\n trailing "),
        ("caf\u00e9", "none", b"caf\xc3\xa9"),
        ("", "none", b"\n"),
    ],
)
def test_prompts_are_cleaned_as_the_corpus_was(prompt: str, cleaning: str, expected: bytes) -> None:
    assert prompt_bytes(prompt, cleaning) == expected


def test_text_cut_inside_a_character_is_joined() -> None:
    whole = "naïve — 日本".encode()
    pieces = iter([whole[:3], whole[3:7], whole[7:], b"\xff"])
    assert "".join(as_text(pieces)) == "naïve — 日本�"


def test_bad_options_are_refused(run: Run) -> None:
    with pytest.raises(UserError, match="--length is -1"):
        next(generate(run, "", length=-1, temperature=1, seed=0))
    with pytest.raises(UserError, match="--temperature is nan"):
        next(generate(run, "", length=1, temperature=float("nan"), seed=0))


def test_report_tells_model_and_compressors_apart(run: Run, corpus: Path) -> None:
    text = report(run.folder)
    valid = (corpus / "valid.bin").read_bytes()
    gzip_bpc = compressed_bpc(valid)["gzip -9"]
    assert f"{len(valid):,} validation bytes" in text
    assert f"gzip -9{gzip_bpc:13.3f}" in text
    assert "this model" in text
    assert str(run.folder) in text


def test_a_run_needs_checkpoints(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        load(tmp_path)
    (tmp_path / "config.json").write_text((run.folder / "config.json").read_text())
    with pytest.raises(UserError, match="no checkpoint yet"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"model": {"hiden": 3}}')
    with pytest.raises(UserError, match=r"config\.json is not the config"):
        load(tmp_path)


def test_run_says_what_it_was_trained_on(run: Run) -> None:
    assert run.cleaning == "radford"
    assert dataclasses.asdict(run.config)["model"]["layers"] == 2
