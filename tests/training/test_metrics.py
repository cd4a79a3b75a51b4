"""The log of metrics, with and without TensorBoard."""

import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from mlstm_jax.errors import UserError
from mlstm_jax.training import metrics

ROOT = Path(__file__).parents[2]
LINE = {"epoch": 0.5, "bpc": 3.0, "learning_rate": 0.1, "bytes_per_second": 9.0, "seconds": 2.0}


def write(folder: Path) -> list[dict]:
    log = metrics.MetricsLog(folder, 0)
    log.write("train", 1, **LINE, noise_scale=float("nan"))
    log.close()
    return metrics.read_metrics(folder / "metrics.jsonl")


def test_json_and_tensorboard(tmp_path, capsys) -> None:
    pytest.importorskip("tensorboard")
    assert write(tmp_path) == [{"kind": "train", "step": 1, **LINE, "noise_scale": None}]
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"train/bpc" in events.read_bytes()
    assert not capsys.readouterr().err


def test_without_tensorboard(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    assert len(write(tmp_path)) == 1
    assert not (tmp_path / "tensorboard").exists()
    assert capsys.readouterr() == ("", "")


WRONG = [
    b"\xff",
    b"[" * 100_000,
    b"{",
    b"null",
    b"[]",
    b'{"kind": "x", "step": 1}',
    b'{"kind": "eval"}',
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_lines(wrong, tmp_path) -> None:
    """By its number, by whatever reads it: the log of a run that resumes is one."""
    write(tmp_path)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(wrong + b"\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 is not .*remove or correct it"):
        metrics.MetricsLog(tmp_path, 3)


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 1.5), ("last", 7.0)])
def test_new_metric(reduction, expected, monkeypatch) -> None:
    """A tally, its line and the line of progress follow; the last step of these had no loss."""
    new = metrics.Metric("new", reduction, shown="new {:.1f}")
    monkeypatch.setitem(metrics.METRICS, "new", new)
    kept = metrics.empty_tally()
    for value in (1.0, 2.0, 7.0):
        values = metrics.empty_tally() | {"new": jnp.float32(value), "updates": jnp.int32(1)}
        kept = metrics.add_to_tally(kept, values, has_loss=jnp.bool_(value < 7))
    line = metrics.line_of(kept, labels=False)
    assert line["new"] == expected
    assert metrics.shown_of(line)[-1] == f"new {expected}"
    assert kept["new"].dtype == jnp.float32


def test_documented_metrics() -> None:
    page = (ROOT / "docs/run_folder.md").read_text(encoding="utf-8")
    for name in metrics.METRICS:
        assert f"`{name}`" in page
