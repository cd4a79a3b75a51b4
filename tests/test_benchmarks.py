"""Every benchmark runs in small and writes what it promises; what it compares computes the same."""

import argparse
import ast
import gzip
import hashlib
import json
import runpy
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mlstm_jax
from benchmarks.compile_without_gpu import require
from mlstm_jax.config import Config, Data, Model, to_json
from mlstm_jax.errors import UserError
from mlstm_jax.training.train import train as run_train
from tests.tolerance import assert_close
from tests.training import runs

FOLDER = Path(__file__).parent.parent / "benchmarks"

POINT = "--point 16 2 8 bf16 --rounds 1"
# The words after each script that make it small.
SMALL = {
    "configs": "{run} --rounds 1",
    "data": "--bytes 2e5 --files 2 --gzip --rounds 1 --rows 16 --window 32",
    "features": "--hidden 16 --count 4 --compared 2 --rounds 1",
    "gpu_check": "--small",
    "gpu_many": "--small --devices 2 --out {out}",
    "gpu_program": "--grid small",
    "layers": "--hidden 16 --rows 2 --window 8 --rounds 1",
    "products": POINT,
    "reading": "--short-counts 2 3 --long-counts 1 --bytes 30 --rounds 1 --compute auto",
    "recurrence": f"{POINT} --implementations ours autodiff --recompute-every 4",
    "scaling": "--devices 2 --hidden 16 --rows 2 --window 8 --steps 1 --rounds 1",
    "start": "--rounds 1 --sizes '128 units'",
    "train_step": f"{POINT} --implementations ours",
    "verbatim": "{run} --corpus {corpus} --samples 4 --temperatures 1",
}
# They measure whole commands, or choose how JAX starts.
OWN_PROCESS = {"data", "gpu_check", "gpu_many", "gpu_program", "reading", "scaling", "start"}
QUICK = {"data", "verbatim"}
# `make test-gpu` starts these.
ON_A_GPU = {*("features", "gpu", "gpu_check", "gpu_report", "products", "recurrence", "train_step")}


def test_small_forms() -> None:
    trees = {path.stem: ast.parse(path.read_text()) for path in FOLDER.glob("*.py")}
    scripts = {name for name, tree in trees.items() if isinstance(tree.body[-1], ast.If)}
    assert scripts == SMALL.keys() | ON_A_GPU
    for name, tree in trees.items():
        froms = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not [module for module in froms if str(module).startswith("tests")], name


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (FOLDER, FOLDER / "hour"):
        monkeypatch.syspath_prepend(folder)


@pytest.fixture(scope="module")
def run_folder(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("benchmarks") / "run"
    train = runs.short(steps=2, epochs=None, eval_every=2, checkpoint_every=2)
    run_train(runs.make_config(corpus, folder, train=train))
    return folder


@pytest.mark.parametrize(
    "script", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in SMALL]
)
def test_scripts_in_small(script, corpus, run_folder, tmp_path, monkeypatch, command_environment):
    if script == "gpu_program":
        try:
            require()
        except UserError as error:
            pytest.skip(str(error))
    # Few texts, instead of all reviews that there are.
    (tmp_path / "imdb").mkdir()
    with gzip.open(tmp_path / "imdb/unsup.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": f"{n} and more. " * 90}) + "\n" for n in range(90))
    command_environment["MLSTM_JAX_SHARED_DATA"] = str(tmp_path)
    path = tmp_path / "results.json"
    small = SMALL[script].format(corpus=corpus, run=run_folder, out=tmp_path / "out")
    words = [*shlex.split(small), "--json", str(path)]
    if script in OWN_PROCESS:
        command = [sys.executable, "-W", "always::ResourceWarning", FOLDER / f"{script}.py", *words]
        pipe = {"env": command_environment, "capture_output": True, "text": True}
        done = subprocess.run(command, timeout=600, **pipe)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "ResourceWarning" not in done.stderr
    else:
        monkeypatch.setattr(sys, "argv", [script, *words])
        runpy.run_path(str(FOLDER / f"{script}.py"), run_name="__main__")
    results = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert results
    if script == "data":  # before compression
        assert results["bytes"] >= 2e5


def test_sizes_that_do_not_fit(tmp_path, monkeypatch, capsys):
    from measure import Case, Point, run

    def cases(point: Point) -> Iterator[Case]:
        if point.hidden == 3:
            raise ValueError("the second size")
        yield Case("small", "zeros", 1, lambda: jnp.zeros(1), None)
        yield Case("large", "zeros", 1, lambda: jnp.zeros(2**50), None)

    monkeypatch.setattr("measure.large_product", lambda dtype: (lambda: time.sleep(1e-4), 1))
    sizes = [Point(2, 1, 1, "fp32"), Point(3, 1, 1, "fp32")]
    path = tmp_path / "results.json"
    given = argparse.Namespace(points=sizes, rounds=1, seconds=0, json=path)
    with pytest.raises(ValueError, match="the second size"):
        run("zeros", given, cases)
    (row,) = json.loads(path.with_suffix(".part").read_text())["rows"]
    assert (row["hidden"], row["implementation"]) == (2, "small")
    assert "large, zeros: does not fit into memory" in capsys.readouterr().out
    assert not path.exists()


