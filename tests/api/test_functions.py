"""What the package gives, and training in Python; test_faces.py has the other functions."""

import os
import re
import signal
import subprocess
import sys
import time
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jax.numpy as jnp
import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax.config import Distributed
from mlstm_jax.training.metrics import by_kind, read_metrics
from mlstm_jax.training.train import train as run_train
from tests.tables import column
from tests.training.runs import make_config, short

PROBE = """
import logging, os, signal, sys, threading
def state():
    return (
        # scikit-learn sets variables of OpenMP.
        {name: os.environ[name] for name in os.environ if not name.startswith("KMP_")},
        sys.unraisablehook, sys.excepthook, threading.active_count(),
        [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        {name: logging.getLogger(name).level for name in ("", "absl", "asyncio", "jax")},
    )
before, handlers = state(), logging.getLogger().handlers[:]
import mlstm_jax as mlstm
assert "jax" not in sys.modules, "jax is imported"
assert "numpy" not in sys.modules, "numpy is imported"
assert logging.getLogger().handlers == handlers
# Text needs no JAX, training nothing of the data's.
import mlstm_jax.cli, mlstm_jax.commands.corpora
assert "jax" not in sys.modules
import mlstm_jax.training.train, mlstm_jax.transfer.labels, mlstm_jax.commands.training
needless = {"duckdb", "sklearn", "matplotlib", "orbax", "tensorflow_datasets", "apache_beam"}
assert not sys.modules.keys() & needless
for name in %s:
    getattr(mlstm, name)
assert state() == before, (state(), before)
# All of this starts no JAX: the number of virtual devices can still be set.
from mlstm_jax import environment
from mlstm_jax.config import Devices
assert not environment.has_started()
environment.prepare(Devices(virtual_cpu=3))
import jax
assert jax.device_count() == 3
assert environment.has_started()
"""


def test_import_without_effects(command_environment) -> None:
    """Nor does the first use of any public name, but for the handler that absl gives logging."""
    command = [sys.executable, "-c", PROBE % repr([*mlstm.__all__])]
    done = subprocess.run(command, env=command_environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_public_names() -> None:
    assert sorted(dir(mlstm)) == sorted(mlstm.__all__)
    for name in mlstm.__all__:
        if name != "__version__":
            assert getattr(mlstm, name).__doc__, name


def test_names_for_type_checkers() -> None:
    """TYPE_CHECKING and __getattr__ have the same names, from the same place."""
    path = Path(mlstm.__file__)
    assert (path.parent / "py.typed").is_file()
    found = re.findall(r"(?m)^    from mlstm_jax\.(\S+) import (\w+) as (\w+)$", path.read_text())
    checked = {}
    for module, name, public in found:
        assert name == public
        checked[name] = module
    assert checked == mlstm._PUBLIC
    assert {*mlstm.__all__} == {*checked, "__version__"}


def test_training_with_callbacks(corpus, tmp_path, monkeypatch, capfd) -> None:
    """Without a watchdog; an error in a callback ends the first session, and a second resumes."""
    lines: list[dict[str, Any]] = []

    def note(line: dict[str, Any]) -> None:
        time.sleep(0.1 if line["kind"] == "eval" else 0)
        jnp.sin(np.ones(2))  # It may use JAX in any way.
        lines.append(line)

    def stop(line: dict[str, Any]) -> None:
        if line["kind"] == "eval" and line["step"] == 6:
            raise RuntimeError("enough")

    train = short(steps=6, epochs=None, eval_every=3, checkpoint_every=3, watchdog_seconds=0.05)
    config = make_config(corpus, tmp_path / "run", train=train)
    handlers = [*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))]
    monkeypatch.setattr(os, "_exit", pytest.fail)
    with pytest.raises(ValueError, match="resume"):
        mlstm.train(config, show_progress=False, resume=True)
    with pytest.raises(RuntimeError, match="enough"):
        mlstm.train(config, callbacks=iter([note, stop]), show_progress=False)
    assert column(by_kind(lines)["eval"], "step") == [3, 6]
    lines.clear()
    longer = mlstm.vary(config, train__steps=9)
    model = mlstm.train(longer, callbacks=[note], show_progress=False, resume=True)
    assert [*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))] == handlers
    assert capfd.readouterr().err == ""  # progress is not shown
    written = read_metrics(model.path / "metrics.jsonl")
    assert lines == written[-len(lines) :]
    scores = by_kind(written)["eval"]
    assert column(scores, "step") == [3, 6, 9]
    best = min(scores, key=itemgetter("bpc"))
    assert model.step == best["step"]
    assert model.evaluate("valid").bpc == pytest.approx(best["bpc"], rel=1e-5)


def test_data_frame_and_plot(model: mlstm.TrainedModel) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    assert len(model.plot().axes) == len(mlstm.plot_metrics([model.path], x="step").axes) == 4
    assert isinstance(model.metrics, pandas.DataFrame)
    assert model.metrics.to_dict("records")[-1]["step"] == 150


def test_documented_trackers(run, monkeypatch) -> None:
    lines = read_metrics(run.folder / "metrics.jsonl")
    page = (Path(__file__).parents[2] / "docs/runs.md").read_text(encoding="utf-8")
    section = page.split("### W&B")[1].split("\n## ")[0]
    helper, *trackers = re.findall(r"(?s)```python\n(.*?)```", section)
    logged: dict[str, float] = {}
    steps: list[int] = []

    def record(values: dict[str, float], *, step: int) -> None:
        logged.update(values)
        steps.append(step)

    begin = Mock(return_value=SimpleNamespace(log=record))
    stand_ins = {
        "wandb": SimpleNamespace(init=begin),
        "mlflow": SimpleNamespace(start_run=begin, log_metrics=record),
        "trackio": SimpleNamespace(init=begin, log=record),
    }
    for (name, module), block in zip(stand_ins.items(), trackers, strict=True):
        assert block.split()[1] == name
        monkeypatch.setitem(sys.modules, name, module)
        names: dict[str, Any] = {}
        exec(helper + block, names)
        steps.clear()
        logged.clear()
        for line in lines:
            names["log"](line)
        assert steps == column(lines, "step")
        assert logged["eval/bpc"] == lines[-2]["bpc"]
        assert logged["train/loss"] > 0


def test_several_processes(tmp_path: Path) -> None:
    """Their loss would end this one."""
    several = Distributed(coordinator="localhost:1", processes=2, index=1)
    cluster = mlstm.Config(out=str(tmp_path / "two"), distributed=several)
    with pytest.raises(ValueError, match="Train with owns_process=True"):
        run_train(cluster)
