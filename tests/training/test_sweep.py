"""A sweep: its runs, what is not run twice, and its table."""

import contextlib
import csv
import io
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax import cli
from mlstm_jax.config import Config, Devices, Transformer, to_json, vary
from mlstm_jax.config.resolve import Hardware, resolve
from mlstm_jax.corpora.prepare import prepare
from mlstm_jax.errors import Note, UserError
from mlstm_jax.training import run_folder, schedule, sweep
from mlstm_jax.training.train import train
from tests.tables import column
from tests.training.runs import config_of, lines_of, make_config, short, train_line, write_lines

ROOT = Path(__file__).parents[2]
SPECS = sorted([*ROOT.glob("configs/sweeps/*.py"), *ROOT.glob("results/*/sweep*.py")])


def write_spec(path: Path, corpus: Path, **fields: object) -> Path:
    train = short(steps=12, epochs=None, eval_every=12, divergence_steps=3)
    base = make_config(corpus, Path("runs/x"), train=train, devices=Devices(count=1))
    path.write_text(
        "from mlstm_jax.config import *\n"
        f"base = vary({base!r}, **{fields!r})\n"
        "wild = {'optimizer__learning_rate': 3.0, 'optimizer__decay_steps': 10**6}\n"
        "runs = {('8', 'tame'): base, ('8', 'wild'): vary(base, **wild)}\n"
    )
    return path


