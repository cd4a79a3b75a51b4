"""The log of metrics, with and without TensorBoard."""

import sys
from pathlib import Path

import pytest

from mlstm_jax.errors import UserError
from mlstm_jax.training import metrics


def write(folder: Path) -> list[dict]:
    log = metrics.MetricsLog(folder, 0)
    log.write("train", 1, loss=2.0, rate=float("nan"))
    log.close()
    return metrics.read_metrics(folder / "metrics.jsonl")


def test_metrics_are_written_as_json_and_for_tensorboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    assert write(tmp_path) == [{"kind": "train", "step": 1, "loss": 2.0, "rate": None}]
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"train/loss" in events.read_bytes()
    assert not capsys.readouterr().err


def test_without_tensorboard_there_are_the_lines_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    assert len(write(tmp_path)) == 1
    assert not (tmp_path / "tensorboard").exists()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("line", ["null", "[]", '{"kind": "train"}', '{"kind": "x", "step": null}'])
def test_a_line_that_is_no_line_of_metrics_is_named(line: str, tmp_path: Path) -> None:
    write(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 is not an object.*remove the"):
        metrics.read_metrics(tmp_path / "metrics.jsonl")
