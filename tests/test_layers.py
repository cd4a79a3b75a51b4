"""Imports point downwards: no module imports one of a layer above its own."""

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import mlstm_jax

PACKAGE = Path(mlstm_jax.__file__).parent

# From the top. A module's layer is that of its longest prefix here; one layer may import itself.
LAYERS = [
    {"__main__", "cli", "commands"},
    {"view"},
    {"api", "analysis"},
    {"transfer", "planning"},
    {"training"},
    {"run"},
    {"interop", "checkpoint"},
    {"distributed", "environment"},
    {"corpora"},
    {"data"},
    {"config"},
    {"model"},
    {"digest"},
    {"fields", "guard", "output", "shipped"},
    {"errors", "terminal"},
]


def layer_of(module: str) -> int:
    name = module.removeprefix("mlstm_jax.")
    found = {one: number for number, names in enumerate(LAYERS) for one in names}
    while name not in found:
        name = name.rpartition(".")[0]
    return found[name]


def imports(path: Path) -> Iterator[str]:
    """The package's modules that a file imports, at its top or later."""
    for node in ast.walk(ast.parse(path.read_text())):
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
def graph() -> dict[str, set[str]]:
    """The modules that each module imports; without the public names of the package itself."""
    modules = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
    }
    del modules["mlstm_jax.__init__"]
    return {name.removesuffix(".__init__"): set(imports(path)) for name, path in modules.items()}


def test_no_import_runs_upwards() -> None:
    upwards = [
        f"{name} -> {one}"
        for name, imported in graph().items()
        for one in imported - {"mlstm_jax"}
        if layer_of(one) < layer_of(name)
    ]
    assert not upwards


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even late, inside a function."""
    TopologicalSorter(graph()).prepare()


def late_imports(path: Path) -> Iterator[str]:
    """The package's modules that a file imports inside a function."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mlstm_jax"):
                    yield f"{path.relative_to(PACKAGE)}: {node.module}"


def test_few_imports_are_inside_functions() -> None:
    """Only the table of commands, and what needs an optional package or a long time to import."""
    found = [one for path in PACKAGE.rglob("*.py") for one in late_imports(path)]
    assert len(found) <= 20, found


def test_every_module_has_a_layer() -> None:
    top = {path.relative_to(PACKAGE).parts[0].partition(".")[0] for path in PACKAGE.rglob("*.py")}
    top -= {"__init__", "__pycache__"}
    assert top == {name.split(".")[0] for names in LAYERS for name in names}


# What JAX may move or remove, and the only file that names it.
UNSTABLE = {
    "experimental.layout": "model/ops.py",
    "experimental.pallas": "model/pallas.py",
    "experimental.topologies": "planning/compile.py",
    "pmap": "training/parallel.py",
    "shard_map": "training/parallel.py",
}


def jax_names(path: Path) -> Iterator[str]:
    """What a file takes of jax.experimental, and of pmap and shard_map."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jax":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def test_what_jax_may_remove_is_in_one_file_each() -> None:
    found = {
        (re.sub(r"^jax\.(experimental\.\w+|\w+).*", r"\1", name), str(path.relative_to(PACKAGE)))
        for path in PACKAGE.rglob("*.py")
        for name in jax_names(path)
        if re.match(r"jax\.(experimental|_src|pmap$|shard_map$)", name)
    }
    assert found == set(UNSTABLE.items())
