"""The benchmarks run, write what they promise, and compare programs that compute the same."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tolerance import assert_close

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize(
    ("script", "kinds"),
    [
        ("recurrence", {"forward", "forward_backward"}),
        ("train_step", {"train_step"}),
    ],
)
@pytest.mark.slow
def test_a_benchmark_writes_its_results(
    script: str, kinds: set, tmp_path: Path, command_environment: dict[str, str]
) -> None:
    path = tmp_path / "results.json"
    options = "--point 16 2 8 bf16 --implementations ours autodiff --recompute-every 4 --rounds 2"
    command = [sys.executable, FOLDER / f"{script}.py", *options.split(), "--json", path]
    subprocess.run(command, check=True, env=command_environment, timeout=300)
    results = json.loads(path.read_text())
    assert results["versions"]["jax"] == jax.__version__
    assert results["large_product_flops_per_s"] > 0
    rows = results["rows"]
    assert {row["what"] for row in rows} == kinds
    found = {(row["implementation"], row["recompute_every"]) for row in rows}
    assert found == {("ours", None), ("ours", 4), ("autodiff", None)}
    for row in rows:
        assert (row["hidden"], row["batch"], row["window"], row["dtype"]) == (16, 2, 8, "bf16")
        assert 0 < row["min_s"] <= row["median_s"] <= row["max_s"]
        assert row["fraction_of_large_product"] > 0
        assert row["temp_bytes"] > 0


def test_the_benchmark_of_data_writes_its_results(
    tmp_path: Path, command_environment: dict[str, str]
) -> None:
    path = tmp_path / "results.json"
    options = "--bytes 2e6 --files 2 --gzip --rounds 1 --rows 16 --window 32"
    command = [sys.executable, FOLDER / "data.py", *options.split(), "--json", path]
    subprocess.run(command, check=True, env=command_environment, timeout=300)
    results = json.loads(path.read_text())
    assert results["machine"]["cores"] >= 1
    assert 0.2e6 < results["bytes"] < 2e6
    assert results["duplicates"] == pytest.approx(results["records"] / 20, rel=0.02)
    for key in ("prepare_mb_per_s", "prepare_peak_rss_mb", "stream_mb_per_s"):
        assert results[key] > 0


@pytest.mark.slow
def test_the_benchmark_of_starts_writes_its_results(
    tmp_path: Path, command_environment: dict[str, str]
) -> None:
    path = tmp_path / "results.json"
    options = ["--rounds", "1", "--sizes", "128 units", "--json", path]
    command = [sys.executable, FOLDER / "start.py", *options]
    subprocess.run(command, check=True, env=command_environment, timeout=300)
    rows = json.loads(path.read_text())["rows"]
    assert [row["command"] for row in rows] == ["train", "evaluate", "generate", "features"]
    for row in rows:
        assert 0 < row["warm"]["min_s"] <= row["warm"]["median_s"] <= row["warm"]["max_s"]
        assert row["cold"]["median_s"] > 0


@pytest.mark.slow
@pytest.mark.numeric
@pytest.mark.parametrize("name", ["autodiff", "torch"])
def test_what_is_compared_computes_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch, random: np.random.Generator
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    import baselines
    import recurrence as benchmark
    from measure import Point

    from mlstm_jax.model.recurrence import recurrence

    point = Point(12, 3, 9, "fp32")
    params = benchmark.make_parameters(point.hidden)
    bytes_TB = random.integers(0, 256, (9, 3), dtype=np.int32)
    direction = random.normal(size=(9, 3, 12)).astype(np.float32)

    def by_jax(run: Any) -> Any:
        def scalar(params: Any) -> Any:
            return jnp.vdot(benchmark.mlstm(run, point, params, bytes_TB), direction)

        return jax.jit(jax.value_and_grad(scalar))(params)

    ours = by_jax(recurrence)
    if name == "autodiff":
        theirs = by_jax(baselines.autodiff)
    else:
        torch = pytest.importorskip("torch")
        import torch_mlstm as other

        tree = {key: other.to_torch(value).requires_grad_() for key, value in params.items()}
        zero = torch.zeros(3, 12, device=other.DEVICE)
        run = partial(other.layer, tree, other.to_torch(bytes_TB).long(), zero, zero)
        value = (run(torch.float32)[0] * other.to_torch(direction)).sum()
        gradient = torch.autograd.grad(value, list(tree.values()))
        theirs = value.item(), dict(zip(tree, (g.cpu().numpy() for g in gradient), strict=True))
    # 3 rows of 9 steps, and there and back through the products of 12 units.
    assert_close(ours, theirs, 3 * 9 + 2 * (2 * 12 + 1))


@pytest.mark.slow
def test_features_benchmark_writes_its_results(
    tmp_path: Path, command_environment: dict[str, str]
) -> None:
    path = tmp_path / "results.json"
    options = ["--hidden", "16", "--count", "20", "--rounds", "1", "--json", path]
    command = [sys.executable, FOLDER / "features.py", *options]
    subprocess.run(command, check=True, env=command_environment, timeout=300)
    results = json.loads(path.read_text())
    assert results["texts"] == 20
    assert results["texts_per_s"] > 0
    assert 0 < results["fraction_of_forward"] < 10


@pytest.mark.slow
def test_the_day_of_a_gpu_in_small(tmp_path: Path, command_environment: dict[str, str]) -> None:
    """Two of its steps in two calls, and the page that is made of them."""
    out, page = tmp_path / "results", tmp_path / "page.md"
    command = [sys.executable, FOLDER / "gpu.py", "--small", "--out", out, "--steps"]

    def call(*more: str) -> str:
        made = subprocess.run(
            [*command, "products", "graphs_off", *more],
            check=True,
            env=command_environment,
            timeout=300,
            capture_output=True,
            text=True,
        )
        return made.stdout

    assert "remaining for the next call: products, graphs_off" in call("--minutes", "0.01")
    assert "=== graphs_off" in call()
    assert "products: already done" in call()
    page.write_text("before\n<!-- gpu:begin -->\nan older page\n<!-- gpu:end -->\nafter\n")
    report = [sys.executable, FOLDER / "gpu_report.py", out, "--into", page]
    subprocess.run(report, check=True, env=command_environment, timeout=60)
    text = page.read_text()
    assert "an older page" not in text
    assert text.startswith("before\n")
    assert text.endswith("<!-- gpu:end -->\nafter\n")
    assert "| 64 / 8 / 16, fp32 | h Wmh |" in text
    assert "### Measured on CPU" in text


def test_what_is_repeated_of_a_text_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Python's own search, over the edges of its blocks."""
    monkeypatch.syspath_prepend(FOLDER)
    import verbatim

    monkeypatch.setattr(verbatim, "_BLOCK", 64)
    random = np.random.default_rng(0)
    train = random.integers(97, 100, 1000).astype(np.uint8)
    samples = np.concatenate([random.integers(97, 100, 200).astype(np.uint8), train[37:87]])
    train_text, text = train.tobytes(), samples.tobytes()
    for length in (5, 9, 20, 50):
        expected = [text[n : n + length] in train_text for n in range(len(text) - length + 1)]
        np.testing.assert_array_equal(verbatim.repeated(samples, train, length), expected)
    found = verbatim.measured(samples, train)
    assert 50 <= found["longest"] < 60
    assert found["share in passages of"]["50"] == pytest.approx(50 / 250, abs=0.05)
