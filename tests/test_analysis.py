"""Runs as tables: what is read, how it is smoothed, and the sweep's table."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from mlstm_jax.config import Config, Data, Precision, from_json, to_json
from mlstm_jax.errors import UserError
from mlstm_jax.options import Compute
from mlstm_jax.training import metrics
from tests.training.runs import train_line, write_lines

pd = pytest.importorskip("pandas")
plt = pytest.importorskip("matplotlib.pyplot")
from mlstm_jax import analysis  # noqa: E402


def write_run(folder: Path, ends: str = "finished", bpc: float = 2.0, train: float = 2.0) -> Path:
    lines = [
        train_line(
            step,
            epoch=step / 40,
            bytes_seen=step * 1000,
            bpc=None if step == 20 else train + 1 - step / 40,
            gradient_signal=2.0 if step > 20 else 50.0,
            gradient_trace=6.0,
            skipped=10 if step >= 20 else 0,
            seconds=step * 6.0,
        )
        for step in (10, 20, 30, 40)
    ]
    write_lines(folder, *lines, score(40, bpc), {"kind": "event", "step": 40, "event": ends})
    (folder / "config.json").write_text(to_json(Config(data=Data(batch=8))))
    return folder


def score(step: int, bpc: float) -> dict[str, object]:
    return {"kind": "eval", "step": step, "epoch": 1.0, "bytes_seen": step * 1000, "bpc": bpc}


def test_updates_to_a_score(tmp_path: Path) -> None:
    diverged = score(200, 0.0) | {"bpc": None}
    scores = (score(100, 3.0), diverged, score(400, 2.0), score(1600, 2.5), score(3200, 1.5))
    (history,) = analysis.load_histories(write_lines(write_run(tmp_path / "a"), *scores))
    history = history._replace(evaluations=history.evaluations[1:])
    # Half of the way from 3 to 2 is at the geometric mean of 100 and 400.
    assert analysis.updates_to(history, 2.5) == pytest.approx(200)
    assert analysis.updates_to(history, 3.5) == 100
    assert analysis.updates_to(history, 2.0) == pytest.approx(400)
    assert analysis.updates_to(history, 1.5) == pytest.approx(3200)
    assert np.isnan(analysis.updates_to(history, 1.4))


def test_tables_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "all" / "a")
    write_run(tmp_path / "all" / "deep" / "b", ends="diverged")
    # Metrics that were set aside are no run.
    (run / "set-aside").mkdir()
    shutil.copy(run / "metrics.jsonl", run / "set-aside")
    (tmp_path / "all/link").symlink_to(write_run(tmp_path / "elsewhere/c").parent)
    (tmp_path / "all/deep/around").symlink_to(tmp_path / "all")
    (tmp_path / "all/Latest").symlink_to(tmp_path / "all/deep/b")
    first, second, linked = analysis.load_histories(tmp_path / "all")
    assert (first.name, second.name, linked.name) == ("a", "deep/b", "link/c")
    assert first.config.data.batch == 8
    np.testing.assert_array_equal(first.train["minutes"], [1, 2, 3, 4])
    np.testing.assert_array_equal(first.train["megabytes"], [0.01, 0.02, 0.03, 0.04])
    assert np.isnan(first.train["bpc"][1])  # a line without an update
    assert analysis.load_histories(run)[0].name == "a"
    table = analysis.summary([first, second])
    assert list(table["end"]) == ["finished", "diverged"]
    assert table.loc["a", "last BPC"] == 2.0
    assert table.loc["a", "skipped"] == 10
    assert table.loc["a", "noise scale"] == 3.0  # of the second half alone
    assert list(analysis.summary(iter([first, second, first])).index) == ["a", "deep/b", "a"]
    # Its end is between two lines of training.
    write_lines(run, score(43, 2.0) | {"seconds": 258})
    row = analysis.summary(analysis.load_histories(run)).loc["a"]
    assert row[["steps", "MB", "minutes"]].tolist() == [43, 0.043, 4.3]
    # Its steps were raised after it had finished.
    write_lines(run, {"kind": "event", "step": 40, "event": "resumed"})
    assert list(analysis.summary(analysis.load_histories(run))["end"]) == ["unfinished"]


def test_configs_of_studies() -> None:
    """A field that is removed from the config must be removed from results/, too."""
    studies = sorted((Path(__file__).parents[1] / "results").glob("*/runs.jsonl.gz"))
    assert studies
    for study in studies:
        with gzip.open(study, "rt") as file:
            for line in file:
                run = json.loads(line)
                if "config" in run:  # The study of fp8 has none.
                    from_json(json.dumps(run["config"]), study)


def test_study_in_one_file(tmp_path: Path) -> None:
    names = ["64/a", "8/a", "8/b, seed 0"]
    with gzip.open(tmp_path / "runs.jsonl.gz", "wt") as file:
        for name in names:
            run = write_run(tmp_path / "runs" / name)
            config = json.loads((run / "config.json").read_text())
            lines = metrics.read_metrics(run / "metrics.jsonl")
            file.write(json.dumps({"run": name, "config": config, "metrics": lines}) + "\n")
    study = analysis.load_histories(tmp_path)
    folders = analysis.load_histories(tmp_path / "runs")
    assert [one.name for one in study] == names
    for found, expected in zip(study, folders, strict=True):
        assert found[:2] == expected[:2]
        for table, other in zip(found[2:], expected[2:], strict=True):
            pd.testing.assert_frame_equal(table, other)
    pd.testing.assert_frame_equal(analysis.grid(tmp_path), analysis.grid(tmp_path / "runs"))


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        analysis.load_histories(tmp_path)
    (tmp_path / "study").mkdir()
    with gzip.open(tmp_path / "study/runs.jsonl.gz", "wt") as file:
        file.write('{"run": "a", "bpc": 2}\n')
    with pytest.raises(UserError, match="no run, config or metrics"):
        analysis.load_histories(tmp_path / "study")
    run = write_run(tmp_path / "run")
    with pytest.raises(UserError, match="holds no sweep"):
        analysis.grid(tmp_path)
    (run / "config.json").unlink()
    with pytest.raises(UserError, match="has no config"):
        analysis.load_histories(tmp_path)


def test_colors_of_dots_and_lines(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in "ab"]
    before = plt.get_fignums()
    panel, *_ = analysis.plot_runs(runs, "step").axes
    colors: dict[str, list[str]] = {"-": [], "None": []}
    for line in panel.lines:
        if len(line.get_xdata()):
            colors[line.get_linestyle()].append(line.get_color())
    assert colors["-"] == colors["None"]
    assert colors["-"][0] != colors["-"][1]
    assert plt.get_fignums() == before  # a notebook would show it twice


@pytest.mark.parametrize("compute", ["fp32", "bf16", "fp16"])
def test_panel_of_the_loss_scale(tmp_path: Path, compute: Compute) -> None:
    run = write_run(tmp_path)
    config = Config(data=Data(batch=8), precision=Precision(compute=compute))
    (run / "config.json").write_text(to_json(config))
    labels = [panel.get_ylabel() for panel in analysis.plot_runs([run], "step").axes]
    assert ("loss scale" in labels) == (compute == "fp16")


def test_smoothing() -> None:
    values = pd.Series([4.0, 4.0, np.nan, 4.0])
    np.testing.assert_allclose(analysis.smooth(values, 5), 4)
    np.testing.assert_array_equal(analysis.smooth(values, 1), values)


def test_limits(tmp_path: Path) -> None:
    one, other = (write_run(tmp_path / str(bpc), bpc=bpc, train=bpc) for bpc in (1, 6))
    low, high = analysis.limits(analysis.load_histories(one, other), "bpc")
    assert 0.7 < low < 1
    assert 6.75 < high < 7.1
    # A run that has just begun can be shown, too.
    (one / "metrics.jsonl").write_text("")
    histories = analysis.load_histories(one)
    assert analysis.limits(histories, "bpc") is None
    assert list(analysis.summary(histories)["end"]) == ["unfinished"]
    figure, axes = plt.subplots()
    analysis.plot(axes, histories, "step", "bpc")
    plt.close(figure)
    assert not axes.lines


def test_table_of_a_sweep(tmp_path: Path) -> None:
    for row, column, ends, bpc in (
        ("512", "sqrt", "finished", 2.25),
        ("64", "sqrt", "finished", 2.0),
        ("64", "linear", "diverged", 9.0),
    ):
        write_run(tmp_path / row / column, ends, bpc)
    table = analysis.grid(tmp_path)
    assert list(table.index) == ["64", "512"]
    for row in ("1e-2", "5e-3", "paper"):
        write_run(tmp_path / "rates" / row / "sqrt")
    assert list(analysis.grid(tmp_path / "rates").index) == ["paper", "5e-3", "1e-2"]
    assert analysis.formatted(table.astype(object)).equals(analysis.formatted(table))
    shown = analysis.formatted(table)
    assert shown.loc["64"].to_dict() == {"linear": "Div", "sqrt": "2.000"}
    assert shown.loc["512"].to_dict() == {"linear": "–", "sqrt": "2.250"}


def test_curve_of_a_run(tmp_path: Path) -> None:
    histories = analysis.load_histories(write_run(tmp_path / "run"))
    figure, axes = plt.subplots()
    plt.close(figure)
    analysis.plot(axes, histories, "megabytes", "learning_rate", style=lambda one: {"lw": 3})
    analysis.plot(axes, histories, "megabytes", "no such column")
    (line,) = axes.lines
    np.testing.assert_array_equal(line.get_xdata(), [0.01, 0.02, 0.03, 0.04])
    assert line.get_linewidth() == 3
    assert axes.get_xlabel() == "megabytes read"