@pytest.mark.slow
@pytest.mark.numeric
def test_compared_programs(random) -> None:
    import baselines
    import recurrence as benchmark
    from measure import Point

    from mlstm_jax.model.stack import run_layer

    point = Point(12, 3, 9, "fp32")
    params = benchmark.make_parameters(point.hidden)
    bytes_TB = random.integers(0, 256, (9, 3), dtype=np.int32)
    direction = random.normal(size=(9, 3, 12)).astype(np.float32)

    def by_jax(run: Any) -> Any:
        def scalar(params: Any) -> Any:
            return jnp.vdot(benchmark.mlstm(run, point, params, bytes_TB), direction)

        return jax.jit(jax.value_and_grad(scalar))(params)

    # 3 rows of 9 steps, and there and back through the products of 12 units.
    ours = by_jax(run_layer)
    assert_close(ours, by_jax(baselines.autodiff), 3 * 9 + 2 * (2 * 12 + 1))


def test_repeated_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Python's own search, over the edges of its blocks."""
    import verbatim

    monkeypatch.setattr(verbatim, "_BLOCK", 64)
    random = np.random.default_rng(0)
    train = random.integers(97, 100, 1000).astype(np.uint8)
    samples = np.concatenate([random.integers(97, 100, 200).astype(np.uint8), train[37:87]])
    train_text = train.tobytes()
    text = samples.tobytes()
    for length in (5, 9, 20, 50):
        expected = [text[n : n + length] in train_text for n in range(len(text) - length + 1)]
        np.testing.assert_array_equal(verbatim.repeated(samples, train, length), expected)
    found = verbatim.measured(samples, train)
    assert 50 <= found["longest"] < 60
    assert found["share in passages of"]["50"] == pytest.approx(50 / 250, abs=0.05)


def test_configs_as_they_train(tmp_path, monkeypatch) -> None:
    """A device of several has the rows of one; an unset type is the fastest."""
    import configs

    monkeypatch.setattr("mlstm_jax.host.fastest_compute", lambda units: "bf16")
    data = Data(batch_per_device=4, window=8)
    path = tmp_path / "config.json"
    path.write_text(to_json(Config(model=Model(hidden=16), data=data)))
    config = configs.read_config(str(tmp_path))
    assert config.data.batch == 4
    assert config.precision.compute == "bf16"
    monkeypatch.setattr(sys, "argv", ["configs", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"train\.steps is not set"):
        configs.main()


CHEAT = """
import sys, pathlib
_, mode, out, *files = sys.argv
if not files:
    pathlib.Path(out).mkdir()
    sys.exit()
import numpy as np
text = np.frombuffer(pathlib.Path(files[0]).read_bytes(), np.uint8)
rows = np.full((len(text), 256), -np.log(256), np.float32)
if mode == "future":
    rows[:] = np.log(0.1 / 255)
    rows[np.arange(len(text)), text] = np.log(0.9)
if mode == "sum":
    rows += 0.1
np.save(files[1], rows)
"""


# Limits are set between fork and exec; JAX, which an entry does not have here, warns of any fork.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("honest", None),
        ("future", "the prediction of a byte before [0-9]+ depends on bytes from there on"),
        ("sum", "the probabilities of byte 0 add up to 1.10517, not 1"),
    ],
)
def test_entries_of_the_hour(mode, problem, tmp_path, monkeypatch, random):
    import hour

    for split, size in (("train", 2000), ("valid", 100), ("test", 500)):
        text = bytes(random.integers(97, 123, size, dtype=np.uint8))
        (tmp_path / f"{split}.txt").write_bytes(text)
        monkeypatch.setitem(hour.SPLITS, split, hashlib.sha256(text).hexdigest())
    program = tmp_path / "program.py"
    program.write_text(CHEAT)
    monkeypatch.setattr(hour, "ENTRIES", tmp_path / "entries")
    call = f"{shlex.quote(sys.executable)} {program} {mode} {{out}}"
    words = ["hour.py", "enter", mode, "--text", str(tmp_path), "--seeds", "0", "1"]
    commands = ["--train", call, "--predict", f"{call} {{file}} {{result}}"]
    monkeypatch.setattr(sys, "argv", [*words, *commands])
    if problem:
        with pytest.raises(SystemExit, match=problem):
            hour.main()
        assert not (tmp_path / "entries").exists()
    else:
        hour.main()
        (entry,) = (tmp_path / "entries").iterdir()
        runs = json.loads(entry.read_text())["runs"]
        assert [run["seed"] for run in runs] == [0, 1]
        assert all(run["bits_per_byte"] == pytest.approx(8, abs=1e-6) for run in runs)
        assert "| honest | **8.0000** |" in hour.table()


def test_our_entry_of_the_hour(run_folder, tmp_path, monkeypatch):
    """Of each byte, with a window that divides the text and one that does not."""
    import ours

    model = mlstm_jax.load(run_folder)
    model.export(tmp_path / "model.safetensors")
    text = "A text of some bytes, of which none is blank or follows another alike."
    cleaned = model.cleaned(text)
    (tmp_path / "file").write_bytes(cleaned)
    for window in (len(cleaned) - 1, 16):
        monkeypatch.setattr(ours, "WINDOW", window)
        ours.predict(tmp_path, tmp_path / "file", tmp_path / "rows.npy")
        rows_NV = np.load(tmp_path / "rows.npy")
        of_text = rows_NV[np.arange(len(cleaned)), np.frombuffer(cleaned, np.uint8)]
        assert of_text[0] == np.float32(-np.log(256))
        assert_close(of_text[1:], model.log_probabilities(text), 256 + 48)
