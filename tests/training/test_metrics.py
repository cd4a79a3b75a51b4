"""The log of metrics, with and without TensorBoard."""

import json
import sys
from pathlib import Path

import pytest

from mlstm_jax.errors import UserError
from mlstm_jax.training import metrics

LINE = {"epoch": 0.5, "bpc": 3.0, "learning_rate": 0.1, "bytes_per_second": 9.0, "seconds": 2.0}


def write(folder: Path) -> list[dict]:
    log = metrics.MetricsLog(folder, 0)
    log.write("train", 1, **LINE, noise_scale=float("nan"))
    log.close()
    return metrics.read_metrics(folder / "metrics.jsonl")


def test_metrics_are_written_as_json_and_for_tensorboard(tmp_path, capsys) -> None:
    pytest.importorskip("tensorboard")
    assert write(tmp_path) == [{"kind": "train", "step": 1, **LINE, "noise_scale": None}]
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"train/bpc" in events.read_bytes()
    assert not capsys.readouterr().err


def test_without_tensorboard_there_are_the_lines_alone(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    assert len(write(tmp_path)) == 1
    assert not (tmp_path / "tensorboard").exists()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        *((line, "line 2 is not JSON") for line in (b"\xff", b"[" * 100_000, b"{")),
        (None, "line 2 is not an object"),
        ([], "line 2 is not an object"),
        ({"kind": "x"}, "line 2 has kind 'x'"),
        ({"kind": ["train"]}, "line 2 has kind .'train'."),
        ({"kind": "eval", "step": 2}, "line 2 has no field bpc"),
        ({"kind": "event", "step": 2, "event": None}, "line 2 has event None"),
        *(
            ({"kind": "train", "step": 2, **LINE, name: value}, f"line 2 has {name} ")
            for name, values in {
                "step": (None, -1, 1.0, True, 10**400),
                "seconds": (None, "2", [], float("nan"), -(10**400)),
                "bpc": ("3",),
                "learning_rate": (None,),
                "loss_scale": ({},),
            }.items()
            for value in values
        ),
    ],
)
def test_a_line_that_is_no_line_of_metrics_is_named(wrong, named, tmp_path) -> None:
    """By its number and field, by whatever reads it: the log of a run that resumes is one."""
    write(tmp_path)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write((wrong if isinstance(wrong, bytes) else json.dumps(wrong).encode()) + b"\n")
    with pytest.raises(UserError, match=rf"metrics\.jsonl: {named}.*remove or correct the line"):
        metrics.MetricsLog(tmp_path, 3)
