"""Break the package in one place at a time, and count the breaks that the tests catch.

    python tests/mutants.py [--count 40] [--seed 0]

Each break is one operator, condition or number, drawn at random over all modules. In a copy of the
checkout, the tests that name the module run first, then those of its folder, all others, and the
slow ones that name it. Most breaks take less than a minute; one not caught, that of `make test`
and more. Some breaks change nothing that anybody could see: look at those not caught.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = "mlstm_jax"
SWAPS: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip


class Break(NamedTuple):
    """A line with something else in one place."""

    path: Path
    line: int
    old: str
    new: str


def breaks(path: Path) -> Iterator[Break]:
    """Yield every possible break of a module, of those that fit on one line."""
    lines = path.read_text(encoding="utf-8").splitlines()

    def between(left: ast.expr, right: ast.expr, new: str) -> Iterator[Break]:
        if left.end_lineno == right.lineno:
            raw = lines[right.lineno - 1].encode()
            start, end = left.end_col_offset or 0, right.col_offset
            gap = raw[start:end].decode()
            if "(" not in gap and ")" not in gap:
                line = raw[:start].decode() + f" {new} " + raw[end:].decode()
                yield Break(path, right.lineno, lines[right.lineno - 1], line)

    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from between(node.left, node.comparators[0], SWAPS[type(node.ops[0])])
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            yield from between(node.left, node.right, SWAPS[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            yield from between(*node.values[:2], SWAPS[type(node.op)])
        elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
            line, raw = lines[node.lineno - 1], lines[node.lineno - 1].encode()
            new = str(not node.value if isinstance(node.value, bool) else node.value + 1)
            end = node.end_col_offset
            whole = raw[: node.col_offset].decode() + new + raw[end:].decode()
            yield Break(path, node.lineno, line, whole)


def tests_of(module: Path) -> Iterator[list[str]]:
    """Yield the arguments of runs of pytest, the likeliest to fail first; at last every test."""
    *package, name = [part for part in module.with_suffix("").parts if part != "__init__"]
    use = re.compile(rf"\b{'.'.join(package)}(\.{name}\b| import (\([^)]*|.*)\b{name}\b)")
    own = f"tests/{package[1] if package[1:] else name}"
    paths = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/**/test_*.py"))]
    naming = [path for path in paths if use.search((ROOT / path).read_text(encoding="utf-8"))]
    naming.sort(key=lambda path: not path.startswith(own))
    usual = [path for path in (own, "tests/api", "tests/test_cli.py")
             if (ROOT / path).exists() and path not in naming]  # fmt: skip
    if naming:
        yield naming
    yield [*usual, *(f"--ignore={path}" for path in naming)]
    yield ["tests", *(f"--ignore={path}" for path in (*naming, *usual))]
    yield ["-m", "slow", *(naming or usual)]


def is_caught(copy: Path, one: Break) -> bool:
    """Run the tests with one break, in the copy, until one fails."""
    module = one.path.relative_to(ROOT)
    target, original = copy / module, one.path.read_text(encoding="utf-8")
    lines = original.splitlines(keepends=True)
    lines[one.line - 1] = one.new + "\n"
    target.write_text("".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "2"]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    try:
        for arguments in tests_of(module):
            if "slow" in arguments:  # as in the Makefile
                environment["XLA_FLAGS"] = ""
            run = subprocess.run(
                [*command, *arguments],
                cwd=copy, env=environment, capture_output=True, timeout=3600, check=False,
            )  # fmt: skip
            if run.returncode not in (0, 5):  # 5: there are no such tests
                return True
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        target.write_text(original, encoding="utf-8")


def main() -> None:
    """Break, test, restore."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    every = [one for path in sorted((ROOT / PACKAGE).rglob("*.py")) for one in breaks(path)]
    chosen = random.Random(options.seed).sample(every, options.count)
    caught = 0
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "runs"))
        for one in chosen:
            is_one = is_caught(copy, one)
            caught += is_one
            place = f"{one.path.relative_to(ROOT)}:{one.line}"
            print(f"{'caught' if is_one else 'NOT CAUGHT'}  {place}  {one.new.strip()}", flush=True)
    print(f"{caught} of {len(chosen)} breaks are caught")


if __name__ == "__main__":
    main()
