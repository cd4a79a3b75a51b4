"""The table of runs that go on, have ended, or have fallen silent."""

import os
import time
from pathlib import Path

import pytest

from mlstm_jax import cli
from tests.training.runs import train_line, write_lines


def test_what_each_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diverged, stopped = (
        {"kind": "event", "step": 5, "event": event} for event in ("diverged", "interrupted")
    )
    evaluated = {"kind": "eval", "step": 20, "bpc": 2}
    write_lines(tmp_path / "all/a", train_line(10), train_line(20, bpc=2.25), evaluated)
    write_lines(tmp_path / "all/b/c", train_line(5), diverged)
    write_lines(tmp_path / "mine", train_line(1), train_line(2, bpc=None))
    os.utime(tmp_path / "mine/metrics.jsonl", (time.time() - 900,) * 2)
    write_lines(tmp_path / "new")
    write_lines(tmp_path / "on", stopped, train_line(10))
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


def test_runs_of_the_same_name_are_all_shown(tmp_path, capsys, monkeypatch) -> None:
    for number, name in enumerate(("a/run", "b/run"), 1):
        write_lines(tmp_path / name, train_line(number))
    monkeypatch.chdir(tmp_path)
    cli.main(["watch", "a/run", "b/run", "a/run"])
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert rows[1:] == [["a/run", "1"], ["b/run", "2"]]


@pytest.mark.parametrize("name", ["x[/y]", "[red]a", "a:warning:"])
def test_a_name_is_shown_as_it_is(name, tmp_path, capsys):
    write_lines(tmp_path / name / "b", train_line(10))
    cli.main(["watch", str(tmp_path / name.partition("/")[0])])
    assert f" {name}/b " in capsys.readouterr().out
