"""The programs in examples/."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlstm_jax

EXAMPLES = Path(__file__).parents[1] / "examples"


def load_example(name: str) -> Any:
    about = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert about
    assert about.loader
    module = importlib.util.module_from_spec(about)
    about.loader.exec_module(module)
    return module


def nonsense(seed: int, words: int = 240) -> bytes:
    vocabulary = ["QUUX", "ZAX!", "KRRP", "WYVVLE", "#33#", "FJORDH", "XYLQ"]
    return " ".join(np.random.default_rng(seed).choice(vocabulary, words)).encode()


def test_dynamic_evaluation_learns_and_scores_no_byte_with_parameters_that_have_read_it(
    run, tmp_path, capsys
):
    example = load_example("dynamic_evaluation")
    evaluation = example.DynamicEvaluation(mlstm_jax.load(run.folder))
    text, place, window = nonsense(0), 150, evaluation.window
    static = evaluation.nats(text)
    evaluation.measure_scales(nonsense(1))
    before = evaluation.nats(text, 1e-3, 0.01)
    after = evaluation.nats(text[:place] + b"e" + text[place + 1 :], 1e-3, 0.01)
    assert len(before) == len(text) - 1
    np.testing.assert_array_equal(before[: place - 1], after[: place - 1])
    assert (before != after)[place - 1]
    assert (before != after)[place + window :].mean() > 0.9
    np.testing.assert_array_equal(before[:window], static[:window])
    assert before.mean() < 0.8 * static.mean()

    for name, seed in (("text", 0), ("train", 1), ("valid", 2)):
        (tmp_path / name).write_bytes(nonsense(seed, words=30))
    files = [f"--{name}={tmp_path / name}" for name in ("train", "valid")]
    example.RATES, example.DECAYS = {True: (1e-3,)}, (0.0, 0.01)
    example.main([str(run.folder), str(tmp_path / "text"), *files])
    *_, plain, dynamic = capsys.readouterr().out.splitlines()
    nats = evaluation.nats(nonsense(0, words=30)).mean()
    assert plain == f"bpc {nats / np.log(2):.4f} with the trained parameters"
    assert dynamic.endswith(("decay 0", "decay 0.01"))
    for wrong in ([], [files[1], "--decay=0.1"]):
        with pytest.raises(SystemExit):
            example.main([str(run.folder), str(tmp_path / "text"), *wrong])
