"""The table of runs that go on, have ended, or have fallen silent."""

import json
import os
import time
from pathlib import Path

import pytest

from mlstm_jax import cli


def write(folder: Path, *lines: dict[str, object], age: float = 0) -> None:
    folder.mkdir(parents=True)
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(path, (time.time() - age,) * 2)


def train(step: int, **values: object) -> dict[str, object]:
    return {
        "kind": "train",
        "step": step,
        "epoch": step / 1000,
        "bpc": 2.5,
        "learning_rate": 1e-3,
        "loss_scale": 1.0,
        "bytes_per_second": 12_345.0,
        "seconds": float(step),
    } | values


def test_what_each_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        tmp_path / "all/a", train(10), train(20, bpc=2.25), {"kind": "eval", "step": 20, "bpc": 2}
    )
    write(tmp_path / "all/b/c", train(5), {"kind": "event", "step": 5, "event": "diverged"})
    write(tmp_path / "mine", train(1), train(2, bpc=None), age=900)
    write(tmp_path / "new")
    write(tmp_path / "on", {"kind": "event", "step": 5, "event": "interrupted"}, train(10))
    cli.main(["watch", *(str(tmp_path / name) for name in ("all", "mine", "new", "on"))])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert " ".join(rows[0]) == "run step epoch train bpc valid bpc rate scale kB/s"
    assert rows[1] == ["all/a", "20", "0.020", "2.2500", "2.0000", "1.00e-03", "1", "12.3"]
    assert rows[2][:2] == ["all/b/c", "5"]
    assert rows[2][-1] == "diverged"
    assert rows[3][:3] == ["mine", "2", "0.002"]
    assert " ".join(rows[3][-5:]) == "no line for 900 s"
    assert rows[4] == ["new"]
    assert "interrupted" not in rows[5]


@pytest.mark.parametrize("name", ["x[/y]", "[red]a", "a:warning:"])
def test_a_name_is_shown_as_it_is(name, tmp_path, capsys):
    write(tmp_path / name / "b", train(10))
    cli.main(["watch", str(tmp_path / name.partition("/")[0])])
    assert f" {name}/b " in capsys.readouterr().out