def run_sweep(spec: Path, out: Path, *options: str) -> str:
    """Run the command; return what it shows on standard error."""
    with contextlib.redirect_stderr(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        cli.main(["sweep", str(spec), "--out", str(out), *options])
    return shown.getvalue()


@pytest.fixture(scope="module")
def swept(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A specification, a folder of its runs, and what was shown."""
    folder = tmp_path_factory.mktemp("swept")
    spec = write_spec(folder / "spec.py", corpus)
    return spec, folder / "out", run_sweep(spec, folder / "out")


@pytest.fixture
def out(swept: tuple[Path, Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(swept[1], tmp_path / "out"))


def test_table(swept: tuple[Path, Path, str]) -> None:
    _, out, shown = swept
    assert "2 of 2: 8 / wild" in shown
    assert "diverged: stopped at step" in shown
    assert "the same command" not in shown  # It does not repeat the run.
    with (out / "table.csv").open() as file:
        tame, wild = csv.DictReader(file)
    line = f"| 8 | {float(tame['bpc']):.3f} | Div |"
    assert (out / "table.md").read_text().splitlines()[::2] == ["| | tame | wild |", line]
    for row, name, status in ((tame, "tame", "done"), (wild, "wild", "diverged")):
        assert (row["row"], row["column"], row["status"]) == ("8", name, status)
    assert (tame["batch"], tame["steps"]) == ("8", "12")


def test_sweep_that_goes_on(swept, out, capsys) -> None:
    spec = swept[0]
    table = (out / "table.md").read_text()
    log = out / "8/tame/metrics.jsonl"
    before = log.read_text()
    assert " of 2: " not in run_sweep(spec, out)
    assert log.read_text() == before
    log.write_text("".join(before.splitlines(keepends=True)[:-1]))
    run_sweep(spec, out, "--table-only")
    assert "| 8 | … | Div |" in capsys.readouterr().out
    assert "1 of 2: 8 / tame" in run_sweep(spec, out)
    assert (out / "table.md").read_text() == table
    # One that is being made longer is not finished.
    key, config = next(iter(sweep.in_folders(sweep.load_sweep(spec), out).items()))
    assert sweep.result(key, config).status == "done"
    write_lines(out / "8/tame", {"kind": "event", "step": 12, "event": "resumed"}, train_line(13))
    assert sweep.result(key, config).status == "unfinished"


def test_other_configs_and_corpora(corpus, text_file, out, tmp_path) -> None:
    other = write_spec(tmp_path / "other.py", corpus, train__seed=1)
    assert "contains a run with another config (train.seed: 0 → 1)" in run_sweep(other, out)
    # The same corpus at another place; then another one there.
    again = tmp_path / "again"
    shutil.copytree(corpus, again)
    same = write_spec(tmp_path / "same.py", again)
    assert not run_sweep(same, out)
    prepare([str(text_file)], again, split=(20, 1, 1), seed=5, overwrite=True)
    assert re.search(r"8/tame contains .*fingerprint of corpus: ", run_sweep(same, out))


def test_two_processes(swept, out, capsys) -> None:
    spec = swept[0]
    shutil.rmtree(out / "8/tame")
    held = sweep.in_folders(sweep.load_sweep(spec), out)["8", "tame"]
    with run_folder.lock(Path(held.out)):
        assert "left to other processes: 8 / tame" in run_sweep(spec, out)
    assert "| 8 | … | Div |" in capsys.readouterr().out
    assert "1 of 2: 8 / tame" in run_sweep(spec, out)


def test_two_processes_and_tables(tmp_path: Path, monkeypatch) -> None:
    """One begins and ends while the other is between its two steps."""
    runs = {("8", "tame"): Config()}
    rename = os.replace

    def between(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "replace", rename)
        sweep.write_tables(runs, tmp_path)
        rename(source, target)

    monkeypatch.setattr(os, "replace", between)
    sweep.write_tables(runs, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["table.csv", "table.md"]


def test_figures_of_a_run(tmp_path: Path) -> None:
    """Before a run begins they come from the planned config, then from the run's folder."""
    planned = vary(Config(), data__batch=16, optimizer__name="lamb")
    per_device = vary(planned, data__batch_per_device=4)
    runs = {("a", "1"): planned, ("a", "2"): per_device, ("a", "3"): planned}
    run_folder.write_folder(vary(Config(), out=str(tmp_path / "a/3"), data__batch=8), "id")
    # The last step of a run may be between two lines of training.
    score = {"kind": "eval", "step": 12, "epoch": 0.012, "bpc": 2.0}
    write_lines(tmp_path / "a/3", train_line(10), score)
    with pytest.warns(Note, match=r"figures of .*a/3, but .* adam → lamb; .*out`") as notes:
        one, other, begun = mlstm.sweep(runs, tmp_path, table_only=True)
    assert len(notes) == 1
    assert (one.status, one.batch, one.optimizer) == ("not begun", 16, "lamb")
    assert (other.batch, other.optimizer) == (None, "lamb")
    assert (begun.status, begun.batch, begun.optimizer) == ("unfinished", 8, "adam")
    assert (begun.steps, begun.epochs) == (12, 0.012)


@pytest.mark.parametrize("devices", [1, 2])
def test_rows_per_device(corpus: Path, tmp_path: Path, devices: int) -> None:
    config = make_config(corpus, tmp_path, model=Transformer(hidden=8, heads=2))
    config = vary(config, data__batch_per_device=4)
    run_folder.write_folder(resolve(config, Hardware(devices)), "id")
    sweep.require_same_run(config)
    other = vary(config, data__batch_per_device=3)
    with pytest.raises(UserError, match=r"another config \(data.batch: \d → \d\)"):
        sweep.require_same_run(other)


def test_devices_of_a_sweep(tmp_path, printed, monkeypatch) -> None:
    """With one number of virtual devices, each run in one process: JAX connects them only once."""
    two = vary(Config(), devices__virtual_cpu=2)
    runs = {("2", "a"): two, ("4", "a"): vary(two, devices__virtual_cpu=4)}
    with pytest.raises(UserError, match=r"virtual_cpu is \[2, 4\], .* same number"):
        sweep.prepare(runs)
    # A table needs no devices, and a sweep without runs none either.
    (tmp_path / "spec.py").write_text(f"from mlstm_jax.config import *\nruns = {runs!r}\n")
    words = ["sweep", tmp_path / "spec.py", "--out", tmp_path / "out", "--table-only"]
    assert "| 4 | … |" in printed(*words)
    assert mlstm.sweep({}, tmp_path / "none") == []
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    with pytest.raises(UserError, match=r"a / b would have 2 processes.*distributed\.processes"):
        sweep.prepare({("a", "b"): Config()})
    sweep.prepare({("a", "b"): vary(Config(), distributed__processes=1)})


def test_wrong_runs(tmp_path: Path) -> None:
    (tmp_path / "spec.py").write_text("runs = {}")
    with pytest.raises(UserError, match=r"spec\.py sets no `runs"):
        sweep.load_sweep(tmp_path / "spec.py")
    config = Config()
    wrong = [(("a", "b"), 3), ("ab", config), (("a/b", "c"), config), (("..", "c"), config)]
    wrong += [((".", "c"), config), (("", "c"), config), ((3, "c"), config)]
    for key, run in wrong:
        with pytest.raises(UserError, match=r"a key of `runs` is"):
            sweep.in_folders({key: run}, tmp_path)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_sweeps_of_the_project(path: Path) -> None:
    runs = sweep.load_sweep(path)
    assert len(runs) > 1
    assert len({*map(to_json, runs.values())}) == len(runs)
    text = path.read_text()
    assert "Command:" in text
    assert "Hardware:" in text


def test_rates_of_the_papers_fig_5() -> None:
    printed = {
        "linear": [8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 1.3e-1],
        "sqrt": [2e-3, 2.8e-3, 4e-3, 5.8e-3, 8e-3],
        "5e-4": [5e-4] * 5,
        "3e-3": [3e-3] * 5,
    }
    found: dict[str, list[float]] = {}
    for (_, rule), one in sweep.load_sweep(Path("puri_fig5")).items():
        rates = schedule.rates_of(one.optimizer, one.data.batch, 10**6)
        found.setdefault(rule, []).append(rates.peak)
    for rule, rates in printed.items():
        assert found[rule] == pytest.approx(rates, rel=0.03)  # printed to two digits


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


@pytest.mark.parametrize("start_optimizer", [False, True])
def test_sweep_again_with_a_start(corpus: Path, tmp_path: Path, start_optimizer: bool) -> None:
    """A run begins with the best parameters of another, or with its newest and its optimizer."""
    patient = {"train__divergence_bpc": 1e6}
    first = config_of(corpus, Path("one"), 40, optimizer__learning_rate=1.0, **patient)
    # A rate so high spoils what it has learned in 20 steps.
    learning = vary(first, optimizer__learning_rate=0.01, train__steps=20)
    for config in (learning, first):
        train(vary(config, out=str(tmp_path / "a/one")))
    second = config_of(corpus, Path("two"), 2, train__start_from="one", **patient)
    second = vary(second, train__start_optimizer=start_optimizer)
    runs = {("a", "one"): first, ("a", "two"): second}
    results = mlstm.sweep(runs, tmp_path)
    assert [result.status for result in results] == ["done", "done"]
    assert 2 * results[0].best_bpc < results[0].bpc  # The newest parameters are not the best.
    assert mlstm.sweep(runs, tmp_path) == results
    # One that trains on has other parameters, which this process has not read yet.
    if start_optimizer:
        runs["a", "one"] = vary(first, train__steps=45)
        train(vary(runs["a", "one"], out=str(tmp_path / "a/one")))
        with pytest.raises(UserError, match=r"a/two contains .*fingerprint of start_from: "):
            mlstm.sweep(runs, tmp_path)
