"""The cache of compiled programs, in processes of their own; memory and devices that JAX needs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax import arrays, cache, environment, host, weights
from mlstm_jax.config import Model
from mlstm_jax.errors import UserError
from tests.tables import draw_arrays
from tests.training.runs import config_of

PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # as if they were not installed
from mlstm_jax import environment
environment.cache_programs()
import jax, jax.numpy as jnp, numpy as np
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
def compiled_once(x):
    return jnp.sin(x).sum()
print(jax.jit(compiled_once)(np.ones(8, np.float32)), end=" ")
print(sum(name.endswith("cache_hits") for name in hits))
"""


@pytest.fixture
def begin(tmp_path, command_environment) -> Callable[..., subprocess.Popen[str]]:
    own = {cache.CACHE: str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

    def start(*missing: str, **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", "-c", PROGRAM, *missing]
        return subprocess.Popen(command, env=command_environment | own | variables, **pipe)

    return start


def said(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=120)[0]


def test_cached_program(tmp_path, begin) -> None:
    """Two processes begin at once, and both write; what is there is not compiled again."""
    both = [begin(), begin()]
    first = said(both[0])
    result = first.split()[0]
    for text in (first, said(both[1])):
        assert text in (f"{result} 0\n", f"{result} 1\n")
    (program,) = tmp_path.glob("*/*/jit_compiled_once*")
    assert program.parent.stat().st_mode & 0o077 == 0
    assert said(begin()) == f"{result} 1\n"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="it has this codec")
def test_cache_of_two_codecs(tmp_path, begin) -> None:
    """A codec such as Python 3.14's has a folder of its own: JAX's key calls it zlib, too."""
    codec = tmp_path / "later/compression/zstd.py"
    codec.parent.mkdir(parents=True)
    codec.write_text("def compress(a): return b'(' + a\ndef decompress(a): return a[1:]\n")
    later = f"{tmp_path}/later{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    for hits in (0, 1):
        for variables in ({}, {"PYTHONPATH": later}):
            assert said(begin("zstandard", **variables)).endswith(f" {hits}\n")
    assert len([*tmp_path.glob("*/*/jit_compiled_once*")]) == 2


def test_damaged_entries(tmp_path: Path) -> None:
    """Each is as one that is not there, and is compiled again."""
    kept = cache.Cache(tmp_path)
    value = b"a program"
    kept.put("one", value)
    kept.put("two", value)
    whole = (tmp_path / "one").read_bytes()
    damages = [b"", whole[:-1], whole + b"\0", (tmp_path / "two").read_bytes()]
    for place in range(8 * len(whole)):
        bits = bytearray(whole)
        bits[place // 8] ^= 1 << place % 8
        damages.append(bytes(bits))
    for damaged in damages:
        (tmp_path / "one").write_bytes(damaged)
        assert kept.get("one") is None
        assert not (tmp_path / "one").exists()
        kept.put("one", value)
        assert kept.get("one") == value


def test_size_of_the_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cache, "_MOST_BYTES", 250)
    kept = cache.Cache(tmp_path)
    for age, name in enumerate(("killed.1-2", "b", "c")):
        kept.put(name, bytes(50))
        os.utime(tmp_path / name, (age, age))
    assert kept.get("b")
    kept.put("d", bytes(100))
    assert set(os.listdir(tmp_path)) == {"b", "d"}


def test_folders_of_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another processor, or other flags of XLA, do not run the same program."""
    monkeypatch.setenv(cache.CACHE, str(tmp_path))
    places = {cache.cache_folder()}
    for flags in ("flags : avx", "flags : avx avx2"):
        monkeypatch.setattr(Path, "read_text", Mock(return_value=flags))
        places.add(cache.cache_folder())
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    places.add(cache.cache_folder())
    assert len(places) == 4


def test_places_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin) -> None:
    """Turned off; set by the user; and where others may write what this process would execute."""
    monkeypatch.setenv(cache.CACHE, "")
    assert cache.cache_folder() is None
    with monkeypatch.context() as without_home:
        without_home.delenv("XDG_CACHE_HOME", raising=False)
        without_home.delenv("HOME")
        without_home.delenv(cache.CACHE)
        without_home.setattr("pwd.getpwuid", {}.__getitem__)  # as of a container's user
        assert cache.cache_folder() is None
    monkeypatch.setenv(cache.CACHE, str(tmp_path / "ours"))
    place = cache.cache_folder()
    assert place.parent == tmp_path / "ours"
    for mode in (0o777, 0o770):
        place.chmod(mode)
        assert cache.cache_folder() is None
    variables = {cache.CACHE: str(tmp_path / "ours"), "JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    assert said(begin(**variables)).endswith(" 0\n")
    assert [*tmp_path.glob("jit_compiled_once*")]


STARTED = """
import os, signal, sys
import jax
import mlstm_jax as mlstm
from mlstm_jax.api import model as _  # imports JAX, which does not start it
from mlstm_jax.errors import UserError

def exit_code_of_child(work):
    child = os.fork()
    if not child:
        signal.alarm(300)  # A computation that never ends is killed.
        try:
            work()
        except UserError as error:
            os._exit(2 if "spawn" in str(error) else 1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def load():
    return mlstm.load(sys.argv[1], reader="jax")

print(exit_code_of_child(lambda: load().encode(["good"])))
os.environ["NPROC"] = "3"
print(jax.config.jax_compilation_cache_dir)
model = load()
print(jax.config.jax_compilation_cache_dir)
model.generate("a", bytes=1)
threads = [open(f"/proc/self/task/{name}/comm").read() for name in os.listdir("/proc/self/task")]
print(sum("XLAEigen" in name for name in threads))
for work in (
    load,
    lambda: model.encode(["good"]),
    lambda: model.generate("a", bytes=1),
    lambda: model.log_probabilities("good"),
    lambda: model.cleaned("good"),
):
    print(exit_code_of_child(work))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_forked_children_and_threads(tmp_path, command_environment):
    """A child forked before JAX starts computes; a later one is refused. NPROC limits threads.

    `load` for JAX sets the cache of programs; the import does not.
    """
    model = Model(hidden=4, embedding=4)
    shapes = weights.expected_shapes(model)
    flat = draw_arrays(np.random.default_rng(0), shapes)
    path = tmp_path / "model.safetensors"
    weights.save(path, weights.ModelWeights(model, "none", arrays.unflatten(flat), ""))
    command = [sys.executable, "-W", "ignore", "-c", STARTED, str(path)]
    pipe = {"capture_output": True, "text": True}
    own = {cache.CACHE: str(tmp_path / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = subprocess.run(command, env=command_environment | own, **pipe)
    assert done.returncode == 0, done.stderr
    child, before, after, *others = done.stdout.split()
    assert (child, before) == ("0", "None")
    assert [Path(after)] == [*tmp_path.glob("cache/*/z*")]
    assert others == ["3", "2", "2", "2", "2", "0"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("Unable to initialize backend 'x'\nand more"), r"backend 'x'\)\. Install"),
        (AssertionError(), r"AssertionError\)\. Install"),
    ],
)
def test_missing_devices(error, told, monkeypatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "x")
    monkeypatch.setattr(jax, "local_devices", Mock(side_effect=error))
    with pytest.raises(UserError, match=f"JAX_PLATFORMS='x' .*{told}"):
        environment.local_devices()


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("jax_enable_x64", True),
        ("jax_debug_infs", True),
        ("jax_debug_nans", True),
        ("jax_high_dynamic_range_gumbel", True),
        ("jax_numpy_dtype_promotion", "strict"),
        ("jax_random_seed_offset", 5),
        ("jax_threefry_partitionable", False),
        ("jax_disable_jit", True),
        ("jax_transfer_guard", "disallow"),
        ("jax_transfer_guard_device_to_host", "disallow"),
        ("jax_transfer_guard_host_to_device", "disallow"),
    ],
)
def test_settings_of_jax(flag, value, corpus, tmp_path) -> None:
    """Other text for a seed, or an error inside of JAX."""
    before = getattr(jax.config, flag)
    jax.config.update(flag, value)
    try:
        with pytest.raises(UserError, match=f"setting {flag} is {value}, .*{flag.upper()}"):
            mlstm.train(config_of(corpus, tmp_path / "run", 2))
        with pytest.raises(UserError, match=f"setting {flag} is {value},"):
            environment.local_devices()
    finally:
        jax.config.update(flag, before)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("own", "limits", "least"),
    [
        ("0::/\n", {"memory.max": "5000\n"}, 5000),
        ("0::/a/b\n", {"memory.max": "max\n", "a/memory.max": "7", "a/b/memory.max": "9"}, 7),
        ("0::/a\n", {}, None),
    ],
)
def test_limits_of_control_groups(own, limits, least, tmp_path, monkeypatch):
    (tmp_path / "own").write_text(own)
    for name, text in limits.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    monkeypatch.setattr(host, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(host, "_GROUPS", tmp_path / "groups")
    found = host.memory_limits()
    groups = [size for name, size in found.items() if "cgroup" in name]
    assert groups == ([] if least is None else [least])
    assert found["the machine's memory"] > 2**28
