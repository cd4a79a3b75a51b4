"""Four virtual CPU devices and no silent broadcasting between ranks, for every test."""

import functools
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from mlstm_jax import cache, environment, terminal
from mlstm_jax.config import Devices
from tests import xla_flags

# Before jax is imported. All processes of a session, those that tests start among them, share the
# programs that they compile, and so do later sessions; `make clean` removes them.
os.environ.setdefault(cache.CACHE, str(Path(__file__).parents[1] / ".pytest_cache/programs"))
# Most of a small program's time goes into compiling it: a third of it with these flags.
# `make test-slow` sets XLA_FLAGS, and so has programs that are optimized as a user's are.
FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE"
)
if "XLA_FLAGS" not in os.environ:
    unknown = xla_flags.unknown(FLAGS)
    known = [flag for flag in FLAGS.split() if flag not in unknown]
    if isa := os.environ.get("MLSTM_JAX_TEST_ISA"):
        known.append(f"--xla_cpu_max_isa={isa}")
    os.environ["XLA_FLAGS"] = " ".join(known)
# pytest would capture XLA's own message.
assert not xla_flags.unknown(os.environ["XLA_FLAGS"])
terminal.SLOW_SECONDS = 1e5  # a loaded machine compiles for seconds, and tests read what is printed
environment.prepare(Devices(virtual_cpu=4))

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from filelock import FileLock  # noqa: E402

import mlstm_jax as mlstm  # noqa: E402
from mlstm_jax import checkpoint, cli  # noqa: E402
from mlstm_jax.config import Config, Data, Model, Optimizer, Train  # noqa: E402
from mlstm_jax.corpora.prepare import prepare  # noqa: E402
from mlstm_jax.run import Run, load_run  # noqa: E402
from mlstm_jax.training.train import train as run_train  # noqa: E402
from tests.training.runs import Launcher  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
# All that is imported stays: the garbage collector need not search it at each of its rounds.
gc.freeze()


@functools.cache
def _compiles_fp16() -> bool:
    try:
        jax.jit(jax.numpy.sin)(np.ones(2, np.float16))
    except jax.errors.JaxRuntimeError:
        return False
    return True


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs fp16 where XLA has none: on processors without F16C."""
    if item.get_closest_marker("fp16") and not _compiles_fp16():
        pytest.skip("XLA compiles no fp16 for this processor")


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of made-up sentences, one a line, regular enough for a small model to learn."""
    generator = np.random.default_rng(1)
    words = [
        ["the", "this", "my", "that"],
        ["guitar", "strap", "tuner", "cable", "café", "piano"],
        ["is", "was", "works", "sounds"],
        ["good", "bad", "very well", "great", "as expected"],
    ]
    lines = [" ".join(map(generator.choice, words)) + f" {i}." for i in range(3000)]
    path = tmp_path_factory.mktemp("text") / "reviews.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def corpus(text_file: Path) -> Path:
    out = text_file.parent / "corpus"
    prepare([str(text_file)], out, split=(20, 1, 1))
    return out


@pytest.fixture(scope="session")
def rated_corpus(text_file: Path) -> Path:
    """The same sentences as reviews, each rated by its last words."""
    stars = {"good": 4, "bad": 1, "well": 5, "great": 5, "expected": 3}
    lines = text_file.read_text(encoding="utf-8").splitlines()
    rated = [{"text": line, "rating": stars[line.split()[-2]]} for line in lines]
    del rated[0]["rating"]  # one has none
    source = text_file.parent / "rated.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in rated), encoding="utf-8")
    out = text_file.parent / "rated_corpus"
    prepare([str(source)], out, split=(20, 1, 1))
    return out


@pytest.fixture
def command_environment() -> dict[str, str]:
    """The environment of a subprocess that starts as a user's shell would: one CPU device."""
    hidden = ("JAX_", "NPROC", "PYTHONUNBUFFERED")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    }


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must be refused, with exit code 2; return what it says."""

    def refuse(*words: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main([*map(str, words)])
        said = capsys.readouterr()
        assert stop.value.code == 2
        assert said.out == ""
        return said.err

    return refuse


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that succeeds; return what it prints."""

    def call(*words: object) -> str:
        capsys.readouterr()
        cli.main([*map(str, words)])
        return capsys.readouterr().out

    return call


@pytest.fixture(scope="session")
def run(text_file: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Run:
    """A small model that has learned the made-up reviews; two layers. All workers share it."""
    shared = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        shared = shared.parent
    folder = shared / "shared_model"
    with FileLock(shared / "shared_model.lock"):
        if not (folder / "done").exists():
            # A corpus of its own, whose place does not go with one worker.
            prepare([str(text_file)], folder / "corpus", split=(20, 1, 1))
            run_train(
                Config(
                    out=str(folder / "run"),
                    model=Model(hidden=64, embedding=16, layers=2),
                    data=Data(corpus=str(folder / "corpus"), batch=16, window=32),
                    optimizer=Optimizer(learning_rate=2e-2),
                    devices=Devices(count=1),
                    train=Train(steps=150, epochs=None, eval_every=150, checkpoint_every=150),
                )
            )
            (folder / "done").touch()
    return load_run(folder / "run")


@pytest.fixture(scope="session")
def model(run: Run) -> mlstm.TrainedModel:
    return mlstm.load(run.folder)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is damaged here stays so, however long one waits."""
    monkeypatch.setattr(checkpoint, "PAUSES", (0.01, 0.01))


@pytest.fixture(scope="module")
def collected() -> Iterator[None]:
    """Collect what failed restores leave, before it is charged to a test of another file.

    Orbax abandons the reads of a damaged checkpoint; when they are collected, each complains.
    """
    yield
    gc.collect()


@pytest.fixture
def launcher(tmp_path: Path, command_environment: dict[str, str]) -> Iterator[Launcher]:
    """None of what it has started outlives the test."""
    launcher = Launcher(tmp_path, command_environment)
    yield launcher
    for process in launcher.started:
        process.kill()
        if not process.stdout.closed:
            process.communicate()
