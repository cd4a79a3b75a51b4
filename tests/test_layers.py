"""Imports point downwards: no module imports one of a layer above its own."""

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import mlstm_jax

PACKAGE = Path(mlstm_jax.__file__).parent

# From the top. A module's longest prefix here tells its layer; one layer may import itself.
LAYERS = [
    {"__main__", "cli", "commands"},
    {"layers"},
    {"api", "analysis"},
    {"view"},
    {"transfer", "planning"},
    {"training"},
    {"run"},
    {"loaded"},
    {"openai"},
    {"checkpoint", "record", "weights"},
    {"arrays"},
    {"parallel"},
    {"distributed", "launcher", "environment", "host"},
    {"cache"},
    {"corpora"},
    {"data"},
    {"config"},
    {"model"},
    {"digest"},
    {"store"},
    {"options"},
    {"fields", "guard", "output", "shipped"},
    {"errors", "terminal"},
]


def layer_of(module: str) -> int:
    name = module.removeprefix("mlstm_jax.")
    found = {one: number for number, names in enumerate(LAYERS) for one in names}
    while name not in found:
        name = name.rpartition(".")[0]
    return found[name]


def imports(tree: ast.AST) -> Iterator[str]:
    """The package's modules that some code imports, at its top or later."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mlstm_jax"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                file = PACKAGE.parent / Path(*inner.split("."))
                is_module = file.is_dir() or file.with_suffix(".py").is_file()
                if is_module:
                    yield inner
                elif node.module != "mlstm_jax":  # which gives its version
                    yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("mlstm_jax."))


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


@functools.cache
def graph() -> dict[str, set[str]]:
    """The modules that each module imports; without the public names of the package itself."""
    modules = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): set(imports(tree))
        for path, tree in trees().items()
    }
    del modules["mlstm_jax.__init__"]
    return {name.removesuffix(".__init__"): imported for name, imported in modules.items()}


def test_order_of_imports() -> None:
    upwards = [
        f"{name} -> {one}"
        for name, imported in graph().items()
        for one in imported - {"mlstm_jax"}
        if layer_of(one) < layer_of(name)
    ]
    assert not upwards


def test_circles() -> None:
    """Not even late, inside a function."""
    TopologicalSorter(graph()).prepare()


READING = ("classify", "device_bytes", "features", "heatmap", "trace", "windows")


def test_reading_needs_no_training() -> None:
    """What reads texts, with NumPy or JAX, imports no training or processes, not even late."""
    needed: set[str] = set()
    waiting = {f"mlstm_jax.transfer.{name}" for name in READING}
    while waiting:
        one = waiting.pop()
        needed.add(one)
        waiting |= graph().get(one, set()) - needed
    assert "mlstm_jax.parallel" in needed
    assert not {one for one in needed if one.startswith("mlstm_jax.training")}
    assert "mlstm_jax.distributed" not in needed


def test_imports_inside_functions() -> None:
    """Only what needs an optional package or a long time, and all that a command runs."""
    found = {
        (node.lineno, str(path.relative_to(PACKAGE)), one)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for one in imports(node)
        if path.parent.name != "commands"
    }
    assert len(found) <= 20, found


def test_layers_of_modules() -> None:
    top = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in trees()}
    assert top - {"__init__"} == {name.split(".")[0] for names in LAYERS for name in names}


# What JAX may move or remove, and the only file that names it.
UNSTABLE = {
    ("jax._src", "distributed.py"),
    ("jax._src", "cache.py"),
    ("jax._src", "launcher.py"),
    ("jax.experimental.layout", "model/ops.py"),
    ("jax.experimental.pallas", "model/pallas.py"),
    ("jax.pmap", "parallel.py"),
    ("jax.shard_map", "parallel.py"),
    ("jaxlib", "store.py"),
}


def test_unstable_parts_of_jax() -> None:
    names = r"\b(?:jax\.(?:experimental(?:\.\w+)?|_src|pmap|shard_map)|jaxlib(?=\._jax))\b"
    unstable = re.compile(names)
    found = set()
    for path in trees():
        text = re.sub(r"\bfrom (jax[.\w]*) import (?=\w)", r"\1.", path.read_text())
        found |= {(name, str(path.relative_to(PACKAGE))) for name in unstable.findall(text)}
    assert found == UNSTABLE
