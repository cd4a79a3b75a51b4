"""Training in Python; test_faces.py has corpora, sweeps and plans beside their commands."""

import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax.config import Distributed
from mlstm_jax.training.metrics import read_metrics
from mlstm_jax.training.train import train as run_train
from tests.training.runs import make_config, short


def test_training_gives_a_model_and_its_metrics(corpus, tmp_path, monkeypatch, capfd) -> None:
    """Without a watchdog; an error in a callback ends the first session, and a second resumes."""
    pandas = pytest.importorskip("pandas")
    lines: list[dict[str, Any]] = []

    def note(line: dict[str, Any]) -> None:
        time.sleep(0.5 if line["kind"] == "eval" else 0)
        jnp.sin(np.ones(2))  # It may use JAX in any way.
        lines.append(line)

    def stop(line: dict[str, Any]) -> None:
        if line["kind"] == "eval" and line["step"] == 6:
            raise RuntimeError("enough")

    train = short(steps=6, epochs=None, eval_every=3, checkpoint_every=3, watchdog_seconds=0.2)
    config = make_config(corpus, tmp_path / "run", train=train)
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("os._exit"))
    with pytest.raises(RuntimeError, match="enough"):
        mlstm.train(config, callbacks=iter([note, stop]), show_progress=False)
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [3, 6]
    lines.clear()
    longer = mlstm.vary(config, train__steps=9)
    model = mlstm.train(longer, callbacks=[note], show_progress=False, resume=True)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert capfd.readouterr().err == ""  # progress is not shown
    assert isinstance(model.metrics, pandas.DataFrame)
    assert lines == model._lines()[-len(lines) :]
    scores = [line for line in model._lines() if line["kind"] == "eval"]
    assert [line["step"] for line in scores] == [3, 6, 9]
    best = min(scores, key=lambda line: line["bpc"])
    assert model.step == best["step"]
    assert model.evaluate("valid").bpc == pytest.approx(best["bpc"], rel=1e-5)


def test_the_documented_trackers_get_every_number(run, monkeypatch) -> None:
    lines = read_metrics(run.folder / "metrics.jsonl")
    page = (Path(__file__).parents[2] / "docs/runs.md").read_text(encoding="utf-8")
    section = page.split("### W&B")[1].split("\n## ")[0]
    helper, *trackers = re.findall(r"(?s)```python\n(.*?)```", section)
    calls: list[tuple[dict[str, float], int]] = []

    def record(values: dict[str, float], *, step: int) -> None:
        calls.append((values, step))

    run = SimpleNamespace(log=record)
    stand_ins = {
        "wandb": SimpleNamespace(init=lambda *, project: run),
        "mlflow": SimpleNamespace(start_run=lambda: run, log_metrics=record),
        "trackio": SimpleNamespace(init=lambda *, project: run, log=record),
    }
    assert [block.split()[1] for block in trackers] == [*stand_ins]
    for (name, module), block in zip(stand_ins.items(), trackers, strict=True):
        monkeypatch.setitem(sys.modules, name, module)
        names: dict[str, Any] = {}
        exec(helper + block, names)
        calls.clear()
        for line in lines:
            names["log"](line)
        assert [step for _, step in calls] == [line["step"] for line in lines]
        logged = dict(pair for values, _ in calls for pair in values.items())
        assert logged["eval/bpc"] == lines[-2]["bpc"]
        assert logged["train/loss"] > 0


def test_several_processes_need_a_process_of_their_own(tmp_path: Path) -> None:
    """Their loss would end this one."""
    several = Distributed(coordinator="localhost:1", processes=2, index=1)
    cluster = mlstm.Config(out=str(tmp_path / "two"), distributed=several)
    with pytest.raises(ValueError, match="Train with owns_process=True"):
        run_train(cluster)
