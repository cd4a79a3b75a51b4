"""Runs that start from another: from its parameters, or where it ended, as in BERT's recipe."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax.config import Config, vary
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.errors import UserError
from mlstm_jax.record import read_record
from mlstm_jax.training import sweep
from mlstm_jax.training.resume import load_start
from mlstm_jax.training.rows import open_rows
from mlstm_jax.training.train import train as run_train
from tests.corpora.written import jsonl
from tests.tables import column
from tests.training.runs import (
    assert_same_run,
    config_of,
    copy_until,
    final_state,
    lines_of,
)

LARGER = {"data__batch": 4, "data__window": 64, "optimizer__learning_rate": 2e-3}


def following(corpus: Path, first: Path, out: Path, **changes: Any) -> Config:
    """A run of 20 steps with other rows, which goes on where `first` ended."""
    start = {"train__start_from": str(first), "train__start_optimizer": True}
    return config_of(corpus, out, 20, **(LARGER | start | changes))


def test_start_with_the_optimizer(corpus, straight, tmp_path):
    config = following(corpus, straight, tmp_path / "run")
    run_train(config)
    start = load_start(config)
    theirs, _ = final_state(straight, 8)
    jax.tree.map(np.testing.assert_array_equal, start.opt_state, theirs.opt_state)
    # Adam's own count goes on; the learning rate's and the steps begin anew.
    ours, _ = final_state(tmp_path / "run", 4)
    counts = [int(leaf) for leaf in jax.tree.leaves(ours.opt_state) if np.shape(leaf) == ()]
    assert sorted(counts) == [20, 60]
    lines = lines_of(tmp_path / "run")["train"]
    np.testing.assert_allclose(lines[0]["learning_rate"], 2e-3 * (1 - 4 / 1000), rtol=1e-5)
    # It reads on near the same place in the text.
    before = read_record(straight, 40).meta
    assert lines[0]["bytes_seen"] == before.bytes_seen + 5 * 4 * 64
    size = open_corpus(corpus).manifest.splits["train"].bytes
    expected = before.epoch + 5 * 4 * 64 / size
    assert lines[0]["epoch"] == pytest.approx(expected, abs=2 * 4 * 64 / size)
    again = copy_until(tmp_path / "run", 10, tmp_path / "again")
    run_train(vary(config, out=str(again)))
    assert_same_run(again, tmp_path / "run", batch=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer__name": "lars"}, r"optimizer\.name is 'lars', but it must be adam, as in "),
        ({"train__epochs": 1e-4}, r"train\.epochs is 0\.0001, but it must be above 0"),
        ({"model__hidden": 8}, r"train\.start_from. .* has the shape"),
        ({"optimizer__warmup_steps": 20, "optimizer__decay_steps": None}, "the warm-up is 20 upd"),
    ],
)
def test_start_that_does_not_fit(changes, message, corpus, straight, tmp_path) -> None:
    with pytest.raises(UserError, match=message):
        run_train(following(corpus, straight, tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_corpus_without_validation_text(text_file: Path, tmp_path: Path) -> None:
    """A refused run leaves no folder, of which `evaluate` would say that it has no checkpoint."""
    made = tmp_path / "corpus"
    prepare([str(text_file)], made, split=(1, 0, 0))
    with pytest.raises(UserError, match="the valid split has 0 bytes"):
        run_train(config_of(made, tmp_path / "run", 2))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [5, -1, 2.5])
def test_ratings_that_are_no_classes(wrong: float, tmp_path: Path) -> None:
    """Stars from 1 to 5, for example: class 5 of five would be learned as no class at all."""
    records = [{"text": f"review {n}", "rating": wrong if n % 9 == 0 else 1} for n in range(180)]
    made = tmp_path / "corpus"
    prepare([jsonl(tmp_path / "a.jsonl", records)], made, split=(1, 0, 0))
    config = config_of(made, Path("unused"), 2, model__classes=5)
    with pytest.raises(UserError, match=rf"the train split has the rating {wrong}; .* 0 to 4\."):
        open_rows(config, open_corpus(made))


def test_recipe_of_bert(corpus: Path, tmp_path: Path) -> None:
    """Short windows, then long ones; the rate goes on where the first part's ends."""
    recipe = sweep.load_sweep(Path("bert_tiny_recipe"))
    small = {"model__hidden": 16, "model__embedding": 16, "model__layers": 1}
    runs = {}
    for key, config in recipe.items():
        steps = config.train.steps // 10
        config = vary(
            config, **small, data__corpus=str(corpus), data__batch=8, train__steps=steps,
            precision__compute="fp32", devices__count=1, train__log_every=1,
        )  # fmt: skip
        if config.optimizer.decay_steps:
            config = vary(config, optimizer__decay_steps=50, optimizer__warmup_steps=14)
        runs[key] = config
    first, second = mlstm.sweep(runs, tmp_path)
    assert (first.status, second.status) == ("done", "done")
    assert (first.steps, second.steps) == (45, 5)
    assert second.epochs > first.epochs
    rates = []
    for key in runs:
        lines = lines_of(tmp_path.joinpath(*key))["train"]
        rates += column(lines, "learning_rate")
    # One line to zero, of power 0.5; in float32.
    expected = 2e-3 * np.sqrt(1 - np.arange(36) / 36)
    np.testing.assert_allclose(rates[14:], expected, rtol=2e-2)


def test_order_of_runs(corpus: Path, tmp_path: Path, capsys) -> None:
    first = config_of(corpus, Path("one"), 2)
    wild = {"optimizer__learning_rate": 1e4, "optimizer__clip_norm": None}
    runs = {
        ("a", "one"): vary(first, **wild, train__divergence_steps=1),
        ("a", "two"): vary(first, out="two", train__start_from="one"),
    }
    one, two = mlstm.sweep(runs, tmp_path)
    assert (one.status, two.status) == ("diverged", "not begun")
    assert "it starts from a / one, which is not done" in capsys.readouterr().err
