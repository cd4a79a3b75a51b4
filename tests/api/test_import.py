"""What importing the package does, which is nothing, and what it gives."""

import ast
import subprocess
import sys
from pathlib import Path

import mlstm_jax as mlstm

PROBE = """
import logging, os, signal, sys, threading
def state():
    return (
        # scikit-learn sets variables of OpenMP.
        {name: os.environ[name] for name in os.environ if not name.startswith("KMP_")},
        sys.unraisablehook, sys.excepthook, threading.active_count(),
        [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        {name: logging.getLogger(name).level for name in ("", "absl", "asyncio", "jax")},
    )
before, handlers = state(), logging.getLogger().handlers[:]
import mlstm_jax as mlstm
assert "jax" not in sys.modules, "jax is imported"
assert "numpy" not in sys.modules, "numpy is imported"
assert logging.getLogger().handlers == handlers
# Text needs no JAX, training nothing of the data's.
import mlstm_jax.cli, mlstm_jax.commands.corpora
assert "jax" not in sys.modules
import mlstm_jax.training.train, mlstm_jax.transfer.labels, mlstm_jax.commands.training
needless = {"duckdb", "sklearn", "matplotlib", "orbax", "tensorflow_datasets", "apache_beam"}
assert not sys.modules.keys() & needless
for name in %s:
    getattr(mlstm, name)
assert state() == before, (state(), before)
# All of this starts no JAX: the number of virtual devices can still be set.
from mlstm_jax import environment
from mlstm_jax.config import Devices
assert not environment.has_started()
environment.prepare(Devices(virtual_cpu=3))
import jax
assert jax.device_count() == 3
assert environment.has_started()
"""


def test_importing_changes_nothing_in_the_process(command_environment) -> None:
    """Nor does the first use of any public name, but for the handler that absl gives logging."""
    command = [sys.executable, "-c", PROBE % repr([*mlstm.__all__])]
    done = subprocess.run(command, env=command_environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there_and_documented() -> None:
    assert sorted(dir(mlstm)) == sorted(mlstm.__all__)
    for name in mlstm.__all__:
        if name != "__version__":
            assert getattr(mlstm, name).__doc__, name


def test_type_checkers_see_what_is_imported_late() -> None:
    """The names under TYPE_CHECKING and those of __getattr__ are the same, from the same place."""
    path = Path(mlstm.__file__)
    assert (path.parent / "py.typed").is_file()
    checked = {
        alias.name: node.module
        for block in ast.parse(path.read_text()).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert checked == {name: f"mlstm_jax.{where}" for name, where in mlstm._PUBLIC.items()}
    assert {*mlstm.__all__} == {*checked, "__version__"}
