"""The study of fp8 products computes what it says, and without fp8 what the package computes."""

import json
import sys
from pathlib import Path
from typing import Any

import fp8
import fp8_recurrence as study
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlstm_jax.config import Model, Precision
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.model.mlstm import SEPARATE

pytestmark = pytest.mark.slow


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("name", ["E4M3", "E5M2"])
def test_rounding_is_a_cast(name: str, random: np.random.Generator) -> None:
    dtype = getattr(fp8, name)
    about = jnp.finfo(dtype)
    numbers = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    # All numbers of the type, all ties between two of them, and what lies just beside both.
    exact = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2]).astype(np.float32)
    beside = [np.nextafter(exact, np.float32(end)) for end in (-np.inf, np.inf)]
    wide = random.normal(size=5000) * 10.0 ** random.uniform(-12, 8, 5000)
    x = np.concatenate([exact, *beside, wide.astype(np.float32)])
    x = x[(x == 0) | (np.abs(x) >= np.finfo(np.float32).tiny)]  # XLA makes zeros of the others
    by_cast = np.clip(x, float(about.min), float(about.max)).astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(jax.jit(study.rounded, static_argnums=1)(x, dtype), by_cast)
    assert np.abs(by_cast).max() == float(about.max)
    assert np.isin(by_cast, numbers).all()
    small = np.abs(by_cast[by_cast != 0])
    assert small.min() == float(about.smallest_subnormal)


def _gradient(model: Any, params: Any, bytes_BT: Any, carry: Any) -> Any:
    """Return the loss, the carry after, and the gradient by the parameters and the carry."""

    def loss(params: Any, carry: Any) -> Any:
        read = model.apply({"params": params}, bytes_BT, carry)
        logits = read.logits_BTV
        return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[..., 7]), read.carry

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, carry)


def _case(random: np.random.Generator) -> tuple[LanguageModel, Any, Any, Any]:
    plain = LanguageModel(Model(hidden=16, embedding=8), Precision(compute="bf16"), loops=SEPARATE)
    params = plain.init_parameters(jax.random.key(0))
    bytes_BT = random.integers(0, 256, (3, 9), dtype=np.uint8)
    state = (random.normal(size=(3, 1, 16)).astype(np.float32) * 0.5 for _ in range(2))
    return plain, params, bytes_BT, study.Carry(*state)


def test_without_fp8_it_is_the_packages_recurrence(random: np.random.Generator) -> None:
    plain, params, bytes_BT, carry = _case(random)
    model = study.Fp8Model(plain, study.Formats(study.BF16, study.BF16))
    ours = _gradient(model, {**params, "scaling": study.no_scaling()}, bytes_BT, carry)
    ours[1][0].pop("scaling")
    jax.tree.map(np.testing.assert_array_equal, ours, _gradient(plain, params, bytes_BT, carry))


@pytest.mark.parametrize("backward", ["E4M3", "E5M2"])
def test_what_is_emulated_is_what_fp8_arrays_give(
    backward: str, random: np.random.Generator
) -> None:
    plain, params, bytes_BT, carry = _case(random)
    formats = study.Formats(study.E4M3, getattr(fp8, backward))
    scaling, found = study.no_scaling(), []
    # The second update has the scales that the first has found.
    for _ in range(2):
        with_scaling = {**params, "scaling": scaling}
        results = [
            _gradient(study.Fp8Model(plain, each), with_scaling, bytes_BT, carry)
            for each in (formats, formats._replace(on_gpu=True))
        ]
        found.append(results[0])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), *results)
        scaling = results[0][1][0]["scaling"]
    assert (np.asarray(scaling.maxima[:2]) > 0).all()
    assert not np.asarray(scaling.maxima[2:]).any()
    # Scaled by their own maxima, the gradients are no longer lost below the least number.
    lost = [np.asarray(each[1][0]["scaling"].fates) for each in found]
    assert (lost[1] - lost[0])[2, 2:].max() < 0.05 < lost[0][2, 2:].min()


def test_a_run_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    text = Path(__file__).with_name("README.md").read_text()
    sources: dict[Any, list[str]] = {}
    for split, part in (("train", text), ("valid", text[:2000])):
        path = tmp_path / f"{split}.txt"
        path.write_text(part)
        sources[split] = [str(path)]
    prepare(sources, corpus, clean="none")
    words = f"--corpus {corpus} --out {out} --arms e4m3 --seeds 0 --hidden 16 --batch 4 --window 8"
    monkeypatch.setattr(sys, "argv", ["fp8.py", *words.split(), "--steps", "2"])
    fp8.main()
    (path,) = out.glob("*.json")
    assert [one["step"] for one in json.loads(path.read_text())["curve"]] == [2]
